"""Keeps track of the processes of jobs: who arrived, who left, who they are."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.identity import rules, slurmd
from tocsin_exporter.identity.assigned import Assignment, DeviceMap, assigned_devices, own_devices
from tocsin_exporter.identity.facts import read_facts
from tocsin_exporter.identity.model import ProcessIdentity, ProcessListener
from tocsin_exporter.sources import procfs as proc
from tocsin_exporter.sources.latest import ErrorCounter

__all__ = ["Holder", "Resolver", "Usage", "identity_of"]

log = logging.getLogger(__name__)

SCAN_SECONDS = 1.0
# A pid that was reused without being noticed, or an environment that became readable.
FULL_SECONDS = 30.0
# Between fork and exec a process still shows its parent's environment.
_SETTLE_SECONDS = 2.5
DEPARTED_SECONDS = 900.0
_MOST_DEPARTED = 4096


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process used so far."""

    cpu_seconds: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Holder:
    """The job, and the rank or "", on whose behalf a process holds a device."""

    job_id: str
    rank: str


@dataclass(slots=True)
class _Entry:
    start_ticks: int
    seen: float
    facts: rules.Facts | None
    verdict: rules.Verdict | None
    # Whether the process held a device when the verdict was found; None before there is one.
    held: bool | None = None
    # The rank process (pid, start) below which this one was seen: with it gone it is a left-over.
    under: tuple[int, int] | None = None
    # The devices it was given, and the verdict and the map by which they were found.
    given: tuple[str, ...] = ()
    given_by: tuple[object, object] | None = None
    name: str = ""


