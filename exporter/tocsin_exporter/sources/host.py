"""The host's own counters, read at the interval."""

from __future__ import annotations

from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources import procfs
from tocsin_exporter.sources.latest import ErrorCounter, PollingSource

__all__ = ["HostSource"]


class HostSource(PollingSource[procfs.HostReading]):
    """Reads /proc every interval; a file that cannot be read costs its own series only."""

    def __init__(self, root: Path, interval: float, max_age: float, errors: ErrorCounter) -> None:
        super().__init__("procfs", interval, max_age, errors)
        self._root = root

    def read(self) -> procfs.HostReading:
        reading, problems = procfs.host(self._root)
        for problem in problems:
            self._errors.add(self.name, problem.reason)
        if reading.memory_total is None and not reading.pressure:
            raise SourceError("unsupported", f"{self._root} holds no host counters; is --path.procfs right?")
        return reading
