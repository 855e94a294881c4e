"""The whole loop, live: real processes, real probes, real Prometheus, Alertmanager and remediator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.long

# Fifteen minutes is what the project promises; a shorter run keeps the suite within its half hour.
HEALTHY = os.environ.get("TOCSIN_HEALTHY", "7m")


def _play(name: str, *flags: str, minutes: float) -> dict[str, Any]:
    argv = [sys.executable, "-m", "tocsin_lab", "live", name, "--json", *flags]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 * minutes, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    case: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    # What happened when, for whoever reads a failure.
    case["told"] = done.stderr
    return case


@pytest.mark.parametrize(
    ("name", "end"),
    [
        # The rank is restarted, or moved to a spare GPU, and the job's own progress proves it.
        ("dead-rank", "closed"),
        ("fail-slow-gpu", "closed"),
        # What lies below the node goes to the provider with the evidence.
        ("gpu-throttled", "escalated"),
        # Nobody but its owner changes a job's recipe.
        ("loss-divergence", "recommended"),
    ],
)
def test_a_fault_is_named_in_time_approved_and_brought_to_its_end(name: str, end: str) -> None:
    case = _play(name, "--approve", "--until-verdict", minutes=16)

    assert case["ok"], json.dumps(case, indent=1)
    assert case["incident"], json.dumps(case, indent=1)
    assert case["incident"]["state"] == end, json.dumps(case, indent=1)


def test_a_healthy_run_raises_nothing() -> None:
    case = _play("healthy", "--duration", HEALTHY, minutes=25)

    assert case["ok"], json.dumps(case, indent=1)
    assert case["rows"] == []
    assert case["families"] == []
