"""
One running stack: start the parts in order, wait until they answer, watch them, stop them in reverse.

A part that ends by itself is reported with the end of its log and started again a few times; a lab
never leaves a process behind, whichever way it ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tocsin_lab.errors import LabError
from tocsin_lab.stack import http
from tocsin_lab.stack.components import Part
from tocsin_lab.stack.procs import Child, adopt_orphans, descendants, end, identify
from tocsin_lab.stack.rundir import Component, RunDir, StackRecord, boot_id

START_SECONDS = 30.0
MAX_RESTARTS = 3
# A part that ran this long before it ended is not in a crash loop.
SETTLED_SECONDS = 60.0

Say = Callable[[str], None]


@dataclass
class _Running:
    part: Part
    child: Child
    since: float
    restarts: int = 0


class Stack:
    """The parts of one lab as children of this process."""

    def __init__(self, run: RunDir, env: Mapping[str, str], say: Say) -> None:
        self._run = run
        self._env = dict(env)
        self._say = say
        self._parts: list[_Running] = []
        self._gone: set[str] = set()
        self._urls: dict[str, str] = {}
        self._nodes: tuple[str, ...] = ()
        self._jobs: tuple[str, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._ready = False
        adopt_orphans()
        # Whoever uses this class may have children of its own.
        self._strangers = frozenset(descendants(os.getpid()))

    def describe(self, nodes: Sequence[str], jobs: Sequence[str], notes: Sequence[str]) -> None:
        """Set what the record says beside the processes."""
        self._nodes, self._jobs, self._notes = tuple(nodes), tuple(jobs), tuple(notes)
        self.record()

    def start(self, part: Part) -> None:
        """Start one part and record it."""
        self._parts.append(_Running(part, self._spawn(part), time.monotonic()))
        if part.url:
            self._urls[part.name] = part.url
        self.record()

    def _spawn(self, part: Part) -> Child:
        log = self._run.logs / f"{part.name}.log"
        return Child(part.name, part.argv, {**self._env, **part.env}, log, self._run.root)

    def wait_ready(self, names: Sequence[str] | None = None, seconds: float = START_SECONDS) -> None:
        """Wait until the parts answer; LabError with the log's end when one ends or stays silent."""
        waiting = [one for one in self._parts if one.part.ready and (names is None or one.part.name in names)]
        deadline = time.monotonic() + seconds
        while waiting:
            for one in list(waiting):
                status = one.child.exit_status()
                if status is not None:
                    raise LabError(
                        f"{one.part.name} ended with {_status(status)} while starting; the end of "
                        f"{one.child.log}:\n{one.child.tail()}"
                    )
                if http.answers(one.part.ready):
                    waiting.remove(one)
            if waiting and time.monotonic() > deadline:
                late = waiting[0]
                raise LabError(
                    f"{late.part.name} does not answer on {late.part.ready} after {seconds:.0f} s; the "
                    f"end of {late.child.log}:\n{late.child.tail()}"
                )
            if waiting:
                time.sleep(0.05)

    def mark_ready(self) -> None:
        """Record that the whole stack answers."""
        self._ready = True
        self.record()

    def watch(self) -> None:
        """Look once at every part: report what ended and start it again, at most a few times in a row."""
        for one in self._parts:
            status = one.child.exit_status()
            if status is None or one.part.name in self._gone:
                continue
            tail = one.child.tail()
            one.child.stop(0)
            self._say(f"{one.part.name} ended with {_status(status)}; the end of {one.child.log}:\n{tail}")
            if time.monotonic() - one.since > SETTLED_SECONDS:
                one.restarts = 0
            if one.restarts >= MAX_RESTARTS:
                self._gone.add(one.part.name)
                self._say(f"{one.part.name} ended {MAX_RESTARTS + 1} times in a row and stays down")
                continue
            one.child = self._spawn(one.part)
            one.since = time.monotonic()
            one.restarts += 1
            self._say(f"{one.part.name} started again as process {one.child.id.pid}")
            self.record()

    def pid(self, name: str) -> int:
        """Return the process of a part now; KeyError when there is no such part."""
        for one in self._parts:
            if one.part.name == name:
                return one.child.id.pid
        raise KeyError(name)

    def stop(self) -> list[str]:
        """
        Stop all parts, last started first; return a line for each thing that went wrong.

        Afterwards no process below this one is left, or the lines say which is.
        """
        problems: list[str] = []
        for one in reversed(self._parts):
            status = one.child.stop(one.part.grace)
            if status not in (0, -15) and one.part.name not in self._gone:
                problems.append(f"{one.part.name} stopped with {_status(status)}, its log is {one.child.log}")
        self._parts.clear()
        ours = [process for process in descendants(os.getpid()) if process not in self._strangers]
        left = end(ours, grace=2.0)
        problems += [f"process {process.pid} does not end" for process in left]
        return problems

    def record(self) -> None:
        """Write ``stack.json``."""
        me = identify(os.getpid())
        if me is None:
            return
        parts = tuple(
            Component(one.part.name, one.child.id.pid, one.child.id.start, str(one.child.log), one.part.url)
            for one in self._parts
        )
        record = StackRecord(
            me, boot_id(), self._ready, dict(self._urls), parts, self._nodes, self._jobs, self._notes
        )
        record.write(self._run.record)


def _status(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"


def clean_environment(env: Mapping[str, str]) -> dict[str, str]:
    """
    Return *env* less what would mislead the parts.

    A lab started inside a batch job must not pass that job's identity on to its ranks.
    """
    misleading = ("SLURM", "PMI_", "PMIX_", "OMPI_", "TORCHELASTIC_", "RAY_", "KUBERNETES_", "TOCSIN_")
    kept = {name: value for name, value in env.items() if not name.startswith(misleading)}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT"):
        kept.pop(name, None)
    # Programs of this checkout first, and output as it is written, for the logs' ends.
    kept["PYTHONUNBUFFERED"] = "1"
    return kept
