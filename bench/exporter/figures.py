"""Figures of a benchmark and the robust statistics they come from; pure."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence

__all__ = ["Figures", "percentile", "slope", "tell"]


class Figures:
    """The figures of one run, in the order in which they were added."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rows: list[dict[str, str | float]] = []

    def add(self, name: str, unit: str, value: float) -> None:
        """Add one figure."""
        self._rows.append({"name": name, "unit": unit, "value": round(value, 5)})

    def value(self, name: str) -> float | None:
        """Return a figure that was added, None when there is none of that name."""
        return next((float(row["value"]) for row in self._rows if row["name"] == name), None)

    def ratio(self, name: str, above: str, below: str) -> None:
        """Add the ratio of two figures, where both are there and it has a meaning."""
        over, under = self.value(above), self.value(below)
        if over is not None and under:
            self.add(name, "ratio", over / under)

    def write(self) -> None:
        """Print all figures, the last line as JSON."""
        for row in self._rows:
            sys.stdout.write(f"{row['name']:<44} {row['value']:>14} {row['unit']}\n")
        sys.stdout.write(json.dumps({"name": self._name, "figures": self._rows}) + "\n")
        sys.stdout.flush()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which *share* of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """
    Return the Theil-Sen slope of (x, y) points: the median of the slopes between all pairs.

    A few outliers, such as a reading in the middle of a scrape, do not move it.
    """
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for at, earlier in enumerate(points)
        for later in points[at + 1 :]
        if later[0] != earlier[0]
    ]
    return statistics.median(slopes) if slopes else 0.0


def tell(text: str) -> None:
    """Print one line beside the result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
