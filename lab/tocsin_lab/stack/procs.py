"""
Processes of the lab: started so that none outlives it, named so that none else is ever signalled.

A process is known by pid *and* start time, since a pid alone may belong to a stranger by the time
it is read back from a file.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tocsin_common import procstat

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class ProcessId:
    """One process of this boot; ``start`` is its start time in clock ticks."""

    pid: int
    start: int


def identify(pid: int, procfs: Path = Path("/proc")) -> ProcessId | None:
    """Return the identity of a running process; None when it is gone or only waits to be reaped."""
    start = procstat.start(pid, procfs)
    return ProcessId(pid, int(start)) if start else None


def alive(process: ProcessId, procfs: Path = Path("/proc")) -> bool:
    """Tell whether exactly this process still runs."""
    return identify(process.pid, procfs) == process


def descendants(pid: int, procfs: Path = Path("/proc")) -> list[ProcessId]:
    """Return all running processes below *pid*, parents before children."""
    children: dict[int, list[ProcessId]] = {}
    for entry in procfs.iterdir():
        if not entry.name.isdigit():
            continue
        fields = procstat.fields(int(entry.name), procfs)
        if len(fields) >= 20 and fields[0] not in {"Z", "X"}:
            children.setdefault(int(fields[1]), []).append(ProcessId(int(entry.name), int(fields[19])))
    found: list[ProcessId] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += [child.pid for child in below]
    return found


def end(processes: Iterable[ProcessId], grace: float) -> list[ProcessId]:
    """Ask the processes to stop, kill what is left after *grace* seconds; return what even then lives."""
    left = [process for process in processes if alive(process)]
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            try:
                os.kill(process.pid, sent)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + (grace if sent == signal.SIGTERM else 5.0)
        while left and time.monotonic() < deadline:
            reap()
            left = [process for process in left if alive(process)]
            if left:
                time.sleep(0.02)
    return left


def reap() -> None:
    """Collect ended orphans that this process adopted as a subreaper and that no Popen waits for."""
    me = os.getpid()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        fields = procstat.fields(int(entry.name))
        if len(fields) > 1 and fields[0] == "Z" and int(fields[1]) == me and int(entry.name) not in _OWNED:
            try:
                os.waitpid(int(entry.name), os.WNOHANG)
            except ChildProcessError:
                continue


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that they can be found and stopped."""
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# Children that a Child object waits for; reap() must not take their exit status away.
_OWNED: set[int] = set()


class Child:
    """One component's process, in a session of its own, its output in one log file."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.log = log
        with log.open("ab") as output:
            # A session of its own keeps the terminal's Ctrl-C away: the lab stops its parts in order.
            self._popen = subprocess.Popen(
                argv,
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        _OWNED.add(self._popen.pid)
        started = identify(self._popen.pid)
        self.id = started or ProcessId(self._popen.pid, 0)

    def exit_status(self) -> int | None:
        """Return the exit status (negative: the signal), None while it runs."""
        return self._popen.poll()

    def stop(self, grace: float) -> int:
        """Ask it to end, kill its whole session after *grace* seconds; return the exit status."""
        if self._popen.poll() is None:
            self._popen.terminate()
            try:
                self._popen.wait(grace)
            except subprocess.TimeoutExpired:
                self._signal_session(signal.SIGKILL)
        status = self._popen.wait()
        # What the component started and left behind shares its session.
        self._signal_session(signal.SIGKILL)
        _OWNED.discard(self._popen.pid)
        return status

    def _signal_session(self, number: int) -> None:
        try:
            os.killpg(self._popen.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        return log_tail(self.log, lines)


def log_tail(log: Path, lines: int) -> str:
    """Return the last *lines* of a log file, '' when there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 64 * 1024))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
