"""Scenario files: the closed form, refused with file, line and reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin_common import durations
from tocsin_lab import scenario, scenarios
from tocsin_lab.errors import ScenarioError

GOOD = """\
name: slow
duration: 5m
nodes: {count: 2, gpus: 4, hcas: 2}
jobs:
  - {job_id: torchrun/demo, ranks: 6, step_seconds: 1}
faults:
  - {kind: fail_slow_gpu, at: 2m, rank: 4, magnitude: 0.5}
expect:
  verdict: {family: FailSlowGpu, rank: 4}
  within: 90s
  quiet: [DeadRank]
"""


def _read(folder: Path, text: str) -> scenario.Scenario:
    path = folder / "case.yaml"
    path.write_text(text)
    return scenario.read(path)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    found = _read(tmp_path, GOOD)

    assert found.duration == 300.0
    assert found.nodes.all() == ["gpu-001", "gpu-002"]
    # Labels are compared as text, however YAML reads them.
    assert found.expect.labels == {"family": "FailSlowGpu", "rank": "4"}
    assert found.faults[0].at == 120.0


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("name: slow", "name: slow\ncolour: red", 2, "unknown key"),
        ("magnitude: 0.5", "strength: 0.5", 7, "unknown key"),
        ("fail_slow_gpu", "fail_sow_gpu", 7, "unknown kind 'fail_sow_gpu'"),
        ("rank: 4, magnitude", "rank: 6, magnitude", 7, "ranks 0 to 5"),
        ("rank: 4, magnitude", "node: gpu-009, magnitude", 7, "no node 'gpu-009'"),
        ("rank: 4, magnitude", "node: gpu-001, gpu: 4, magnitude", 7, "GPUs 0 to 3"),
        ("rank: 4, magnitude", "gpu: 1, magnitude", 7, "needs its `node`"),
        ("magnitude: 0.5", "magnitude: -1", 7, "greater than 0"),
        ("at: 2m", "at: 6m", 7, "after the end"),
        ("at: 2m", "at: 2m, until: 1m", 7, "not after"),
        ("at: 2m", "at: 2 minutes", 7, "not a duration"),
        ("duration: 5m", "duration: 300", 2, "not a duration"),
        ("ranks: 6", "ranks: 9", 5, "do not fit on 8 GPUs"),
        ("ranks: 6", "ranks: six", 5, "integer"),
        ("gpus: 4", "gpus: 4, names: node", 3, "%d"),
        ("within: 90s", "within: soon", 10, "not a duration"),
        ("name: slow", "name: [", 3, "not YAML"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, reason: str
) -> None:
    with pytest.raises(ScenarioError) as refused:
        _read(tmp_path, GOOD.replace(old, new, 1))

    assert str(refused.value).startswith(f"{tmp_path / 'case.yaml'}:{line}: ")
    assert reason in str(refused.value)


def test_a_verdict_without_a_fault_is_refused(tmp_path: Path) -> None:
    """Such a case could only pass by a false alarm."""
    start = GOOD.index("faults:")
    text = GOOD[:start] + "faults: []\n" + GOOD[GOOD.index("expect:") :]

    with pytest.raises(ScenarioError, match="no fault is given"):
        _read(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        scenario.read(tmp_path / "none.yaml")


def test_the_shipped_scenarios_are_the_four_faults_and_a_healthy_run() -> None:
    names = {scenario.read(path).name for path in scenarios.shipped()}

    assert {"dead-rank", "fail-slow-gpu", "gpu-throttled", "loss-divergence", "healthy"} <= names
    assert {path.stem for path in scenarios.shipped()} == names


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("6m5s", 365.0), ("1h30m", 5400.0), ("0", 0.0), ("250ms", 0.25)]
)
def test_durations_are_those_of_prometheus(text: str, seconds: float) -> None:
    assert durations.parse(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 m", "m5", "-1s", "1s1h", "1.5s", "5s\n", 5, None])
def test_other_texts_are_no_durations(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        durations.parse(text)
