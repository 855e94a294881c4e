"""The host: pressure, memory, load, kills for lack of memory."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.sources.host import HostSource

__all__ = ["NAME", "HostCollector", "build"]

NAME = "host"


class HostCollector:
    """Serves the last reading of /proc."""

    name = NAME

    def __init__(self, source: HostSource) -> None:
        self._source = source

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        host, error = self._source.latest.read()
        if host is not None:
            for (resource, kind), seconds in host.pressure.items():
                yield Sample("tocsin_host_pressure_seconds_total", (resource, kind), seconds)
            for family, value in (
                ("tocsin_host_memory_total_bytes", host.memory_total),
                ("tocsin_host_memory_available_bytes", host.memory_available),
                ("tocsin_host_oom_kills_total", host.oom_kills),
                ("tocsin_host_boot_timestamp_seconds", host.boot_time),
                ("tocsin_host_load1", host.load1),
            ):
                if value is not None:
                    yield Sample(family, (), value)
        if error is not None:
            raise error


def build(source: HostSource) -> HostCollector:
    """Return the collector."""
    return HostCollector(source)
