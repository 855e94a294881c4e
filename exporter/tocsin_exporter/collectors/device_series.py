"""The quantities of the newest reading, per device and per holder, for the collectors that serve them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tocsin_exporter.attribution import EVENT_COUNTERS, WHOLE_READINGS, Attribution, HeldDevice
from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.errors import CollectError
from tocsin_exporter.sources.nvml.model import Device, NvmlReading
from tocsin_exporter.sources.nvml.quantities import QUANTITIES
from tocsin_exporter.sources.nvml.source import NvmlSource

__all__ = ["DeviceSeries", "device_labels", "device_samples", "holder_labels", "holder_samples"]

# On the device these are sums over everybody's processes; a job is told its own.
_OF_PROCESSES = ("process_memory_bytes", "memory_limit_bytes", "memory_limit_used_bytes")
_FAMILY = {name: f"tocsin_gpu_{name}" for name in QUANTITIES}
_HELD = {
    name: f"tocsin_job_gpu_{name}"
    for name, row in QUANTITIES.items()
    if row.held and name not in _OF_PROCESSES
}
# Of these a job is told some only; see `Quantity.told`.
_TOLD = {row.name: frozenset(row.told) for row in QUANTITIES.values() if row.told}


def _serving(quantity: str) -> str:
    """Return the collector that serves a quantity."""
    if quantity.startswith("pcie_"):
        return "pcie"
    return "gpu_events" if quantity.startswith(("ecc_errors", "row_remap")) else "gpu"


_BY_COLLECTOR = {
    collector: frozenset(name for name in QUANTITIES if _serving(name) == collector)
    for collector in ("gpu", "gpu_events", "pcie")
}


def device_labels(device: Device) -> tuple[str, str, str]:
    """Return the values of the device labels."""
    return (device.gpu, device.uuid, device.mig)


def holder_labels(held: HeldDevice) -> tuple[str, str, str, str, str]:
    """Return the values of the labels of a device series of a job."""
    return (held.gpu, held.uuid, held.mig, held.job_id, held.rank)


def device_samples(devices: Iterable[Device], collector: str) -> Iterator[Sample]:
    """Yield what *collector* serves of devices."""
    mine = _BY_COLLECTOR[collector]
    for device in devices:
        if device.up:
            labels = device_labels(device)
            for values in (device.gauges, device.counters):
                for (name, more), value in values.items():
                    if name in mine:
                        yield Sample(_FAMILY[name], (*labels, *more), value)


def holder_samples(devices: Iterable[Device], held: Iterable[HeldDevice], collector: str) -> Iterator[Sample]:
    """
    Yield what *collector* tells the holders of devices.

    Gauges of a job end with its last process, its counters when nobody accounts for them any more. A job on a
    MIG instance is told the state of the whole board as well, but not what the board draws or moves.
    """
    mine = _BY_COLLECTOR[collector]
    by_uuid = {device.uuid: device for device in devices if device.up}
    boards = {device.gpu: device for device in by_uuid.values() if not device.mig}
    for holder in held:
        labels = holder_labels(holder)
        here = by_uuid.get(holder.uuid)
        if here is not None and holder.active:
            gauges = here.gauges
            if holder.mig and (board := boards.get(holder.gpu)) is not None:
                shared = {key: value for key, value in board.gauges.items() if key[0] in WHOLE_READINGS}
                gauges = {**shared, **gauges}
            for (name, more), value in gauges.items():
                if name in _HELD and name in mine and _told(name, more):
                    yield Sample(_HELD[name], (*labels, *more), value)
        for (name, more), value in holder.counters.items():
            # Counts of events stay true without a reading; time and energy would stand still.
            if name in mine and _told(name, more) and (here is not None or name in EVENT_COUNTERS):
                yield Sample(_HELD[name], (*labels, *more), value)


def _told(name: str, more: tuple[str, ...]) -> bool:
    return name not in _TOLD or more[0] in _TOLD[name]


class DeviceSeries:
    """
    The series that one collector serves of the driver's readings.

    Thousands of samples are the same for every scrape of one reading, so they are made when the reading
    comes in, in the thread that reads, rather than while somebody waits for them.
    """

    def __init__(self, nvml: NvmlSource, attribution: Attribution, collector: str) -> None:
        self._nvml = nvml
        self._attribution = attribution
        self._collector = collector
        self._prepared: tuple[NvmlReading | None, tuple[Sample, ...]] = (None, ())
        nvml.listen(self._prepare)

    def read(self) -> tuple[NvmlReading | None, CollectError | None, Iterable[Sample]]:
        """Return the newest reading, why there is no newer one, and the samples."""
        reading, error = self._nvml.latest.read()
        devices = reading.devices if reading is not None else ()
        held = holder_samples(devices, self._attribution.published().devices, self._collector)
        if reading is None:
            return None, error, held
        if self._prepared[0] is not reading:
            self._prepare(reading)
        return reading, error, (*self._prepared[1], *held)

    def _prepare(self, reading: NvmlReading) -> None:
        self._prepared = (reading, tuple(device_samples(reading.devices, self._collector)))
