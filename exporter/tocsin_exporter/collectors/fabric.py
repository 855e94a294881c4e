"""Fabric ports, and what happened on them while a job held the GPUs nearest to them."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin_exporter.attribution import Attribution
from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.sources.sysfs import FabricSource

__all__ = ["NAME", "FabricCollector", "build"]

NAME = "fabric"


class FabricCollector:
    """Serves the last reading of the ports; a node without ports succeeds with none."""

    name = NAME

    def __init__(self, source: FabricSource, attribution: Attribution) -> None:
        self._source = source
        self._attribution = attribution

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        ports, error = self._source.latest.read()
        active: dict[str, bool | None] = {}
        for port in ports or ():
            # That an unused port is down is no finding about a job whose GPUs happen to be near.
            active[port.name] = port.active if port.expected else None
            yield Sample("tocsin_fabric_port_expected", (port.name,), int(port.expected))
            yield Sample(
                "tocsin_fabric_port_info", (port.name, port.link_layer, port.hca_type, port.firmware), 1
            )
            if port.active is not None:
                yield Sample("tocsin_fabric_port_active", (port.name,), float(port.active))
            if port.rate is not None:
                yield Sample("tocsin_fabric_port_rate_bytes_per_second", (port.name,), port.rate)
            for (quantity, more), value in port.counters.items():
                yield Sample(f"tocsin_fabric_{quantity}", (port.name, *more), value)
            for counter, stopped in port.saturated.items():
                yield Sample("tocsin_fabric_counter_saturated", (port.name, counter), int(stopped))
        for held in self._attribution.published().ports:
            state = active.get(held.port)
            if held.active and state is not None:
                yield Sample("tocsin_job_port_active", (held.port, held.job_id), float(state))
            for (quantity, more), value in held.counters.items():
                yield Sample(f"tocsin_job_port_{quantity}", (held.port, held.job_id, *more), value)
        if error is not None:
            raise error


def build(source: FabricSource, attribution: Attribution) -> FabricCollector:
    """Return the collector."""
    return FabricCollector(source, attribution)
