"""One rank of the sample job: ``python -m tocsin_lab.job.rank``, with a torchrun-style environment.

It knows nothing of the lab's faults: those act on its device, its process or its recipe.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import random
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from tocsin_lab.job import checkpoint, megatron
from tocsin_lab.job.driver import BFLOAT16, FLOAT32, Communicator, Device, unique_id
from tocsin_lab.job.model import Observation, Training, advance, learning_rate, observe
from tocsin_lab.sim.layout import Job

__all__ = ["Rank", "main"]

# Share of a healthy step. What is left is the wait for data, in which the device idles.
_COMPUTE, _COLLECTIVE, _DATA = 0.865, 0.10, 0.02
_BUCKETS = 4
# Kernels between two gradient buckets, with their share of the compute time; then the optimiser.
_PER_BUCKET = (("attention_fwd", 2, 0.026), ("gemm_bf16_tn", 6, 0.028))
_OPTIMIZER = (("optimizer_adam", 4, 0.03),)
_COPY_BYTES = 4 << 20
_NS_PER_BLOCK = 1000.0
_FIRST_STEP = 1.5  # autotuning and allocation in the first step after a start
_WEIGHTS = 64 << 10
_MODEL_BYTES = 52 << 30


@dataclass(frozen=True)
class _Place:
    rank: int
    world: int
    attempt: int

    @staticmethod
    def of(environment: os._Environ[str]) -> _Place:
        return _Place(
            rank=int(environment["RANK"]),
            world=int(environment["WORLD_SIZE"]),
            attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def last(self) -> bool:
        return self.rank == self.world - 1


def _say(text: str) -> None:
    # One write per line: a tracepoint on write(2) then sees whole lines, as from an unbuffered logger.
    os.write(1, (text + "\n").encode())


def _die_with_parent() -> None:
    """Ask the kernel to end this rank when its launcher dies; a rank must never outlive the lab."""
    pr_set_pdeathsig, sigkill = 1, 9
    c.CDLL(None).prctl(pr_set_pdeathsig, sigkill, 0, 0, 0)
    launcher = os.environ.get("TOCSIN_LAB_SUPERVISOR")
    if launcher is not None and os.getppid() != int(launcher):
        os._exit(1)


class Rank:
    """The training loop of one rank."""

    def __init__(self, place: _Place, folder: Path, config: dict[str, Any]) -> None:
        self._place = place
        self._checkpoints = folder / "ckpt"
        self._config = config
        self._step_seconds = float(config["step_seconds"])
        self._job = Job(Path(os.environ["TOCSIN_SIM_JOB"]))
        self._slot = self._job.state.ranks[place.rank]
        self._slot.pid = os.getpid()
        self._device = Device()
        self._comm = Communicator(self._device, self._rendezvous(), place.world, place.rank)
        self._weights = self._device.allocate(_MODEL_BYTES)
        self._batch = self._device.allocate(_COPY_BYTES)
        self._host = c.create_string_buffer(_COPY_BYTES)
        names = {name for name, _, _ in (*_PER_BUCKET, *_OPTIMIZER)}
        self._kernels = {name: self._device.function(name) for name in names}
        self._jitter = random.Random(f"{config['seed']}/{place.rank}/{place.attempt}")  # noqa: S311 - batch sizes

    def _rendezvous(self) -> bytes:
        """Rank 0 makes the communicator's id, the others wait for it (a store does this in torchrun)."""
        meeting, generation = self._job.state.rendezvous, self._place.attempt + 1
        if self._place.first:
            made = unique_id()
            c.memmove(meeting.id, made, len(made))
            meeting.attempt = generation
            return made
        while meeting.attempt != generation:
            time.sleep(0.01)
        return bytes(meeting.id)

    def _launch(self, kernels: tuple[tuple[str, int, float], ...], scale: float) -> None:
        for name, times, share in kernels:
            blocks = max(1, int(share * _COMPUTE * self._step_seconds * scale * 1e9 / _NS_PER_BLOCK))
            for _ in range(times):
                self._device.launch(self._kernels[name], blocks)

    def _bucket(self) -> int:
        """Elements of a gradient bucket whose all-reduce takes its share of a healthy step on the fabric."""
        bus_bytes = (
            _COLLECTIVE / _BUCKETS * self._step_seconds * float(self._config["fabric_bytes_per_second"])
        )
        ring = 2.0 * (self._place.world - 1) / self._place.world if self._place.world > 1 else 1.0
        return max(1, int(bus_bytes / ring / 2))

    def _train(self, first: bool) -> None:
        # Sequence lengths differ a little between batches and ranks.
        scale = self._jitter.gauss(1.0, 0.01) * (_FIRST_STEP if first else 1.0)
        time.sleep(_DATA * self._step_seconds)
        self._device.copy_in(self._batch, self._host)
        for _ in range(_BUCKETS):
            self._launch(_PER_BUCKET, scale)
            self._comm.all_reduce(self._weights, self._bucket(), BFLOAT16)
        self._launch(_OPTIMIZER, scale)
        self._device.synchronize()

    def _barrier(self) -> None:
        self._comm.all_reduce(self._batch, 1, FLOAT32)
        self._device.synchronize()

    def _resume(self) -> Training:
        step = checkpoint.latest(self._checkpoints)
        if step is None:
            if self._place.first:
                _say(megatron.no_checkpoint(self._checkpoints))
            return Training()
        if self._place.first:
            _say(megatron.loading(self._checkpoints))
        state = checkpoint.load(self._checkpoints, self._place.rank, step)
        if self._place.first:
            _say(megatron.loaded(self._checkpoints, step))
        return state

    def _save(self, state: Training) -> None:
        if self._place.first:
            _say(megatron.saving(self._checkpoints, state.step))
        checkpoint.save(self._checkpoints, self._place.rank, state, _WEIGHTS)
        self._barrier()
        if self._place.first:
            checkpoint.commit(self._checkpoints, state.step)
            _say(megatron.saved(self._checkpoints, state.step))

    def _obey_exit(self) -> None:
        """A crash of the user's program, on demand."""
        wanted = self._slot.exit_request
        if wanted:
            self._slot.exit_request = 0
            sys.stderr.write(f"[rank{self._place.rank}]: training failed, exit status {wanted - 1}\n")
            sys.stderr.flush()
            os._exit(wanted - 1)

    def run(self) -> int:
        """Train to the end; returns the exit status."""
        total, every = int(self._config["total_steps"]), int(self._config["checkpoint_every"])
        if self._place.first:
            _say(megatron.header(self._place.world, total))
        state = self._resume()
        first = True
        while state.step < total:
            began = time.monotonic()
            self._obey_exit()
            self._train(first)
            recipe = self._job.state.recipe
            state = advance(state, recipe.loss_drift, bool(recipe.nan_loss))
            self._slot.step = state.step
            self._slot.step_ns = time.monotonic_ns()
            if self._place.last:
                self._report(
                    state, observe(state, int(self._config["seed"])), time.monotonic() - began, total
                )
            # A checkpoint that cannot be trained on is worse than an old one.
            if every and state.step % every == 0 and not state.broken:
                self._save(state)
            first = False
        return 0

    def _report(self, state: Training, seen: Observation, seconds: float, total: int) -> None:
        _say(
            megatron.iteration(
                now=datetime.now(),  # noqa: DTZ005 - Megatron-LM prints local time without a zone
                step=state.step,
                total=total,
                seconds=seconds,
                healthy_seconds=self._step_seconds,
                learning_rate=learning_rate(state.step, total),
                batch=int(self._config["global_batch_size"]),
                loss=seen.loss,
                grad_norm=seen.grad_norm,
            )
        )


def _excepthook(rank: int) -> Any:
    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        import traceback

        lines = "".join(traceback.format_exception(kind, error, trace)).splitlines()
        # torchrun puts the rank before each line of a traceback.
        os.write(2, ("\n".join(f"[rank{rank}]: {line}" for line in lines) + "\n").encode())

    return report


def main() -> int:
    """Run as a rank: place from the environment, configuration from the job folder."""
    _die_with_parent()
    place = _Place.of(os.environ)
    sys.excepthook = _excepthook(place.rank)
    folder = Path(os.environ["TOCSIN_SIM_JOB"]).parent
    config = json.loads((folder / "job.json").read_text())["config"]
    status = Rank(place, folder, config).run()
    # The device thread never ends: finalising the interpreter under it would only risk a crash.
    os._exit(status)


if __name__ == "__main__":
    main()
