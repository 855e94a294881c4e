"""What one line of a job's output says: the record of `parse-log`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

__all__ = ["EVENTS", "PHASES", "Event", "Json"]

Json = str | int | float | bool

EVENTS = (
    "step",
    "eval",
    "checkpoint_start",
    "checkpoint_end",
    "resume",
    "overflow",
    "oom",
    "exception",
    "nccl_transport",
    "nccl_error",
    "watchdog_timeout",
    "phase",
)
PHASES = ("init", "compile", "train", "eval", "checkpoint", "finished")


@dataclass(frozen=True, slots=True)
class Event:
    """
    One recognised event; what the line does not say is None.

    ``line`` counts from 1. Times are seconds. ``learning_rate`` and the like are as printed.
    ``per`` says whether throughput is per ``gpu`` or for the ``job``. ``tokens`` is cumulative.
    """

    event: str
    line: int = 0
    framework: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    step_seconds: float | None = None
    tokens: int | None = None
    tokens_per_second: float | None = None
    tflops: float | None = None
    per: str | None = None
    skipped: int | None = None
    data_wait_seconds: float | None = None
    checkpoint_seconds: float | None = None
    transport: str | None = None
    gdr: bool | None = None
    phase: str | None = None
    nonfinite: bool | None = None

    def to_json(self) -> dict[str, Json]:
        """
        Return the fields that are known, in a fixed order, fit for strict JSON.

        Non-finite numbers are the strings NaN, Infinity and -Infinity, and set ``nonfinite``.
        """
        result: dict[str, Json] = {"line": self.line}
        nonfinite = bool(self.nonfinite)
        for name in _NAMES:
            value = getattr(self, name)
            if value is None or name in ("line", "nonfinite"):
                continue
            if isinstance(value, float) and not math.isfinite(value):
                nonfinite = True
                result[name] = "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
            elif isinstance(value, float) and name == "epoch" and value.is_integer():
                result[name] = int(value)
            else:
                result[name] = value
        if nonfinite:
            result["nonfinite"] = True
        return result


_NAMES = tuple(field.name for field in fields(Event))
