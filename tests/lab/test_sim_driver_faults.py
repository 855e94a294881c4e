"""Every fault of the driver that `inject` offers acts, is listed while it acts and gone when cleared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tocsin_lab import faults, faults_driver
from tocsin_lab.errors import TargetError
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import NodePaths, create_node

Script = Callable[..., Any]

_GPU = {"node": "gpu-001", "gpu": 1}
_WAYS: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind, what in faults_driver.KINDS.items() if what.target == "device"),
    ("bad_field", {"field": 230, "code": 3, "what": "batch"}),
    ("sentinel", {"call": "nvmlDeviceGetPowerUsage", "what": "uint32"}),
    ("garbage", {"field": 83, "magnitude": 1e15}),
    ("slow_calls", {"call": "nvmlDeviceGetPowerUsage", "magnitude": 0.1}),
    ("blank_profiling", {"what": "no_data"}),
    ("ecc", {"what": "uncorrected", "magnitude": 1.0}),
    ("ecc", {"what": "remap_pending"}),
    ("ecc", {"what": "remap_failed"}),
    ("nvlink_down", {"link": 17}),
    ("pcie_downgrade", {"what": "generation", "magnitude": 3.0}),
    ("fabric_degraded", {"what": "manager"}),
]
_LISTED_AS = {"ecc_storm": {"ecc", "slow_calls"}, "mig_reconfigured": set()}


@pytest.mark.parametrize(("kind", "values"), _WAYS, ids=lambda value: str(value)[:60])
def test_a_fault_of_a_device_acts_alone_and_ends(run_dir: Path, kind: str, values: dict[str, Any]) -> None:
    """It is listed for its GPU only; cleared, nothing acts and counts that were booked stay."""
    done = faults.inject(run_dir, kind, **_GPU, **values)
    rows = faults.active(run_dir)

    assert done["gpu"] == 1
    assert {row["kind"] for row in rows} == _LISTED_AS.get(kind, {kind})
    assert all((row["node"], row["gpu"]) == ("gpu-001", 1) for row in rows)
    faults.clear(run_dir, kind, **_GPU)
    assert faults.active(run_dir) == []


@pytest.mark.parametrize("kind", ["init_hang", "init_failure"])
def test_a_fault_of_a_node_acts_and_ends(run_dir: Path, kind: str) -> None:
    """It is listed for its node; cleared everywhere, nothing acts."""
    faults.inject(run_dir, kind, node="gpu-002")

    assert [(row["kind"], row["node"]) for row in faults.active(run_dir)] == [(kind, "gpu-002")]
    faults.clear(run_dir, kind)
    assert faults.active(run_dir) == []


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        ("bad_field", {"field": 0}, "from 1 to 511"),
        ("sentinel", {"what": "seven"}, "choose one of uint32"),
        ("slow_calls", {"call": "rm -rf"}, "an NVML function"),
        ("ecc", {"what": "melted"}, "choose one of corrected"),
        ("nvlink_errors", {"link": 18}, "from 0 to 17"),
        ("pcie_downgrade", {"magnitude": 16.0}, "from 1 to 15"),
        ("pcie_downgrade", {"magnitude": 7.0}, "1, 2, 4, 8 lanes"),
        ("mig_reconfigured", {"what": "9g.90gb"}, "H100-SXM has"),
        ("recovery_action", {"code": 9}, "from 1 to 7"),
        ("gpu_missing", {"field": 3}, "takes no field"),
    ],
)
def test_impossible_values_are_refused(
    run_dir: Path, kind: str, values: dict[str, Any], reason: str
) -> None:
    """The message names the field and what would be right; nothing acts."""
    with pytest.raises(TargetError, match=reason):
        faults.inject(run_dir, kind, **_GPU, **values)

    assert faults.active(run_dir) == []


def test_what_has_no_nvlink_has_no_link_to_break(tmp_path: Path) -> None:
    """On an L40S link and fabric faults are refused with the reason."""
    create_node(tmp_path, "gpu-001", gpus=2, hcas=0, gpu_model="L40S")
    for kind, reason in (("nvlink_errors", "no NVLink"), ("fabric_degraded", "no fabric")):
        with pytest.raises(TargetError, match=reason):
            faults.inject(tmp_path, kind, **_GPU)


def test_an_xid_comes_by_both_ways_or_by_one(script: Script, run_dir: Path, devices: Path) -> None:
    """The kernel log gets what NVML keeps to itself (62), and the event sets what the log has lost."""
    for code, what in ((94, "both"), (62, "kmsg"), (13, "nvml")):
        faults.inject(run_dir, "xid", **_GPU, code=code, what=what)
    log = NodePaths(run_dir, "gpu-001").kmsg.read_text()
    with Node(devices) as node:
        events = [node.state.events[at].data for at in range(node.state.event_count)]

    assert [code for code in (94, 62, 13) if f": {code}, pid=" in log] == [94, 62]
    assert events == [94, 13]


def test_a_storm_fills_the_log_and_counts(script: Script, run_dir: Path, devices: Path) -> None:
    """Fifty records at once, counts that climb, and a call that takes its time."""
    faults.inject(run_dir, "ecc_storm", **_GPU)
    got = script(
        """
import json, time, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(1)
first = n.nvmlDeviceGetTotalEccErrors(h, 0, 1)
start = time.monotonic()
second = n.nvmlDeviceGetTotalEccErrors(h, 0, 1)
print(json.dumps([second - first, time.monotonic() - start]))
""",
        devices,
    )

    assert NodePaths(run_dir, "gpu-001").kmsg.read_text().count(": 92, pid=") == 50
    assert got[0] >= 200
    assert got[1] >= 0.2


def test_a_recovery_action_is_told_in_the_drivers_words(run_dir: Path) -> None:
    """Xid 154 says from what to what; clearing it goes back to none without a record of its own."""
    faults.inject(run_dir, "recovery_action", **_GPU, code=2)

    assert (
        ": 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n"
        in NodePaths(run_dir, "gpu-001").kmsg.read_text()
    )


def test_a_reload_and_stale_handles_cannot_be_taken_back(run_dir: Path) -> None:
    """Both have happened; each makes the handles that were open void."""
    with Node(NodePaths(run_dir, "gpu-001").devices) as node:
        before = node.state.session
    for kind in ("driver_reload", "stale_handles"):
        faults.inject(run_dir, kind, node="gpu-001")
        with pytest.raises(TargetError, match="cannot be taken away"):
            faults.clear(run_dir, kind, node="gpu-001")
    with Node(NodePaths(run_dir, "gpu-001").devices) as node:
        assert node.state.session == before + 2
