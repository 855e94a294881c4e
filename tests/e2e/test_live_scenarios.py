"""The whole loop, live: real processes, real probes, real Prometheus, Alertmanager and remediator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.long

HEALTHY = os.environ.get("TOCSIN_HEALTHY", "15m")
HEALTHY_TEST = "test_a_healthy_run_raises_nothing"


def _start(name: str, *flags: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tocsin_lab", "live", name, "--json", *flags]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


def _result(process: subprocess.Popen[str], minutes: float) -> dict[str, Any]:
    try:
        out, told = process.communicate(timeout=60 * minutes)
    finally:
        if process.poll() is None:
            # It stops its parts before it goes.
            process.terminate()
            process.communicate(timeout=60)
    assert process.returncode in (0, 1), told
    case: dict[str, Any] = json.loads(out.splitlines()[-1])
    # What happened when, for whoever reads a failure.
    case["told"] = told
    return case


@pytest.fixture(scope="module", autouse=True)
def healthy(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str] | None]:
    """A lab in which nothing goes wrong, beside those in which something does: it needs time, not cores."""
    if not any(item.name == HEALTHY_TEST for item in request.session.items):
        yield None
        return
    process = _start("healthy", "--duration", HEALTHY)
    yield process
    if process.poll() is None:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        # The rank is moved to a spare GPU, and the job's own progress proves it.
        ("fail-slow-gpu", "closed"),
        # What lies below the node goes to the provider with the evidence.
        ("gpu-throttled", "escalated"),
        # Nobody but its owner changes a job's recipe.
        ("loss-divergence", "recommended"),
    ],
)
def test_a_fault_is_named_in_time_approved_and_brought_to_its_end(name: str, end: str) -> None:
    """The fourth, a dead rank, is played in the loop whose remediator is killed."""
    case = _result(_start(name, "--approve", "--until-verdict"), minutes=16)

    assert case["ok"], json.dumps(case, indent=1)
    assert case["incident"], json.dumps(case, indent=1)
    assert case["incident"]["state"] == end, json.dumps(case, indent=1)


def test_a_healthy_run_raises_nothing(healthy: subprocess.Popen[str]) -> None:
    case = _result(healthy, minutes=25)

    assert case["ok"], json.dumps(case, indent=1)
    assert case["rows"] == []
    assert case["families"] == []
