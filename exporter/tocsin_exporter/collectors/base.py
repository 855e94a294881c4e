"""What a collector is: a name, and samples of families that the metric table lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

__all__ = ["Collector", "HistogramSample", "Sample"]


# Thousands of samples are made per scrape, and a tuple is made in a third of the time of a frozen dataclass.


class Sample(NamedTuple):
    """
    One value of a counter or gauge family.

    ``labels`` are values in the family's order without the leading ``node``, which the
    registry adds. A family that is unsupported or unreadable has no sample: never a 0.
    """

    family: str
    labels: tuple[str, ...]
    value: float


class HistogramSample(NamedTuple):
    """
    One value of a histogram family.

    ``counts`` has one entry per bucket of the family and a last one for +Inf, each counting
    only its own bucket (not cumulative). ``sum`` is in the family's unit.
    """

    family: str
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    sum: float


class Collector(Protocol):
    """
    Turns what sources last read into samples.

    ``collect`` is called on every scrape and must return within a few milliseconds: it reads
    snapshots in memory, never hardware, files or processes. It raises `CollectError` with a
    reason when it has nothing to serve; the registry turns that into a gap plus
    ``tocsin_collector_success`` 0.
    """

    @property
    def name(self) -> str:
        """The one name: file, flag, label value, golden file."""

    def collect(self) -> Iterable[Sample | HistogramSample]:
        """Yield the samples of this scrape."""
