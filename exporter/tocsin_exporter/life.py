"""
Life and death of ranks: ends, restarts and kills for lack of memory, each counted once.

An end is told by the kernel with its status, or noticed by identity, in either order; only when nobody told
is its cause unknown. Ranks that lived when the exporter stopped and are gone when it is back ended unseen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tocsin_exporter.identity.model import IdentityView, ProcessIdentity
from tocsin_exporter.sources.bpf import ExitEvent
from tocsin_exporter.sources.kmsg import KernelEvent
from tocsin_exporter.sources.latest import ErrorCounter

__all__ = ["KINDS", "SCOPES", "SERVED_SECONDS", "Life", "RankLife"]

KINDS = ("ok", "error", "signal", "unknown")
# Whose memory had run out: that of a control group around the rank, or the host's.
SCOPES = ("cgroup", "global")
SERVED_SECONDS = 900.0

# The exit record may come after identity's notice; only then is the cause unknown.
_GRACE_SECONDS = 3.0
# A rank that was alive at the start and that identity has not found by then is not to be found.
_SETTLE_SECONDS = 30.0
# The start of a process is known to a second, from the boot.
_SLACK_SECONDS = 2.0
# Whoever is killed may have been let go by all others, and a pid goes to somebody else in the end.
_CHILD_SECONDS = 60.0
_MOST_RANKS = 4096
_CORE = 0x80

Key = tuple[str, str]
Name = tuple[int, int]


@dataclass(slots=True)
class RankLife:
    """
    One rank: ends by kind, the last one (when, code, signal), kills by scope and the time of the last.

    ``main`` is the process last taken for the rank's own: pid, start in ticks, start time. ``ranked`` is
    false for what only was killed and has no rank.
    """

    ranked: bool = True
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    cores: int = 0
    restarts: int = 0
    last: tuple[float, str, str] | None = None
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SCOPES, 0))
    killed: dict[str, float] = field(default_factory=dict)
    main: tuple[int, int, float] | None = None
    seen: float = 0.0
    living: dict[Name, ProcessIdentity] = field(default_factory=dict)
    ended: Name | None = None


class Life:
    """
    Counts the ends of ranks; zeros exist from the rank's first sight on.

    Only the end of the rank's first process counts: helpers that inherit its environment come and go.
    *child_of* gives job and rank of a process that is or was a child of a rank; *changed* is called when
    `saved` gives something new.
    """

    def __init__(
        self,
        identity: IdentityView,
        clock: Callable[[], float] = time.time,
        *,
        child_of: Callable[[int], Key | None] = lambda _pid: None,
        errors: ErrorCounter | None = None,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._identity = identity
        self._clock = clock
        self._child_of = child_of
        self._errors = errors or ErrorCounter()
        self._changed = changed
        self._lock = threading.RLock()
        self._ranks: dict[Key, RankLife] = {}
        self._told: dict[Name, float] = {}
        self._waiting: dict[Name, tuple[ProcessIdentity, float]] = {}
        # The process that a pid last meant, and when it ended.
        self._by_pid: dict[int, tuple[ProcessIdentity, float | None]] = {}
        # What was last known of ranks that ended, and since when.
        self._facts: dict[Key, tuple[float, dict[str, float]]] = {}
        # Ranks of before the start whose process lives and that identity has not found yet.
        self._awaited: dict[Name, tuple[Key, float]] = {}

    def start(self, alive: Callable[[int, int], bool] | None = None, gone_at: float | None = None) -> None:
        """
        Follow the ranks; let those of `restore` end first that are not *alive* (pid, start in ticks).

        *gone_at* is when they ended at the latest, now by default.
        """
        now = self._clock()
        with self._lock:
            for key, rank in self._ranks.items():
                if rank.main is None or rank.ended == rank.main[:2]:
                    continue
                pid, ticks, started = rank.main
                if alive is not None and alive(pid, ticks):
                    self._awaited[pid, ticks] = (key, now)
                    continue
                when = now if gone_at is None else gone_at
                self._end(rank, (pid, ticks), "unknown", max(started, min(now, when)), "", "")
        self._identity.subscribe(self.arrived, self.left)

    # what comes in

    def arrived(self, process: ProcessIdentity) -> None:
        """Hear of a process."""
        if not process.rank:
            return
        name = (process.pid, process.start_ticks)
        with self._lock:
            rank = self._rank((process.job_id, process.rank))
            self._awaited.pop(name, None)
            before = rank.main
            if before is None or before[:2] != name:
                if (
                    before is not None
                    and before[1] <= process.start_ticks
                    and self._has_ended(rank, before[:2])
                ):
                    rank.restarts += 1
                rank.main = (*name, process.start_time)
            rank.living[name] = process
            rank.seen = self._clock()
            self._by_pid[process.pid] = (process, None)
        self._changed()

    def left(self, process: ProcessIdentity) -> None:
        """Hear that a process is gone, or that it was no rank."""
        with self._lock:
            name = (process.pid, process.start_ticks)
            self._gone(process, self._clock())
            self._bound()
            if process.rank and name not in self._told:
                self._waiting[name] = (process, self._clock())

    def ended(self, event: ExitEvent) -> None:
        """Take in an end that the kernel reported."""
        with self._lock:
            name = (event.process.pid, event.process.start_ticks)
            self._told[name] = event.when
            self._gone(event.process, event.when)
            self._bound()
            self._waiting.pop(name, None)
            if event.signal:
                core = bool(event.status & _CORE)
                self._count(event.process, "signal", event.when, "", str(event.signal), core=core)
            else:
                kind = "error" if event.code else "ok"
                self._count(event.process, kind, event.when, str(event.code), "")
        self._changed()

    def on_log(self, events: Iterable[KernelEvent]) -> None:
        """Take in what the kernel log says of kills for lack of memory."""
        kills = [each for each in events if each.event.kind == "oom_kill"]
        if not kills:
            return
        with self._lock:
            for each in kills:
                scope, pid = str(each.event.fields.get("scope")), int(each.event.fields.get("pid") or 0)
                key = self._victim(pid, each.time)
                if key is None or scope not in SCOPES:
                    continue
                rank = self._rank(key)
                rank.kills[scope] += each.event.count
                rank.killed[scope] = max(each.time, rank.killed.get(scope, 0.0))
                rank.seen = self._clock()
        self._changed()

    def _gone(self, process: ProcessIdentity, when: float) -> None:
        known = self._by_pid.get(process.pid)
        if known is not None and known[0].start_ticks == process.start_ticks and known[1] is None:
            self._by_pid[process.pid] = (process, when)

    def _victim(self, pid: int, when: float) -> Key | None:
        known = self._by_pid.get(pid)
        if known is not None and _within(when, known[0].start_time, known[1]):
            return known[0].job_id, known[0].rank
        for key, rank in self._ranks.items() if known is None else ():
            # One of before the start, that ended while nobody looked.
            if rank.main is not None and rank.main[0] == pid:
                end = rank.last[0] if rank.last is not None and rank.ended == rank.main[:2] else None
                if _within(when, rank.main[2], end):
                    return key
        return self._child_of(pid) if self._clock() - when <= _CHILD_SECONDS else None

    def _rank(self, key: Key) -> RankLife:
        rank = self._ranks.get(key)
        if rank is None:
            if len(self._ranks) >= _MOST_RANKS:
                # Dead ones first, the longest dead of them.
                oldest = min(
                    self._ranks, key=lambda each: (bool(self._ranks[each].living), self._ranks[each].seen)
                )
                del self._ranks[oldest]
                self._errors.add("life", "too_many_ranks")
            rank = self._ranks[key] = RankLife(ranked=bool(key[1]), seen=self._clock())
        return rank

    def _has_ended(self, rank: RankLife, name: Name) -> bool:
        if name in self._told or rank.ended == name:
            return True
        return any((who.pid, who.start_ticks) == name for who, _ in self._identity.departed())

    def _count(
        self, process: ProcessIdentity, kind: str, when: float, code: str, signal: str, *, core: bool = False
    ) -> None:
        if not process.rank:
            return
        key, name = (process.job_id, process.rank), (process.pid, process.start_ticks)
        rank = self._rank(key)
        if rank.ended == name:
            # Told after it had been counted as unknown: the cause is served, the count stands.
            rank.last = (when, code, signal)
            return
        # One that has left is no rank any more, or its own end is still to come.
        others = (who for each, who in rank.living.items() if each not in self._waiting and each != name)
        main = min((process, *others), key=lambda each: (each.start_ticks, each.pid))
        rank.living.pop(name, None)
        rank.seen = self._clock()
        if main is not process:
            rank.main = (main.pid, main.start_ticks, main.start_time)
        else:
            self._end(rank, name, kind, when, code, signal, core=core)

    def _end(
        self,
        rank: RankLife,
        name: Name,
        kind: str,
        when: float,
        code: str,
        signal: str,
        *,
        core: bool = False,
    ) -> None:
        rank.counts[kind] += 1
        rank.cores += core
        rank.last = (when, code, signal)
        rank.ended = name
        rank.seen = self._clock()

    # what is told

    def ranks(self) -> dict[Key, RankLife]:
        """Return the ranks that live and those that ended in the last 15 minutes."""
        now = self._clock()
        with self._lock:
            self._settle(now)
            for key, rank in list(self._ranks.items()):
                if rank.living or any(key == of for of, _ in self._awaited.values()):
                    rank.seen = now
                elif now - rank.seen > SERVED_SECONDS:
                    del self._ranks[key]
            return {
                key: replace(rank, counts=dict(rank.counts), kills=dict(rank.kills), killed=dict(rank.killed))
                for key, rank in self._ranks.items()
            }

    def _bound(self) -> None:
        """Settle also while nobody scrapes."""
        if max(len(self._waiting), len(self._told)) > 2 * _MOST_RANKS:
            self._settle(self._clock())

    def _settle(self, now: float) -> None:
        """Decide on the processes that are gone and of whose end nobody told."""
        due = [name for name, (_, left) in self._waiting.items() if now - left > _GRACE_SECONDS]
        departed = {(who.pid, who.start_ticks) for who, _ in self._identity.departed()} if due else set()
        for name in due:
            process, left = self._waiting.pop(name)
            rank = self._ranks.get((process.job_id, process.rank))
            if name in departed:
                self._count(process, "unknown", left, "", "")
            elif rank is not None:
                # Not ended: identity has learned that it is no process of the rank after all.
                rank.living.pop(name, None)
        for name, (key, since) in list(self._awaited.items()):
            if now - since > _SETTLE_SECONDS:
                del self._awaited[name]
                if (awaited := self._ranks.get(key)) is not None:
                    self._end(awaited, name, "unknown", since, "", "")
        self._told = {name: when for name, when in self._told.items() if now - when < SERVED_SECONDS}
        if len(self._by_pid) > 2 * _MOST_RANKS:
            self._by_pid = {
                pid: known
                for pid, known in self._by_pid.items()
                if known[1] is None or now - known[1] < _CHILD_SECONDS
            }

    def last_facts(self, told: Mapping[Key, Mapping[str, float]]) -> dict[Key, dict[str, float]]:
        """Return the last facts of ranks that ended, as *told* now or else as of before a restart."""
        now = self._clock()
        with self._lock:
            kept = {key: row for key, row in self._facts.items() if now - row[0] < SERVED_SECONDS}
            for key, facts in told.items():
                if key not in kept or not _same(kept[key][1], facts):
                    kept[key] = (now, dict(facts))
            fresh, self._facts = kept.keys() - self._facts.keys(), kept
        if fresh:
            self._changed()
        return {key: dict(facts) for key, (_, facts) in kept.items()}

    # a restart

    def saved(self) -> dict[str, Any]:
        """Return what must survive a restart."""
        with self._lock:
            ranks = [
                [*key, rank.counts, rank.cores, rank.restarts, rank.last, rank.kills, rank.killed, rank.main,
                 rank.ended, rank.seen]
                for key, rank in self._ranks.items()
            ]  # fmt: skip
            # A loss may be no number, which JSON has no word for.
            facts = [
                [*key, when, {name: repr(value) for name, value in row.items()}]
                for key, (when, row) in self._facts.items()
            ]
            return {"ranks": ranks, "last": facts}

    def restore(self, raw: Mapping[str, Any]) -> None:
        """Take in what `saved` gave; what cannot be read is left out and counted."""
        with self._lock:
            for row in self._rows(raw, "ranks"):
                try:
                    key, rank = _rank_of(row)
                except (TypeError, ValueError, KeyError, AttributeError):
                    self._errors.add("state", "bad_data")
                else:
                    self._ranks[key] = rank
            for row in self._rows(raw, "last"):
                try:
                    job, number, when, facts = row
                    values = {str(name): float(value) for name, value in list(_mapping(facts).items())[:32]}
                    self._facts[str(job), str(number)] = (float(when), values)
                except (TypeError, ValueError):
                    self._errors.add("state", "bad_data")

    def _rows(self, raw: Mapping[str, Any], name: str) -> list[Any]:
        rows = raw.get(name, [])
        if not isinstance(rows, list):
            self._errors.add("state", "bad_data")
            return []
        return rows[:_MOST_RANKS]


def _within(when: float, start: float, end: float | None) -> bool:
    """Say whether a process can have been killed at *when*; its pid goes to somebody else in the end."""
    return start - _SLACK_SECONDS <= when and (end is None or when <= end + _CHILD_SECONDS)


def _same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    # A loss that is no number is not even equal to itself.
    return repr(sorted(one.items())) == repr(sorted(other.items()))


def _rank_of(row: Any) -> tuple[Key, RankLife]:
    job, number, counts, cores, restarts, last, kills, killed, main, ended, seen = row
    rank = RankLife(ranked=bool(number), cores=int(cores), restarts=int(restarts), seen=float(seen))
    rank.counts.update({kind: int(counts[kind]) for kind in KINDS})
    rank.kills.update({scope: int(kills[scope]) for scope in SCOPES})
    rank.killed.update({scope: float(killed[scope]) for scope in SCOPES if scope in _mapping(killed)})
    if last is not None:
        rank.last = (float(last[0]), str(last[1]), str(last[2]))
    if main is not None:
        rank.main = (int(main[0]), int(main[1]), float(main[2]))
    if ended is not None:
        rank.ended = (int(ended[0]), int(ended[1]))
    return (str(job), str(number)), rank


def _mapping(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError("not an object")
    return value
