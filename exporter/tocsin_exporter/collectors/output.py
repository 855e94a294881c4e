"""Training progress per rank, from the job's own output."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.parser.training import Training
from tocsin_exporter.sources.bpf import BpfSource
from tocsin_exporter.sources.output import OutputSource

__all__ = ["NAME", "OutputCollector", "build"]

NAME = "output"

_GAUGES = {
    "step": "tocsin_training_step",
    "total_steps": "tocsin_training_total_steps",
    "epoch": "tocsin_training_epoch",
    "loss": "tocsin_training_loss",
    "loss_mean": "tocsin_training_loss_mean",
    "loss_best_mean": "tocsin_training_loss_best_mean",
    "loss_noise": "tocsin_training_loss_noise",
    "loss_recent_min": "tocsin_training_loss_recent_min",
    "grad_norm": "tocsin_training_grad_norm",
    "learning_rate": "tocsin_training_learning_rate",
    "step_seconds": "tocsin_training_step_seconds",
    "tokens_per_second": "tocsin_training_tokens_per_second",
    "data_wait_seconds": "tocsin_training_data_wait_seconds",
    "last_progress": "tocsin_training_last_progress_timestamp_seconds",
    "checkpoint_step": "tocsin_training_last_checkpoint_step",
    "checkpoint_time": "tocsin_training_last_checkpoint_timestamp_seconds",
    "checkpoint_seconds": "tocsin_training_checkpoint_seconds",
}
_COUNTERS = {
    "steps": "tocsin_training_steps_total",
    "nonfinite": "tocsin_training_nonfinite_losses_total",
    "skipped": "tocsin_training_skipped_steps_total",
}


class OutputCollector:
    """Serves what each living rank's output has said; a rank that prints no steps has no step series."""

    name = NAME

    def __init__(self, source: OutputSource, bpf: BpfSource | None) -> None:
        self._source = source
        self._bpf = bpf

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        lost = {
            (counts.job_id, counts.rank): counts.stat.out_dropped_bytes
            for counts in (self._bpf.counts() if self._bpf is not None else ())
        }
        samples: list[Sample] = []
        with self._source.lock:
            for key, rank in self._source.ranks().items():
                dropped = rank.dropped + lost.get(key, 0)
                samples.append(Sample("tocsin_training_output_lines_total", key, rank.lines))
                samples.append(Sample("tocsin_training_output_dropped_bytes_total", key, dropped))
                samples.extend(_training(key, rank.training))
            for key, failures in self._source.ended_failures().items():
                # Mostly printed right before the end, so that no scrape came between.
                samples.extend(_failures(key, failures))
        yield from samples


def _training(key: tuple[str, str], training: Training) -> Iterator[Sample]:
    yield from _failures(key, training.failures)
    for field, name in _COUNTERS.items():
        # Born at 0: the first non-finite loss must be an increase.
        yield Sample(name, key, getattr(training, field))
    for field, name in _GAUGES.items():
        value = getattr(training, field)
        if value is not None:
            yield Sample(name, key, value)
    if training.phase is not None:
        yield Sample("tocsin_training_phase", (*key, training.phase), 1)


def _failures(key: tuple[str, str], counts: dict[str, int]) -> Iterator[Sample]:
    for event, count in counts.items():
        yield Sample("tocsin_training_events_total", (*key, event), count)


def build(source: OutputSource, bpf: BpfSource | None) -> OutputCollector:
    """Return the collector."""
    return OutputCollector(source, bpf)
