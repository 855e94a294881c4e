"""Who a process is: the record every collector joins on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["IdentityView", "ProcessIdentity", "ProcessListener"]


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """
    One process of a job on this node.

    ``start_ticks`` (field 22 of /proc/PID/stat) tells a reused pid apart. ``rank`` is the
    global rank as a decimal string, ``""`` when unknown. ``gpu_indices`` are NVML indices the
    process was given, empty when unknown. ``step`` is the allocator's step, ``container`` the id of the
    pod's container. ``sources`` says for each fact where it came from
    (``cgroup``, ``environ``, ``nvml``, ``cmdline``, …).
    """

    pid: int
    start_ticks: int
    start_time: float
    job_id: str
    rank: str
    allocator: str
    local_rank: str = ""
    world_size: int | None = None
    nodes_expected: int | None = None
    attempt: str = ""
    inner_id: str = ""
    user: str = ""
    team: str = ""
    name: str = ""
    framework: str = ""
    gpu_indices: tuple[int, ...] = ()
    step: str = ""
    container: str = ""
    sources: dict[str, str] = field(default_factory=dict)


ProcessListener = Callable[[ProcessIdentity], None]


class IdentityView(Protocol):
    """
    The processes of jobs on this node, kept current by the identity source's own thread.

    All methods are thread-safe and answer from memory.
    """

    def living(self) -> tuple[ProcessIdentity, ...]:
        """Return the rank and job processes alive at the last scan."""

    def departed(self) -> tuple[tuple[ProcessIdentity, float], ...]:
        """Return processes that ended in the last 15 minutes, each with the wall-clock time of notice."""

    def by_pid(self, pid: int) -> ProcessIdentity | None:
        """Return who *pid* is, or was until lately; the living process wins over a departed one."""

    def subscribe(self, arrived: ProcessListener, left: ProcessListener) -> None:
        """Call *arrived* (now for those living) and *left* from the scanning thread; both must be quick."""
