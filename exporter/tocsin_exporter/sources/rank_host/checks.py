"""What the kernel offers of the ranks' host side here, for `doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tocsin_exporter.sources.rank_host import tasks as proc
from tocsin_exporter.sources.rank_host.cgroups import Cgroups, parse_paths
from tocsin_exporter.sources.rank_host.source import accounts_io

__all__ = ["checks"]


def checks(procfs: Path, sysfs: Path) -> Iterator[tuple[str, bool | None, str, str]]:
    """Yield name, whether it is there, detail, and what its lack costs."""
    own = next((pid for pid in (os.getpid(), 1) if (procfs / str(pid)).is_dir()), None)
    if own is None:
        yield (
            "ranks' host side",
            False,
            f"no process under {procfs}",
            "waits and bindings of ranks are not seen",
        )
        return
    task = proc.read_process(procfs, own)
    timed = task is not None and task.wait_seconds is not None
    yield (
        "run-queue waits",
        timed,
        "kept by the kernel" if timed else f"no {procfs}/PID/schedstat; needs CONFIG_SCHED_INFO",
        "a rank that waits for a CPU cannot be told from one that waits for others",
    )
    kept = accounts_io(procfs)
    yield (
        "I/O waits",
        kept,
        "kept by the kernel" if kept else "delay accounting is off; sysctl -w kernel.task_delayacct=1",
        "waits for storage are only estimated, by how often a process is found blocked",
    )
    below = proc.read_tasks(procfs, own, 1).children is not None
    yield (
        "children of ranks",
        below,
        "listed by the kernel" if below else f"no {procfs}/PID/task/TID/children; needs CONFIG_PROC_CHILDREN",
        "data-loader workers are not seen",
    )
    where = _told(procfs)
    yield (
        "where processes wait",
        where,
        "told by the kernel" if where else "closed to this user; run as root or with CAP_SYS_PTRACE",
        "of a blocked process it is not told in what, and open files are not counted",
    )
    try:
        paths = parse_paths((procfs / str(own) / "cgroup").read_text("utf-8", "replace"))
    except OSError:
        paths = {}
    place = Cgroups(sysfs / "fs/cgroup").place(paths)
    found = bool(place.cpu or place.memory) or bool(paths and set(paths.values()) == {"/"})
    yield (
        "limits of ranks",
        found,
        "read from the control groups"
        if found
        else f"no control groups at {sysfs}/fs/cgroup for our own path",
        "CPU throttling and memory limits of jobs are not seen",
    )


def _told(procfs: Path) -> bool:
    """Say whether we may look into processes of others; what is asked here is guarded like the rest."""
    try:
        os.readlink(procfs / "1/exe")
    except PermissionError:
        return False
    except OSError:
        return os.geteuid() == 0
    return True
