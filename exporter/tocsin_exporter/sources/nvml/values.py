"""
From a number of the driver to rows of a quantity: blank values, garbage, forms, units.

Pure, save for the counter that wraps, which remembers the pass before.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tocsin_exporter.sources.nvml.reads import Quantity, Read

__all__ = ["BLANKS", "BlankError", "GarbageError", "Target", "Value"]

# Quantity, values of its further labels, number in base units.
Value = tuple[str, tuple[str, ...], float]

# What the driver hands out for "no value": NVML_VALUE_NOT_AVAILABLE is -1 in each width,
# the others are the blanks of the management library that is built on it.
BLANKS = frozenset(
    {0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFFF, 140737488355328.0}
    | {0x7FFFFFF0 + n for n in range(1, 4)}
    | {0x7FFFFFFFFFFFFFF0 + n for n in range(1, 4)}
)
# No device has more than this; a number beyond it was never measured.
_MOST = {
    "ratio": 1.0,
    "celsius": 200.0,
    "watts": 1e5,
    "hertz": 1e11,
    "bytes": 2.0**60,
    "joules": 1e15,
    "seconds": 1e10,
    "": 2.0**63,
}
# Rounding of percentages in the driver.
_SLACK = 1.05
# Faster than any PCIe link: a counter that fell further than this rate explains was reset, not passed.
_FASTEST_BYTES_PER_SECOND = 512e9
_UNITS = {
    "B": 1.0,
    "bytes": 1.0,
    "Bytes": 1.0,
    "KB": 1e3,
    "kB": 1e3,
    "KiB": 1024.0,
    "MB": 1e6,
    "MiB": 1048576.0,
    "GB": 1e9,
    "GiB": 1073741824.0,
}


class BlankError(Exception):
    """The driver has no value."""


class GarbageError(Exception):
    """A number that cannot be."""


class Wrapping:
    """A counter of the driver that starts again at 0 when its width is full; the passes are added up."""

    __slots__ = ("_at", "_raw", "_total")

    def __init__(self) -> None:
        self._raw: float | None = None
        self._at = 0.0
        self._total = 0.0

    def add(self, raw: float, now: float) -> float:
        """Take the raw value at *now* (monotonic seconds) in; return the count since the first one."""
        if self._raw is not None:
            gain = raw - self._raw
            if gain < 0:
                gain += 2.0**32 if self._raw < 2.0**32 else 2.0**64
            # A reset looks like an impossible rate; what came after it is not known to be all.
            if gain <= _FASTEST_BYTES_PER_SECOND * max(now - self._at, 0.001):
                self._total += gain
        self._raw, self._at = raw, now
        return self._total


def _signed(raw: float) -> float:
    return raw - 2.0**32 if raw >= 2.0**31 else raw


def _error_rate(raw: float) -> float:
    """Return the rate that bits 0-7 (exponent) and 8-11 (mantissa) stand for."""
    return (int(raw) >> 8 & 0xF) * 10.0 ** -(int(raw) & 0xFF)


def _bits(shift: int, mask: int) -> Callable[[float], float]:
    def truth(raw: float) -> float:
        # 0 not supported, 1 true, 2 false
        state = int(raw) >> shift & mask
        if state not in (1, 2):
            raise BlankError
        return float(state == 1)

    return truth


def _part(shift: int, mask: int) -> Callable[[float], float]:
    return lambda raw: float(int(raw) >> shift & mask)


def _active(raw: float) -> float:
    # nvml.h: 0 inactive, 1 active, 2 sleeping, 3 active with its traffic held back.
    return float(int(raw) in (1, 2))


DECODERS: dict[str, Callable[[float], float]] = {
    "signed": _signed,
    "ber": _error_rate,
    "active": _active,
}


class Target:
    """
    Where an answer goes: one quantity with its labels, and what a believable number is.

    `rows` turns the driver's number into rows; raises `BlankError` or `GarbageError` when there are none.
    """

    __slots__ = (
        "_decode",
        "_high",
        "_low",
        "_name",
        "_sparse",
        "_states",
        "_wrapping",
        "key",
        "labels",
        "unit_from_metric",
    )

    def __init__(self, quantity: Quantity, read: Read, labels: tuple[str, ...]) -> None:
        self._name = quantity.name
        self.labels = labels
        self.key = (quantity.name, labels)
        self._states = read.states
        self._sparse = read.decode == "sparse"
        self._high = quantity.most if quantity.most is not None else _MOST[quantity.unit]
        self._low = -_MOST[quantity.unit] if read.decode == "signed" else 0.0
        self._wrapping = Wrapping() if read.decode == "wrapping" else None
        self.unit_from_metric = read.decode == "unit"
        self._decode: float | Callable[[float], float] = 1.0
        if isinstance(read.decode, float):
            self._decode = read.decode
        elif read.decode.startswith(("bits:", "field:")):
            form, shift, mask = read.decode.split(":")
            self._decode = (_bits if form == "bits" else _part)(int(shift), int(mask))
        elif read.decode in DECODERS:
            self._decode = DECODERS[read.decode]

    def rows(self, raw: float, now: float, unit: str = "") -> list[Value]:
        """Return the rows of the driver's number *raw*; *unit* is what the metric itself states."""
        if raw in BLANKS:
            raise BlankError
        if raw != raw or math.isinf(raw):
            raise GarbageError
        if self._wrapping is not None:
            if raw < 0:
                raise GarbageError
            return [(self._name, self.labels, self._wrapping.add(raw, now))]
        if self.unit_from_metric:
            if unit not in _UNITS:
                raise BlankError
            value = raw * _UNITS[unit]
        else:
            decode = self._decode
            value = raw * decode if isinstance(decode, float) else decode(raw)
        if self._states:
            return self._of_state(value)
        if not self._low <= value <= self._high:
            if self._high == 1.0 and 1.0 < value <= _SLACK:
                value = 1.0
            else:
                raise GarbageError
        return [(self._name, self.labels, value)]

    def _of_state(self, value: float) -> list[Value]:
        index = int(value)
        if not 0 <= index < len(self._states):
            raise GarbageError
        if self._states[index] is None:
            raise BlankError
        return [
            (self._name, (*self.labels, state), float(number == index))
            for number, state in enumerate(self._states)
            if state is not None and (not self._sparse or number in (0, index))
        ]
