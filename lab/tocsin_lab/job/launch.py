"""Starts and ends rank processes. Must be used from one thread that lives as long as the ranks should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tocsin_lab.job.spec import JobPaths, JobRecord
from tocsin_lab.sim.layout import Job
from tocsin_lab.sim.node import NodePaths

__all__ = ["RankProcess", "end_ranks", "rank_environment", "start_ranks"]

# The launcher's environment must not decide who the job is: only these variables reach a rank.
_PASSED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "TMPDIR",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
)
_GRACE_SECONDS = 3.0


@dataclass
class RankProcess:
    """A started rank. ``exit`` is None while it runs, else the exit status or minus the signal."""

    rank: int
    process: subprocess.Popen[bytes]

    @property
    def exit(self) -> int | None:
        return self.process.poll()


def rank_environment(paths: JobPaths, record: JobRecord, rank: int, libraries: Path) -> dict[str, str]:
    """The environment that torchrun would give, and where the simulated node is."""
    slot = record.placement[rank]
    nodes = list(dict.fromkeys(place.node for place in record.placement))
    local = [at for at, place in enumerate(record.placement) if place.node == slot.node]
    devices = str(NodePaths(paths.run_dir, slot.node).devices)
    return {
        **{name: os.environ[name] for name in _PASSED if name in os.environ},
        "RANK": str(rank),
        "LOCAL_RANK": str(local.index(rank)),
        "WORLD_SIZE": str(len(record.placement)),
        "LOCAL_WORLD_SIZE": str(len(local)),
        "GROUP_RANK": str(nodes.index(slot.node)),
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(len(record.placement)),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": record.name,
        "TORCHELASTIC_RESTART_COUNT": str(record.attempt),
        "TORCHELASTIC_MAX_RESTARTS": "100",
        "CUDA_VISIBLE_DEVICES": str(slot.gpu),
        "OMP_NUM_THREADS": "1",
        "TOCSIN_LAB_NODE": slot.node,
        "TOCSIN_LAB_SUPERVISOR": str(os.getpid()),
        "TOCSIN_SIM_LIB": str(libraries),
        "TOCSIN_SIM_DEVICES": devices,
        "TOCSIN_SIM_NVML_SHM": devices,
        "TOCSIN_SIM_JOB": str(paths.shared),
    }


def start_ranks(paths: JobPaths, record: JobRecord, libraries: Path) -> list[RankProcess]:
    """Start all ranks of an attempt; their output is appended to ``rank-<r>.log``.

    Raises:
        OSError: a process cannot be started; those already started have been ended.
    """
    with Job(paths.shared) as job:
        for rank in range(len(record.placement)):
            slot = job.state.ranks[rank]
            slot.pid = slot.exit_request = 0
            del slot
    started: list[RankProcess] = []
    try:
        for rank in range(len(record.placement)):
            with paths.log(rank).open("ab", buffering=0) as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tocsin_lab.job.rank"],
                    env=rank_environment(paths, record, rank, libraries),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=paths.root,
                    # Each rank leads its own session, so that ending one never reaches another.
                    start_new_session=True,
                )
            started.append(RankProcess(rank, process))
    except OSError:
        end_ranks(started)
        raise
    return started


def _signal(one: RankProcess, number: signal.Signals) -> None:
    if one.exit is None:
        try:
            os.killpg(one.process.pid, number)
        except ProcessLookupError:
            one.process.poll()


def end_ranks(ranks: list[RankProcess]) -> None:
    """SIGTERM, then SIGKILL after a grace; returns when all are reaped."""
    for one in ranks:
        _signal(one, signal.SIGTERM)
        # A stopped process would take the signal only when it is continued.
        _signal(one, signal.SIGCONT)
    deadline = time.monotonic() + _GRACE_SECONDS
    while any(one.exit is None for one in ranks) and time.monotonic() < deadline:
        time.sleep(0.02)
    for one in ranks:
        _signal(one, signal.SIGKILL)
        one.process.wait()
