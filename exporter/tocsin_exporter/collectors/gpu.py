"""Devices: activity, memory, clocks, power, temperature, throttling; and the same while a job holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tocsin_exporter.attribution import Attribution, HeldDevice
from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.collectors.device_series import DeviceSeries, device_labels, holder_labels
from tocsin_exporter.identity.resolver import Holder
from tocsin_exporter.metrics.gpu import HARDWARE
from tocsin_exporter.sources.nvml.model import Device
from tocsin_exporter.sources.nvml.quantities import LIMITS
from tocsin_exporter.sources.nvml.source import NvmlSource

__all__ = ["NAME", "GpuCollector", "build"]

NAME = "gpu"

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
        self._series = DeviceSeries(nvml, attribution, NAME)
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
        reading, error, samples = self._series.read()
        if reading is not None:
            for device in reading.devices:
                if device.info and not device.mig:
                    facts = tuple(device.info.get(name, "") for name in HARDWARE)
                    yield Sample("tocsin_gpu_hardware_info", (*device_labels(device), *facts), 1)
                if device.mig and device.info.get("profile"):
                    yield Sample("tocsin_gpu_mig_info", (*device_labels(device), device.info["profile"]), 1)
                if device.pids is not None:
                    yield Sample("tocsin_gpu_processes", device_labels(device), len(device.pids))
            yield from process_samples(reading.devices, held, self._job_of)
        yield from samples
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
