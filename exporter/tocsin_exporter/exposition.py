"""Samples become metric families of the client library, by the metric table."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric

from tocsin_exporter.collectors.base import HistogramSample, Sample
from tocsin_exporter.metrics import FAMILIES, Family, Kind, Tier

__all__ = ["DroppedLabels", "Exposition", "check"]

# Label values come from process names, environments and logs.
LONGEST_VALUE = 200
MOST_SERIES = 10_000

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


def check(sample: Sample | HistogramSample) -> None:
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
    """Turns checked samples into metric families of one node."""

    def __init__(self, node: str, tier: Tier, dropped: DroppedLabels) -> None:
        self._node = node
        self._tiers = frozenset(_TIERS[: _TIERS.index(tier) + 1])
        self._dropped = dropped

    def families(self, samples: Iterable[Sample | HistogramSample]) -> Iterator[Metric]:
        """Yield one metric family per name, in the table's order."""
        grouped: dict[str, list[Sample | HistogramSample]] = {}
        for sample in samples:
            grouped.setdefault(sample.family, []).append(sample)
        for name in sorted(grouped):
            row = FAMILIES[name]
            if row.tier in self._tiers:
                yield self._family(row, grouped[name])

    def _family(self, row: Family, samples: list[Sample | HistogramSample]) -> Metric:
        # The library adds `_total` by itself.
        base = row.name.removesuffix("_total") if row.kind is Kind.COUNTER else row.name
        metric = Metric(base, row.help, row.kind.value)
        seen: set[tuple[tuple[str, str], ...]] = set()
        for sample in samples:
            labels = self._labels(row, sample.labels)
            key = tuple(labels.items())
            if key in seen:
                # Two samples of one series would make Prometheus refuse the whole scrape.
                self._dropped.add("duplicate")
                continue
            if len(seen) >= MOST_SERIES:
                self._dropped.add("too_many")
                continue
            seen.add(key)
            if isinstance(sample, HistogramSample):
                _add_histogram(metric, row, labels, sample)
            else:
                metric.add_sample(row.name, labels, float(sample.value))
        return metric

    def _labels(self, row: Family, values: tuple[str, ...]) -> dict[str, str]:
        labels = {"node": self._node}
        for name, value in zip(row.labels[1:], values, strict=True):
            if not value:
                continue
            text = _CONTROL.sub(" ", value)
            if len(text) > LONGEST_VALUE:
                self._dropped.add("too_long")
                text = text[:LONGEST_VALUE]
            labels[name] = text
        return labels


def _add_histogram(metric: Metric, row: Family, labels: dict[str, str], sample: HistogramSample) -> None:
    total = 0
    for bound, count in zip((*row.buckets, math.inf), sample.counts, strict=True):
        total += count
        le = "+Inf" if math.isinf(bound) else repr(float(bound))
        metric.add_sample(f"{row.name}_bucket", {**labels, "le": le}, float(total))
    metric.add_sample(f"{row.name}_count", labels, float(total))
    metric.add_sample(f"{row.name}_sum", labels, float(sample.sum))
