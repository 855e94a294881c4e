"""Faults refuse what does not exist, with the reason; the kernel log takes real records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tocsin_lab import faults
from tocsin_lab.errors import JobError, TargetError
from tocsin_lab.job.spec import JobConfig, create_job
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import NodePaths, create_node

_BAD: list[tuple[str, dict[str, Any], str]] = [
    ("melt", {}, "choose one of fail_slow_gpu"),
    ("fail_slow_gpu", {}, "name a rank, or a node and a gpu"),
    ("fail_slow_gpu", {"rank": 3}, "from 0 to 2"),
    ("fail_slow_gpu", {"rank": True}, "from 0 to 2"),
    ("fail_slow_gpu", {"gpu": 0}, "name its node too"),
    ("fail_slow_gpu", {"node": "gpu-009", "gpu": 0}, "no node 'gpu-009'"),
    ("fail_slow_gpu", {"node": "gpu-001", "gpu": 2}, "from 0 to 1"),
    ("fail_slow_gpu", {"rank": 1, "node": "gpu-002"}, "name the rank or the GPU"),
    ("fail_slow_gpu", {"rank": 1, "magnitude": 1.5}, "from 0.05 to 0.99"),
    ("fail_slow_gpu", {"rank": 1, "magnitude": float("nan")}, "from 0.05 to 0.99"),
    ("fail_slow_gpu", {"rank": 1, "reason": "thermal"}, "takes no reason"),
    ("fail_slow_gpu", {"rank": 1, "colour": "red"}, "no field 'colour'"),
    ("fail_slow_gpu", {"rank": 1, "job": "other"}, "no job 'other'"),
    ("throttle", {"rank": 1, "reason": "mood"}, "thermal, power_brake, sw_power_cap"),
    ("rank_exit", {"node": "gpu-001"}, "takes no node"),
    ("rank_exit", {}, "name the rank"),
    ("rank_exit", {"rank": 0}, "no process"),
    ("rank_exit", {"rank": 0, "signal": 9, "exit_code": 1}, "not both"),
    ("rank_exit", {"rank": 0, "exit_code": 256}, "from 0 to 255"),
    ("loss_divergence", {"magnitude": 0}, "from 0.1"),
    ("driver_hang", {}, "name the node"),
    ("xid", {"rank": 1, "code": 0}, "from 1 to 1023"),
]


@pytest.fixture
def idle_job(run_dir: Path) -> Path:
    """A run directory with a job of three ranks that does not run."""
    create_job(run_dir, "demo", 3)
    return run_dir


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for tests that must change nothing."""
    root = tmp_path_factory.mktemp("run")
    for name in ("gpu-001", "gpu-002"):
        create_node(root, name, gpus=2, hcas=0)
    create_job(root, "demo", 3)
    return root


@pytest.mark.parametrize(("kind", "target", "reason"), _BAD, ids=lambda value: str(value)[:40])
def test_bad_input_is_refused_and_nothing_changes(
    untouched: Path, kind: str, target: dict[str, Any], reason: str
) -> None:
    """Each impossible target names the field and what would be right; no fault acts afterwards."""
    with pytest.raises(TargetError, match=reason):
        faults.inject(untouched, kind, **target)

    assert faults.active(untouched) == []


def test_what_has_happened_cannot_be_cleared(idle_job: Path) -> None:
    """An exit and a kernel record stay."""
    for kind in ("rank_exit", "xid"):
        with pytest.raises(TargetError, match="cannot be taken away"):
            faults.clear(idle_job, kind)


def test_an_xid_is_a_kernel_record_of_the_device(idle_job: Path) -> None:
    """The record has priority, number, kernel time and the device's address; a report names the target."""
    done = faults.inject(idle_job, "xid", rank=1, code=48)
    lines = NodePaths(idle_job, "gpu-001").kmsg.read_text().splitlines()
    head, text = lines[-1].split(";", 1)
    priority, number, microseconds, flags = head.split(",")

    assert (priority, int(number), flags) == ("3", len(lines) - 1, "-")
    assert int(microseconds) >= int(lines[-2].split(",")[2])
    assert text.startswith(
        "NVRM: Xid (PCI:0000:43:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable"
    )
    assert (done["job_id"], done["rank"], done["node"], done["gpu"]) == ("torchrun/demo", 1, "gpu-001", 1)
    assert done["gpu_uuid"].startswith("GPU-")


def test_clearing_without_a_target_clears_everywhere(idle_job: Path) -> None:
    """Two slow devices on two nodes are healthy again after one clear."""
    faults.inject(idle_job, "fail_slow_gpu", node="gpu-001", gpu=0)
    faults.inject(idle_job, "fail_slow_gpu", node="gpu-002", gpu=1, magnitude=0.3)
    assert [row["magnitude"] for row in faults.active(idle_job)] == [0.5, 0.3]
    faults.clear(idle_job, "fail_slow_gpu")

    assert faults.active(idle_job) == []


def test_throttles_add_up_per_reason(idle_job: Path) -> None:
    """A throttle that changes its reason books the time of the first under the first."""
    faults.inject(idle_job, "throttle", rank=0, magnitude=0.4, reason="power_brake")
    faults.inject(idle_job, "throttle", rank=0, magnitude=0.7, reason="thermal")
    with Node(NodePaths(idle_job, "gpu-001").devices) as node:
        held = list(node.state.devices[0].throttle_held_ns)
        bits = node.state.devices[0].throttle_reasons

    assert bits == 0x20
    assert [at for at, value in enumerate(held) if value > 0] == [3, 7]


@pytest.mark.parametrize(
    ("ranks", "config", "reason"),
    [
        (0, JobConfig(), "1 to 64"),
        (5, JobConfig(), "gpu-001 has 2"),
        (2, JobConfig(step_seconds=0.0), "step_seconds"),
    ],
)
def test_an_impossible_job_is_refused(run_dir: Path, ranks: int, config: JobConfig, reason: str) -> None:
    """Too many ranks or an impossible step: the reason, and no job is left behind."""
    with pytest.raises(JobError, match=reason):
        create_job(run_dir, "demo", ranks, config)

    assert not (run_dir / "jobs" / "demo").exists()


@pytest.mark.parametrize(
    ("name", "gpus", "model", "reason"),
    [
        ("../x", 1, "H100-SXM", "node name"),
        ("n", 0, "H100-SXM", "0 GPUs"),
        ("n", 1, "V100", "A100-SXM, B200, H100-SXM"),
    ],
)
def test_an_impossible_node_is_refused(tmp_path: Path, name: str, gpus: int, model: str, reason: str) -> None:
    """A name that leaves the folder, no GPU, an unknown model."""
    with pytest.raises(TargetError, match=reason):
        create_node(tmp_path, name, gpus=gpus, gpu_model=model)
