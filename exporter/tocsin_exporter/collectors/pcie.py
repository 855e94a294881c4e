"""PCIe links of the devices, and the bus as the kernel sees it: presence, links, AER errors."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin_exporter.attribution import Attribution
from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.collectors.device_series import DeviceSeries
from tocsin_exporter.sources.nvml.source import NvmlSource
from tocsin_exporter.sources.pcie import Function, PcieSource

__all__ = ["NAME", "PcieCollector", "build", "function_samples"]

NAME = "pcie"


def function_samples(function: Function) -> Iterator[Sample]:
    """Yield what is known of one function; what two devices share is told once, by its own address."""
    pci, role = function.pci, function.role
    more = (function.kind, function.device, function.upstream, function.root)
    yield Sample("tocsin_pcie_info", (pci, role, *more), 1)
    if function.present is not None:
        yield Sample("tocsin_pcie_present", (pci,), int(function.present))
    if function.suspended is not None and role == "endpoint":
        yield Sample("tocsin_pcie_suspended", (pci,), int(function.suspended))
    for name, value in function.link.items():
        yield Sample(f"tocsin_pcie_link_{name}", (pci, role), value)
    for severity, count in function.errors.items():
        yield Sample("tocsin_pcie_errors_total", (pci, role, severity), count)
    for severity, count in function.received.items():
        yield Sample("tocsin_pcie_root_received_errors_total", (pci, severity), count)
    for (severity, error), count in function.named.items():
        yield Sample("tocsin_pcie_named_errors_total", (pci, role, severity, error), count)


class PcieCollector:
    """Serves what the driver says of its own side of the links, and both sides as the kernel sees them."""

    name = NAME

    def __init__(self, nvml: NvmlSource, attribution: Attribution, source: PcieSource) -> None:
        self._series = DeviceSeries(nvml, attribution, NAME)
        self._source = source

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape; either side is served without the other."""
        _, error, samples = self._series.read()
        yield from samples
        functions, unread = self._source.latest.read()
        for function in functions or ():
            yield from function_samples(function)
        failure = error or unread
        if failure is not None:
            raise failure


def build(nvml: NvmlSource, attribution: Attribution, source: PcieSource) -> PcieCollector:
    """Return the collector."""
    return PcieCollector(nvml, attribution, source)
