"""Real processes as ranks, and a source that reads them on demand, for the tests to import."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin_exporter.identity.model import ProcessIdentity, ProcessListener
from tocsin_exporter.sources import procfs
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.rank_host import Defunct, RankHost, RankHostSource, Reading

PROC = Path("/proc")


@dataclass
class View:
    """An identity view that the test fills."""

    here: list[ProcessIdentity] = field(default_factory=list)
    gone: list[tuple[ProcessIdentity, float]] = field(default_factory=list)

    def living(self) -> tuple[ProcessIdentity, ...]:
        return tuple(self.here)

    def departed(self) -> tuple[tuple[ProcessIdentity, float], ...]:
        return tuple(self.gone)

    def by_pid(self, pid: int) -> ProcessIdentity | None:
        return next((who for who in self.here if who.pid == pid), None)

    def subscribe(self, arrived: ProcessListener, left: ProcessListener) -> None:
        """The source asks and does not listen."""


class Scene:
    """Ranks that are real processes; `read` is one reading by a clock that the test turns."""

    def __init__(self, sysfs: Path, proc: Path = PROC) -> None:
        self.now = 1000.0
        self.view = View()
        self.errors = ErrorCounter()
        self.on_gpu: set[int] = set()
        self.devices: dict[int, str] = {}
        self._proc = proc
        self._started: list[subprocess.Popen[Any]] = []
        self.source = RankHostSource(
            proc, sysfs, 5.0, 60.0, self.errors, self.view,
            devices=lambda: self.devices, on_gpu=lambda: self.on_gpu,
            wall=lambda: self.now, clock=lambda: self.now,
        )  # fmt: skip

    def script(self, text: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a script and wait for its first line; it should end with its standard input."""
        return self.start(sys.executable, "-c", text, *arguments)

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a program and wait for its first line."""
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def rank(self, pid: int, rank: str = "0", gpus: tuple[int, ...] = ()) -> ProcessIdentity:
        """Make *pid* a known rank."""
        found = procfs.process_stat(self._proc, pid)
        assert found is not None
        who = ProcessIdentity(
            pid, found.start_ticks, self.now, "torchrun/test", rank, "torchrun", gpu_indices=gpus
        )
        self.view.here.append(who)
        return who

    def ended(self, who: ProcessIdentity) -> None:
        """Say that identity has noticed the end of *who*."""
        self.view.here.remove(who)
        self.view.gone.append((who, self.now))

    def reading(self, after: float = 5.0) -> Reading:
        """Read once, *after* seconds."""
        self.now += after
        return self.source.read()

    def read(self, after: float = 5.0, rank: str = "0") -> RankHost:
        """Read once and return one rank."""
        return next(row for row in self.reading(after).ranks if row.rank == rank)

    def defunct(self) -> list[Defunct]:
        """Read once and return what ended ranks have left."""
        return list(self.reading().defunct)

    def until(self, wanted: Callable[[RankHost], object]) -> RankHost:
        """Read until a rank is as wanted."""
        for _ in range(200):
            row = self.read()
            if wanted(row):
                return row
            time.sleep(0.02)
        raise AssertionError(f"it did not happen within 4 s: {row}")

    def close(self) -> None:
        """End all processes, with their sessions."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def beside(sysfs: Path, pci: str, node: int, cpus: str) -> None:
    """Write where a PCI device is."""
    folder = sysfs / "bus/pci/devices" / pci
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{node}\n")
    (folder / "local_cpulist").write_text(f"{cpus}\n")
