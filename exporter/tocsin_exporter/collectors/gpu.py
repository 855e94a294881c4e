"""Devices: activity, memory, clocks, power, temperature, throttling; and the same while a job holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from tocsin_exporter.attribution import EVENT_COUNTERS, WHOLE_READINGS, Attribution, HeldDevice
from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.identity.resolver import Holder
from tocsin_exporter.metrics import FAMILIES
from tocsin_exporter.metrics.gpu import HARDWARE
from tocsin_exporter.sources.nvml.model import Device
from tocsin_exporter.sources.nvml.quantities import LIMITS, QUANTITIES
from tocsin_exporter.sources.nvml.source import NvmlSource

__all__ = ["NAME", "GpuCollector", "build", "device_labels", "device_samples", "holder_labels"]

NAME = "gpu"

# On the device these are sums over everybody's processes; a job is told its own.
_OF_PROCESSES = ("process_memory_bytes", "memory_limit_bytes", "memory_limit_used_bytes")
# Quantities that other collectors serve.
ELSEWHERE = ("pcie_", "ecc_errors", "row_remap")


# Of these a job is told some only; see `Quantity.told`.
_TOLD = {row.name: frozenset(row.told) for row in QUANTITIES.values() if row.told}


def device_labels(device: Device) -> tuple[str, str, str]:
    """Return the values of the device labels."""
    return (device.gpu, device.uuid, device.mig)


def holder_labels(held: HeldDevice) -> tuple[str, str, str, str, str]:
    """Return the values of the labels of a device series of a job."""
    return (held.gpu, held.uuid, held.mig, held.job_id, held.rank)


@cache
def _names(prefixes: tuple[str, ...], inverse: bool) -> dict[str, tuple[str, str]]:
    """Return the quantities that are wanted with their families; looked up thousands of times per scrape."""
    return {
        name: (f"tocsin_gpu_{name}", f"tocsin_job_gpu_{name}")
        for name in QUANTITIES
        if name.startswith(prefixes) != inverse
    }


def device_samples(
    devices: tuple[Device, ...],
    held: tuple[HeldDevice, ...],
    *,
    prefixes: tuple[str, ...],
    inverse: bool = False,
) -> Iterator[Sample]:
    """
    Yield the quantities whose names start with one of *prefixes* (or with none, when *inverse*).

    Gauges of a job end with its last process, its counters when nobody accounts for them any more. A job on a
    MIG instance is told the state of the whole board as well, but not what the board draws or moves.
    """

    names = _names(prefixes, inverse)

    def told(name: str, more: tuple[str, ...]) -> bool:
        return name not in _TOLD or more[0] in _TOLD[name]

    by_uuid = {device.uuid: device for device in devices if device.up}
    whole = {device.gpu: device for device in by_uuid.values() if not device.mig}
    for device in by_uuid.values():
        labels = device_labels(device)
        for values in (device.gauges, device.counters):
            for (name, more), value in values.items():
                if name in names:
                    yield Sample(names[name][0], labels + more, value)
    for holder in held:
        here = by_uuid.get(holder.uuid)
        if here is not None and holder.active:
            gauges = here.gauges
            if holder.mig and (board := whole.get(holder.gpu)) is not None:
                shared = {key: value for key, value in board.gauges.items() if key[0] in WHOLE_READINGS}
                gauges = {**shared, **gauges}
            for (name, more), value in gauges.items():
                if name not in names or name in _OF_PROCESSES or not told(name, more):
                    continue
                if names[name][1] in FAMILIES:
                    yield Sample(names[name][1], (*holder_labels(holder), *more), value)
        for (name, more), value in holder.counters.items():
            # Counts of events stay true without a reading; time and energy would stand still.
            if name in names and told(name, more) and (here is not None or name in EVENT_COUNTERS):
                yield Sample(names[name][1], (*holder_labels(holder), *more), value)


def process_samples(
    devices: tuple[Device, ...], held: tuple[HeldDevice, ...], job_of: Callable[[int], str]
) -> Iterator[Sample]:
    """Yield what the processes of each holder have of the device's memory, and what its cgroups may have."""
    by_uuid = {device.uuid: device for device in devices if device.up}
    for holder in held:
        device = by_uuid.get(holder.uuid)
        if device is None or not holder.active:
            continue
        own = [process for process in device.processes if job_of(process[0]) == holder.job_id]
        known = [used for _, _, used, _ in own if used is not None]
        if known:
            yield Sample("tocsin_job_gpu_process_memory_bytes", holder_labels(holder), sum(known))
        limits = [
            device.limits[path] for path in sorted({process[3] for process in own}) if path in device.limits
        ]
        for position, (name, labels) in enumerate(LIMITS):
            values = [value for limit in limits if (value := limit[position]) is not None]
            if values:
                yield Sample(f"tocsin_job_gpu_{name}", (*holder_labels(holder), *labels), sum(values))


def nobody(pid: int) -> None:
    """Know of no job: what a collector without the identity view goes by."""


class GpuCollector:
    """Serves the last reading; devices that are gone or hang are told as such, with their identity."""

    name = NAME

    def __init__(
        self, nvml: NvmlSource, attribution: Attribution, holder_of: Callable[[int], Holder | None]
    ) -> None:
        self._nvml = nvml
        self._attribution = attribution
        self._holder_of = holder_of

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        versions = self._nvml.versions()
        for device in self._nvml.devices():
            yield Sample("tocsin_gpu_up", (*device_labels(device), device.reason), float(device.up))
            if device.model or device.pci:
                more = (device.model, device.pci, *versions, device.vbios)
                yield Sample("tocsin_gpu_info", (*device_labels(device), *more), 1)
        for hung in self._nvml.hung_calls():
            yield Sample("tocsin_gpu_hung_call_seconds", (hung.gpu, hung.uuid, "", hung.call), hung.seconds)
        held = self._attribution.published().devices
        for holder in held:
            if holder.owner:
                yield Sample("tocsin_gpu_owner", holder_labels(holder), 1)
        reading, error = self._nvml.latest.read()
        if reading is not None:
            for device in reading.devices:
                if device.info and not device.mig:
                    facts = tuple(device.info.get(name, "") for name in HARDWARE)
                    yield Sample("tocsin_gpu_hardware_info", (*device_labels(device), *facts), 1)
                if device.mig and device.info.get("profile"):
                    yield Sample("tocsin_gpu_mig_info", (*device_labels(device), device.info["profile"]), 1)
                if device.pids is not None:
                    yield Sample("tocsin_gpu_processes", device_labels(device), len(device.pids))
            yield from device_samples(reading.devices, held, prefixes=ELSEWHERE, inverse=True)
            yield from process_samples(reading.devices, held, self._job_of)
        if error is not None:
            raise error

    def _job_of(self, pid: int) -> str:
        holder = self._holder_of(pid)
        return holder.job_id if holder is not None else ""


def build(
    nvml: NvmlSource, attribution: Attribution, holder_of: Callable[[int], Holder | None] = nobody
) -> GpuCollector:
    """Return the collector; *holder_of* knows the job of a process."""
    return GpuCollector(nvml, attribution, holder_of)
