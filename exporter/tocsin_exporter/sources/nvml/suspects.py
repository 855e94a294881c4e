"""
Devices at which the driver hangs or breaks: since when, in which call, and when to try them again.

A suspect is left out of the readings. It is tried by a child of its own, so that the others' readings,
samples and counts go on, after a pause that grows with every hang, and never while a child that it holds
lives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["PAUSES", "Suspect", "Suspects"]

PAUSES = (1.0, 5.0, 10.0, 20.0, 40.0, 60.0)
# A device that has answered for this long begins with the shortest pause again.
_FORGIVEN_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Suspect:
    """
    ``since`` is when the call began that did not return, ``until`` when to try again; both monotonic.

    ``reason`` is ``hung``, or ``bad_data`` where the library crashed.
    """

    index: int
    call: str
    since: float
    until: float
    times: int
    reason: str


class Suspects:
    """
    All suspects by the driver's index. Pure: the time is an argument.

    One thread changes them, others may ask: what they see is replaced, never changed.
    """

    def __init__(self) -> None:
        self._now: dict[int, Suspect] = {}
        # Those that answered again: how often they hung, and since when they answer.
        self._before: dict[int, tuple[int, float]] = {}

    def hung(self, index: int, call: str, began: float, now: float, reason: str = "hung") -> Suspect:
        """Take in that the device hangs in *call* since *began*, or that the library crashed in it."""
        earlier = self._now.get(index)
        times, answered = self._before.pop(index, (0, now))
        if now - answered > _FORGIVEN_SECONDS:
            times = 0
        if earlier is not None:
            times, call, began = earlier.times, earlier.call, earlier.since
        pause = PAUSES[min(times, len(PAUSES) - 1)]
        suspect = Suspect(index, call, began, now + pause, times + 1, reason)
        self._now = {**self._now, index: suspect}
        return suspect

    def answered(self, index: int, now: float) -> Suspect | None:
        """Take in that the device answers; return the suspect that it was."""
        suspect = self._now.get(index)
        if suspect is not None:
            self._now = {key: row for key, row in self._now.items() if key != index}
            self._before[index] = (suspect.times, now)
        return suspect

    def later(self, index: int, now: float) -> None:
        """Try again only after another pause, though nothing new is known."""
        suspect = self._now.get(index)
        if suspect is not None:
            pause = PAUSES[min(suspect.times - 1, len(PAUSES) - 1)]
            self._now = {**self._now, index: replace(suspect, until=now + pause)}

    def clear(self) -> None:
        """Forget all: the driver numbers its devices anew."""
        self._now, self._before = {}, {}

    def due(self, now: float) -> list[int]:
        """Return the devices whose pause is over, the longest waiting first."""
        rows = sorted(self._now.values(), key=lambda row: row.until)
        return [row.index for row in rows if row.until <= now]

    def next(self) -> float | None:
        """Return when the next pause is over, or None."""
        return min((row.until for row in self._now.values()), default=None)

    def indices(self) -> list[int]:
        """Return the devices to leave alone."""
        return sorted(self._now)

    def all(self) -> tuple[Suspect, ...]:
        """Return the suspects in the driver's order."""
        return tuple(row for _, row in sorted(self._now.items()))
