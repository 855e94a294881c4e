"""What a rank's events add up to: the state behind the tocsin_training_* series."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

from tocsin_exporter.parser.event import Event

__all__ = ["FAILURES", "Training"]

FAILURES = ("oom", "exception", "nccl_error", "watchdog_timeout")

_MEAN = 10
_RECENT = 40
_NOISE = 200
# Below this a median says nothing.
_LEAST_DIFFERENCES = 10
_STEP_SECONDS = 10

# Frameworks whose step counter restarts each epoch → the number of their first epoch.
_RESTARTING = {"lightning": 0, "keras": 1, "mmengine": 1, "ultralytics": 1}
# They announce that a checkpoint begins and not that it ended; the next step tells.
_WITHOUT_END = ("hf", "trl", "axolotl", "swift", "llamafactory", "nanogpt", "mmengine", None)


@dataclass(slots=True)
class Training:
    """
    State of one rank's training since its process started.

    Times are wall-clock seconds and come with each event. Values are None until they are known.
    Windows hold finite losses only.
    """

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    loss_mean: float | None = None
    loss_best_mean: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    data_wait_seconds: float | None = None
    steps: int = 0
    nonfinite: int = 0
    last_progress: float | None = None
    phase: str | None = None
    checkpoint_step: int | None = None
    checkpoint_time: float | None = None
    checkpoint_seconds: float | None = None
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAILURES, 0))
    transport: str | None = None
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _differences: deque[float] = field(default_factory=lambda: deque(maxlen=_NOISE))
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_STEP_SECONDS))
    _last_print: tuple[int, float] | None = None
    _last_loss: tuple[int | None, float] | None = None
    _pending: tuple[int | None, float, str | None] | None = None
    _overflows: int = 0
    _skipped: int = 0
    _skipped_total: int = 0

    @property
    def loss_noise(self) -> float | None:
        """Robust deviation of the loss from one print to the next."""
        if len(self._differences) < _LEAST_DIFFERENCES:
            return None
        return 1.4826 * statistics.median(self._differences) / math.sqrt(2)

    @property
    def loss_recent_min(self) -> float | None:
        """Lowest of the last 40 losses."""
        return min(self._losses) if len(self._losses) == _RECENT else None

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds per step over the last 10 prints."""
        return statistics.fmean(self._seconds) if self._seconds else None

    @property
    def skipped(self) -> int:
        """Steps skipped; a running total and single announcements of one step are not added up."""
        return self._skipped + max(self._overflows, self._skipped_total)

    def apply(self, event: Event, now: float) -> None:
        """Take in one event, seen at *now*."""
        if event.event == "step":
            self._step(event, now)
        elif event.event == "eval":
            if self.phase in ("eval", None):
                self.phase = "train"
        elif event.event == "checkpoint_start":
            self._pending = (event.step if event.step is not None else self.step, now, event.framework)
            self.phase = "checkpoint"
        elif event.event == "checkpoint_end":
            self._checkpoint_end(event, now)
        elif event.event == "overflow":
            self._overflows += 1
        elif event.event == "phase":
            self.phase = event.phase
        elif event.event == "resume":
            if event.step is not None:
                self._last_print = None
                self.step = event.step
        elif event.event == "nccl_transport":
            self.transport = event.transport
        elif event.event in self.failures:
            self.failures[event.event] += 1

    def _step(self, event: Event, now: float) -> None:
        step = _global_step(event)
        self.phase = "train"
        if event.framework not in _RESTARTING and event.total_steps is not None:
            self.total_steps = event.total_steps
        for name in ("epoch", "grad_norm", "learning_rate", "tokens_per_second", "data_wait_seconds"):
            value = getattr(event, name)
            if value is not None:
                setattr(self, name, value)
        self._progress(step, event.step_seconds, now)
        self._loss(event, step)
        if event.skipped is not None:
            if event.framework == "deepspeed":
                self._skipped_total = max(self._skipped_total, event.skipped)
            else:
                self._skipped += event.skipped
        if self._pending is not None and self._pending[2] in _WITHOUT_END:
            self.checkpoint_step, self.checkpoint_time = self._pending[0], now
            self._pending = None

    def _progress(self, step: int | None, printed: float | None, now: float) -> None:
        last = self._last_print
        if step is None:
            # Some frameworks print no number; that they print is progress all the same.
            self.last_progress = now
            return
        moved = last is None or step != last[0]
        if moved:
            self.last_progress = now
            if last is not None and step > last[0]:
                self.steps += step - last[0]
        if printed is not None and printed > 0 and math.isfinite(printed):
            if moved or not self._seconds:
                self._seconds.append(printed)
        elif last is not None and step > last[0] and now > last[1]:
            self._seconds.append((now - last[1]) / (step - last[0]))
        if moved:
            self._last_print = (step, now)
        self.step = step

    def _loss(self, event: Event, step: int | None) -> None:
        loss = event.loss
        # The Trainer's filter turns a NaN loss into 0.0; the gradient norm betrays it.
        filtered = loss == 0.0 and event.grad_norm is not None and not math.isfinite(event.grad_norm)
        if loss is None:
            self.nonfinite += bool(event.nonfinite)
            return
        if step is not None and self._last_loss == (step, loss):
            return
        self._last_loss = (step, loss)
        self.loss = loss
        if filtered or not math.isfinite(loss):
            self.nonfinite += 1
            return
        if self._losses:
            self._differences.append(abs(loss - self._losses[-1]))
        self._losses.append(loss)
        if len(self._losses) >= _MEAN:
            self.loss_mean = statistics.fmean(list(self._losses)[-_MEAN:])
            if self.loss_best_mean is None or self.loss_mean < self.loss_best_mean:
                self.loss_best_mean = self.loss_mean

    def _checkpoint_end(self, event: Event, now: float) -> None:
        started = self._pending
        step = event.step
        if step is None:
            step = started[0] if started is not None else self.step
        self.checkpoint_step, self.checkpoint_time = step, now
        if event.checkpoint_seconds is not None:
            self.checkpoint_seconds = event.checkpoint_seconds
        elif started is not None and now >= started[1]:
            self.checkpoint_seconds = now - started[1]
        self._pending = None
        if self.phase == "checkpoint":
            self.phase = "train"


def _global_step(event: Event) -> int | None:
    first = _RESTARTING.get(event.framework or "")
    if event.step is None or first is None or event.epoch is None or event.total_steps is None:
        return event.step
    return int(max(event.epoch - first, 0)) * event.total_steps + event.step
