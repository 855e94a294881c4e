"""Bounded reads of /proc: processes and the host's own counters."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from tocsin_common import procstat
from tocsin_exporter.errors import SourceError

__all__ = [
    "CLOCK_TICKS",
    "HostReading",
    "ProcessStat",
    "boot_id",
    "boot_time",
    "cgroup_paths",
    "command_line",
    "environment",
    "host",
    "pids",
    "process_stat",
    "read_small",
    "user_of",
]

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
# ARG_MAX allows 2 MiB; what names a job stands within the first part of any real environment.
ENVIRON_LIMIT = 128 << 10
_PF_KTHREAD = 0x00200000
_PF_EXITING = 0x00000004
_PENDING = re.compile(rb"^SigPnd:\t([0-9a-fA-F]{1,32})$", re.MULTILINE)
_KILL = 1 << signal.SIGKILL - 1
_MOST_THREADS = 64
_PRESSURE = re.compile(r"^(some|full) .*total=(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """
    Fields of /proc/PID/stat; ``start_ticks`` counts from boot, ``cpu_seconds`` is user and system time.

    ``lives_on`` is true when only the first thread has ended and others go on.
    """

    pid: int
    name: str
    state: str
    parent: int
    group: int
    start_ticks: int
    kernel_thread: bool
    cpu_seconds: float
    resident_bytes: int
    exiting: bool = False
    lives_on: bool = False

    @property
    def ended(self) -> bool:
        """A zombie runs no more; only its parent has not looked yet. On the way there its memory is gone."""
        return (self.exiting or self.state in "ZXx") and not self.lives_on


@dataclass(frozen=True, slots=True)
class HostReading:
    """Counters of the host; what the kernel does not offer is None or absent."""

    pressure: dict[tuple[str, str], float]
    memory_total: int | None
    memory_available: int | None
    oom_kills: int | None
    load1: float | None
    boot_time: float | None


def read_small(path: Path | str, limit: int = 65536) -> bytes:
    """
    Return the first *limit* bytes of the regular file *path*, without ever waiting for a writer.

    Raises:
        SourceError: It cannot be read (`no_permission`, `unsupported` when it is missing, `bad_data`,
            which includes whatever is no regular file).

    """
    try:
        # A pipe among the files of a tree would hold the reader until somebody writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SourceError("bad_data", f"{path}: not a regular file")
            data = os.read(descriptor, limit)
            while data and len(data) < limit and (part := os.read(descriptor, limit - len(data))):
                data += part
            return data
        finally:
            os.close(descriptor)
    except PermissionError as err:
        raise SourceError("no_permission", f"{path}: {err.strerror}") from err
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError) as err:
        raise SourceError("unsupported", f"{path}: {err.strerror}") from err
    except OSError as err:
        raise SourceError("bad_data", f"{path}: {err.strerror}") from err


def pids(procfs: Path) -> list[int]:
    """Return the pids under *procfs*."""
    try:
        return [int(name) for name in os.listdir(procfs) if name.isascii() and name.isdigit()]
    except OSError as err:
        raise SourceError("no_permission", f"{procfs}: {err.strerror}; is --path.procfs right?") from err


def process_stat(procfs: Path, pid: int) -> ProcessStat | None:
    """Return the process's state, or None when it is gone or its file makes no sense."""
    try:
        text = read_small(procfs / str(pid) / "stat", 4096).decode("utf-8", "replace")
    except SourceError:
        return None
    name, fields = procstat.split(text)
    if len(fields) < 22:
        return None
    try:
        exiting = bool(int(fields[6]) & _PF_EXITING)
        return ProcessStat(
            pid=pid,
            name=name,
            state=fields[0],
            parent=int(fields[1]),
            group=int(fields[2]),
            start_ticks=int(fields[19]),
            kernel_thread=bool(int(fields[6]) & _PF_KTHREAD),
            cpu_seconds=(int(fields[11]) + int(fields[12])) / CLOCK_TICKS,
            resident_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
            exiting=exiting,
            lives_on=(exiting or fields[0] == "Z") and int(fields[17]) > 1 and _lives_on(procfs, pid),
        )
    except ValueError:
        return None


