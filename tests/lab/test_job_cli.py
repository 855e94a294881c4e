"""``tocsin-lab job`` prints one JSON line per command and says by its exit status whether it was done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tocsin_lab.job import cli
from tocsin_lab.job.spec import JobPaths, create_job
from tocsin_lab.sim.node import gpus_of


def _run(capsys: pytest.CaptureFixture[str], run_dir: Path, *argv: str) -> tuple[int, dict[str, Any]]:
    status = cli.main(argv, run_dir)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    return status, json.loads(lines[0])


def test_a_job_that_does_not_run(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its status is `stopped` and names the spare GPU; a restart is refused with what to do."""
    create_job(run_dir, "demo", 3)

    status, answer = _run(capsys, run_dir, "status", "--job", "torchrun/demo")
    assert status == 0
    assert (answer["job_id"], answer["state"], answer["attempt"]) == ("torchrun/demo", "stopped", 0)
    assert [row["alive"] for row in answer["ranks"]] == [False, False, False]
    assert [{"node": "gpu-002", "gpu": 1, "gpu_uuid": gpus_of(run_dir, "gpu-002")[1].uuid}] == answer["spare"]

    status, answer = _run(capsys, run_dir, "restart")
    assert (status, answer["ok"]) == (1, False)
    assert "start it with `tocsin-lab job start`" in answer["error"]


def test_a_job_that_does_not_exist(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer names the job and those there are; a damaged record is named with its file."""
    status, answer = _run(capsys, run_dir, "status", "--job", "demo")
    assert status == 1
    assert "no job 'demo'" in answer["error"]

    paths = create_job(run_dir, "demo", 2)
    paths.record.write_text("{")
    status, answer = _run(capsys, run_dir, "status")
    assert status == 1
    assert str(JobPaths(run_dir, "demo").record) in answer["error"]


def test_a_running_job_is_moved_and_stopped(job: JobPaths, capsys: pytest.CaptureFixture[str]) -> None:
    """Move and stop answer what they did; the same request id gives the same answer."""
    uuid = gpus_of(job.run_dir, "gpu-001")[0].uuid
    move = ("move-rank", "--rank", "0", "--avoid-gpu", uuid, "--request-id", "r1")
    status, answer = _run(capsys, job.run_dir, *move)
    assert (status, answer["changed"], answer["attempt"]) == (0, True, 1)
    assert _run(capsys, job.run_dir, *move) == (0, answer)
    status, answer = _run(capsys, job.run_dir, "stop")
    assert (status, answer["ok"]) == (0, True)
    assert _run(capsys, job.run_dir, "status")[1]["state"] == "stopped"
