"""Small trees and parts that stand for a node."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.exporter.support import Processes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    """An empty node's /proc."""
    root = tmp_path / "proc"
    (root / "sys/kernel/random").mkdir(parents=True)
    (root / "sys/kernel/random/boot_id").write_text("9dcfcddf-90fe-49e8-a07f-f4230fe9f950\n")
    (root / "stat").write_text("cpu  1 2 3 4\nbtime 1700000000\n")
    return Processes(root)


@pytest.fixture(scope="session")
def nvml_library() -> Path:
    """The simulated NVML library; the tests that need it are skipped by name where it is not built."""
    library = ROOT / ".build/lib/libnvidia-ml.so.1"
    if not library.exists():
        pytest.skip("the simulated NVML library is not built (make setup)")
    return library


@pytest.fixture(scope="session")
def promtool() -> str:
    """The unpacked or installed promtool."""
    found = ROOT / ".tools/bin/promtool"
    path = str(found) if os.access(found, os.X_OK) else shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not installed (make setup)")
    return path
