"""A built simulator, small nodes and small jobs for the tests of the lab."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tocsin_lab.job import control
from tocsin_lab.job.spec import JobConfig, JobPaths, create_job, default_placement
from tocsin_lab.sim.build import build
from tocsin_lab.sim.node import NodePaths, create_node

_ROOT = Path(__file__).resolve().parents[2]

Script = Callable[..., Any]


@pytest.fixture(scope="session")
def sim_lib() -> Path:
    """The folder of the native libraries, built."""
    out = _ROOT / ".build" / "lib"
    build(out)
    return out


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory with two healthy nodes of two GPUs each, without HCAs (a hundred files)."""
    for name in ("gpu-001", "gpu-002"):
        create_node(tmp_path, name, gpus=2, hcas=0)
    return tmp_path


@pytest.fixture
def script(sim_lib: Path) -> Script:
    """Run Python text in a process that finds the simulated libraries; returns the JSON it prints last."""

    def run(text: str, devices: Path, timeout: float = 20.0, **more: str) -> Any:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(sim_lib),
            "TOCSIN_SIM_LIB": str(sim_lib),
            "TOCSIN_SIM_DEVICES": str(devices),
            "TOCSIN_LAB_NODE": devices.parent.name,
            **more,
        }
        done = subprocess.run(
            [sys.executable, "-c", text],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def devices(run_dir: Path) -> Path:
    """The shared state of the first node."""
    return NodePaths(run_dir, "gpu-001").devices


@pytest.fixture
def job(run_dir: Path, sim_lib: Path) -> Iterator[JobPaths]:
    """A running job of three ranks with steps of 80 ms; GPU 1 of gpu-002 is spare."""
    paths = create_job(
        run_dir,
        "demo",
        3,
        JobConfig(step_seconds=0.08, checkpoint_every=10, seed=7),
        default_placement(run_dir, 3),
    )
    control.start(paths, sim_lib)
    try:
        yield paths
    finally:
        control.ask(paths, {"op": "shutdown"})
        wait_for(lambda: not paths.socket.exists())


def wait_for(condition: Callable[[], Any], timeout: float = 15.0) -> Any:
    """Poll until the condition is true; returns its value."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"nothing within {timeout} s"
        time.sleep(0.02)
