"""Numbers as training frameworks print them."""

from __future__ import annotations

import math
import re

__all__ = ["NUMBER", "duration", "integer", "number", "pairs"]

# A number in a larger pattern: sign, thousands commas, exponent, or a word for a non-finite one.
NUMBER = (
    r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)\.?\d*(?:[eE][-+]?\d+)?"
    r"|\.\d+(?:[eE][-+]?\d+)?|nan|NaN|NAN|inf(?:inity)?|Inf(?:inity)?|INF)"
)

_WRAPPER = re.compile(
    r"^(?:np|numpy|torch|jnp)?\.?(?:float|int|bfloat|array|tensor|Array|Tensor)\w*\((.*?)(?:,.*)?\)$"
)
_PLAIN = re.compile(rf"^{NUMBER}$")
_GROUPED = re.compile(r"^[-+]?\d{1,3}(,\d{3})+(\.\d+)?$")
# Longer texts are no numbers, and int() of a long digit string costs quadratic time.
_LONGEST = 64


def number(text: str | None) -> float | None:
    """
    Return the number that *text* is, or None.

    Understands quotes, ``np.float64(x)``, ``tensor(x, device=…)``, thousands commas and a
    percent sign (which is dropped, not divided by).
    """
    if text is None:
        return None
    text = text.strip().strip("'\"").strip()
    if len(text) > _LONGEST:
        return None
    wrapped = _WRAPPER.match(text)
    if wrapped:
        text = wrapped.group(1).strip().strip("'\"")
    text = text.removesuffix("%").strip()
    if not _PLAIN.match(text):
        return None
    if "," in text:
        if not _GROUPED.match(text):
            return None
        text = text.replace(",", "")
    try:
        return float(text)
    except ValueError:
        return None


def integer(text: str | None) -> int | None:
    """Return *text* as a count; None for anything negative, fractional or absurdly large."""
    value = number(text)
    if value is None or not math.isfinite(value) or value < 0 or value != int(value) or value > 2**53:
        return None
    return int(value)


_CLOCK = re.compile(r"^(?:(\d+):)?(\d+):(\d\d)$")
_UNITS = {"us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "h": 3600.0}
_AMOUNT = re.compile(r"^(\d+(?:\.\d+)?)\s*(us|µs|μs|ms|sec|s|m|h)$")


def duration(text: str | None) -> float | None:
    """Return seconds of ``135.21ms``, ``2.1s``, ``1:02:03``; None for anything else."""
    if text is None or len(text) > _LONGEST:
        return None
    text = text.strip()
    clock = _CLOCK.match(text)
    if clock:
        return int(clock.group(1) or 0) * 3600 + int(clock.group(2)) * 60 + float(clock.group(3))
    amount = _AMOUNT.match(text)
    return float(amount.group(1)) * _UNITS[amount.group(2)] if amount else None


_PAIR = re.compile(
    r"""['"](?P<key>[^'"]{1,120})['"]\s*:\s*"""
    r"""(?P<value>'[^']*'|"[^"]*"|(?:[\w.]+\([^()]*\))|[^,{}\[\]()]+)"""
)


def pairs(text: str) -> dict[str, str]:
    """Return keys and raw values of a flat dictionary as Python or JSON print it."""
    return {match["key"]: match["value"].strip().strip("'\"") for match in _PAIR.finditer(text)}
