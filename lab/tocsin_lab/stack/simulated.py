"""The simulated node as parts of the stack: node trees, hardware daemon, job, exporter flags."""

from __future__ import annotations

from pathlib import Path

from tocsin_lab.job.spec import JobConfig, create_job
from tocsin_lab.sim.build import build
from tocsin_lab.sim.node import NodePaths, create_node
from tocsin_lab.stack.components import Part, python
from tocsin_lab.stack.plan import LabPlan
from tocsin_lab.stack.programs import checkout
from tocsin_lab.stack.rundir import RunDir

# The node's state file and not its name: two labs on one machine both have a gpu-001, and each
# exporter must see its own ranks only.
NODE_VARIABLE = "TOCSIN_SIM_DEVICES"


def library_folder(run: RunDir) -> Path:
    """Return where the stand-ins of the driver's libraries are built."""
    root = checkout()
    return root / ".build" / "lib" if root else run.root / "lib"


def build_nodes(run: RunDir, plan: LabPlan) -> None:
    """Build the libraries if need be and create each node's state and trees."""
    build(library_folder(run))
    for name in plan.node_names:
        create_node(run.root, name, plan.gpus, plan.hcas, plan.gpu_model)


def hardware(run: RunDir, plan: LabPlan) -> list[Part]:
    """Return what moves the counters of the nodes' ports and links."""
    return [Part("hardware", python("tocsin_lab.sim.hardware", "--run-dir", str(run.root)))]


def job(run: RunDir, plan: LabPlan) -> list[Part]:
    """Create the job and return its launcher, which starts the ranks."""
    config = JobConfig(step_seconds=plan.step_seconds)
    create_job(run.root, plan.job, plan.ranks, config)
    flags = ("--run-dir", str(run.root), "--job", plan.job, "--lib", str(library_folder(run)))
    # Ranks end their step before they go.
    return [Part("job", python("tocsin_lab.job.supervisor", *flags), grace=10.0)]


def exporter_flags(run: RunDir, node: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the flags that point an exporter at a simulated node, and its environment."""
    paths = NodePaths(run.root, node)
    # A socket's path has little room, and a run directory may lie anywhere.
    control = str(paths.devices.parent / "control" / "socket")
    flags = (
        *("--control.socket", control if len(control.encode()) <= 100 else ""),
        *("--path.sysfs", str(paths.sysfs)),
        *("--path.kmsg", str(paths.kmsg)),
        *("--nvml.library", str(library_folder(run) / "libnvidia-ml.so.1")),
        *("--identity.only-env", f"{NODE_VARIABLE}={paths.devices}"),
    )
    return flags, {"TOCSIN_SIM_DEVICES": str(paths.devices)}
