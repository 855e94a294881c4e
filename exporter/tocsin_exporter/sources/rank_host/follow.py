"""One rank over its readings: sums of threads and workers that come and go, waits that go on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.sources.procfs import read_small
from tocsin_exporter.sources.rank_host import tasks as proc
from tocsin_exporter.sources.rank_host.cgroups import Cgroups, Place, parse_paths
from tocsin_exporter.sources.rank_host.model import STATES, RankHost, Wait, Workers
from tocsin_exporter.sources.rank_host.places import Beside, beside, parse_list
from tocsin_exporter.sources.rank_host.tasks import Task
from tocsin_exporter.sources.rank_host.totals import Growing, Waiting

__all__ = ["MOST_THREADS", "MOST_WORKERS", "SLOW_SECONDS", "Follow", "Shared"]

# Of one process; what a kernel or a hostile job has beyond is counted as a gap, never read.
MOST_THREADS, MOST_WORKERS, _MOST_WORKER_THREADS, _DEEPEST = 2048, 512, 64, 8
# Bindings, limits and groups change rarely, and memory by node costs the kernel a sum over its CPUs.
SLOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Shared:
    """
    What all ranks are read with.

    ``accounted`` is whether the kernel keeps I/O waits; ``ranks`` are the pids of ranks, ``on_gpu`` those of
    processes with a GPU context, ``devices`` PCI addresses by GPU index, ``groups`` how many ranks are in a
    memory group.
    """

    procfs: Path
    sysfs: Path
    cgroups: Cgroups
    accounted: bool
    ranks: frozenset[int]
    on_gpu: Collection[int]
    devices: dict[int, str]
    groups: dict[Path, int]


class Follow:
    """A rank's process and its children; `read` once per interval."""

    def __init__(self, who: ProcessIdentity) -> None:
        self.who = who
        self.place = Place()
        self.problems: list[str] = []
        # Pid to start of the children at the last reading: what is left when the rank has ended.
        self.children: dict[int, int] = {}
        self._slow_at = float("-inf")
        self._slow = True
        self._gpus: tuple[str, ...] = ()
        self._policy: tuple[str, str] | None = None
        self._beside = Beside()
        self._memory_local: float | None = None
        self._files_limit: int | None = None
        self._read_at: float | None = None
        self._ran: dict[tuple[int, int], int | None] = {}
        self._last_run: float | None = None
        self._stopped: tuple[str, float] | None = None
        self._wait = Growing()
        self._slices = Growing()
        self._io, self._blocked = Growing(), 0.0
        self._worker_cpu, self._worker_wait, self._worker_io = Growing(), Growing(), Growing()
        self._worker_blocked = 0.0
        self._waiting, self._worker_waiting = Waiting(), Waiting()

    def again(self, who: ProcessIdentity) -> None:
        """Hear that more is known of the process, its devices perhaps."""
        self.who = who
        self._slow_at = float("-inf")

    def locate(self, procfs: Path, cgroups: Cgroups, now: float) -> None:
        """Find the process's groups when that is due; before all ranks are read, for they may share them."""
        self.problems = []
        self._slow = now - self._slow_at >= SLOW_SECONDS
        if not self._slow:
            return
        self._slow_at = now
        try:
            text = read_small(procfs / str(self.who.pid) / "cgroup").decode("utf-8", "replace")
            self.place = cgroups.place(parse_paths(text))
        except SourceError as err:
            self.place = Place()
            if err.reason != "unsupported":
                self.problems.append(err.reason)

    def read(self, shared: Shared, now: float, wall: float) -> RankHost | None:
        """Return the rank at *now* by the steady and *wall* by the other clock, None when it is gone."""
        pid = self.who.pid
        whole = proc.read_process(shared.procfs, pid)
        if whole is None or whole.start != self.who.start_ticks:
            return None
        found = proc.read_tasks(shared.procfs, pid, MOST_THREADS)
        status = proc.read_status(shared.procfs, pid)
        if status is None or not found.threads:
            if proc.read_process(shared.procfs, pid) is not None:
                # It is still there, and its files are closed to us or make no sense.
                self.problems.append("bad_data")
            return None
        if not found.complete:
            self.problems.append("too_many_threads")
        # The driver may answer late, and tell who holds what later still.
        named = tuple(shared.devices.get(index, "") for index in self.who.gpu_indices)
        gpus = named if all(named) else ()
        if self._slow or gpus != self._gpus:
            self._read_slowly(shared, gpus)
        passed = 0.0 if self._read_at is None else now - self._read_at
        self._read_at = now
        threads = {(task.tid, task.start): task for task in found.threads}
        timed = {name: task for name, task in threads.items() if task.wait_seconds is not None}
        ran = [task for name, task in threads.items() if self._ran.get(name, -1) != task.slices or not timed]
        if ran and timed and passed:
            self._last_run = wall
        self._ran = {name: task.slices for name, task in threads.items()}
        blocked = [task for task in found.threads if task.state == "D"]
        self._blocked += passed * len(blocked)
        children = None if found.children is None else list(self._below(shared, found.children))
        states, stopped = self._states(found.threads, children or (), wall)
        first = threads.get((pid, self.who.start_ticks))
        return RankHost(
            job_id=self.who.job_id,
            rank=self.who.rank,
            threads=whole.threads,
            cpus_allowed=len(status.cpus) or None,
            cpu_local=_share(len(status.cpus & self._beside.cpus), len(status.cpus), self._beside.cpus),
            ran_local=_share(sum(task.cpu in self._beside.cpus for task in ran), len(ran), self._beside.cpus),
            memory_local=self._memory_local,
            memory_nodes_local=self._nodes_local(status.nodes),
            memory_policy=self._policy,
            last_cpu=whole.cpu,
            run_wait_seconds=_sum(self._wait, {n: t.wait_seconds or 0.0 for n, t in timed.items()}),
            first_run_wait_seconds=first.wait_seconds if first is not None else None,
            timeslices=_sum(self._slices, {n: t.slices or 0 for n, t in timed.items()}),
            io_wait_seconds=_sum(self._io, {n: t.io_wait_seconds for n, t in threads.items()})
            if shared.accounted
            else None,
            voluntary_switches=status.voluntary,
            involuntary_switches=status.involuntary,
            major_faults=whole.major_faults,
            open_files=proc.open_files(shared.procfs, pid),
            open_files_limit=self._files_limit,
            core_dumping=None if status.core_dumping is None else int(status.core_dumping),
            last_run=self._last_run,
            blocked_seconds=self._blocked,
            blocked=tuple(self._blocked_waits(shared, found.threads, children or (), wall)),
            stopped=stopped,
            states=states,
            workers=self._workers(shared, children, passed),
            cgroup=shared.cgroups.read(self.place),
        )

    def _read_slowly(self, shared: Shared, gpus: tuple[str, ...]) -> None:
        self._gpus = gpus
        self._files_limit = proc.open_files_limit(shared.procfs, self.who.pid)
        self._policy = proc.memory_policy(shared.procfs, self.who.pid)
        self._beside = beside(shared.sysfs, gpus) if gpus else Beside()
        self._memory_local = None
        # Where several ranks share a group its memory is nobody's own.
        alone = self.place.innermost is not None and shared.groups.get(self.place.innermost) == 1
        if alone and self._beside.nodes:
            nodes = shared.cgroups.memory_by_node(self.place)
            local = sum(nodes.get(node, 0) for node in self._beside.nodes)
            self._memory_local = _share(local, sum(nodes.values()), self._beside.cpus)

    def _nodes_local(self, allowed: frozenset[int]) -> float | None:
        rule, nodes = self._policy or ("", "")
        # A preference gives way where there is no memory left, and yet says where it is taken from first.
        taken = parse_list(nodes) & allowed if rule and nodes else allowed
        return _share(len(taken & self._beside.nodes), len(taken), self._beside.nodes)

    def _below(self, shared: Shared, children: list[int]) -> Iterator[Task]:
        """Yield the processes below the rank, less other ranks and what belongs to those."""
        self.children = {}
        level, depth = children, 0
        while level and depth < _DEEPEST:
            following: list[int] = []
            for pid in level:
                if pid in shared.ranks or pid in self.children:
                    continue
                if len(self.children) >= MOST_WORKERS:
                    self.problems.append("too_many_workers")
                    return
                task = proc.read_process(shared.procfs, pid)
                if task is None:
                    continue
                self.children[pid] = task.start
                yield task
                if task.state not in "ZXx":
                    below = proc.read_children(shared.procfs, pid, _MOST_WORKER_THREADS)
                    following += below
            level, depth = following, depth + 1

    def _workers(self, shared: Shared, children: list[Task] | None, passed: float) -> Workers | None:
        if children is None:
            return None
        living = {
            (task.tid, task.start): task
            for task in children
            if task.state not in "ZXx" and task.tid not in shared.on_gpu
        }
        self._worker_blocked += passed * sum(task.state == "D" for task in living.values())
        timed = {n: t.wait_seconds for n, t in living.items() if t.wait_seconds is not None}
        waited = self._worker_wait.read(timed)
        return Workers(
            count=len(living),
            cpu_seconds=self._worker_cpu.read({n: t.cpu_seconds for n, t in living.items()}),
            blocked_seconds=self._worker_blocked,
            resident_bytes=sum(task.resident_bytes for task in living.values()),
            run_wait_seconds=waited if timed or not living else None,
            io_wait_seconds=self._worker_io.read({n: t.io_wait_seconds for n, t in living.items()})
            if shared.accounted
            else None,
        )

    def _states(
        self, threads: list[Task], children: Collection[Task], wall: float
    ) -> tuple[dict[str, int], Wait | None]:
        states = dict.fromkeys(STATES.values(), 0)
        letters = {task.state for task in threads}
        # A process is stopped as a whole, and blocked or running when one of its threads is.
        letter = next((each for each in "TtDR" if each in letters), "S")
        for each in (letter, *(task.state for task in children)):
            states[STATES.get(each, "sleeping")] += 1
        if letter not in "Tt":
            self._stopped = None
            return states, None
        how = STATES[letter]
        if self._stopped is None or self._stopped[0] != how:
            self._stopped = (how, wall)
        return states, Wait("rank", *self._stopped)

    def _blocked_waits(
        self, shared: Shared, threads: list[Task], children: Collection[Task], wall: float
    ) -> Iterator[Wait]:
        pid = self.who.pid
        for process, waiting, tasks in (
            ("rank", self._waiting, [(pid, task) for task in threads]),
            ("worker", self._worker_waiting, [(task.tid, task) for task in children]),
        ):
            longest = waiting.read(tasks, wall)
            if longest:
                since, of, tid = longest[0]
                yield Wait(process, proc.waits_in(shared.procfs, of, tid), since)


def _share(part: int, whole: int, told: Collection[int]) -> float | None:
    return part / whole if whole and told else None


def _sum(total: Growing, parts: Mapping[tuple[int, int], float]) -> float | None:
    return total.read(parts) if parts else None
