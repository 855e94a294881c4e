"""Reads the host's side of all ranks every interval."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.identity.model import IdentityView, ProcessIdentity
from tocsin_exporter.sources.latest import ErrorCounter, PollingSource
from tocsin_exporter.sources.procfs import read_small
from tocsin_exporter.sources.rank_host import tasks as proc
from tocsin_exporter.sources.rank_host.cgroups import Cgroups
from tocsin_exporter.sources.rank_host.follow import SLOW_SECONDS, Follow, Shared
from tocsin_exporter.sources.rank_host.model import Defunct, RankHost, Reading

__all__ = ["MOST_RANKS", "RankHostSource", "accounts_io"]

log = logging.getLogger(__name__)

_NAME = "rank_host"
# More than any node has GPUs, MIG instances included.
MOST_RANKS = 512
# A child of a rank is named in the kernel log moments after it was killed.
_REMEMBER_SECONDS = 60.0
# Reading takes at most this share of a CPU: with thousands of threads readings are made less often.
_SHARE = 0.01
_MOST_REMEMBERED = 65536

Key = tuple[str, str]
Ended = tuple[ProcessIdentity, dict[int, int], float]


class RankHostSource(PollingSource[Reading]):
    """
    Follows the ranks that *identity* knows.

    *devices* gives PCI addresses by GPU index, *on_gpu* the pids of processes with a GPU context.
    """

    def __init__(
        self,
        procfs: Path,
        sysfs: Path,
        interval: float,
        max_age: float,
        errors: ErrorCounter,
        identity: IdentityView,
        *,
        devices: Callable[[], Mapping[int, str]] = dict,
        on_gpu: Callable[[], Collection[int]] = frozenset,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        super().__init__(_NAME, interval, max_age, errors)
        self._least, self._most = interval, max(interval, max_age / 3)
        self._spent = spent
        self._procfs = procfs
        self._sysfs = sysfs
        self._cgroups = Cgroups(sysfs / "fs/cgroup")
        self._identity = identity
        self._devices = devices
        self._on_gpu = on_gpu
        self._wall = wall
        self._clock = clock
        self._ranks: dict[tuple[int, int], Follow] = {}
        # Ranks that ended and of which something is still there, with the children they had.
        self._ended: dict[tuple[int, int], Ended] = {}
        # Children of ranks by pid: start, rank, when last seen.
        self._children: dict[int, tuple[int, Key, float]] = {}
        self._told: dict[tuple[tuple[int, int], str], float] = {}

    def rank_of_child(self, pid: int) -> Key | None:
        """Return job and rank of a process that is, or was within the last minute, a child of a rank."""
        known = self._children.get(pid)
        return known[1] if known is not None and self._wall() - known[2] <= _REMEMBER_SECONDS else None

    @property
    def interval(self) -> float:
        """Return the seconds to the next reading."""
        return self._interval

    def read(self) -> Reading:
        before = self._spent()
        reading = self._read()
        cost = self._spent() - before
        wanted = min(max(self._least, cost / _SHARE), self._most)
        if (wanted > self._least) != (self._interval > self._least):
            log.info("a reading of the ranks takes %.2f s of CPU: one every %.0f s", cost, wanted)
        self._interval = wanted
        return reading

    def _read(self) -> Reading:
        now, wall = self._clock(), self._wall()
        living = [who for who in self._identity.living() if who.rank]
        if len(living) > MOST_RANKS:
            self._errors.add(self.name, "too_many_ranks")
            living = living[:MOST_RANKS]
        known: dict[tuple[int, int], Follow] = {}
        for who in living:
            follow = self._ranks.get((who.pid, who.start_ticks)) or Follow(who)
            if follow.who != who:
                follow.again(who)
            follow.locate(self._procfs, self._cgroups, now)
            known[who.pid, who.start_ticks] = follow
        self._let_go(known, wall)
        self._ranks = known
        shared = Shared(
            procfs=self._procfs,
            sysfs=self._sysfs,
            cgroups=self._cgroups,
            accounted=accounts_io(self._procfs),
            ranks=frozenset(who.pid for who in living),
            on_gpu=self._on_gpu(),
            devices=dict(self._devices()),
            groups=dict(Counter(each.place.innermost for each in known.values() if each.place.innermost)),
        )
        rows: list[RankHost] = []
        for name, follow in known.items():
            row = follow.read(shared, now, wall)
            if row is not None:
                rows.append(row)
            for problem in follow.problems:
                self._tell(name, problem, now)
            for pid, start in follow.children.items():
                self._children[pid] = (start, (follow.who.job_id, follow.who.rank), wall)
        self._forget(now, wall)
        return Reading(tuple(rows), tuple(self._defunct(wall)))

    def _let_go(self, known: Mapping[tuple[int, int], Follow], wall: float) -> None:
        """Keep what the ranks that are no more living had below them."""
        gone = {
            (who.pid, who.start_ticks): (who, when) for who, when in self._identity.departed() if who.rank
        }
        for name in self._ended.keys() - gone.keys():
            del self._ended[name]
        for name, (who, when) in gone.items():
            follow = self._ranks.get(name)
            if name not in known and (follow is not None or wall - when < 2 * self._interval + 5):
                self._ended.setdefault(name, (who, dict(follow.children) if follow else {}, when))

    def _defunct(self, wall: float) -> list[Defunct]:
        found: list[Defunct] = []
        for name, (who, children, when) in list(self._ended.items()):
            for pid, start in list(children.items()):
                task = proc.read_process(self._procfs, pid)
                if task is None or task.start != start or task.state in "ZXx":
                    del children[pid]
            task = proc.read_process(self._procfs, who.pid)
            zombie = task is not None and task.start == who.start_ticks and task.state in "ZXx"
            if zombie or children:
                found.append(Defunct(who.job_id, who.rank, when if zombie else None, len(children)))
            else:
                del self._ended[name]
        # Of a rank that ended several times the latest counts.
        return list({(each.job_id, each.rank): each for each in found}.values())

    def _tell(self, name: tuple[int, int], problem: str, now: float) -> None:
        """Count a gap once a minute per rank, not at every reading."""
        if now - self._told.get((name, problem), float("-inf")) >= SLOW_SECONDS:
            self._told[name, problem] = now
            self._errors.add(self.name, problem)

    def _forget(self, now: float, wall: float) -> None:
        self._told = {key: at for key, at in self._told.items() if now - at < SLOW_SECONDS}
        old = len(self._children) > _MOST_REMEMBERED
        self._children = {
            pid: row
            for pid, row in self._children.items()
            if wall - row[2] <= (0 if old else _REMEMBER_SECONDS)
        }


def accounts_io(procfs: Path) -> bool:
    """Say whether the kernel keeps how long processes wait for I/O (delay accounting)."""
    try:
        return read_small(procfs / "sys/kernel/task_delayacct", 16).strip() == b"1"
    except SourceError:
        # Before Linux 5.14 it was on from the start, and could not be asked for.
        return False
