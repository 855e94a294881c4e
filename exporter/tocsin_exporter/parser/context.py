"""What a parser remembers between the lines of one stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin_exporter.parser.event import Event

__all__ = ["Bar", "Context"]


@dataclass(frozen=True, slots=True)
class Bar:
    """The state of a progress bar."""

    step: int
    total: int | None
    step_seconds: float | None


@dataclass(slots=True)
class Context:
    """
    Memory of one rank's stream.

    ``bar`` is the newest training bar, which gives the step number to records that carry none.
    ``block`` is a record over several lines that is not complete yet.
    """

    framework: str | None = None
    epoch: float | None = None
    announced: bool = False
    evaluating: bool = False
    bar: Bar | None = None
    in_traceback: bool = False
    block: Event | None = None
    block_keys: dict[str, str] = field(default_factory=dict)
