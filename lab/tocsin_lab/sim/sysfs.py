"""The simulated node's sysfs tree: PCIe topology, InfiniBand ports, network devices, NUMA nodes.

As in a real tree, ``bus/pci/devices/<bdf>`` and ``class/infiniband/<hca>`` are links into ``devices/pci…``,
where a GPU and its nearest HCA hang below one PCIe switch: what is near can only be read from there.
Every function, ports included, counts its errors (AER).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tocsin_lab.sim.node import Gpu
    from tocsin_lab.sim.profiles import Profile

__all__ = [
    "AER",
    "COUNTERS",
    "HW_COUNTERS",
    "LOST_SPEED",
    "LOST_WIDTH",
    "add_errors",
    "create",
    "hca_name",
    "hca_pci",
    "speed_text",
]

# Of the kernel's mlx5 driver, InfiniBand port; all begin at 0.
COUNTERS = (
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
)
HW_COUNTERS = (
    "duplicate_request",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "rx_atomic_requests",
    "rx_read_requests",
    "rx_write_requests",
)
_UNCORRECTED = (
    "Undefined",
    "DLP",
    "SDES",
    "TLP",
    "FCP",
    "CmpltTO",
    "CmpltAbrt",
    "UnxCmplt",
    "RxOF",
    "MalfTLP",
    "ECRC",
    "UnsupReq",
    "ACSViol",
    "UncorrIntErr",
    "BlockedTLP",
    "AtomicOpBlocked",
    "TLPBlockedErr",
    "PoisonTLPBlocked",
)
_CORRECTED = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
# By severity: the file of every function, its lines, the total's line, and the root port's own file.
AER = {
    "corrected": ("aer_dev_correctable", _CORRECTED, "TOTAL_ERR_COR", "aer_rootport_total_err_cor"),
    "nonfatal": ("aer_dev_nonfatal", _UNCORRECTED, "TOTAL_ERR_NONFATAL", "aer_rootport_total_err_nonfatal"),
    "fatal": ("aer_dev_fatal", _UNCORRECTED, "TOTAL_ERR_FATAL", "aer_rootport_total_err_fatal"),
}
# What the kernel prints of a device that no longer answers: all bits of the register are set.
LOST_SPEED, LOST_WIDTH = "Unknown", 63
_SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}


def hca_name(index: int) -> str:
    """The device name of an HCA."""
    return f"mlx5_{index}"


def hca_pci(index: int) -> str:
    """The PCI address of an HCA; bus 1b is the first GPU's."""
    return f"0000:{(0x18, 0x19, 0x1A, 0x1C, 0x1D, 0x1E, 0x1F, 0x22)[index]:02x}:00.0"


def speed_text(generation: int) -> str:
    """A PCIe generation in the words of ``current_link_speed``."""
    return f"{_SPEEDS.get(generation, '2.5')} GT/s PCIe"


