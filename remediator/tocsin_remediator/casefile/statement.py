"""A statement: a sentence with the query, the value and the time that carry it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tocsin_remediator.model import number

if TYPE_CHECKING:
    from tocsin_remediator.prometheus import Answer

_SHOWN: Final = 24


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
    return [{"series": sample.name, "value": number(sample.value)} for sample in answer.samples]


def moment(at: float) -> str:
    """A time for people, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
