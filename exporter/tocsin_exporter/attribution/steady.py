"""A clock of Unix times that never jumps."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Steady"]


class Steady:
    """
    Unix time as it was at the start, going on evenly whatever is done to the wall clock.

    Spans in which a job held a device are kept in it: an hour that somebody sets the clock forward by
    must not end a holder's grace, and an hour back must not prolong it.
    """

    def __init__(self, wall: Callable[[], float], clock: Callable[[], float]) -> None:
        self._wall = wall
        self._clock = clock
        self._at_start = wall() - clock()
        self.offset = self._at_start

    def now(self) -> float:
        """Return the steady time."""
        return self._clock() + self.offset

    def of(self, wall: float) -> float:
        """Return the steady time of something that was just stamped *wall*."""
        return wall - (self._wall() - self.now())

    def started(self, wall: float) -> float:
        """Return the steady time of *wall* as the clock stood when this process started."""
        return wall - self._at_start + self.offset

    def resume(self, offset: float, last: float) -> None:
        """
        Go on with the *offset* of the process before in the same boot, whose last steady time was *last*.

        When that lies ahead, the clock is not the one of then, and the offset means nothing.
        """
        if self._clock() + offset >= last:
            self.offset = offset
