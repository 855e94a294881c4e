"""What one job saw of one device or port while it held it; pure, with the clock as an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tocsin_exporter.kmsg.xid_classes import CLASSES

__all__ = ["KEEP_SECONDS", "LINGER_SECONDS", "Holding", "Key", "Tally"]

Key = tuple[str, tuple[str, ...]]

# Remaps and clean-up Xids come after the process that caused them is gone.
LINGER_SECONDS = 30.0
# A cause must not vanish with the process it killed.
KEEP_SECONDS = 900.0
_MOST_PERIODS = 16


class Tally:
    """
    Counters of one holder, each born at 0 when it is first seen.

    A raw value that falls (driver reload, reset, wrap) restarts the base and adds nothing.
    """

    def __init__(self) -> None:
        self._values: dict[Key, float] = {}
        self._raw: dict[Key, float] = {}

    def update(self, raw: Mapping[Key, float]) -> bool:
        """Take raw values in; return whether a value grew."""
        grew = False
        for key, now in raw.items():
            before = self._raw.get(key)
            self._raw[key] = now
            gain = now - before if before is not None and now > before else 0.0
            self._values[key] = self._values.get(key, 0.0) + gain
            grew = grew or gain > 0
        return grew

    def rebase(self) -> None:
        """Forget the raw values: what happens until the next update is not this holder's."""
        self._raw.clear()

    def values(self) -> dict[Key, float]:
        """Return the counts."""
        return dict(self._values)

    def to_json(self, keep: Callable[[Key], bool]) -> list[Any]:
        """Return the counters that *keep* wants, with their raw values."""
        return [
            [key[0], list(key[1]), value, self._raw.get(key)]
            for key, value in self._values.items()
            if keep(key)
        ]

    @classmethod
    def from_json(cls, rows: list[Any]) -> Tally:
        """Rebuild what `to_json` gave."""
        tally = cls()
        for name, labels, value, raw in rows:
            key = (str(name), tuple(map(str, labels)))
            tally._values[key] = float(value)
            if raw is not None:
                tally._raw[key] = float(raw)
        return tally


@dataclass(slots=True)
class Holding:
    """
    One job on one device (``subject`` is its UUID) or port.

    ``periods`` are the spans in which the job held it, Unix times, the last one open (None)
    while it does. ``xid`` counts events by class, ``times`` holds the last event's kernel time.
    """

    subject: str
    job_id: str
    rank: str
    periods: list[tuple[float, float | None]]
    tally: Tally = field(default_factory=Tally)
    xid: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0))
    times: dict[str, float] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """Whether a process of the job is on the device now."""
        return self.periods[-1][1] is None

    def accountable(self, now: float) -> bool:
        """Whether what happens at *now* still counts for the job."""
        end = self.periods[-1][1]
        return end is None or now - end <= LINGER_SECONDS

    def expired(self, now: float) -> bool:
        """Whether nothing of it is served any more."""
        end = self.periods[-1][1]
        return end is not None and now - end > LINGER_SECONDS + KEEP_SECONDS

    def covers(self, when: float) -> bool:
        """Whether the job was accountable at *when*."""
        return any(
            start <= when and (end is None or when <= end + LINGER_SECONDS) for start, end in self.periods
        )

    def hold(self, since: float, now: float) -> None:
        """The job is on the device again."""
        if self.active:
            return
        if not self.accountable(now):
            # What the counters did while it was away is not its doing.
            self.tally.rebase()
        self.periods = [*self.periods, (min(since, now), None)][-_MOST_PERIODS:]

    def release(self, now: float) -> None:
        """The last process left."""
        if self.active:
            self.periods[-1] = (self.periods[-1][0], now)

    def note(self, kind: str, when: float) -> None:
        """Keep the time of an event of class *kind*."""
        self.times[kind] = max(self.times.get(kind, 0.0), when)

    def to_json(self, keep: Callable[[Key], bool]) -> dict[str, Any]:
        """Return what must survive a restart."""
        return {
            "subject": self.subject,
            "job_id": self.job_id,
            "rank": self.rank,
            "periods": [list(period) for period in self.periods],
            "tally": self.tally.to_json(keep),
            "xid": self.xid,
            "times": self.times,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Holding:
        """Rebuild what `to_json` gave; KeyError, TypeError or ValueError for anything else."""
        return cls(
            subject=str(raw["subject"]),
            job_id=str(raw["job_id"]),
            rank=str(raw["rank"]),
            periods=[(float(start), None if end is None else float(end)) for start, end in raw["periods"]],
            tally=Tally.from_json(raw["tally"]),
            xid={**dict.fromkeys(CLASSES, 0), **{str(k): int(v) for k, v in raw["xid"].items()}},
            times={str(k): float(v) for k, v in raw["times"].items()},
        )
