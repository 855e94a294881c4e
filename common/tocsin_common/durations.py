"""Durations as Prometheus writes them: ``90s``, ``6m5s``, ``1h30m``, ``0s``."""

from __future__ import annotations

import re

__all__ = ["PATTERN", "parse"]

_UNITS = {"y": 31536000.0, "w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
# For JSON Schemas, so that an editor refuses what `parse` refuses.
PATTERN = "^(0|(?=[0-9])" + "".join(f"([0-9]{{1,6}}{unit})?" for unit in _UNITS) + ")$"
_WHOLE = re.compile(PATTERN)
_PART = re.compile(r"([0-9]+)(ms|[ywdhms])")


def parse(text: object) -> float:
    """Return the seconds of a Prometheus duration; ValueError for anything else."""
    # fullmatch: `$` would let a trailing newline through.
    if not isinstance(text, str) or not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 90s or 6m5s")
    return sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text))
