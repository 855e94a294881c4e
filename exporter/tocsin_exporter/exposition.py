"""
Samples become the text of a scrape, by the metric table.

The client library's encoders take 55 ms for 10,000 series, this one a few: the text of a series
up to its value is made once and kept. The tests read it back with the library's own parsers.
"""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Iterable

from tocsin_exporter.collectors.base import HistogramSample, Sample
from tocsin_exporter.metrics import FAMILIES, Family, Kind, Tier

__all__ = ["AnySample", "DroppedLabels", "Exposition", "check"]

AnySample = Sample | HistogramSample

# Label values come from process names, environments and logs.
LONGEST_VALUE = 200
MOST_SERIES = 10_000
# Series that come and go (jobs, codes) leave their text behind; then the cache starts anew.
_MOST_CACHED = 50_000

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TIERS = (Tier.CORE, Tier.FABRIC, Tier.DEEP)


class DroppedLabels:
    """Label values from outside that were cut or refused, by reason. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter({"too_long": 0, "too_many": 0, "duplicate": 0})

    def add(self, reason: str) -> None:
        """Count one."""
        with self._lock:
            self._counts[reason] += 1

    def counts(self) -> dict[str, int]:
        """Return the totals so far."""
        with self._lock:
            return dict(self._counts)


def check(sample: AnySample) -> None:
    """Raise ValueError when *sample* does not fit the metric table."""
    row = FAMILIES.get(sample.family)
    if row is None:
        raise ValueError(f"{sample.family} is not in the metric table")
    if len(sample.labels) != len(row.labels) - 1:
        raise ValueError(f"{row.name} wants labels {row.labels[1:]}, got {sample.labels}")
    if isinstance(sample, HistogramSample) != (row.kind is Kind.HISTOGRAM):
        raise ValueError(f"{row.name} is a {row.kind.value}, got a {type(sample).__name__}")
    if isinstance(sample, HistogramSample) and len(sample.counts) != len(row.buckets) + 1:
        raise ValueError(f"{row.name} has {len(row.buckets) + 1} buckets, got {len(sample.counts)}")


class Exposition:
    """Writes checked samples of one node, in Prometheus' text format or OpenMetrics."""

    def __init__(self, node: str, tier: Tier, dropped: DroppedLabels) -> None:
        self._node = node
        self._tiers = frozenset(_TIERS[: _TIERS.index(tier) + 1])
        self._dropped = dropped
        self._labels: dict[tuple[str, tuple[str, ...]], str] = {}

    def render(self, samples: Iterable[AnySample], *, openmetrics: bool) -> str:
        """Return one scrape: families in the order of their names, each name and label set once."""
        grouped: dict[str, list[AnySample]] = {}
        for sample in samples:
            grouped.setdefault(sample.family, []).append(sample)
        if len(self._labels) > _MOST_CACHED:
            self._labels.clear()
        lines: list[str] = []
        for name in sorted(grouped):
            row = FAMILIES[name]
            if row.tier in self._tiers:
                self._family(lines, row, grouped[name], openmetrics=openmetrics)
        if openmetrics:
            lines.append("# EOF")
        lines.append("")
        return "\n".join(lines)

    def _family(self, lines: list[str], row: Family, samples: list[AnySample], *, openmetrics: bool) -> None:
        counter = row.kind is Kind.COUNTER
        # OpenMetrics names the family without the suffix that its samples carry.
        title = row.name.removesuffix("_total") if openmetrics and counter else row.name
        lines.append(f"# HELP {title} {_escape_help(row.help)}")
        lines.append(f"# TYPE {title} {row.kind.value}")
        seen: set[str] = set()
        for sample in samples:
            text = self._text(row, sample.labels)
            if text in seen:
                # Two samples of one series would make Prometheus refuse the whole scrape.
                self._dropped.add("duplicate")
                continue
            if len(seen) >= MOST_SERIES:
                self._dropped.add("too_many")
                continue
            seen.add(text)
            if isinstance(sample, HistogramSample):
                _histogram(lines, row, text, sample)
            else:
                lines.append(f"{row.name}{{{text}}} {_number(sample.value)}")

    def _text(self, row: Family, values: tuple[str, ...]) -> str:
        """Return the labels of a series as they stand between the braces."""
        key = (row.name, values)
        known = self._labels.get(key)
        if known is None:
            pairs = [("node", self._node), *zip(row.labels[1:], values, strict=True)]
            known = ",".join(f'{name}="{self._escape(value)}"' for name, value in pairs if value)
            self._labels[key] = known
        return known

    def _escape(self, value: str) -> str:
        text = _CONTROL.sub(" ", value)
        if len(text) > LONGEST_VALUE:
            self._dropped.add("too_long")
            text = text[:LONGEST_VALUE]
        # Environments may hold bytes that are no text; a scrape is UTF-8.
        text = text.encode("utf-8", "replace").decode()
        return text.replace("\\", "\\\\").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if isinstance(value, float):
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
        return "NaN" if value != value else repr(value)
    return str(int(value))


def _histogram(lines: list[str], row: Family, text: str, sample: HistogramSample) -> None:
    total = 0
    for bound, count in zip((*row.buckets, math.inf), sample.counts, strict=True):
        total += count
        lines.append(f'{row.name}_bucket{{{text},le="{_number(float(bound))}"}} {total}')
    lines.append(f"{row.name}_count{{{text}}} {total}")
    lines.append(f"{row.name}_sum{{{text}}} {_number(float(sample.sum))}")