def _write(folder: Path, files: Mapping[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


def _function(root: Path, folder: Path, files: Mapping[str, object]) -> None:
    """A PCI function with its error counters and its link in ``bus/pci/devices``."""
    _write(folder, files)
    _write(folder / "power", {"runtime_status": "active"})
    for name, errors, total, _ in AER.values():
        _write(folder, {name: "\n".join(f"{error} 0" for error in (*errors, total))})
    _link(root / "bus/pci/devices" / folder.name, folder)


def _port(root: Path, folder: Path, common: Mapping[str, object]) -> Path:
    link = {"speed": speed_text(5), "width": 16}
    ends = {f"{end}_link_{name}": value for end in ("current", "max") for name, value in link.items()}
    _function(
        root, folder, {**common, "vendor": "0x1000", "device": "0xc030", "class": "0x060400", **ends}
    )
    return folder


def _pci(
    root: Path, switch: Path, slot: int, bdf: str, files: Mapping[str, object], common: Mapping[str, object]
) -> Path:
    """A device behind its own downstream port of the switch."""
    bus = int(switch.name.split(":")[1], 16)
    port = _port(root, switch / f"0000:{bus + 1:02x}:{slot:02x}.0", common)
    _function(root, port / bdf, {**common, **files})
    return port / bdf


def add_errors(root: Path, pci: str, severity: str, error: str, count: int = 1) -> None:
    """
    Count *count* errors at the function *pci* as the kernel does, and as received at its root port.

    *error* is one of the kernel's names, or empty for an error that only the total knows.
    """
    name, _, total, received = AER[severity]
    device = root / "bus/pci/devices" / pci
    lines = []
    for line in (device / name).read_text().splitlines():
        key, value = line.split()
        lines.append(f"{key} {int(value) + count if key in (error, total) else value}\n")
    (device / name).write_text("".join(lines))
    for folder in device.resolve().parents:
        if (folder / received).exists():
            (folder / received).write_text(f"{int((folder / received).read_text()) + count}\n")


def _cpus(numa: int, nodes: int) -> str:
    count = max(1, os.cpu_count() or 1)
    share = max(1, count // nodes)
    first = min(numa * share, count - 1)
    last = count - 1 if numa == nodes - 1 else min(first + share - 1, count - 1)
    return str(first) if first == last else f"{first}-{last}"


def create(root: Path, gpus: Sequence[Gpu], hcas: int, profile: Profile) -> None:
    """Write the tree of a healthy node anew."""
    if root.exists():
        shutil.rmtree(root)
    numa_nodes = 2 if len(gpus) > 1 else 1
    for numa in range(numa_nodes):
        _write(root / f"devices/system/node/node{numa}", {"cpulist": _cpus(numa, numa_nodes)})
    _write(root / "devices/system/node", {"online": f"0-{numa_nodes - 1}" if numa_nodes > 1 else "0"})
    switches = max(1, hcas)
    for at in range(switches):
        numa = at * numa_nodes // switches
        near = [gpu for gpu in gpus if gpu.index * switches // len(gpus) == at]
        common = {"numa_node": numa, "local_cpulist": _cpus(numa, numa_nodes), "enable": 1}
        bus = 0x10 * (at + 1)
        port = _port(root, root / f"devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0", common)
        _write(port, {received: 0 for *_, received in AER.values()})
        # Bus numbers that no GPU and no HCA has.
        upstream = _port(root, port / f"0000:{bus + 4:02x}:00.0", common)
        for slot, gpu in enumerate(near, start=1):
            _gpu(root, upstream, slot, gpu, profile, common)
        if hcas:
            _hca(root, upstream, at, common)
    _write(root / "class/net/lo", {"operstate": "unknown", "carrier": 1, "mtu": 65536, "type": 772})


def _gpu(
    root: Path, switch: Path, slot: int, gpu: Gpu, profile: Profile, common: Mapping[str, object]
) -> None:
    speed = speed_text(profile.pcie_generation_max)
    _pci(
        root,
        switch,
        slot,
        gpu.pci,
        {
            "vendor": f"0x{profile.pci_device_id & 0xFFFF:04x}",
            "device": f"0x{profile.pci_device_id >> 16:04x}",
            "subsystem_vendor": f"0x{profile.pci_subsystem_id & 0xFFFF:04x}",
            "subsystem_device": f"0x{profile.pci_subsystem_id >> 16:04x}",
            "class": "0x030200",
            "current_link_speed": speed,
            "max_link_speed": speed,
            "current_link_width": profile.pcie_width_max,
            "max_link_width": profile.pcie_width_max,
        },
        common,
    )


def _hca(root: Path, switch: Path, index: int, common: Mapping[str, object]) -> None:
    name = hca_name(index)
    guid = f"a088:c203:00{index:02x}:1f40"
    folder = _pci(
        root,
        switch,
        0x10,
        hca_pci(index),
        {
            "vendor": "0x15b3",
            "device": "0x1021",
            "class": "0x020700",
            "current_link_speed": speed_text(5),
            "max_link_speed": speed_text(5),
            "current_link_width": 16,
            "max_link_width": 16,
        },
        common,
    )
    device = folder / "infiniband" / name
    _write(
        device,
        {
            "node_type": "1: CA",
            "node_guid": guid,
            "sys_image_guid": guid,
            "node_desc": f"{name} HCA",
            "fw_ver": "28.39.3004",
            "hca_type": "MT4129",
            "board_id": "MT_0000000838",
            "hw_rev": 0,
        },
    )
    _write(
        device / "ports/1",
        {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
            "lid": f"0x{index + 17:x}",
            "sm_lid": "0x1",
            "cap_mask": "0xa751e848",
        },
    )
    _write(device / "ports/1/counters", dict.fromkeys(COUNTERS, 0))
    _write(device / "ports/1/hw_counters", dict.fromkeys(HW_COUNTERS, 0))
    _link(device / "device", folder)
    _link(root / "class/infiniband" / name, device)
    net = folder / "net" / f"ib{index}"
    _write(
        net, {"operstate": "up", "carrier": 1, "carrier_changes": 1, "mtu": 2044, "speed": 400000, "type": 32}
    )
    _link(net / "device", folder)
    _link(root / "class/net" / f"ib{index}", net)
