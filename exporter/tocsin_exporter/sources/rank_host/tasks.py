"""Bounded reads of a process's threads and children from /proc."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources.procfs import CLOCK_TICKS, read_small
from tocsin_exporter.sources.rank_host.places import parse_list

__all__ = [
    "Status",
    "Task",
    "Tasks",
    "memory_policy",
    "open_files",
    "open_files_limit",
    "read_children",
    "read_process",
    "read_status",
    "read_tasks",
    "waits_in",
]

_STATUS = re.compile(
    rb"^(Cpus_allowed_list|Mems_allowed_list|CoreDumping|voluntary_ctxt_switches|nonvoluntary_ctxt_switches):\t(\S+)$",
    re.MULTILINE,
)
_LIMIT = re.compile(rb"^Max open files\s+(\d{1,20})\s", re.MULTILINE)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_POLICY = re.compile(
    rb"^[0-9a-f]+ (default|local|prefer \(many\)|prefer|bind|weighted interleave|interleave)"
    rb"(?:=[a-z|]{1,32})?(?::([0-9,-]{1,64}))?(?: |$)"
)
_SYMBOL = re.compile(rb"^[A-Za-z_][A-Za-z0-9_.]{0,63}$")


class Task(NamedTuple):
    """
    One thread, or with `read_process` a whole process.

    ``state`` is the letter of proc(5), ``start`` ticks from boot. Run and wait times are None where the
    kernel does not keep them; ``slices`` counts how often it was put on a CPU.
    """

    tid: int
    start: int
    state: str
    cpu: int
    cpu_seconds: float
    major_faults: int
    io_wait_seconds: float
    threads: int
    resident_bytes: int
    wait_seconds: float | None
    slices: int | None


class Tasks(NamedTuple):
    """Threads of a process, its children (None where the kernel lists none), and whether all were read."""

    threads: list[Task]
    children: list[int] | None
    complete: bool


class Status(NamedTuple):
    """What /proc/PID/status has of the first thread."""

    cpus: frozenset[int]
    nodes: frozenset[int]
    core_dumping: bool | None
    voluntary: int | None
    involuntary: int | None


def _read(path: str, folder: int | None = None, limit: int = 1024) -> bytes:
    # Hundreds of these are read each time; a pipe in a tree of files gives nothing and holds nobody up.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def _task(tid: int, stat: bytes, schedule: bytes) -> Task | None:
    fields = stat.rpartition(b")")[2].split()
    if len(fields) < 40:
        return None
    try:
        cpu = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
        words = schedule.split()
        run, wait, slices = (int(words[0]), int(words[1]), int(words[2])) if len(words) == 3 else (0, 0, 0)
        # A kernel that does not keep them says 0 of everybody, and who has run has run at least once.
        kept = slices > 0 or (len(words) == 3 and not cpu and not run)
        return Task(
            tid=tid,
            start=int(fields[19]),
            state=fields[0].decode("ascii", "replace"),
            cpu=int(fields[36]),
            cpu_seconds=cpu,
            major_faults=int(fields[9]),
            io_wait_seconds=int(fields[39]) / CLOCK_TICKS,
            threads=int(fields[17]),
            resident_bytes=int(fields[21]) * _PAGE,
            wait_seconds=wait / 1e9 if kept else None,
            slices=slices if kept else None,
        )
    except ValueError:
        return None


def read_process(procfs: Path, pid: int) -> Task | None:
    """Return the process: times and faults of all its threads, the rest of its first one; None when gone."""
    try:
        return _task(pid, _read(f"{procfs}/{pid}/stat"), _schedule(f"{procfs}/{pid}/schedstat"))
    except OSError:
        return None


def _schedule(path: str, folder: int | None = None) -> bytes:
    try:
        return _read(path, folder, 128)
    except OSError:
        return b""


def read_tasks(procfs: Path, pid: int, most: int) -> Tasks:
    """Return at most *most* threads of a process and the children of those; no thread when it is gone."""
    try:
        folder = os.open(f"{procfs}/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return Tasks([], [], complete=True)
    threads: list[Task] = []
    children: list[int] = []
    listed = False
    try:
        names = [name for name in os.listdir(folder) if name.isascii() and name.isdigit()]
        for name in names[:most]:
            try:
                task = _task(int(name), _read(f"{name}/stat", folder), _schedule(f"{name}/schedstat", folder))
            except OSError:
                # Threads end while they are looked at.
                continue
            if task is not None:
                threads.append(task)
            below = _children(f"{name}/children", folder)
            if below is not None:
                listed = True
                children += below
    except OSError:
        return Tasks([], [], complete=True)
    finally:
        os.close(folder)
    return Tasks(threads, children if listed else None, complete=len(names) <= most)


def _children(path: str, folder: int | None = None) -> list[int] | None:
    """Return the pids that one thread has started, None where the kernel does not list them."""
    try:
        words = _read(path, folder, 8192).split()
    except OSError:
        return None
    return [int(word) for word in words if word.isdigit() and len(word) < 11]


def read_status(procfs: Path, pid: int) -> Status | None:
    """Return the status of the process, or None when it is gone."""
    try:
        found = dict(_STATUS.findall(_read(f"{procfs}/{pid}/status", None, 8192)))
    except OSError:
        return None
    dumping = found.get(b"CoreDumping")
    return Status(
        parse_list(found.get(b"Cpus_allowed_list", b"").decode("ascii", "replace")),
        parse_list(found.get(b"Mems_allowed_list", b"").decode("ascii", "replace")),
        None if dumping is None else dumping == b"1",
        _whole(found.get(b"voluntary_ctxt_switches")),
        _whole(found.get(b"nonvoluntary_ctxt_switches")),
    )


def _whole(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def waits_in(procfs: Path, pid: int, tid: int) -> str:
    """Return the kernel's function in which a thread waits, "" when it is kept from us."""
    try:
        name = _read(f"{procfs}/{pid}/task/{tid}/wchan", None, 128)
    except OSError:
        return ""
    return name.decode("ascii") if _SYMBOL.match(name) else ""


