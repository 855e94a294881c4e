"""The node's sysfs tree and checkpoints: what is near, what counts, what is damaged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tocsin_lab.job import checkpoint
from tocsin_lab.job.model import LOSS_SIGMA, Training, advance, observe
from tocsin_lab.sim.hardware import NodeHardware
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import NodePaths, create_node, gpus_of
from tocsin_lab.sim.sysfs import add_errors


def test_a_gpu_shares_its_switch_with_the_nearest_hca(tmp_path: Path) -> None:
    """GPUs 0 and 1 of four hang below the switch of mlx5_0, the others below that of mlx5_1."""
    root = create_node(tmp_path, "n", gpus=4, hcas=2).sysfs

    def switch(link: Path) -> str:
        return str(link.resolve()).removeprefix(str(root.resolve())).split("/")[4]

    gpus = [switch(root / "bus/pci/devices" / gpu.pci) for gpu in gpus_of(tmp_path, "n")]
    hcas = [switch(root / "class/infiniband" / f"mlx5_{at}" / "device") for at in range(2)]
    assert [hcas[0], hcas[0], hcas[1], hcas[1]] == gpus
    assert hcas[0] != hcas[1]
    port = root / "class/infiniband/mlx5_1/ports/1"
    assert (port / "state").read_text() == "4: ACTIVE\n"
    assert (port / "rate").read_text() == "400 Gb/sec (4X NDR)\n"
    assert (port / "counters/port_xmit_data").read_text() == "0\n"


def test_port_counters_follow_the_devices_in_words(tmp_path: Path) -> None:
    """What two GPUs of an HCA sent is its counter in units of four bytes; the other HCA stays at 0."""
    paths = create_node(tmp_path, "n", gpus=4, hcas=2)
    hardware = NodeHardware(tmp_path, "n")
    with Node(paths.devices) as node:
        node.state.devices[2].fabric_tx_bytes = 4000
        node.state.devices[3].fabric_tx_bytes = 8000
        node.state.devices[0].pcie_width = 8
    hardware.tick()
    hardware.close()
    counters = [
        paths.sysfs / f"class/infiniband/mlx5_{at}/ports/1/counters/port_xmit_data" for at in range(2)
    ]

    assert ["0\n", "3000\n"] == [path.read_text() for path in counters]
    assert (paths.sysfs / "bus/pci/devices/0000:1b:00.0/current_link_width").read_text() == "8\n"
    assert (paths.sysfs / "bus/pci/devices/0000:1b:00.0/max_link_width").read_text() == "16\n"


def test_identities_survive_creating_a_node_anew(tmp_path: Path) -> None:
    """UUIDs depend on node and index only, and differ between nodes."""
    create_node(tmp_path, "a", gpus=2)
    first = [gpu.uuid for gpu in gpus_of(tmp_path, "a")]
    create_node(tmp_path, "a", gpus=2)
    create_node(tmp_path, "b", gpus=2)

    assert first == [gpu.uuid for gpu in gpus_of(tmp_path, "a")]
    assert len({*first, *(gpu.uuid for gpu in gpus_of(tmp_path, "b"))}) == 4
    assert not (NodePaths(tmp_path, "a").root / "devices.shm.creating").exists()


def test_a_checkpoint_counts_only_once_it_is_complete(tmp_path: Path) -> None:
    """Files without the tracker are no checkpoint; damage is found by checksum; old ones are dropped."""
    checkpoint.save(tmp_path, 0, Training(step=10, learned=10.0), 1000)
    assert checkpoint.latest(tmp_path) is None
    for step in (10, 20, 30):
        checkpoint.save(tmp_path, 0, Training(step=step, learned=float(step)), 1000)
        checkpoint.commit(tmp_path, step)

    assert checkpoint.latest(tmp_path) == 30
    assert checkpoint.load(tmp_path, 0, 30) == Training(step=30, learned=30.0)
    assert ["iter_0000020", "iter_0000030"] == sorted(path.name for path in tmp_path.glob("iter_*"))
    damaged = tmp_path / "iter_0000030" / "rank_00000.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0\0")
    with pytest.raises(ValueError, match="checksum"):
        checkpoint.load(tmp_path, 0, 30)


def test_the_loss_learns_diverges_and_comes_back() -> None:
    """Same seed and state, same line; a bad recipe climbs as told, a sound one recovers."""
    state = Training()
    for _ in range(300):
        state = advance(state, 0.0, nan=False)
    assert observe(state, 1) == observe(state, 1)
    assert observe(Training(step=1, learned=1.0), 1).loss > observe(state, 1).loss + 3.0

    bad = state
    for _ in range(100):
        bad = advance(bad, 40.0, nan=False)
    assert bad.drift == pytest.approx(40.0 * LOSS_SIGMA)
    assert observe(bad, 1).grad_norm > observe(state, 1).grad_norm
    for _ in range(150):
        bad = advance(bad, 0.0, nan=False)
    assert bad.drift < LOSS_SIGMA


def test_a_full_node_has_every_device_once(tmp_path: Path) -> None:
    """Eight GPUs, eight HCAs and the ports of the switches that pair them have an address each."""
    node = create_node(tmp_path, "gpu-009", gpus=8, hcas=8)
    classes = [(link / "class").read_text().strip() for link in (node.sysfs / "bus/pci/devices").iterdir()]

    assert {"0x030200": 8, "0x020700": 8, "0x060400": 8 + 8 + 16} == Counter(classes)


def test_a_lost_gpu_reads_as_all_ones(tmp_path: Path) -> None:
    """Its link says what the kernel says of a device that does not answer, until it is back."""
    paths = create_node(tmp_path, "n", gpus=2, hcas=1)
    hardware = NodeHardware(tmp_path, "n")
    device = paths.sysfs / "bus/pci/devices/0000:1b:00.0"
    seen = []
    for lost in (1, 0):
        with Node(paths.devices) as node:
            node.state.devices[0].lost = lost
        hardware.tick()
        seen.append([(device / f"current_link_{name}").read_text() for name in ("speed", "width")])
    hardware.close()

    assert [["Unknown\n", "63\n"], ["32.0 GT/s PCIe\n", "16\n"]] == seen


def test_what_a_device_counts_on_its_link_is_in_the_kernels_counters(tmp_path: Path) -> None:
    """The driver's error counters and the kernel's grow together, by severity and by name."""
    paths = create_node(tmp_path, "n", gpus=2, hcas=1)
    hardware = NodeHardware(tmp_path, "n")
    for total, bad in ((3, 2), (4, 2)):
        with Node(paths.devices) as node:
            node.state.devices[1].pcie_errors[0] = total
            node.state.devices[1].pcie_errors[3] = bad
            node.state.devices[1].pcie_errors[7] = 1
        hardware.tick()
    hardware.close()
    device = paths.sysfs / "bus/pci/devices/0000:43:00.0"
    counted = {
        line
        for name in ("correctable", "nonfatal", "fatal")
        for line in (device / f"aer_dev_{name}").read_text().splitlines()
    }

    assert {"BadTLP 2", "TOTAL_ERR_COR 4", "TOTAL_ERR_FATAL 1"} == {
        line for line in counted if not line.endswith(" 0")
    }


def test_pcie_errors_are_counted_at_the_function_and_at_its_root_port(tmp_path: Path) -> None:
    """The port that noticed an error counts it by name and in total; the root port hears of it."""
    root = create_node(tmp_path, "n", gpus=2, hcas=1).sysfs
    devices = root / "bus/pci/devices"
    gpu = (devices / "0000:1b:00.0").resolve()
    add_errors(root, gpu.parent.name, "corrected", "BadTLP", 3)
    add_errors(root, gpu.parent.name, "corrected", "BadTLP")

    lines = (gpu.parent / "aer_dev_correctable").read_text().splitlines()
    assert ["BadTLP 4", "TOTAL_ERR_COR 4"] == [line for line in lines if not line.endswith(" 0")]
    assert "TOTAL_ERR_COR 0\n" in (gpu / "aer_dev_correctable").read_text()
    (top,) = (folder for folder in gpu.parents if (folder / "aer_rootport_total_err_cor").exists())
    assert "4\n" == (top / "aer_rootport_total_err_cor").read_text()
    assert "0\n" == (top / "aer_rootport_total_err_fatal").read_text()
