"""Durations as Prometheus writes them."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BeforeValidator, WithJsonSchema

_PATTERN: Final = re.compile(r"([1-9][0-9]{0,5})(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse(text: object) -> float:
    """Seconds of `5m`, `30s`, `500ms`; `0s` is allowed. ValueError otherwise."""
    if isinstance(text, str):
        if text == "0s":
            return 0.0
        found = _PATTERN.fullmatch(text)
        if found is not None:
            return int(found[1]) * _SECONDS[found[2]]
    raise ValueError(f"{text!r} is not a duration such as 30s, 5m or 2h")


def words(seconds: float) -> str:
    """A duration for people."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g}{unit}"
    return f"{seconds:.3g}s"


Duration = Annotated[
    float,
    BeforeValidator(parse),
    WithJsonSchema({"type": "string", "pattern": r"^(0s|[1-9][0-9]{0,5}(ms|s|m|h|d))$"}),
]
