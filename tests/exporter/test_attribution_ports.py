"""Which job a fabric port belongs to, and what it gets of the port's counters."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.exporter.ledger_node import Node, gpu, pci

from tocsin_exporter.attribution import HeldPort
from tocsin_exporter.attribution.holding import KEEP_SECONDS, LINGER_SECONDS
from tocsin_exporter.sources.sysfs import Port

RECEIVED = ("receive_bytes_total", ())
ERRORS = ("errors_total", ("symbol_error",))
DOWNED = ("errors_total", ("link_downed",))


def port(index: int, *, received: float = 1000.0, errors: float = 5.0, downed: float = 2.0) -> Port:
    """Return the port below the same switch as the GPU at *index*."""
    return Port(
        name=f"mlx5_{index}/1", device=f"mlx5_{index}", active=True, rate=None, link_layer="", hca_type="",
        firmware="", pci_path=(f"0000:0{index}:00.0", f"0000:a{index}:00.0"),
        counters={RECEIVED: received, ERRORS: errors, ("link_downed_total", ()): downed},
    )  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Two GPUs, each below a switch of its own, with job a on the first and job b on the second."""
    sysfs = tmp_path / "sys"
    (sysfs / "bus/pci/devices").mkdir(parents=True)
    for index in (0, 1):
        device = sysfs / f"devices/pci0000:0{index}/0000:0{index}:00.0/{pci(index)}"
        device.mkdir(parents=True)
        (sysfs / f"bus/pci/devices/{pci(index)}").symlink_to(device)
    made = Node(tmp_path / "state.json", sysfs=sysfs)
    made.who.start(1, "slurm/a")
    made.who.start(2, "slurm/b")
    made.add(gpu(0, "GPU-a", 1))
    made.add(gpu(1, "GPU-b", 2))
    made.read()
    return made


def look(node: Node, *ports: Port, passed: float = 5.0) -> dict[tuple[str, str], HeldPort]:
    node.clock += passed
    node.ledger.on_ports(ports)
    node.ledger.flush()
    return {(each.port, each.job_id): each for each in node.ledger.published().ports}


def test_each_job_has_the_port_nearest_to_its_gpu(node: Node) -> None:
    """Born at 0, counting its own port alone, a link that went down among the errors."""
    look(node, port(0), port(1))
    held = look(node, port(0, received=1500, errors=6, downed=3), port(1))

    assert {("mlx5_0/1", "slurm/a"), ("mlx5_1/1", "slurm/b")} == set(held)
    assert {RECEIVED: 500.0, ERRORS: 1.0, DOWNED: 1.0} == held["mlx5_0/1", "slurm/a"].counters
    assert {RECEIVED: 0.0, ERRORS: 0.0, DOWNED: 0.0} == held["mlx5_1/1", "slurm/b"].counters


def test_a_port_changes_hands_as_its_gpu_does(node: Node) -> None:
    """What grew until the change is the old job's; traffic ends with it, errors thirty seconds later."""
    look(node, port(0))
    node.who.end(1)
    node.who.start(3, "slurm/c", at=node.clock)
    node.use("GPU-a", 3)
    node.read()
    look(node, port(0, received=1100, errors=6))
    held = look(node, port(0, received=1300, errors=7))

    assert (100.0, 2.0) == tuple(held["mlx5_0/1", "slurm/a"].counters[key] for key in (RECEIVED, ERRORS))
    assert (200.0, 1.0) == tuple(held["mlx5_0/1", "slurm/c"].counters[key] for key in (RECEIVED, ERRORS))


def test_errors_of_a_port_outlive_the_job_and_then_go(node: Node) -> None:
    """As with devices: served unchanged for fifteen minutes, without the traffic."""
    look(node, port(0))
    look(node, port(0, errors=6))
    node.who.end(1)
    node.use("GPU-a")
    node.read()
    look(node, port(0, errors=6))
    kept = look(node, port(0, errors=50), passed=LINGER_SECONDS + 1)["mlx5_0/1", "slurm/a"]

    assert {ERRORS: 1.0, DOWNED: 0.0} == kept.counters
    assert ("mlx5_0/1", "slurm/a") not in look(node, port(0), passed=KEEP_SECONDS)


def test_errors_of_a_gap_go_to_the_job_on_both_sides_or_to_nobody(node: Node) -> None:
    """After a restart: a stayed, b was followed by c."""
    look(node, port(0), port(1))
    node.who.end(2)
    node.who.start(3, "slurm/c", at=node.clock + 5)
    again = node.again(passed=60)
    again.use("GPU-b", 3)
    again.read()
    held = look(again, port(0, errors=7), port(1, errors=9))

    assert 2.0 == held["mlx5_0/1", "slurm/a"].counters[ERRORS]
    assert (0.0, 0.0) == tuple(held["mlx5_1/1", job].counters[ERRORS] for job in ("slurm/b", "slurm/c"))
    assert 4 == again.unattributed


def test_a_gpu_that_sysfs_shows_later_gets_its_port_then(node: Node, tmp_path: Path) -> None:
    """Where the topology is not known yet all active ports are the job's, until it is."""
    node.who.start(9, "slurm/z")
    node.add(gpu(2, "GPU-c", 9))
    node.read()
    before = look(node, port(0), port(1), port(2))
    device = tmp_path / f"sys/devices/pci0000:02/0000:02:00.0/{pci(2)}"
    device.mkdir(parents=True)
    (tmp_path / f"sys/bus/pci/devices/{pci(2)}").symlink_to(device)
    node.who.start(10, "slurm/y")
    node.use("GPU-c", 9, 10)
    node.read()
    held = look(node, port(0), port(1), port(2))

    assert {"mlx5_0/1", "mlx5_1/1", "mlx5_2/1"} == {name for name, job in before if job == "slurm/z"}
    assert {"mlx5_2/1"} == {name for name, job in held if job == "slurm/y"}