class Resolver:
    """
    The identity view of this node (see `IdentityView`), kept current by one thread.

    New processes are looked at about once a second, the end of a tracked one is noticed at once
    where the kernel offers pidfds. ``only_env`` limits everything to processes with that variable.
    """

    def __init__(
        self,
        procfs: Path,
        errors: ErrorCounter,
        only_env: tuple[str, str] | None = None,
        *,
        pods: Path = Path("/var/log/pods"),
        kubelet: Callable[[str, str, str], tuple[str, ...]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._procfs = procfs
        self._errors = errors
        self._only_env = only_env
        self._pods = pods
        self._kubelet = kubelet
        self._clock = clock
        self._wall = wall
        self._boot_id = proc.boot_id(procfs)
        self._boot_time = proc.boot_time(procfs)
        self._lock = threading.RLock()
        self._entries: dict[int, _Entry] = {}
        self._living: dict[int, ProcessIdentity] = {}
        self._usage: dict[int, Usage] = {}
        self._departed: deque[tuple[ProcessIdentity, float]] = deque(maxlen=_MOST_DEPARTED)
        self._listeners: list[tuple[ProcessListener, ProcessListener]] = []
        # Held while listeners are told, so that none hears of a process's end before its arrival.
        self._telling = threading.RLock()
        self._conflicts: Counter[str] = Counter({"job": 0, "rank": 0, "gpu": 0})
        self._disputed: set[tuple[int, int, str]] = set()
        self._gpus_of: dict[int, tuple[int, ...]] = {}
        self._map = DeviceMap()
        self._assigned: tuple[Assignment, ...] = ()
        # The daemons and nodes for which Slurm's files were last read.
        self._asked: object = None
        self._last_full = float("-inf")
        self._scanned_at: float | None = None
        self._scan_error: SourceError | None = None
        self._pidfds: dict[int, int] = {}
        self._poll = select.poll()
        self._real = procfs == Path("/proc") and hasattr(os, "pidfd_open")
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._wake_fd, select.POLLIN)
        self._stopping = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="identity", daemon=True)

    # the view

    def living(self) -> tuple[ProcessIdentity, ...]:
        """Return the rank and job processes alive at the last scan."""
        with self._lock:
            return tuple(self._living.values())

    def departed(self) -> tuple[tuple[ProcessIdentity, float], ...]:
        """Return processes that ended in the last 15 minutes, with the wall-clock time it was noticed."""
        now = self._wall()
        with self._lock:
            while self._departed and now - self._departed[0][1] > DEPARTED_SECONDS:
                self._departed.popleft()
            return tuple(self._departed)

    def by_pid(self, pid: int) -> ProcessIdentity | None:
        """Return who *pid* is, or was until lately; the living process wins over a departed one."""
        with self._lock:
            if pid in self._living:
                return self._living[pid]
            return next((who for who, _ in reversed(self._departed) if who.pid == pid), None)

    def subscribe(self, arrived: ProcessListener, left: ProcessListener) -> None:
        """
        Call *arrived* (at once for those living) and *left* from the scanning thread.

        *left* also hears of a process that turned out to be a wrapper of the rank; only what
        ended is in ``departed()``.
        """
        with self._telling:
            with self._lock:
                self._listeners.append((arrived, left))
                living = tuple(self._living.values())
            for who in living:
                arrived(who)

    # what only the exporter's own collectors ask

    def usage(self) -> dict[int, Usage]:
        """Return CPU time and memory of the living processes, by pid."""
        with self._lock:
            return dict(self._usage)

    def conflicts(self) -> dict[str, int]:
        """Return how many processes had sources that disagree, by fact."""
        with self._lock:
            return dict(self._conflicts)

    def holder_of(self, pid: int) -> Holder | None:
        """Return the job of any process, a child of a rank included."""
        with self._lock:
            if pid in self._living:
                return Holder(self._living[pid].job_id, self._living[pid].rank)
            entry = self._entries.get(pid)
            verdict = entry.verdict if entry else None
        return Holder(verdict.job_id, verdict.rank) if verdict else None

    def assigned(self) -> tuple[Assignment, ...]:
        """Return the devices that jobs were given, by the environment of their processes, used or not."""
        with self._lock:
            return self._assigned

    def state(self) -> tuple[float | None, SourceError | None]:
        """Return seconds since the last scan, None before the first, and why it failed."""
        with self._lock:
            age = None if self._scanned_at is None else self._clock() - self._scanned_at
            return age, self._scan_error

    def note_devices(
        self,
        gpus_of: Mapping[int, tuple[int, ...]],
        uuids: Mapping[str, int],
        minors: Mapping[int, int] | None = None,
    ) -> None:
        """Hear from the driver which pids hold which devices, and the index of each UUID and device file."""
        with self._lock:
            known = DeviceMap(dict(uuids), dict(minors or {}), self._map.files, self._map.daemons)
            if dict(gpus_of) == self._gpus_of and known == self._map:
                return
            self._gpus_of, self._map = dict(gpus_of), known
        self._wake()

    # the thread

    def start(self) -> None:
        """Start scanning."""
        self._thread.start()

    def stop(self) -> None:
        """Stop scanning."""
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        for descriptor in self._pidfds.values():
            os.close(descriptor)
        self._pidfds.clear()

    def wait_first(self, timeout: float) -> bool:
        """Wait for the first scan."""
        return self._first.wait(timeout)

    def _wake(self) -> None:
        try:
            os.eventfd_write(self._wake_fd, 1)
        except BlockingIOError:
            return

    def _run(self) -> None:
        while not self._stopping.is_set():
            failed = True
            try:
                self.scan()
                failed = False
            except SourceError as err:
                self._errors.add("identity", err.reason)
                with self._lock:
                    self._scan_error = err
            except Exception:
                log.exception("identity scan failed")
                self._errors.add("identity", "bad_data")
                with self._lock:
                    self._scan_error = SourceError("bad_data", "the scan failed; see the log")
            self._first.set()
            if failed:
                # An end that was not looked at wakes the poll at once, again and again.
                self._stopping.wait(SCAN_SECONDS)
            for descriptor, _ in self._poll.poll(SCAN_SECONDS * 1000):
                if descriptor == self._wake_fd:
                    os.eventfd_read(self._wake_fd)

    def scan(self) -> None:
        """Look at new processes and at the tracked ones once; tell the listeners what changed."""
        now = self._clock()
        present = proc.pids(self._procfs)
        full = now - self._last_full >= FULL_SECONDS
        if full:
            self._last_full = now
        with self._lock:
            gpus_of = dict(self._gpus_of)
            tracked = dict(self._living)
        for pid in self._entries.keys() - set(present):
            del self._entries[pid]
        ended: set[int] = set()
        for pid in present:
            entry = self._entries.get(pid)
            young = entry is not None and (now - entry.seen < _SETTLE_SECONDS or rules.is_starter(entry.name))
            if entry is None or full or pid in tracked or young:
                self._examine(pid, entry, now, ended)
        ended |= tracked.keys() - set(present)
        self._judge(gpus_of)
        self._ask_slurm(full)
        self._publish(gpus_of, ended)
        with self._lock:
            self._scanned_at, self._scan_error = now, None

    def _examine(self, pid: int, entry: _Entry | None, now: float, ended: set[int]) -> None:
        stat = proc.process_stat(self._procfs, pid)
        if stat is None or stat.ended:
            self._entries.pop(pid, None)
            ended.add(pid)
            return
        if entry is not None and entry.start_ticks != stat.start_ticks:
            ended.add(pid)
            entry = None
        if stat.kernel_thread or pid == os.getpid():
            self._entries[pid] = _Entry(stat.start_ticks, float("-inf"), None, None)
            return
        if entry is not None and now - entry.seen >= _SETTLE_SECONDS:
            if not rules.is_starter(entry.name) or entry.name == stat.name:
                with self._lock:
                    if pid in self._living:
                        self._usage[pid] = Usage(stat.cpu_seconds, stat.resident_bytes)
                return
            # It was about to become a task, and has.
            entry = None
        also = self._only_env[0] if self._only_env is not None else ""
        facts, error = read_facts(self._procfs, stat, self._pods, also)
        after = proc.process_stat(self._procfs, pid)
        if after is None or after.ended:
            # What was read may be what a process has left when its memory is gone: nothing.
            self._entries.pop(pid, None)
            ended.add(pid)
            return
        if error is not None and entry is None and error.reason != "unsupported":
            self._errors.add("identity", error.reason)
        ours = self._only_env is None or facts.environ.get(self._only_env[0]) == self._only_env[1]
        seen = entry.seen if entry is not None else now
        under = entry.under if entry is not None else None
        self._entries[pid] = _Entry(
            stat.start_ticks, seen, facts if ours else None, None, under=under, name=stat.name
        )
        self._usage[pid] = Usage(stat.cpu_seconds, stat.resident_bytes)

    def _judge(self, gpus_of: Mapping[int, tuple[int, ...]]) -> None:
        """Decide anew on the processes whose facts changed or that took or left a device."""
        for pid, entry in self._entries.items():
            held = pid in gpus_of
            if entry.facts is not None and entry.held is not held:
                entry.held = held
                entry.verdict = rules.decide(replace(entry.facts, holds_gpu=held), self._boot_id)

    def _ask_slurm(self, full: bool) -> None:
        """Keep the files behind Slurm's indices: read rarely, and for daemons and nodes that are new."""
        known = (each.facts for each in self._entries.values() if each.facts)
        daemons = [facts for facts in known if facts.name == slurmd.DAEMON]
        nodes = {each.verdict.node for each in self._entries.values() if each.verdict} - {""}
        asked = (tuple((each.pid, each.start_ticks) for each in daemons), frozenset(nodes))
        if asked == self._asked and not full:
            return
        self._asked = asked
        files = slurmd.gpu_files(self._procfs, daemons, nodes)
        with self._lock:
            fresh = DeviceMap(self._map.by_uuid, self._map.by_minor, files, len(daemons))
            if fresh != self._map:
                self._map = fresh

    def _publish(self, gpus_of: Mapping[int, tuple[int, ...]], ended: set[int]) -> None:
        chosen = self._choose(gpus_of)
        assigned = self._assignments()
        with self._lock:
            self._assigned = assigned
        with self._telling:
            self._replace(chosen, ended)

    def _replace(self, chosen: dict[int, ProcessIdentity], ended: set[int]) -> None:
        with self._lock:
            before = self._living
            gone = [who for pid, who in before.items() if pid in ended or not _same(chosen.get(pid), who)]
            fresh = [who for pid, who in chosen.items() if pid in ended or not _same(before.get(pid), who)]
            self._living = chosen
            wall = self._wall()
            for who in gone:
                if who.pid in ended:
                    self._departed.append((who, wall))
            for pid in self._usage.keys() - chosen.keys():
                del self._usage[pid]
            listeners = tuple(self._listeners)
        for who in gone:
            self._forget_pidfd(who.pid)
        for who in fresh:
            self._watch(who)
        for arrived, left in listeners:
            for tell, processes in ((left, gone), (arrived, fresh)):
                for who in processes:
                    try:
                        tell(who)
                    except Exception:
                        log.exception("an identity listener failed pid=%d", who.pid)
                        self._errors.add("identity", "listener")

    def _choose(self, gpus_of: Mapping[int, tuple[int, ...]]) -> dict[int, ProcessIdentity]:
        """Decide which of the processes with a rank's environment is the rank, and who holds a device."""
        ranks: dict[tuple[str, str], list[int]] = {}
        others: list[int] = []
        for pid, entry in self._entries.items():
            if entry.facts is None:
                continue
            verdict = entry.verdict
            if verdict is None:
                continue
            self._dispute(pid, entry, gpus_of.get(pid))
            if verdict.rank:
                ranks.setdefault((verdict.job_id, verdict.rank), []).append(pid)
            elif pid in gpus_of:
                others.append(pid)
        strong = {
            (job, rank, pid)
            for (job, rank), members in ranks.items()
            for pid in members
            if (verdict := self._entries[pid].verdict) is not None and verdict.strength < rules.WEAK
        }
        chosen: list[int] = []
        for (job, rank), members in ranks.items():
            best = self._rank_process(members, gpus_of)
            below = [pid for of, other, pid in strong if of == job and other != rank]
            # Above real ranks, a shell or a task known only by Slurm's number has started them.
            if best is not None and not any(self._above(best, pid) for pid in below):
                chosen.append(best)
        return {pid: self._identity(pid, gpus_of) for pid in sorted([*chosen, *others])}

    def _rank_process(self, members: list[int], gpus_of: Mapping[int, tuple[int, ...]]) -> int | None:
        """Return the one process of *members* (all of one job and rank) that is the rank."""
        members = [pid for pid in members if not self._left_over(pid)]
        if not members:
            return None
        inside = set(members)

        def order(pid: int) -> tuple[bool, int, bool, bool, bool, int, int]:
            entry = self._entries[pid]
            facts, verdict = entry.facts, entry.verdict
            if facts is None or verdict is None:
                return (True, 9, True, True, True, 0, pid)
            plain = not (rules.is_wrapper(facts) or rules.is_filter(facts))
            # Children of a rank (data loaders, compilers) carry its environment too.
            child = self._has_plain_ancestor(facts.parent, inside)
            return (
                pid not in gpus_of,
                verdict.strength,
                verdict.batch_step,
                not plain,
                child,
                entry.start_ticks,
                pid,
            )

        best = min(members, key=order)
        facts = self._entries[best].facts
        young = self._clock() - self._entries[best].seen < _SETTLE_SECONDS
        # A shell that has just started is about to start the rank or to become it.
        if facts is not None and rules.is_wrapper(facts):
            return None if young and self._real else best
        for pid in members:
            if pid != best and self._descends(pid, best):
                self._entries[pid].under = (best, self._entries[best].start_ticks)
        return best

    def _left_over(self, pid: int) -> bool:
        """A data loader that outlives its rank is not the rank."""
        under = self._entries[pid].under
        if under is None:
            return False
        rank = self._entries.get(under[0])
        return rank is None or rank.start_ticks != under[1]

    def _has_plain_ancestor(self, pid: int, inside: set[int]) -> bool:
        for _ in range(64):
            entry = self._entries.get(pid)
            if pid not in inside or entry is None or entry.facts is None:
                return False
            if not rules.is_wrapper(entry.facts):
                return True
            pid = entry.facts.parent
        return False

    def _above(self, pid: int, below: int) -> bool:
        entry = self._entries.get(pid)
        if entry is None or entry.verdict is None or entry.facts is None:
            return False
        if entry.verdict.strength < rules.WEAK and not rules.is_wrapper(entry.facts):
            return False
        return self._descends(below, pid)

    def _descends(self, pid: int, ancestor: int) -> bool:
        for _ in range(64):
            entry = self._entries.get(pid)
            if entry is None or entry.facts is None:
                return False
            pid = entry.facts.parent
            if pid == ancestor:
                return True
        return False

    def _dispute(self, pid: int, entry: _Entry, driver: tuple[int, ...] | None) -> None:
        """Count each disagreement of a process's sources once."""
        verdict, facts = entry.verdict, entry.facts
        if verdict is None or facts is None:
            return
        found = list(verdict.conflicts)
        known = self._map
        given = known.indices(own_devices(facts, verdict, known.slurm_files(verdict.node)))
        if driver and given and not set(driver) & set(given):
            found.append("gpu")
        with self._lock:
            for fact in found:
                key = (pid, entry.start_ticks, fact)
                if key not in self._disputed:
                    if len(self._disputed) > 65536:
                        self._disputed.clear()
                    self._disputed.add(key)
                    self._conflicts[fact] += 1

    def _assignments(self) -> tuple[Assignment, ...]:
        """Return what processes were given, told once per job with its oldest process."""
        found: dict[tuple[str, str, tuple[str, ...]], Assignment] = {}
        for pid, entry in self._entries.items():
            verdict, facts = entry.verdict, entry.facts
            if verdict is None or facts is None:
                continue
            by, known = entry.given_by, self._map
            if by is None or by[0] is not verdict or by[1] is not known:
                entry.given = assigned_devices(facts, verdict, known.slurm_files(verdict.node))
                entry.given_by = (verdict, known)
            given, rank = entry.given, verdict.rank if verdict.visible else ""
            if not given and verdict.allocator == "k8s" and self._kubelet is not None:
                # The kubelet knows what a container has, not which of its processes has what.
                given = self._kubelet(facts.pod_namespace, facts.pod_name, facts.container_name)
                rank = ""
            if not given:
                continue
            key = (verdict.job_id, rank, given)
            if key not in found or entry.start_ticks < found[key].start_ticks:
                start = self._boot_time + entry.start_ticks / proc.CLOCK_TICKS
                found[key] = Assignment(pid, entry.start_ticks, start, verdict.job_id, rank, given)
        return tuple(found.values())

    def _identity(self, pid: int, gpus_of: Mapping[int, tuple[int, ...]]) -> ProcessIdentity:
        entry = self._entries[pid]
        facts, verdict = entry.facts, entry.verdict
        if facts is None or verdict is None:
            raise AssertionError(f"pid {pid} was chosen without a verdict")
        return identity_of(facts, verdict, gpus_of.get(pid, ()), self._map, self._boot_time)

    def _watch(self, who: ProcessIdentity) -> None:
        if not self._real:
            return
        try:
            descriptor = os.pidfd_open(who.pid)
        except OSError:
            # Gone already, or no descriptors left: the next scan notices.
            return
        self._pidfds[who.pid] = descriptor
        self._poll.register(descriptor, select.POLLIN)

    def _forget_pidfd(self, pid: int) -> None:
        descriptor = self._pidfds.pop(pid, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            os.close(descriptor)


def identity_of(
    facts: rules.Facts,
    verdict: rules.Verdict,
    driver: tuple[int, ...],
    known: DeviceMap,
    boot_time: float,
) -> ProcessIdentity:
    """Put facts and verdict together; the driver's word on devices beats the environment's."""
    sources = dict(verdict.sources)
    indices = driver or known.indices(own_devices(facts, verdict, known.slurm_files(verdict.node)))
    if driver:
        sources["gpu"] = "nvml"
    elif not indices:
        sources.pop("gpu", None)
    return ProcessIdentity(
        pid=facts.pid,
        start_ticks=facts.start_ticks,
        start_time=boot_time + facts.start_ticks / proc.CLOCK_TICKS,
        job_id=verdict.job_id,
        rank=verdict.rank,
        allocator=verdict.allocator,
        local_rank=verdict.local_rank,
        world_size=verdict.world_size,
        nodes_expected=verdict.nodes_expected,
        attempt=verdict.attempt,
        inner_id=verdict.inner_id,
        user=facts.user,
        team=verdict.team,
        name=verdict.job_name,
        framework=verdict.framework,
        gpu_indices=indices,
        step=verdict.step,
        container=verdict.container,
        sources=sources,
    )


def _same(one: ProcessIdentity | None, other: ProcessIdentity) -> bool:
    return (
        one is not None
        and one.start_ticks == other.start_ticks
        and one.job_id == other.job_id
        and one.rank == other.rank
        and one.attempt == other.attempt
    )
