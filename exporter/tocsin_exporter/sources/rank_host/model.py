"""What one reading tells of the ranks' host side; what the kernel does not offer is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin_exporter.sources.rank_host.cgroups import CgroupReading

__all__ = ["STATES", "Defunct", "RankHost", "Reading", "Wait", "Workers"]

# What a process does, by the letter of /proc/PID/stat. A blocked one waits where no signal reaches it.
STATES = {
    "R": "running",
    "S": "sleeping",
    "I": "sleeping",
    "D": "blocked",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "zombie",
    "x": "zombie",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """
    A wait without an interruption, since wall-clock time ``since``.

    ``process`` is ``rank`` or ``worker``; ``where`` the kernel's function, "" when it is kept from us, or how
    a process was stopped.
    """

    process: str
    where: str
    since: float


@dataclass(frozen=True, slots=True)
class Workers:
    """
    Child processes of a rank without a GPU context; what has ended still counts.

    ``blocked_seconds`` are an estimate: the time between two readings for each that was found blocked.
    """

    count: int
    cpu_seconds: float
    blocked_seconds: float
    resident_bytes: int
    run_wait_seconds: float | None = None
    io_wait_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RankHost:
    """
    One rank at one reading; times are seconds, points in time wall-clock.

    Waits and time slices are sums over all threads, context switches those of the first one.
    ``cpu_local`` is the share of the allowed CPUs, ``ran_local`` that of the threads' last CPUs, and
    ``memory_local`` that of the memory, that lie beside the rank's GPUs; ``memory_nodes_local`` is the share
    of the memory nodes it takes from by ``memory_policy`` (rule and list of nodes) and cpuset.
    ``states`` counts the rank's process and its children.
    """

    job_id: str
    rank: str
    threads: int | None = None
    cpus_allowed: int | None = None
    cpu_local: float | None = None
    ran_local: float | None = None
    memory_local: float | None = None
    memory_nodes_local: float | None = None
    memory_policy: tuple[str, str] | None = None
    last_cpu: int | None = None
    run_wait_seconds: float | None = None
    first_run_wait_seconds: float | None = None
    timeslices: float | None = None
    io_wait_seconds: float | None = None
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    major_faults: int | None = None
    open_files: int | None = None
    open_files_limit: int | None = None
    core_dumping: int | None = None
    last_run: float | None = None
    blocked_seconds: float = 0.0
    blocked: tuple[Wait, ...] = ()
    stopped: Wait | None = None
    states: Mapping[str, int] = field(default_factory=dict)
    workers: Workers | None = None
    cgroup: CgroupReading = field(default_factory=CgroupReading)


@dataclass(frozen=True, slots=True)
class Defunct:
    """A rank that ended and is not gone: since when its status waits to be taken, what it left behind."""

    job_id: str
    rank: str
    zombie_since: float | None
    left_over: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The living ranks, and those that ended and left something."""

    ranks: tuple[RankHost, ...]
    defunct: tuple[Defunct, ...] = ()
