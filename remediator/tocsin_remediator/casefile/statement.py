"""A statement: a sentence with the query, the value and the time that carry it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tocsin_remediator.model import number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tocsin_remediator.prometheus import Answer

_SHOWN: Final = 40
_LEFT_OUT: Final = ("__name__", "job_id", "instance", "job", "cluster")
_A_TIME: Final = 1e9
_TIMESTAMP: Final = re.compile(r"timestamp_seconds|:timestamp")


@dataclass
class Ledger:
    """Numbers statements S1, S2, … in the order in which they are made."""

    made: list[dict[str, Any]] = field(default_factory=list)

    def say(
        self, text: str, query: str, values: list[dict[str, Any]], at: float, **more: Any
    ) -> dict[str, Any]:
        """A statement with its citation; `at` in Unix seconds."""
        statement = {
            "id": f"S{len(self.made) + 1}",
            "text": text,
            "query": query,
            "values": values[:_SHOWN],
            "left_out": max(len(values) - _SHOWN, 0),
            "at": at,
            **more,
        }
        self.made.append(statement)
        return statement


def values_of(answer: Answer) -> list[dict[str, Any]]:
    """An instant vector as values of a statement."""
    return [{"series": _name(sample.labels), "value": number(sample.value)} for sample in answer.samples]


def _name(labels: Mapping[str, str]) -> str:
    # The job is the case's, and who scraped it says nothing about the fault.
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if name not in _LEFT_OUT)


def shown(value: float | str, query: str) -> str:
    """A value for people: six digits, and a time where the query asks for one."""
    if isinstance(value, str):
        return value
    if value > _A_TIME and _TIMESTAMP.search(query):
        return moment(value)
    return f"{value:.6g}"


def extent(values: Sequence[Mapping[str, Any]], query: str) -> str:
    """What many values have in common: one value for all, or the range."""
    numbers = [v["value"] for v in values if isinstance(v["value"], int | float)]
    if not numbers or len(numbers) != len(values):
        return f"{len(values)} series"
    low, high = shown(min(numbers), query), shown(max(numbers), query)
    return f"{len(values)} series, all {low}" if low == high else f"{len(values)} series, {low} to {high}"


def moment(at: float) -> str:
    """A time for people, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
