"""What the sample job learns: a loss curve that is a function of seed, step and recipe."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

__all__ = ["LOSS_SIGMA", "Observation", "Training", "advance", "learning_rate", "observe"]

LOSS_SIGMA = 0.02  # noise of the printed loss
_LOSS_START, _LOSS_FLOOR = 8.3, 2.05
_DROP_STEPS, _TAIL_STEPS = 25.0, 400.0
_WARMUP_STEPS, _LR_MAX, _LR_MIN = 50, 3.0e-4, 3.0e-5


@dataclass(frozen=True)
class Training:
    """State of the optimiser, saved in checkpoints.

    ``learned`` counts the steps from which the model gained; ``drift`` is how far the loss was driven up.
    """

    step: int = 0
    learned: float = 0.0
    drift: float = 0.0
    broken: bool = False  # weights are not a number any more


@dataclass(frozen=True)
class Observation:
    """What a step prints. ``loss`` is NaN once the weights are."""

    loss: float
    grad_norm: float


def learning_rate(step: int, total: int) -> float:
    """Linear warm-up, then cosine decay."""
    if step < _WARMUP_STEPS:
        return _LR_MAX * step / _WARMUP_STEPS
    share = min(1.0, (step - _WARMUP_STEPS) / max(1, total - _WARMUP_STEPS))
    return _LR_MIN + 0.5 * (_LR_MAX - _LR_MIN) * (1.0 + math.cos(math.pi * share))


def advance(state: Training, drift_sigmas: float, nan: bool) -> Training:
    """One step under a recipe.

    A recipe that diverges (``drift_sigmas`` noise deviations per 100 steps) stops learning and drives the
    loss up; under a sound one the loss comes back over some tens of steps.
    """
    step = state.step + 1
    if nan or state.broken:
        return replace(state, step=step, broken=True)
    if drift_sigmas > 0.0:
        return replace(state, step=step, drift=state.drift + drift_sigmas * LOSS_SIGMA / 100.0)
    return replace(state, step=step, learned=state.learned + 1.0, drift=state.drift * 0.97)


def observe(state: Training, seed: int) -> Observation:
    """What the step of this state prints; the same for the same seed and state."""
    noise = random.Random(f"{seed}/{state.step}")  # noqa: S311 - noise, not a secret
    if state.broken:
        return Observation(math.nan, math.nan)
    curve = (
        _LOSS_FLOOR
        + _LOSS_START * math.exp(-state.learned / _DROP_STEPS)
        + 0.35 / math.sqrt(1.0 + state.learned / _TAIL_STEPS)
    )
    loss = curve + state.drift + noise.gauss(0.0, LOSS_SIGMA)
    grad_norm = (0.42 + 3.0 * math.exp(-state.learned / _DROP_STEPS)) * (1.0 + 4.0 * state.drift)
    return Observation(loss, grad_norm * math.exp(noise.gauss(0.0, 0.06)))
