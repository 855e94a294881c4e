"""The simulated kernel log: records in the form of ``/dev/kmsg`` and the driver's own words for Xids."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["XID_TEXTS", "append", "create", "gpu_lost", "recovery_action", "xid"]

_ERR, _INFO = 3, 6  # facility kern

# What the driver prints behind `pid='…', name=…, `; by code. Others get the channel text.
XID_TEXTS = {
    13: "Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_3 faulted @ 0x7f62_e4000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000008",
    45: "Ch 00000008",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, "
    "subpartition 0.",
    63: "Row remapper: New row (0x0000000003abcdef) marked for remapping, reset gpu to activate.",
    64: "Row remapper: Failed to persist row remapping table - Error writing to inforom",
    74: "NVLink: fatal error detected on link 4(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    92: "High single-bit ECC error rate",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) "
    "(0x20802a02 0x8).",
    120: "GSP task exception: timeout (cause:0x8000000000000007) @ pc:0x1ab3f24, partition:4#0",
    140: "Unrecovered ECC error: DRAM: LTC 3, slice 1",
    149: "NETIR_LINK_EVT Fatal XC0 i0 Link 04 (0x004505c6 0x00000000)",
}

# What the driver asks for, in its words; by NVML's number of it.
_ACTIONS = (
    "None",
    "GPU Reset Required",
    "Node Reboot Required",
    "Drain P2P",
    "Drain and Reset",
    "Recover IMEX Domain",
    "Bus Reset",
    "System Reboot",
)


def append(path: Path, texts: Sequence[str], priority: int = _ERR) -> None:
    """Append records with the next sequence numbers and the kernel's clock (microseconds since boot)."""
    with path.open("a+b") as log:
        # Two writers would give two records one number.
        fcntl.flock(log, fcntl.LOCK_EX)
        end = log.seek(0, os.SEEK_END)
        log.seek(max(0, end - 4096))
        lines = [line for line in log.read().split(b"\n") if line and not line.startswith(b" ")]
        number = int(lines[-1].split(b",")[1]) + 1 if lines else 0
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        records = [f"{priority},{number + at},{microseconds},-;{text}\n" for at, text in enumerate(texts)]
        log.write("".join(records).encode())


def create(path: Path, driver: str, gpus: Sequence[str], hcas: Sequence[str]) -> None:
    """A fresh log with what the drivers print when they load."""
    path.write_bytes(b"")
    texts = [
        f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build  (dvs-builder)",
        *(f"nvidia {pci}: enabling device (0140 -> 0142)" for pci in gpus),
        *(f"mlx5_core {pci}: firmware version: 28.39.3004" for pci in hcas),
    ]
    append(path, texts, _INFO)


def _bus(pci: str) -> str:
    return pci.rsplit(".", 1)[0]


def xid(
    path: Path,
    pci: str,
    code: int,
    pid: int | None = None,
    process: str = "python3",
    gpu_instance: int | None = None,
) -> str:
    """Append an Xid record of the device at ``pci`` (``dddd:bb:dd.f``), or one of its MIG instances."""
    who = f"pid={pid}, name={process}" if pid is not None else "pid='<unknown>', name=<unknown>"
    where = f"PCI:{_bus(pci)}" + (f" GPU-I:{gpu_instance:02d}" if gpu_instance is not None else "")
    text = f"NVRM: Xid ({where}): {code}, {who}, {XID_TEXTS.get(code, 'Ch 00000008')}"
    append(path, [text])
    return text


def gpu_lost(path: Path, pci: str, uuid: str, serial: str) -> str:
    """Append what the driver prints when a device stops answering on the bus; returns the first line."""
    texts = [
        f"NVRM: GPU at PCI:{_bus(pci)}: {uuid}",
        f"NVRM: GPU Board Serial Number: {serial}",
        f"NVRM: Xid (PCI:{_bus(pci)}): 79, pid='<unknown>', name=<unknown>, {XID_TEXTS[79]}",
        f"NVRM: GPU {pci}: GPU has fallen off the bus.",
        f"NVRM: GPU {pci}: GPU serial number is {serial}.",
    ]
    append(path, texts)
    return texts[2]


def recovery_action(path: Path, pci: str, before: int, after: int) -> str:
    """Append what the driver prints when what it asks for changes (Xid 154); returns its text."""
    change = " to ".join(f"{action:#x} ({_ACTIONS[action]})" for action in (before, after))
    text = f"NVRM: Xid (PCI:{_bus(pci)}): 154, GPU recovery action changed from {change}"
    append(path, [text])
    return text
