"""What a fault is: its kind, its target, its values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin_lab.errors import TargetError
from tocsin_lab.job.spec import JobPaths, JobRecord
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import NodePaths, gpus_of, nodes_of

__all__ = ["Kind", "Target", "number", "on_devices", "whole"]


@dataclass(frozen=True)
class Kind:
    """One kind of fault: what it hits, its fields with their defaults, and whether it can be taken away."""

    target: str  # device, rank, node or job
    text: str
    defaults: dict[str, Any]
    clearable: bool = True

    def __str__(self) -> str:
        known = ", ".join(f"{name} {value}" for name, value in self.defaults.items())
        return f"{self.text} (hits a {self.target}{'; default ' + known if known else ''})"


@dataclass(frozen=True)
class Target:
    """Where a fault strikes, resolved, and the values of its own fields."""

    run_dir: Path
    job: JobRecord | None
    rank: int | None
    node: str | None
    gpu: int | None
    values: dict[str, Any]

    @property
    def job_paths(self) -> JobPaths:
        if self.job is None:
            raise TargetError("no job: start one first")
        return JobPaths(self.run_dir, self.job.name)

    @property
    def node_paths(self) -> NodePaths:
        if self.node is None:
            raise TargetError("no node: name one")
        return NodePaths(self.run_dir, self.node)

    def described(self, kind: str, done: str) -> dict[str, Any]:
        row: dict[str, Any] = {"kind": kind, "time": time.time(), "done": done}
        if self.job is not None:
            row["job_id"] = self.job.job_id
        for name in ("rank", "node", "gpu"):
            if getattr(self, name) is not None:
                row[name] = getattr(self, name)
        if self.node is not None and self.gpu is not None:
            row["gpu_uuid"] = gpus_of(self.run_dir, self.node)[self.gpu].uuid
        return {**row, **self.values}


def number(name: str, value: Any, low: float, high: float) -> float:
    """The value when it is a number in the range; TargetError otherwise."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not low <= value <= high
    ):
        raise TargetError(f"{name} {value!r}: a number from {low:g} to {high:g}")
    return float(value)


def whole(name: str, value: Any, low: int, high: int) -> int:
    """The value when it is a whole number in the range; TargetError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise TargetError(f"{name} {value!r}: a whole number from {low} to {high}")
    return value


def on_devices(target: Target, change: Callable[[Any], None]) -> str:
    """Change the target's device, or all of the target's node, or all of all nodes."""
    # A rank that was moved away left its fault behind: it is on one of the GPUs that the job avoids.
    avoided = target.job.avoided if target.job and target.rank is not None else ()
    for name in nodes_of(target.run_dir):
        with Node(NodePaths(target.run_dir, name).devices) as node:
            for gpu in range(node.state.device_count):
                device = node.state.devices[gpu]
                meant = target.node in (None, name) and target.gpu in (None, gpu)
                if meant or device.uuid.decode() in avoided:
                    change(device)
                del device
    return "cleared"
