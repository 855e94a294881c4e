"""What one job saw of one device or port while it held it; pure, with the clock as an argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tocsin_exporter.kmsg.xid_classes import CLASSES

__all__ = [
    "KEEP_SECONDS", "LINGER_SECONDS", "Holding", "Key", "Meter", "counts", "key_of", "number", "served",
    "text", "times",
]  # fmt: skip

Key = tuple[str, tuple[str, ...]]

# Remaps and clean-up Xids come after the process that caused them is gone.
LINGER_SECONDS = 30.0
# A cause must not vanish with the process it killed.
KEEP_SECONDS = 900.0
_MOST_PERIODS = 16
# Longer texts than the longest label are not ours.
_MOST_TEXT = 256
_MOST_KEYS = 512


class Meter:
    """
    Raw counters of one device or port, and what they grew by from reading to reading.

    A raw value that falls (driver reload, reset, wrap) restarts the base and adds nothing. An event counter
    that stands at its old height again in the next reading was misread once, not reset: what it had counted
    before is not counted a second time.
    """

    __slots__ = ("_before_fall", "_raw")

    def __init__(self) -> None:
        self._raw: dict[Key, float] = {}
        self._before_fall: dict[Key, float] = {}

    def gains(
        self, raw: Mapping[Key, float], wanted: Mapping[str, bool]
    ) -> tuple[dict[Key, float], dict[Key, float]]:
        """
        Take a reading in; return the growth of its event counters and of its other ones, zeros included.

        *wanted* has the quantities to follow: True for counters of events.
        """
        events: dict[Key, float] = {}
        amounts: dict[Key, float] = {}
        known = self._raw
        for key, now in raw.items():
            event = wanted.get(key[0])
            if event is None:
                continue
            before = known.get(key)
            if event:
                events[key] = self._event(key, before, now)
            elif before is not None and before < now < math.inf:
                amounts[key] = now - before
            else:
                amounts[key] = 0.0
            known[key] = now
        return events, amounts

    def _event(self, key: Key, before: float | None, now: float) -> float:
        if before is None or not math.isfinite(now):
            return 0.0
        if self._before_fall and (high := self._before_fall.pop(key, None)) is not None and now >= high:
            before = high
        if now < before:
            self._before_fall[key] = before
            return 0.0
        return now - before

    def to_json(self, wanted: Mapping[str, bool]) -> list[Any]:
        """Return the bases of the event counters."""
        return [
            [key[0], list(key[1]), self._before_fall.get(key, value)]
            for key, value in self._raw.items()
            if wanted.get(key[0]) and math.isfinite(value)
        ]

    @classmethod
    def from_json(cls, rows: list[Any]) -> Meter:
        """Rebuild what `to_json` gave."""
        meter = cls()
        for name, labels, value in rows[:_MOST_KEYS]:
            meter._raw[key_of(name, labels)] = number(value)
        return meter


@dataclass(slots=True)
class Holding:
    """
    One job on one device (``subject`` is its UUID) or port.

    ``periods`` are the spans in which the job held it, in seconds of one steady clock, the last one open
    (None) while it does. ``ranks`` are the ranks seen on it in the last period. ``counters`` are what it grew
    by, each born at 0; ``xid`` counts kernel events by class; ``times`` holds the last event's time by class,
    a Unix time.
    """

    subject: str
    job_id: str
    ranks: frozenset[str]
    periods: list[tuple[float, float | None]]
    counters: dict[Key, float] = field(default_factory=dict)
    xid: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0))
    times: dict[str, float] = field(default_factory=dict)
    # What a device did up to the reading that first shows the holder is not its doing.
    fresh: bool = True
    # Known from before a restart.
    restored: bool = False

    @property
    def rank(self) -> str:
        """The rank that holds the device, "" when unknown or when several do."""
        # Not taken back when all but one of them have left: a series must not change its name as a job ends.
        return next(iter(self.ranks)) if len(self.ranks) == 1 else ""

    @property
    def active(self) -> bool:
        """Whether a process of the job is on the device now."""
        return self.periods[-1][1] is None

    @property
    def blank(self) -> bool:
        """Whether nothing happened to it so far."""
        return not self.times and not any(self.xid.values())

    def accountable(self, now: float) -> bool:
        """Whether what happens at *now* still counts for the job."""
        end = self.periods[-1][1]
        return end is None or now - end <= LINGER_SECONDS

    def there_after(self, when: float | None) -> bool:
        """Whether it was on the device after *when*, the reading before."""
        end = self.periods[-1][1]
        return end is None or (when is not None and end > when)

    def expired(self, now: float) -> bool:
        """Whether nothing of it is served any more."""
        end = self.periods[-1][1]
        return end is not None and now - end > LINGER_SECONDS + KEEP_SECONDS

    def covers(self, when: float, *, slack: float = 0.0, since: float = math.inf) -> bool:
        """
        Whether the job was accountable at *when*, or from up to *slack* seconds later on.

        Only spans count that began at *since* or before.
        """
        return any(
            start - slack <= when and start <= since and (end is None or when <= end + LINGER_SECONDS)
            for start, end in self.periods
        )

    def hold(self, since: float, now: float, ranks: frozenset[str]) -> bool:
        """The job is on the device, since *since* if it was not before; return whether it returned."""
        if self.active:
            if not ranks <= self.ranks:
                self.ranks |= ranks
            return False
        # Who returns within the grace was accountable all the while; later, what happened is not its doing.
        self.fresh |= not self.accountable(now)
        self.ranks = ranks
        self.periods = [*self.periods, (min(since, now), None)][-_MOST_PERIODS:]
        return True

    def release(self, now: float) -> None:
        """The last process left."""
        if self.active:
            self.periods[-1] = (self.periods[-1][0], now)

    def cut(self, when: float) -> None:
        """It was there until *when* at least, and nobody saw when it left: it accounts for nothing after."""
        self.release(when - LINGER_SECONDS)

    def note(self, kind: str, when: float) -> None:
        """Keep the time of an event of class *kind*."""
        self.times[kind] = max(self.times.get(kind, 0.0), when)

    def add(self, gains: Iterable[tuple[Key, float]]) -> None:
        """Count what the device grew by; who has just come is born at 0."""
        mine, born = self.counters, self.fresh
        for key, gain in gains:
            mine[key] = mine.get(key, 0.0) + (0.0 if born else gain)

    def to_json(self, wanted: Mapping[str, bool]) -> dict[str, Any]:
        """Return what must survive a restart."""
        return {
            "subject": self.subject,
            "job_id": self.job_id,
            "ranks": sorted(self.ranks),
            "periods": [list(period) for period in self.periods],
            "counters": [
                [key[0], list(key[1]), value] for key, value in self.counters.items() if wanted.get(key[0])
            ],
            "xid": {kind: count for kind, count in self.xid.items() if count},
            "times": dict(self.times),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Holding:
        """Rebuild what `to_json` gave; KeyError, TypeError or ValueError for anything else."""
        periods = [
            (number(start), None if end is None else number(end))
            for start, end in raw["periods"][-_MOST_PERIODS:]
        ]
        if not periods:
            raise ValueError("a holder without a period")
        return cls(
            subject=text(raw["subject"]),
            job_id=text(raw["job_id"]),
            ranks=frozenset(map(text, raw["ranks"][:64])),
            periods=periods,
            counters={
                key_of(name, labels): number(value) for name, labels, value in raw["counters"][:_MOST_KEYS]
            },
            xid=counts(raw["xid"]),
            times=times(raw["times"]),
            fresh=False,
            restored=True,
        )


def served(holding: Holding, now: float, is_event: Callable[[Key], bool]) -> dict[Key, float]:
    """Return the counters that are served: all while accountable, event counts afterwards."""
    if holding.accountable(now):
        return dict(holding.counters)
    return {key: value for key, value in holding.counters.items() if is_event(key)}


def number(raw: Any) -> float:
    """Return a finite number; TypeError or ValueError for anything else."""
    value = float(raw)
    if not math.isfinite(value):
        raise ValueError(f"not a finite number: {raw!r:.40}")
    return value


def text(raw: Any) -> str:
    """Return a label's text; ValueError for anything else."""
    if not isinstance(raw, str) or len(raw) > _MOST_TEXT:
        raise ValueError(f"not a label: {raw!r:.40}")
    return raw


def key_of(name: Any, labels: Any) -> Key:
    """Return a counter's key; ValueError for anything else."""
    if not isinstance(labels, list) or len(labels) > 8:
        raise ValueError(f"not labels: {labels!r:.40}")
    return text(name), tuple(map(text, labels))


def counts(raw: Mapping[str, Any]) -> dict[str, int]:
    """Return event counts of all classes, from those that are not 0."""
    found = dict.fromkeys(CLASSES, 0)
    for kind in CLASSES:
        if kind in raw:
            found[kind] = int(number(raw[kind]))
    return found


def times(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return times of events by class."""
    return {text(kind): number(when) for kind, when in list(raw.items())[:64]}
