"""Where the stack's programs and libraries lie: in this checkout, else on PATH."""

from __future__ import annotations

import shutil
from pathlib import Path

from tocsin_lab.errors import LabError

LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1", "libnccl.so.2")
CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 21, 38, 39


def checkout() -> Path | None:
    """Return the root of the checkout that this package runs from, None for an installed wheel."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").is_file() and (root / "lab" / "tocsin_lab").is_dir() else None


def program(name: str) -> Path:
    """Return one of Prometheus' programs; LabError with what to do when it is not there."""
    root = checkout()
    if root and (root / ".tools" / "bin" / name).exists():
        return root / ".tools" / "bin" / name
    found = shutil.which(name) or shutil.which(f"prometheus-{name}")
    if not found:
        raise LabError(f"{name} is neither in .tools/bin nor on PATH; run `make setup` in the checkout")
    return Path(found)


def capabilities(status: str) -> int:
    """Return the effective capabilities of a /proc/PID/status text as a bit set."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def may_trace(effective: int) -> bool:
    """Tell whether *effective* capabilities allow loading BPF programs and attaching them."""
    full = 1 << CAP_SYS_ADMIN
    fine = 1 << CAP_BPF | 1 << CAP_PERFMON
    return bool(effective & full) or effective & fine == fine


def driver_present(procfs: Path = Path("/proc")) -> bool:
    """Tell whether a real NVIDIA driver is loaded."""
    return (procfs / "driver" / "nvidia" / "version").exists()
