"""The client side of a job's launcher: ask for its status, restart it, move a rank, stop it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tocsin_lab.errors import JobError
from tocsin_lab.job.spec import JobPaths, jobs_of, load_record
from tocsin_lab.job.supervisor import describe

__all__ = ["ask", "only_job", "start", "status"]

_ANSWER_SECONDS = 90.0
_MAX_ANSWER = 4 << 20


def only_job(run_dir: Path, name: str | None) -> str:
    """The job that is meant: the named one (``demo`` or ``torchrun/demo``), or the only one there is.

    Raises:
        JobError: none is named and there is not exactly one.
    """
    if name is not None:
        return name.removeprefix("torchrun/")
    names = jobs_of(run_dir)
    if len(names) != 1:
        raise JobError(
            f"{len(names)} jobs in {run_dir}{': ' + ', '.join(names) if names else ''}: name one with --job"
        )
    return names[0]


def _connect(paths: JobPaths) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_ANSWER_SECONDS)
    # Through the descriptor's link the path is short, however deep the run directory is.
    folder = os.open(paths.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{paths.socket.name}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


def ask(paths: JobPaths, request: dict[str, Any]) -> dict[str, Any]:
    """Send one request to the launcher and return its answer.

    Raises:
        JobError: no launcher runs, or it does not answer.
    """
    load_record(paths)
    try:
        with _connect(paths) as connection:
            connection.sendall((json.dumps(request) + "\n").encode())
            with connection.makefile("rb") as stream:
                line = stream.readline(_MAX_ANSWER)
        answer = json.loads(line)
    except (FileNotFoundError, ConnectionError) as error:
        raise JobError(
            f"no launcher runs job {paths.name!r}: start it with `tocsin-lab job start`"
        ) from error
    except (OSError, ValueError) as error:
        raise JobError(f"the launcher of job {paths.name!r} did not answer: {error}") from error
    if not isinstance(answer, dict):
        raise JobError(f"the launcher of job {paths.name!r} answered with something else than an object")
    return answer


def status(paths: JobPaths) -> dict[str, Any]:
    """The job's status; read from its record when no launcher runs."""
    record = load_record(paths)
    try:
        return ask(paths, {"op": "status"})
    except JobError:
        return {"ok": True, **describe(paths, record, [])}


def start(paths: JobPaths, libraries: Path, timeout: float = 30.0) -> dict[str, Any]:
    """Start the launcher in the background unless it runs; returns the status once the ranks are started.

    Raises:
        JobError: it ended or did not come up; the reason is in ``supervisor.log``.
    """
    try:
        return ask(paths, {"op": "status"})
    except JobError:
        load_record(paths)
    log_path = paths.root / "supervisor.log"
    argv = [
        *(sys.executable, "-m", "tocsin_lab.job.supervisor", "--detach"),
        *("--run-dir", str(paths.run_dir), "--job", paths.name, "--lib", str(libraries.resolve())),
    ]
    with log_path.open("ab", buffering=0) as log:
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise JobError(f"the launcher did not start in {timeout:.0f} s; see {log_path}") from error
    if done.returncode != 0:
        tail = log_path.read_text(errors="replace").strip().splitlines()[-3:]
        raise JobError(f"the launcher ended at its start: {' | '.join(tail)}")
    return ask(paths, {"op": "status"})
