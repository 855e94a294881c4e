"""Faults of the devices: Xid events by class and code, ECC errors, row remaps, and their last times."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin_exporter.attribution import Attribution
from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.collectors.device_series import DeviceSeries, holder_labels
from tocsin_exporter.events import EventHub
from tocsin_exporter.kmsg.xid_classes import CLASSES
from tocsin_exporter.sources.kmsg import KmsgSource
from tocsin_exporter.sources.nvml.source import NvmlSource

__all__ = ["NAME", "GpuEventsCollector", "build"]

NAME = "gpu_events"


class GpuEventsCollector:
    """
    Serves event counts, zero per class before the first event.

    It fails when the kernel log cannot be read, and still serves what the driver tells: not every event comes
    that way. Without a driver every event is still seen, and the collector `gpu` says what is missing.
    """

    name = NAME

    def __init__(
        self, nvml: NvmlSource, kmsg: KmsgSource, attribution: Attribution, hub: EventHub
    ) -> None:
        self._nvml = nvml
        self._kmsg = kmsg
        self._attribution = attribution
        self._series = DeviceSeries(nvml, attribution, NAME)
        self._hub = hub

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        published = self._attribution.published()
        _, log_error = self._kmsg.latest.read()
        for device in published.events:
            labels = (device.gpu, device.uuid, device.mig)
            # Without the log a zero would claim that nothing happened.
            if log_error is None or any(device.xid.values()):
                for kind in CLASSES:
                    yield Sample("tocsin_gpu_xid_errors_total", (*labels, kind), device.xid.get(kind, 0))
            for code, count in sorted(device.codes.items()):
                yield Sample("tocsin_gpu_xid_code_errors_total", (*labels, str(code)), count)
            for kind, when in device.times.items():
                yield Sample("tocsin_gpu_event_timestamp_seconds", (*labels, kind), when)
        for held in published.devices:
            if log_error is None or any(held.xid.values()):
                for kind in CLASSES:
                    yield Sample(
                        "tocsin_job_gpu_xid_errors_total", (*holder_labels(held), kind), held.xid.get(kind, 0)
                    )
            for kind, when in held.times.items():
                yield Sample("tocsin_job_gpu_event_timestamp_seconds", (*holder_labels(held), kind), when)
        yield from self._switches()
        boards = {device.pci: device for device in self._nvml.devices() if device.pci and not device.mig}
        for (address, code, cause), count in self._hub.followups().items():
            if (board := boards.get(address)) is not None:
                row = (board.gpu, board.uuid, "", str(code), str(cause))
                yield Sample("tocsin_gpu_xid_followups_total", row, count)
        _, _, samples = self._series.read()
        yield from samples
        if log_error is not None:
            raise log_error

    def _switches(self) -> Iterator[Sample]:
        for switch in self._hub.switches():
            for kind, count in switch.classes.items():
                yield Sample("tocsin_fabric_switch_errors_total", (switch.pci, kind), count)
            for code, count in sorted(switch.codes.items()):
                yield Sample("tocsin_fabric_switch_code_errors_total", (switch.pci, str(code)), count)
            for kind, when in switch.times.items():
                yield Sample("tocsin_fabric_switch_event_timestamp_seconds", (switch.pci, kind), when)


def build(
    nvml: NvmlSource, kmsg: KmsgSource, attribution: Attribution, hub: EventHub
) -> GpuEventsCollector:
    """Return the collector."""
    return GpuEventsCollector(nvml, kmsg, attribution, hub)
