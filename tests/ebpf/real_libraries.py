"""NVIDIA's own libcuda and libnccl, fetched beside the system; nothing in them needs a GPU to be called."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests import debian
from tests.debian import UnavailableError

__all__ = ["RealLibraries", "UnavailableError", "libraries"]

_ROOT = Path(__file__).resolve().parents[2]
_DRIVER_PACKAGE = "libcuda1"
_NCCL_PACKAGE = "nvidia-nccl-cu12"
_NCCL_MEMBER = "nvidia/nccl/lib/libnccl.so.2"


@dataclass(frozen=True)
class RealLibraries:
    """Paths of the two libraries as the dynamic loader knows them."""

    cuda: Path
    nccl: Path


def libraries(folder: Path = _ROOT / ".tools" / "nvidia") -> RealLibraries:
    """Return both libraries, fetched once from the machine's Debian archive and PyPI; or UnavailableError."""
    found = RealLibraries(folder / "libcuda.so.1", folder / "libnccl.so.2")
    folder.mkdir(parents=True, exist_ok=True)
    if not found.cuda.is_file():
        _fetch_driver(folder / "work", found.cuda)
    if not found.nccl.is_file():
        _fetch_nccl(folder / "work", found.nccl)
    shutil.rmtree(folder / "work", ignore_errors=True)
    return found


def _fetch_driver(work: Path, target: Path) -> None:
    debian.fetch(_DRIVER_PACKAGE, [_DRIVER_PACKAGE], work / "apt", work / "tree", component="non-free")
    library = next((path for path in (work / "tree").rglob("libcuda.so.*") if not path.is_symlink()), None)
    if library is None:
        raise UnavailableError(f"{_DRIVER_PACKAGE} holds no libcuda.so")
    shutil.move(library, target)


def _fetch_nccl(work: Path, target: Path) -> None:
    wheels = work / "wheels"
    argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), _NCCL_PACKAGE]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
    wheel = next(iter(wheels.glob("*.whl")), None) if done.returncode == 0 else None
    if wheel is None:
        raise UnavailableError(f"{_NCCL_PACKAGE} could not be fetched: {done.stderr.strip()[-200:]}")
    fresh = target.with_suffix(".new")
    with zipfile.ZipFile(wheel) as archive, archive.open(_NCCL_MEMBER) as member, fresh.open("wb") as out:
        shutil.copyfileobj(member, out, 1 << 20)
    fresh.replace(target)
