"""What the kernel side tells, in words of user space."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.sources.bpf.layout import OpStat, RankStat
from tocsin_exporter.sources.bpf.symbols import op_number

__all__ = ["ExitEvent", "ExitListener", "OutputChunk", "OutputListener", "RankCounts", "wall_offset"]


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """
    A piece of what a process wrote to descriptor ``fd`` (1 or 2) at wall-clock time ``when``.

    ``gap`` is true when output before it was lost. ``generation`` differs between two
    processes that had one pid.
    """

    process: ProcessIdentity
    generation: int
    fd: int
    data: bytes
    when: float
    gap: bool


@dataclass(frozen=True, slots=True)
class ExitEvent:
    """The end of a process as the kernel saw it; ``status`` has the form of wait(2)."""

    process: ProcessIdentity
    status: int
    when: float

    @property
    def signal(self) -> int:
        """The signal that ended it, else 0."""
        return self.status & 0x7F

    @property
    def code(self) -> int:
        """The exit code, 0 when a signal ended it."""
        return 0 if self.signal else self.status >> 8 & 0xFF


@dataclass(frozen=True, slots=True)
class RankCounts:
    """
    Calls of one rank, over all its processes while any of them lives.

    ``layers`` are those of ``cuda`` and ``nccl`` whose library a process of the rank has loaded
    and that is probed (``cudart`` beside them, where the runtime is). ``offset`` turns the kernel's
    monotonic times into wall-clock seconds; operations ``without`` are not probed on purpose.
    """

    job_id: str
    rank: str
    layers: frozenset[str]
    stat: RankStat
    offset: float
    without: frozenset[str] = frozenset()

    def counted(self, ops: tuple[str, ...]) -> dict[str, OpStat]:
        """Return the counts of those of *ops* that are probed, in their order."""
        return {op: self.stat.op(op_number(op)) for op in ops if op not in self.without}

    def last_call(self, ops: tuple[str, ...]) -> float | None:
        """Return when one of *ops* was last called, or None."""
        last = max(self.stat.op(op_number(op)).last_ns for op in ops)
        return last / 1e9 + self.offset if last else None


OutputListener = Callable[[OutputChunk], None]
ExitListener = Callable[[ExitEvent], None]


def wall_offset() -> float:
    """Return wall-clock minus monotonic time, in seconds."""
    return time.time() - time.monotonic()
