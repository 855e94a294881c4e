"""Devices: activity, memory, clocks, power, temperature, throttling; and the same while a job holds them."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin_exporter.attribution import EVENT_COUNTERS, Attribution, HeldDevice
from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.metrics import FAMILIES
from tocsin_exporter.sources.nvml.model import Device
from tocsin_exporter.sources.nvml.source import NvmlSource

__all__ = ["NAME", "GpuCollector", "build", "device_labels", "device_samples", "holder_labels"]

NAME = "gpu"

# Quantities that other collectors serve.
ELSEWHERE = ("pcie_", "ecc_errors", "row_remap")


def device_labels(device: Device) -> tuple[str, str, str]:
    """Return the values of the device labels."""
    return (device.gpu, device.uuid, device.mig)


def holder_labels(held: HeldDevice) -> tuple[str, str, str, str, str]:
    """Return the values of the labels of a device series of a job."""
    return (held.gpu, held.uuid, held.mig, held.job_id, held.rank)


def device_samples(
    devices: tuple[Device, ...],
    held: tuple[HeldDevice, ...],
    *,
    prefixes: tuple[str, ...],
    inverse: bool = False,
) -> Iterator[Sample]:
    """
    Yield the quantities whose names start with one of *prefixes* (or with none, when *inverse*).

    Gauges of a job end with its last process, its counters when nobody accounts for them any more.
    """

    def wanted(name: str) -> bool:
        return name.startswith(prefixes) != inverse

    by_uuid = {device.uuid: device for device in devices if device.up}
    for device in by_uuid.values():
        for (name, more), value in (*device.gauges.items(), *device.counters.items()):
            if wanted(name):
                yield Sample(f"tocsin_gpu_{name}", (*device_labels(device), *more), value)
    for holder in held:
        here = by_uuid.get(holder.uuid)
        if here is not None and holder.active:
            for (name, more), value in here.gauges.items():
                family = f"tocsin_job_gpu_{name}"
                if wanted(name) and family in FAMILIES:
                    yield Sample(family, (*holder_labels(holder), *more), value)
        for (name, more), value in holder.counters.items():
            # Counts of events stay true without a reading; time and energy would stand still.
            if wanted(name) and (here is not None or name in EVENT_COUNTERS):
                yield Sample(f"tocsin_job_gpu_{name}", (*holder_labels(holder), *more), value)


class GpuCollector:
    """Serves the last reading; devices that are gone or hang are told as such, with their identity."""

    name = NAME

    def __init__(self, nvml: NvmlSource, attribution: Attribution) -> None:
        self._nvml = nvml
        self._attribution = attribution

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        for device in self._nvml.devices():
            yield Sample("tocsin_gpu_up", (*device_labels(device), device.reason), float(device.up))
        held = self._attribution.published().devices
        for holder in held:
            if holder.owner:
                yield Sample("tocsin_gpu_owner", holder_labels(holder), 1)
        reading, error = self._nvml.latest.read()
        if reading is not None:
            for device in reading.devices:
                more = (device.model, device.pci, reading.driver_version, reading.cuda_version, device.vbios)
                yield Sample("tocsin_gpu_info", (*device_labels(device), *more), 1)
                if device.pids is not None:
                    yield Sample("tocsin_gpu_processes", device_labels(device), len(device.pids))
            yield from device_samples(reading.devices, held, prefixes=ELSEWHERE, inverse=True)
        if error is not None:
            raise error


def build(nvml: NvmlSource, attribution: Attribution) -> GpuCollector:
    """Return the collector."""
    return GpuCollector(nvml, attribution)
