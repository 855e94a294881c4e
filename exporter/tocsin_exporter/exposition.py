"""
Samples become the text of a scrape, by the metric table.

The client library's encoders take 55 ms for 10,000 series, this one a few: the line of a series is kept
from scrape to scrape and made anew only when its value has changed. The tests read it back with the
library's own parsers.
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
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TIERS = (Tier.CORE, Tier.FABRIC, Tier.DEEP)
# What was found to fit: thousands of samples have a few hundred shapes.
_FITTING: set[tuple[str, int]] = set()


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
    plain = type(sample) is Sample
    if plain and (sample.family, len(sample.labels)) in _FITTING:
        return
    row = FAMILIES.get(sample.family)
    if row is None:
        raise ValueError(f"{sample.family} is not in the metric table")
    if len(sample.labels) != len(row.labels) - 1:
        raise ValueError(f"{row.name} wants labels {row.labels[1:]}, got {sample.labels}")
    if isinstance(sample, HistogramSample) != (row.kind is Kind.HISTOGRAM):
        raise ValueError(f"{row.name} is a {row.kind.value}, got a {type(sample).__name__}")
    if isinstance(sample, HistogramSample) and len(sample.counts) != len(row.buckets) + 1:
        raise ValueError(f"{row.name} has {len(row.buckets) + 1} buckets, got {len(sample.counts)}")
    if plain:
        _FITTING.add((sample.family, len(sample.labels)))


# The text of a series up to its value, the value, and the whole line or lines.
_Entry = tuple[str, object, str]


class Exposition:
    """Writes checked samples of one node, in Prometheus' text format or OpenMetrics."""

    def __init__(self, node: str, tier: Tier, dropped: DroppedLabels) -> None:
        self._node = node
        self._tiers = frozenset(_TIERS[: _TIERS.index(tier) + 1])
        self._dropped = dropped
        # What the last scrape served, by family and labels; so a series that ended leaves nothing behind.
        self._served: dict[str, dict[tuple[str, ...], _Entry]] = {}

    def render(self, samples: Iterable[AnySample], *, openmetrics: bool) -> str:
        """Return one scrape: families in the order of their names, each name and label set once."""
        grouped: dict[str, list[AnySample]] = {}
        for sample in samples:
            if (group := grouped.get(sample.family)) is None:
                group = grouped[sample.family] = []
            group.append(sample)
        before, served = self._served, {}
        lines: list[str] = []
        for name in sorted(grouped):
            row = FAMILIES[name]
            if row.tier in self._tiers:
                lines += _head(row, openmetrics=openmetrics)
                served[name] = self._family(lines, row, grouped[name], before.get(name, {}))
        # Replaced in one step: a scrape that runs beside this one goes on with what it began with.
        self._served = served
        if openmetrics:
            lines.append("# EOF")
        lines.append("")
        return "\n".join(lines)

    def _family(
        self,
        lines: list[str],
        row: Family,
        samples: list[AnySample],
        before: dict[tuple[str, ...], _Entry],
    ) -> dict[tuple[str, ...], _Entry]:
        """Append the lines of the family's series and return them by labels."""
        served: dict[tuple[str, ...], _Entry] = {}
        seen: set[str] = set()
        for sample in samples:
            labels = sample.labels
            # All that follows the labels is the value.
            value = sample[2:]
            entry = before.get(labels)
            text = entry[0] if entry is not None else self._labels(row, labels)
            if text in seen:
                # Two samples of one series would make Prometheus refuse the whole scrape.
                self._dropped.add("duplicate")
                continue
            if len(seen) >= MOST_SERIES:
                self._dropped.add("too_many")
                continue
            seen.add(text)
            if entry is None or entry[1] != value:
                if isinstance(sample, HistogramSample):
                    line = _histogram(row, text, sample)
                else:
                    line = f"{row.name}{{{text}}} {_number(sample.value)}"
                entry = (text, value, line)
            served[labels] = entry
            lines.append(entry[2])
        return served

    def _labels(self, row: Family, values: tuple[str, ...]) -> str:
        """Return the labels of a series as they stand between the braces."""
        pairs = [("node", self._node), *zip(row.labels[1:], values, strict=True)]
        return ",".join(f'{name}="{self._escape(value)}"' for name, value in pairs if value)

    def _escape(self, value: str) -> str:
        text = _CONTROL.sub(" ", value)
        if len(text) > LONGEST_VALUE:
            self._dropped.add("too_long")
            text = text[:LONGEST_VALUE]
        # Environments may hold bytes that are no text; a scrape is UTF-8.
        text = text.encode("utf-8", "replace").decode()
        return text.replace("\\", "\\\\").replace('"', '\\"')


def _head(row: Family, *, openmetrics: bool) -> tuple[str, str]:
    # OpenMetrics names the family without the suffix that its samples carry.
    title = row.name.removesuffix("_total") if openmetrics and row.kind is Kind.COUNTER else row.name
    return f"# HELP {title} {_escape_help(row.help)}", f"# TYPE {title} {row.kind.value}"


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if isinstance(value, float):
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
        return "NaN" if value != value else repr(value)
    return str(int(value))


def _histogram(row: Family, text: str, sample: HistogramSample) -> str:
    lines: list[str] = []
    total = 0
    for bound, count in zip((*row.buckets, math.inf), sample.counts, strict=True):
        total += count
        lines.append(f'{row.name}_bucket{{{text},le="{_number(float(bound))}"}} {total}')
    lines.append(f"{row.name}_count{{{text}}} {total}")
    lines.append(f"{row.name}_sum{{{text}}} {_number(float(sample.sum))}")
    return "\n".join(lines)