def memory_policy(procfs: Path, pid: int) -> tuple[str, str] | None:
    """
    Return by which rule the process's memory is placed, and the kernel's list of nodes of that rule or "".

    Rules are ``default``, ``local``, ``bind``, ``prefer``, ``prefer_many``, ``interleave`` and
    ``weighted_interleave``; None when it is kept from us. Only the beginning of /proc/PID/numa_maps is read,
    which is program text: the kernel counts the pages of what is read, milliseconds for each GiB.
    """
    try:
        match = _POLICY.match(_read(f"{procfs}/{pid}/numa_maps", None, 64))
    except OSError:
        return None
    if match is None:
        return None
    name = match[1].decode("ascii").replace("(", "").replace(")", "").replace(" ", "_")
    return name, (match[2] or b"").decode("ascii")


def open_files(procfs: Path, pid: int) -> int | None:
    """Return how many files the process has open, or None (before Linux 6.2 only a listing tells)."""
    try:
        return os.stat(f"{procfs}/{pid}/fd").st_size or None
    except OSError:
        return None


def open_files_limit(procfs: Path, pid: int) -> int | None:
    """Return how many files the process may have open, None without a limit."""
    try:
        match = _LIMIT.search(read_small(procfs / str(pid) / "limits", 8192))
    except SourceError:
        return None
    return int(match[1]) if match else None


def read_children(procfs: Path, pid: int, most: int) -> list[int]:
    """Return the children of at most *most* threads of a process; none when it is gone."""
    base = f"{procfs}/{pid}/task"
    try:
        names = os.listdir(base)
    except OSError:
        return []
    found: list[int] = []
    for name in names[:most]:
        found += _children(f"{base}/{name}/children") or []
    return found
