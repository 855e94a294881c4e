"""Durations in files, and in words."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from tocsin_common.durations import PATTERN, parse


def words(seconds: float) -> str:
    """A duration for people."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g}{unit}"
    return f"{seconds:.3g}s"


Duration = Annotated[float, BeforeValidator(parse), WithJsonSchema({"type": "string", "pattern": PATTERN})]