def _lives_on(procfs: Path, pid: int) -> bool:
    """Say whether a thread goes on after the first; where a process ends as a whole each is to be killed."""
    try:
        others = [name for name in os.listdir(procfs / str(pid) / "task") if name != str(pid)]
    except OSError:
        return False
    for name in others[:_MOST_THREADS]:
        try:
            fields = read_small(procfs / str(pid) / "task" / name / "stat", 4096).rpartition(b")")[2].split()
            status = read_small(procfs / str(pid) / "task" / name / "status", 8192)
        except SourceError:
            continue
        if len(fields) < 7 or fields[0] in b"ZXx" or not fields[6].isdigit() or int(fields[6]) & _PF_EXITING:
            continue
        pending = _PENDING.search(status)
        if pending is not None and not int(pending[1], 16) & _KILL:
            return True
    return False


def environment(procfs: Path, pid: int) -> dict[str, str]:
    """Return the process's environment at its start; raises SourceError when it is not to be read."""
    found: dict[str, str] = {}
    for entry in _environ(procfs, pid).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name:
            # The first wins, as getenv() has it.
            found.setdefault(name.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
    return found


def _environ(procfs: Path, pid: int) -> bytes:
    try:
        return read_small(procfs / str(pid) / "environ", ENVIRON_LIMIT)
    except SourceError as err:
        # The first thread may have ended, and its memory is shown no more; that of the others is the same.
        if err.reason != "unsupported":
            raise
        try:
            names = os.listdir(procfs / str(pid) / "task")
        except OSError:
            raise err from None
        for name in names[:_MOST_THREADS]:
            with contextlib.suppress(SourceError):
                return read_small(procfs / str(pid) / "task" / name / "environ", ENVIRON_LIMIT)
        raise


def cgroup_paths(procfs: Path, pid: int) -> tuple[str, ...]:
    """Return the process's cgroup paths, without doubles; empty when not readable."""
    try:
        text = read_small(procfs / str(pid) / "cgroup").decode("utf-8", "replace")
    except SourceError:
        return ()
    paths = [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2]
    return tuple(dict.fromkeys(path for path in paths if path != "/"))


def command_line(procfs: Path, pid: int) -> tuple[str, ...]:
    """Return the first 16 words of the command line, each cut; empty when not readable."""
    try:
        data = read_small(procfs / str(pid) / "cmdline", 8192)
    except SourceError:
        return ()
    return tuple(word[:256].decode("utf-8", "replace") for word in data.split(b"\0")[:16] if word)


def user_of(procfs: Path, pid: int) -> str:
    """Return the name, or the number, of the process's user; empty when it is gone."""
    try:
        uid = (procfs / str(pid)).stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def boot_id(procfs: Path) -> str:
    """Return the kernel's boot id, or zeros where the tree has none."""
    try:
        return read_small(procfs / "sys/kernel/random/boot_id", 64).decode("ascii", "replace").strip()
    except SourceError:
        return "00000000-0000-0000-0000-000000000000"


def boot_time(procfs: Path) -> float:
    """Return when the host booted, as a Unix time (whole seconds; from the clocks where it is not told)."""
    try:
        match = re.search(rb"^btime (\d+)", read_small(procfs / "stat", 1 << 20), re.MULTILINE)
    except SourceError:
        match = None
    return float(match[1]) if match else time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def host(procfs: Path) -> tuple[HostReading, tuple[SourceError, ...]]:
    """Return the host's counters and what could not be read."""
    errors: list[SourceError] = []

    def text(name: str) -> str:
        try:
            return read_small(procfs / name, 1 << 20).decode("ascii", "replace")
        except SourceError as err:
            # A kernel without pressure stall information simply has no such file.
            if err.reason != "unsupported":
                errors.append(err)
            return ""

    pressure = {
        (resource, match[1]): int(match[2]) / 1e6
        for resource in ("cpu", "memory", "io")
        for match in _PRESSURE.finditer(text(f"pressure/{resource}"))
    }
    memory = text("meminfo")
    load = text("loadavg").split()
    boot = re.search(r"^btime (\d+)", text("stat"), re.MULTILINE)
    return (
        HostReading(
            pressure=pressure,
            memory_total=_kib(memory, "MemTotal"),
            memory_available=_kib(memory, "MemAvailable"),
            oom_kills=_field(text("vmstat"), r"^oom_kill (\d+)"),
            load1=_float(load[0]) if load else None,
            boot_time=float(boot[1]) if boot else None,
        ),
        tuple(errors),
    )


def _field(text: str, pattern: str) -> int | None:
    match = re.search(pattern, text, re.MULTILINE)
    return int(match[1]) if match else None


def _kib(text: str, name: str) -> int | None:
    value = _field(text, rf"^{name}:\s+(\d+) kB")
    return None if value is None else value * 1024


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
