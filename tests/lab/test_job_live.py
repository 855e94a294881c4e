"""A job of real processes on simulated devices: what slows, kills and cures it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tocsin_lab import faults
from tocsin_lab.errors import TargetError
from tocsin_lab.job import checkpoint, control
from tocsin_lab.job.spec import JobPaths, load_record
from tocsin_lab.sim.layout import Job, Node
from tocsin_lab.sim.node import NodePaths, gpus_of


def _wait(condition: Any, timeout: float = 15.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)
    return value


def _step(paths: JobPaths) -> int:
    with Job(paths.shared) as job:
        return int(job.state.ranks[2].step)


def _run_to(paths: JobPaths, step: int) -> None:
    _wait(lambda: _step(paths) >= step)


def _accounts(paths: JobPaths, rank: int) -> dict[str, int]:
    slot = load_record(paths).placement[rank]
    with Node(NodePaths(paths.run_dir, slot.node).devices) as node:
        device = node.state.devices[slot.gpu]
        found = {
            name: int(getattr(device, name))
            for name in ("compute_ns", "collective_ns", "transfer_ns", "sm_ns")
        }
        del device
    return found


def _activity(paths: JobPaths, seconds: float) -> list[float]:
    """Mean SM activity of each rank over the next seconds."""
    before = [_accounts(paths, rank)["sm_ns"] for rank in range(3)]
    start = time.monotonic_ns()
    time.sleep(seconds)
    elapsed = time.monotonic_ns() - start
    return [(_accounts(paths, rank)["sm_ns"] - before[rank]) / elapsed for rank in range(3)]


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_it_prints_and_saves_like_megatron(job: JobPaths) -> None:
    """The last rank prints each step, rank 0 the checkpoints; a complete one lies on disk."""
    _run_to(job, 12)
    last, first, other = (job.log(rank).read_text() for rank in (2, 0, 1))

    assert (
        "] iteration       10/   20000 | consumed samples:         2560 | elapsed time per iteration (ms): "
        in last
    )
    assert " | lm loss: " in last
    assert "saving checkpoint at iteration      10 to " in first
    assert "  successfully saved checkpoint from iteration      10 to " in first
    assert other == ""
    assert checkpoint.latest(job.checkpoints) == 10
    assert checkpoint.load(job.checkpoints, 1, 10).step == 10


def test_ranks_have_the_environment_of_torchrun(job: JobPaths) -> None:
    """Rank, node, restart count and device are there, and nothing of the launcher's own."""
    status = control.status(job)
    row = status["ranks"][2]
    raw = Path(f"/proc/{row['pid']}/environ").read_bytes().decode().split("\0")
    found = dict(entry.split("=", 1) for entry in raw if entry)

    assert (row["node"], row["gpu"]) == ("gpu-002", 0)
    assert {
        "RANK": "2",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1",
        "TORCHELASTIC_RUN_ID": "demo",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "CUDA_VISIBLE_DEVICES": "0",
        "TOCSIN_LAB_NODE": "gpu-002",
    }.items() <= found.items()
    assert "PYTEST_CURRENT_TEST" not in found


def test_one_slow_gpu_makes_its_peers_wait_and_moving_the_rank_cures_it(job: JobPaths) -> None:
    """The slow device stays active while its peers wait in collectives; on the spare GPU all is well."""
    _run_to(job, 5)
    faults.inject(job.run_dir, "fail_slow_gpu", rank=1, magnitude=0.4)
    slow = _activity(job, 1.5)
    uuid = gpus_of(job.run_dir, "gpu-001")[1].uuid
    answer = control.ask(job, {"op": "move_rank", "rank": 1, "avoid_gpu": uuid, "request_id": "move-1"})
    again = control.ask(job, {"op": "move_rank", "rank": 1, "avoid_gpu": uuid, "request_id": "move-2"})
    _run_to(job, _step(job) + 5)
    cured = _activity(job, 1.5)

    assert slow[1] > 0.75
    assert max(slow[0], slow[2]) < 0.65
    assert [{"rank": 1, "node": "gpu-002", "gpu": 1}] == [
        {key: move[key] for key in ("rank", "node", "gpu")} for move in answer["moved"]
    ]
    assert (again["ok"], again["changed"]) == (True, False)
    assert min(cured) > 0.65
    assert faults.active(job.run_dir) == [
        {"kind": "fail_slow_gpu", "node": "gpu-001", "gpu": 1, "magnitude": 0.4}
    ]
    assert control.status(job)["spare"] == []
    # The fault stayed with the device; clearing it by rank still finds it there.
    faults.clear(job.run_dir, "fail_slow_gpu", rank=1)
    assert faults.active(job.run_dir) == []


