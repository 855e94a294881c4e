"""A reader of its own in this process, over a simulated node and a clock that the test turns."""

from __future__ import annotations

import ctypes
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tocsin_exporter.sources.nvml.calls import Library
from tocsin_exporter.sources.nvml.reader import Places, Reader
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import NodePaths, create_node

__all__ = ["Driver"]

Row = dict[str, Any]


class Driver:
    """
    One simulated node and a reader on it.

    The library is loaded from a copy, so that each test has one that has not seen another node.
    """

    def __init__(
        self, root: Path, library: Path, monkeypatch: pytest.MonkeyPatch, *, gpus: int = 1, **shape: Any
    ) -> None:
        self.paths: NodePaths = create_node(root, "gpu-001", gpus=gpus, hcas=1, **shape)
        monkeypatch.setenv("TOCSIN_SIM_DEVICES", str(self.paths.devices))
        self.library_path = root / "libnvidia-ml.so.1"
        shutil.copy(library, self.library_path)
        self.library = Library(str(self.library_path))
        self.library.check("nvmlInitWithFlags", ctypes.c_uint(0))
        self.now = 1000.0
        self.places = Places(str(self.paths.sysfs), "/proc", "/sys/fs/cgroup")

    @property
    def devices(self) -> Path:
        """The node's shared memory."""
        return self.paths.devices

    def reader(self, tier: str = "fabric") -> Reader:
        """A reader of that tier; activity needs two readings."""
        return Reader(self.library, tier, self.places, clock=lambda: self.now)

    def read(self, reader: Reader, index: int = 0, after: float = 15.0) -> list[Row]:
        """Read the device *after* seconds of the reader's clock; the board's row first."""
        self.now += after
        time.sleep(0.002)
        return reader.device(index)

    @contextmanager
    def state(self) -> Iterator[Any]:
        """The node's live memory."""
        with Node(self.devices) as node:
            yield node.state


def values(row: Row) -> dict[tuple[str, tuple[str, ...]], float]:
    """Rows by quantity and labels; a row told twice is a bug."""
    found = {(name, tuple(labels)): value for name, labels, value in row["values"]}
    assert len(found) == len(row["values"])
    return found


def names(row: Row) -> set[str]:
    """The quantities of a row."""
    return {name for name, _, _ in row["values"]}


Make = Callable[..., Driver]
