"""Writes PCI functions into a sysfs tree as the kernel lays them out, for the tests to import."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CORRECTED = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
UNCORRECTED = ("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF",
               "MalfTLP", "ECRC", "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked",
               "TLPBlockedErr", "PoisonTLPBlocked")  # fmt: skip
FILES = {
    "aer_dev_correctable": (CORRECTED, "TOTAL_ERR_COR"),
    "aer_dev_nonfatal": (UNCORRECTED, "TOTAL_ERR_NONFATAL"),
    "aer_dev_fatal": (UNCORRECTED, "TOTAL_ERR_FATAL"),
}
GPU = {"vendor": "0x10de", "class": "0x030200"}
HCA = {"vendor": "0x15b3", "class": "0x020700"}
PORT = {"vendor": "0x1000", "class": "0x060400"}
ROOT = dict.fromkeys([f"aer_rootport_total_err_{name}" for name in ("cor", "nonfatal", "fatal")], 0)


def link(
    speed: str = "32.0 GT/s PCIe", width: object = 16, most: str = "32.0 GT/s PCIe", lanes: object = 16
) -> dict[str, object]:
    """Return the link files of a function."""
    return {
        "current_link_speed": speed,
        "current_link_width": width,
        "max_link_speed": most,
        "max_link_width": lanes,
    }


def aer(**counts: int) -> dict[str, object]:
    """Return the error files of a function; *counts* by name, the totals are their sums."""
    files: dict[str, object] = {}
    for name, (errors, total) in FILES.items():
        # An uncorrected error is counted as fatal here, never twice.
        known = name != "aer_dev_nonfatal"
        mine = [counts.get(error, 0) if known else 0 for error in errors]
        rows = [*zip(errors, mine, strict=True), (total, sum(mine))]
        files[name] = "\n".join(f"{error} {count}" for error, count in rows)
    return files


def function(
    root: Path, *path: str, files: Mapping[str, object], bridge: str = "pci0000:00", status: str = "active"
) -> Path:
    """Write the function that ends *path* (addresses from the root port down) and return its folder."""
    folder = root / "devices" / bridge / Path(*path)
    (folder / "power").mkdir(parents=True)
    for name, value in {**files, "power/runtime_status": status}.items():
        (folder / name).write_text(f"{value}\n")
    shortcut = root / "bus/pci/devices" / path[-1]
    shortcut.parent.mkdir(parents=True, exist_ok=True)
    shortcut.symlink_to(os.path.relpath(folder, shortcut.parent))
    return folder


def rdma(root: Path, folder: Path, name: str) -> None:
    """Make the function at *folder* the RDMA device *name*."""
    device = root / "class/infiniband" / name
    device.mkdir(parents=True, exist_ok=True)
    (device / "device").symlink_to(os.path.relpath(folder, device))


def server(root: Path) -> None:
    """
    Write a server with two sockets, each with one switch behind its root port.

    Below each switch are two GPUs and an HCA: 0000:1b, 0000:1c, mlx5_0 at 0000:18; 0000:9b, 0000:9c, mlx5_1
    at 0000:98.
    """
    for socket, bus in enumerate((0x10, 0x90)):
        bridge, top = f"pci0000:{bus:02x}", f"0000:{bus:02x}:01.0"
        upper = f"0000:{bus + 1:02x}:00.0"
        function(root, top, files={**PORT, **link(), **aer(), **ROOT}, bridge=bridge)
        function(root, top, upper, files={**PORT, **link(), **aer()}, bridge=bridge)
        ends = ((1, bus + 11, GPU), (2, bus + 12, GPU), (3, bus + 8, HCA))
        for slot, number, kind in ends:
            lower, pci = f"0000:{bus + 2:02x}:{slot:02x}.0", f"0000:{number:02x}:00.0"
            function(root, top, upper, lower, files={**PORT, **link(), **aer()}, bridge=bridge)
            folder = function(
                root, top, upper, lower, pci, files={**kind, **link(), **aer()}, bridge=bridge
            )
            if kind is HCA:
                rdma(root, folder, f"mlx5_{socket}")
