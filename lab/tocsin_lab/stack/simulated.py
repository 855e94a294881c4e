"""The simulated node as parts of the stack: node trees, hardware daemon, job, exporter flags."""

from __future__ import annotations

from tocsin_lab.stack.components import Part
from tocsin_lab.stack.plan import LabPlan
from tocsin_lab.stack.rundir import RunDir


def build_nodes(run: RunDir, plan: LabPlan) -> None:
    """Create each node's trees in the run directory."""
    raise NotImplementedError


def hardware(run: RunDir, plan: LabPlan) -> list[Part]:
    raise NotImplementedError


def job(run: RunDir, plan: LabPlan) -> list[Part]:
    raise NotImplementedError


def exporter_flags(run: RunDir, node: str) -> tuple[tuple[str, ...], dict[str, str]]:
    raise NotImplementedError
