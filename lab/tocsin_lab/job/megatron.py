"""Lines in the form in which Megatron-LM prints its training log."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path

__all__ = ["header", "iteration", "loaded", "loading", "no_checkpoint", "saved", "saving"]

_TFLOPS_HEALTHY = 412.0


def header(world: int, total: int) -> str:
    """The first lines of a run."""
    return (
        f"using world size: {world}, data-parallel size: {world}, context-parallel size: 1, "
        "tensor-model-parallel size: 1, pipeline-model-parallel size: 1\n"
        f"training for {total} iterations\n"
        "[before the start of training step]"
    )


def iteration(
    *,
    now: datetime,
    step: int,
    total: int,
    seconds: float,
    healthy_seconds: float,
    learning_rate: float,
    batch: int,
    loss: float,
    grad_norm: float,
) -> str:
    """The line of one step; without a finite loss its field is left out and a NaN iteration counted."""
    finite = math.isfinite(loss)
    fields = [
        f" [{now:%Y-%m-%d %H:%M:%S.%f}] iteration {step:8d}/{total:8d}",
        f"consumed samples: {step * batch:12d}",
        f"elapsed time per iteration (ms): {seconds * 1000.0:.1f}",
        f"throughput per GPU (TFLOP/s/GPU): {_TFLOPS_HEALTHY * healthy_seconds / max(seconds, 1e-6):.1f}",
        f"learning rate: {learning_rate:.6E}",
        f"global batch size: {batch:5d}",
        *([f"lm loss: {loss:.6E}"] if finite else []),
        "loss scale: 1.0",
        *([f"grad norm: {grad_norm:.3f}"] if finite else []),
        "number of skipped iterations:   0",
        f"number of nan iterations: {0 if finite else 1:3d} |",
    ]
    return " | ".join(fields)


def saving(folder: Path, step: int) -> str:
    """Printed before a checkpoint is written."""
    return f"saving checkpoint at iteration {step:7d} to {folder} in torch_dist format"


def saved(folder: Path, step: int) -> str:
    """Printed when it is complete."""
    return f"  successfully saved checkpoint from iteration {step:7d} to {folder} [ t 1/1, p 1/1 ]"


def loading(folder: Path) -> str:
    """Printed before a checkpoint is read."""
    return f" loading checkpoint from {folder}"


def loaded(folder: Path, step: int) -> str:
    """Printed when it has been read."""
    return f"  successfully loaded checkpoint from {folder} [ t 1/1, p 1/1 ] at iteration {step}"


def no_checkpoint(folder: Path) -> str:
    """Printed by the first start."""
    return (
        f"WARNING: could not find the metadata file {folder}/latest_checkpointed_iteration.txt\n"
        "    will not load any checkpoints and will start from random"
    )
