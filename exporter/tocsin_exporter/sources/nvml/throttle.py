"""Clock event reasons: as states, and as time where the driver has no counter of its own."""

from __future__ import annotations

from typing import Any

from tocsin_exporter.sources.nvml.calls import Library
from tocsin_exporter.sources.nvml.values import Value

__all__ = ["THROTTLE_REASONS", "Throttle"]

# nvml.h, nvmlClocksEventReason*: the bits of the current clock event reasons.
THROTTLE_REASONS = {
    "idle": 0x1,
    "app_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display": 0x100,
}
# Driver 615 and newer; told from the first time they are seen, so that older devices carry no zeros of them.
_NEWER_REASONS = {"board_limit": 0x200, "reliability": 0x400}
# A longer pause than this was no pause between two readings.
_LONGEST_HOLD_SECONDS = 120.0
_NONE = 0xFFFFFFFFFFFFFFFF


class Throttle:
    """The reasons of one device."""

    def __init__(self, library: Library, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._held: dict[str, float] = {}
        self._counted: frozenset[str] = frozenset()
        self._at: float | None = None

    def rows(self, counted: frozenset[str], now: float) -> list[Value]:
        """Return the states at *now* (monotonic), and the seconds of the reasons that are not *counted*."""
        mask = self._library.ask("nvmlDeviceGetCurrentClocksEventReasons", self._handle)
        if mask is None:
            mask = self._library.ask("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle)
        before, self._at = self._at, now
        # A reason that the driver counts does not change to our count for one failed read.
        self._counted |= counted
        if mask is None or mask == _NONE:
            return []
        # After a hang nobody knows what held the clock down meanwhile.
        passed = now - before if before is not None and now - before <= _LONGEST_HOLD_SECONDS else 0.0
        values: list[Value] = []
        for reason, bit in (*THROTTLE_REASONS.items(), *_NEWER_REASONS.items()):
            active = bool(mask & bit)
            if reason in _NEWER_REASONS and not active and reason not in self._held:
                continue
            values.append(("throttle_active", (reason,), float(active)))
            self._held[reason] = self._held.get(reason, 0.0) + (passed if active else 0.0)
            if reason not in self._counted:
                values.append(("throttle_seconds_total", (reason,), self._held[reason]))
        return values
