"""PCIe links of the devices: generation, lanes, replays."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin_exporter.attribution import Attribution
from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.collectors.gpu import device_samples
from tocsin_exporter.sources.nvml.source import NvmlSource

__all__ = ["NAME", "PcieCollector", "build"]

NAME = "pcie"


class PcieCollector:
    """Serves what the driver says of its own side of the links."""

    name = NAME

    def __init__(self, nvml: NvmlSource, attribution: Attribution) -> None:
        self._nvml = nvml
        self._attribution = attribution

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        reading, error = self._nvml.latest.read()
        if reading is not None:
            yield from device_samples(
                reading.devices, self._attribution.published().devices, prefixes=("pcie_",)
            )
        if error is not None:
            raise error


def build(nvml: NvmlSource, attribution: Attribution) -> PcieCollector:
    """Return the collector."""
    return PcieCollector(nvml, attribution)
