"""Small trees and parts that stand for a node, for the tests to import."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tocsin_exporter.collectors.base import Collector
from tocsin_exporter.exposition import DroppedLabels, Exposition
from tocsin_exporter.metrics import Tier
from tocsin_exporter.registry import CollectorSet


@dataclass
class Processes:
    """A /proc tree that tests write processes into."""

    root: Path

    def add(
        self,
        pid: int,
        *,
        name: str = "python",
        parent: int = 1,
        group: int | None = None,
        start: int = 1000,
        environ: Mapping[str, str] | None = None,
        cgroup: str = "0::/\n",
        command: tuple[str, ...] = ("python", "train.py"),
        state: str = "S",
        flags: int = 0x400000,
    ) -> None:
        """Write one process, or write it anew."""
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        # Fields of proc(5), counted from 1: 3 state, 4 ppid, 5 pgrp, 9 flags, 14/15 times, 22 start, 24 rss.
        fields = [
            state,
            parent,
            group or pid,
            pid,
            0,
            -1,
            flags,
            0,
            0,
            0,
            0,
            250,
            50,
            0,
            0,
            20,
            0,
            4,
            0,
            start,
            0,
            100,
        ]
        # And up to 52, with 39 the CPU and 42 the wait for I/O.
        fields += [0] * 14 + [1, 0, 0, 25] + [0] * 10
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")
        (folder / "cgroup").write_text(cgroup)
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in command))
        body = b"".join(f"{key}={value}".encode() + b"\0" for key, value in (environ or {}).items())
        (folder / "environ").write_bytes(body)

    def run(self, pid: int, *, children: tuple[int, ...] = ()) -> None:
        """Give a process one thread and what the kernel tells of where and how it runs."""
        folder = self.root / str(pid)
        thread = folder / "task" / str(pid)
        thread.mkdir(parents=True, exist_ok=True)
        for where in (folder, thread):
            (where / "schedstat").write_text("2000000000 500000000 1200\n")
        (thread / "stat").write_text((folder / "stat").read_text())
        (thread / "children").write_text("".join(f"{child} " for child in children))
        (folder / "status").write_text(
            "Name:\tpython\nCoreDumping:\t0\nCpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1\n"
            "voluntary_ctxt_switches:\t1000\nnonvoluntary_ctxt_switches:\t7\n"
        )
        (folder / "numa_maps").write_text("55d0 bind:0 file=/usr/bin/python mapped=1 N0=1\n")
        (folder / "limits").write_text(
            "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n"
        )

    def remove(self, pid: int) -> None:
        """Take one process away."""
        shutil.rmtree(self.root / str(pid))


def collector_set(*collectors: Collector, node: str = "gpu-001") -> CollectorSet:
    """Return the registry of *collectors* alone, all tiers."""
    return CollectorSet(collectors, Exposition(node, Tier.DEEP, DroppedLabels()))


def series(text: str) -> list[str]:
    """Return the series lines of a scrape that are not about the collectors themselves."""
    return [line for line in text.splitlines() if not line.startswith(("#", "tocsin_collector_"))]
