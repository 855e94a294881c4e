"""Sums over parts that come and go, and waits that go on; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tocsin_exporter.sources.rank_host.tasks import Task

__all__ = ["Growing", "Waiting"]

Name = tuple[int, int]

# A part that is missing for as many readings has ended; one that was only not read must not count twice.
_MISSING = 3


class Growing:
    """The sum of what parts have counted, those that ended included: it never falls."""

    def __init__(self) -> None:
        self.total = 0.0
        self._last: dict[Name, tuple[float, int]] = {}
        self._reading = 0

    def read(self, parts: Mapping[Name, float]) -> float:
        """Take in what the parts count now; return the sum."""
        self._reading += 1
        for name, value in parts.items():
            before = self._last.get(name)
            grown = value - before[0] if before is not None and value >= before[0] else value
            self.total += max(grown, 0.0)
            self._last[name] = (value, self._reading)
        if len(self._last) > len(parts):
            for name in [n for n, (_, at) in self._last.items() if self._reading - at >= _MISSING]:
                del self._last[name]
        return self.total


class Waiting:
    """Since when threads have been blocked without having run in between."""

    def __init__(self) -> None:
        self._since: dict[Name, tuple[int | None, float]] = {}

    def read(self, tasks: Iterable[tuple[int, Task]], now: float) -> list[tuple[float, int, int]]:
        """
        Take in the threads (each with its process) at *now*.

        Returns since when, process and thread of those that had been found in the same wait before, longest
        first.
        """
        seen: dict[Name, tuple[int | None, float]] = {}
        old: list[tuple[float, int, int]] = []
        for pid, task in tasks:
            if task.state != "D":
                continue
            name = (task.tid, task.start)
            before = self._since.get(name)
            if before is not None and before[0] == task.slices:
                seen[name] = before
                old.append((before[1], pid, task.tid))
            else:
                seen[name] = (task.slices, now)
        self._since = seen
        return sorted(old)
