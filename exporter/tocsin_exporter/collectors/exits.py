"""How ranks ended: by code, by signal, for lack of memory, or unseen; and what was last known of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.identity.model import IdentityView
from tocsin_exporter.life import KINDS, SERVED_SECONDS, Key, Life, RankLife
from tocsin_exporter.sources.bpf import BpfSource
from tocsin_exporter.sources.output import OutputSource

__all__ = ["KINDS", "NAME", "ExitsCollector", "build"]

NAME = "exits"

# Of the training state of a rank that ended.
_LAST = {
    "step": "tocsin_job_last_step",
    "steps": "tocsin_job_last_steps",
    "checkpoint_step": "tocsin_job_last_checkpoint_step",
    "loss": "tocsin_job_last_loss",
    "loss_mean": "tocsin_job_last_loss_mean",
    "loss_best_mean": "tocsin_job_last_loss_best_mean",
    "loss_noise": "tocsin_job_last_loss_noise",
    "learning_rate": "tocsin_job_last_learning_rate",
    "nonfinite": "tocsin_job_last_nonfinite_losses",
}


class ExitsCollector:
    """Serves each rank from its first sight until 15 minutes after its end; all counters begin at 0."""

    name = NAME

    def __init__(
        self,
        bpf: BpfSource | None,
        identity: IdentityView,
        output: OutputSource | None,
        clock: Callable[[], float] = time.time,
        *,
        life: Life | None = None,
        alive: Callable[[int, int], bool] | None = None,
        gone_at: float | None = None,
    ) -> None:
        self.life = life or Life(identity, clock)
        self._output = output
        self._clock = clock
        self._alive = alive
        self._gone_at = gone_at
        if bpf is not None:
            bpf.listen_exits(self.life.ended)

    def start(self) -> None:
        """Follow the ranks."""
        self.life.start(self._alive, self._gone_at)

    def stop(self) -> None:
        """Nothing to release."""

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        now = self._clock()
        for key, rank in self.life.ranks().items():
            yield from _rank(key, rank, now)
        for key, facts in self.life.last_facts(self._told()).items():
            for fact, value in facts.items():
                if fact in _LAST:
                    yield Sample(_LAST[fact], key, value)

    def _told(self) -> dict[Key, dict[str, float]]:
        """Return what the output of ranks that ended has said last."""
        if self._output is None:
            return {}
        return {
            key: {fact: value for fact in _LAST if (value := getattr(training, fact)) is not None}
            for key, training in self._output.ended_training().items()
        }


def _rank(key: Key, rank: RankLife, now: float) -> Iterator[Sample]:
    if rank.ranked:
        for kind, count in rank.counts.items():
            yield Sample("tocsin_rank_exits_total", (*key, kind), count)
        yield Sample("tocsin_rank_core_dumps_total", key, rank.cores)
        yield Sample("tocsin_rank_restarts_total", key, rank.restarts)
    if rank.last is not None and now - rank.last[0] < SERVED_SECONDS:
        when, code, signal = rank.last
        yield Sample("tocsin_job_last_exit_timestamp_seconds", (*key, code, signal), when)
    for scope, count in rank.kills.items():
        yield Sample("tocsin_rank_oom_kills_total", (*key, scope), count)
    for scope, when in rank.killed.items():
        yield Sample("tocsin_rank_oom_kill_timestamp_seconds", (*key, scope), when)


def build(
    bpf: BpfSource | None,
    identity: IdentityView,
    output: OutputSource | None,
    clock: Callable[[], float] = time.time,
    *,
    life: Life | None = None,
    alive: Callable[[int, int], bool] | None = None,
    gone_at: float | None = None,
) -> ExitsCollector:
    """
    Return the collector; it needs `start` to follow the ranks.

    *alive* says of (pid, start in ticks) whether that process lives, for ranks of before a restart; those
    that do not ended at *gone_at* at the latest.
    """
    return ExitsCollector(bpf, identity, output, clock, life=life, alive=alive, gone_at=gone_at)