def test_a_dead_rank_leaves_its_peers_waiting_until_a_restart(job: JobPaths) -> None:
    """Peers live on, their devices sit in a collective; a restart resumes, once per request."""
    _run_to(job, 12)
    dead = control.status(job)["ranks"][1]["pid"]
    faults.inject(job.run_dir, "rank_exit", rank=1)
    _wait(lambda: not control.status(job)["ranks"][1]["alive"])
    time.sleep(0.3)
    stuck, before = _step(job), _accounts(job, 0)
    time.sleep(0.5)
    after, status = _accounts(job, 0), control.status(job)

    assert _gone(dead)
    assert [True, False, True] == [row["alive"] for row in status["ranks"]]
    assert (status["state"], status["ranks"][1]["exit"]) == ("running", -9)
    assert _step(job) == stuck
    assert after["collective_ns"] > before["collective_ns"]
    assert (after["compute_ns"], after["transfer_ns"]) == (before["compute_ns"], before["transfer_ns"])

    request = {"op": "restart", "request_id": "fix-1"}
    answer = control.ask(job, request)
    assert (answer["ok"], answer["attempt"]) == (True, 1)
    assert control.ask(job, request) == answer
    _wait(lambda: "successfully loaded checkpoint" in job.log(0).read_text())
    _run_to(job, stuck + 3)
    assert control.status(job)["attempt"] == 1


def test_a_killed_launcher_takes_its_ranks_along_and_remembers_requests(job: JobPaths, sim_lib: Path) -> None:
    """No rank outlives it; the next launcher gives the old answer and does not act again."""
    answer = control.ask(job, {"op": "restart", "request_id": "once"})
    pids = [row["pid"] for row in control.status(job)["ranks"]]
    launcher = int(Path(f"/proc/{pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(launcher, signal.SIGKILL)
    _wait(lambda: all(_gone(pid) for pid in pids))

    assert control.status(job)["state"] == "stopped"
    started = control.start(job, sim_lib)
    assert control.ask(job, {"op": "restart", "request_id": "once"}) == answer
    assert control.status(job)["attempt"] == started["attempt"] == 2


def test_impossible_requests_are_refused_with_the_reason(job: JobPaths) -> None:
    """Too few spare GPUs, an unknown rank, an unknown action or no JSON: an answer, and the job runs on."""
    uuid = gpus_of(job.run_dir, "gpu-001")[0].uuid
    refused = [
        (
            control.ask(job, {"op": "restart", "exclude_node": "gpu-001"}),
            "2 ranks run on gpu-001 and 1 spare",
        ),
        (control.ask(job, {"op": "move_rank", "rank": 9, "avoid_gpu": uuid}), "ranks 0 to 2"),
        (control.ask(job, {"op": "move_rank", "rank": "1", "avoid_gpu": uuid}), "a whole number"),
        (control.ask(job, {"op": "move_rank", "rank": 1}), "avoid_gpu"),
        (control.ask(job, {"op": "explode"}), "status, restart, move_rank, stop or shutdown"),
        (control.ask(job, {"op": "stop", "request_id": ""}), "1 to 200 characters"),
    ]

    for answer, reason in refused:
        assert (answer["ok"], answer["applied"]) == (False, False)
        assert reason in answer["error"]
    assert control.status(job)["attempt"] == 0
    _run_to(job, _step(job) + 2)


def test_an_exit_code_on_demand_and_a_job_that_was_stopped(job: JobPaths) -> None:
    """The rank ends with exactly that code; after `stop` nothing runs and nothing can be killed."""
    faults.inject(job.run_dir, "rank_exit", rank=0, exit_code=17)
    _wait(lambda: control.status(job)["ranks"][0]["exit"] == 17)
    stopped = control.ask(job, {"op": "stop"})
    status = control.status(job)

    assert (stopped["ok"], status["state"]) == (True, "stopped")
    assert not any(row["alive"] for row in status["ranks"])
    with pytest.raises(TargetError, match="ended already"):
        faults.inject(job.run_dir, "rank_exit", rank=2)


def test_a_second_launcher_is_refused(job: JobPaths, sim_lib: Path) -> None:
    """One job has one launcher: another ends at once and says so."""
    argv = [sys.executable, "-m", "tocsin_lab.job.supervisor", "--run-dir", str(job.run_dir), "--job", "demo"]
    done = subprocess.run(
        [*argv, "--lib", str(sim_lib)], capture_output=True, text=True, timeout=20, check=False
    )

    assert done.returncode == 1
    assert "another launcher runs job 'demo'" in done.stderr


def test_a_lost_gpu_ends_its_rank_with_a_cuda_error(job: JobPaths) -> None:
    """The program sees a CUDA error, prints a traceback and exits with 1."""
    _run_to(job, 3)
    faults.inject(job.run_dir, "gpu_lost", rank=2)
    _wait(lambda: control.status(job)["ranks"][2]["exit"] == 1)

    assert (
        "[rank2]: tocsin_lab.job.driver.CudaError: CUDA error: CUDA_ERROR_UNKNOWN" in job.log(2).read_text()
    )


def test_a_diverging_recipe_drives_the_printed_loss_up(job: JobPaths) -> None:
    """The loss climbs while the recipe is bad; with NaN weights the loss field disappears from the line."""
    _run_to(job, 3)
    faults.inject(job.run_dir, "loss_divergence", magnitude=5000)
    _run_to(job, _step(job) + 8)
    lines = [line for line in job.log(2).read_text().splitlines() if " lm loss: " in line]
    losses = [float(line.split(" lm loss: ")[1].split()[0]) for line in lines]
    faults.inject(job.run_dir, "nan_loss")
    _wait(lambda: "number of nan iterations:   1 |" in job.log(2).read_text())

    assert losses[-1] > losses[-6] + 3.0
    assert " lm loss: " not in job.log(2).read_text().splitlines()[-1]
