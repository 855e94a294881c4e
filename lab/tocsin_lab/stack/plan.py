"""What a lab consists of: nodes, devices, the job and its placement."""

from __future__ import annotations

from dataclasses import dataclass, field

JOB_NAME = "demo"


@dataclass(frozen=True)
class LabPlan:
    """
    Sizes of a simulated lab.

    ``ranks`` are placed in equal blocks over the nodes, rank r on GPU r mod (ranks per node); devices
    that no rank uses are spares. ``step_seconds`` is the length of a healthy step.
    """

    nodes: int = 2
    gpus: int = 4
    hcas: int = 2
    gpu_model: str = "H100-SXM"
    job: str = JOB_NAME
    ranks: int = 6
    step_seconds: float = 1.0
    names: tuple[str, ...] = field(default=())

    @property
    def node_names(self) -> tuple[str, ...]:
        return self.names or tuple(f"gpu-{index:03d}" for index in range(1, self.nodes + 1))

    @property
    def job_id(self) -> str:
        return f"torchrun/{self.job}"
