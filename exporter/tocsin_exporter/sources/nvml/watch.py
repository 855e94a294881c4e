"""When a silent child hangs, and in which call of which device."""

from __future__ import annotations

from collections.abc import Callable

from tocsin_exporter.sources.nvml.progress import OTHER_CALL, Call

__all__ = ["HangError", "HangWatch"]

# These attach the board first where no persistence daemon keeps it attached, which takes seconds.
_ATTACHING = frozenset({"nvmlDeviceGetHandleByIndex_v2"})
# Longer pauses between two looks are ours, not the child's: the machine or the cgroup was frozen.
_LONGEST_STEP_SECONDS = 0.5


class HangError(Exception):
    """The call *name* of device *index* (`NO_DEVICE`: of none) has not returned for *seconds*."""

    def __init__(self, index: int, name: str, seconds: float) -> None:
        super().__init__(name)
        self.index, self.name, self.seconds = index, name, seconds


class HangWatch:
    """
    Watches one request: no call may take *call_deadline* seconds and no device *deadline*; the call that
    opens a device may take *attach_deadline*, if that is longer.

    Only time that is seen to pass counts, so that a process that was itself held up accuses nobody.
    """

    def __init__(
        self, call_deadline: float, deadline: float, attach_deadline: float, clock: Callable[[], float]
    ) -> None:
        self._call_deadline, self._deadline, self._clock = call_deadline, deadline, clock
        self._attach_deadline = attach_deadline
        self._last = clock()
        self._silent = 0.0
        self._began = 0
        self._age = 0.0

    def heard(self) -> None:
        """Take in that a frame came."""
        self._silent = 0.0

    def look(self, call: Call | None, current: int) -> HangError | None:
        """Return the hang, if it is one; *current* is the last frame's device, for a child without a page."""
        now = self._clock()
        step, self._last = min(now - self._last, _LONGEST_STEP_SECONDS), now
        self._silent += step
        began = call.began if call is not None else 0
        self._age = self._age + step if began and began == self._began else 0.0
        self._began = began
        longest, silence = self._call_deadline, self._deadline
        if call is not None and call.name in _ATTACHING:
            longest, silence = max(longest, self._attach_deadline), max(silence, self._attach_deadline)
        if self._age < longest and self._silent < silence:
            return None
        if call is None:
            return HangError(current, OTHER_CALL, self._silent)
        return HangError(call.device, call.name, self._age)
