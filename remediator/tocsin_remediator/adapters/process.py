"""One child process: no shell, fixed environment, output into files, whole group ended at a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tocsin_common import procstat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_OUTPUT: Final = 256 * 1024
_GRACE: Final = 2.0


@dataclass(frozen=True)
class Finished:
    """How a process ended; `code` is None when it was ended at its deadline."""

    code: int | None
    stdout: str
    stderr: str


def runs(pid: int, started: str) -> bool:
    """Whether the process with this pid and start time still exists."""
    return pid > 1 and started != "" and procstat.start(pid) == started


def run(
    argv: Sequence[str],
    *,
    folder: Path,
    name: str,
    timeout: float,
    environment: Mapping[str, str],
    started: Callable[[int, str], None] = lambda pid, at: None,
) -> Finished:
    """
    Run `argv` and wait at most `timeout` seconds. OSError when it cannot be started.

    Output goes to files in `folder`: with pipes the action would be killed by its next line when
    the remediator ends, halfway through what it does.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
            env=dict(environment),
            # A group of its own: Ctrl-C at the remediator must not reach it, and all of it can be ended.
            start_new_session=True,
            close_fds=True,
        )
    started(child.pid, procstat.start(child.pid))
    try:
        code: int | None = child.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        code = None
        _end(child)
    return Finished(code, _tail(out), _tail(err))


def forget(folder: Path, name: str) -> None:
    """Remove the output that `run` left in `folder`, of a process that has ended."""
    for suffix in ("out", "err"):
        (folder / f"{name}.{suffix}").unlink(missing_ok=True)


def _end(child: subprocess.Popen[bytes]) -> None:
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signum)
        until = time.monotonic() + _GRACE
        while time.monotonic() < until:
            if child.poll() is not None:
                break
            time.sleep(0.02)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=_GRACE)


def _tail(file: Path) -> str:
    with file.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(stream.tell() - _OUTPUT, 0))
        return stream.read(_OUTPUT).decode("utf-8", errors="replace")
