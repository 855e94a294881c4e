"""What a rank's events add up to."""

from __future__ import annotations

import math
import statistics

import pytest

from tocsin_exporter.parser.event import Event
from tocsin_exporter.parser.training import Training


def step(number: int | None, loss: float | None = None, **more: object) -> Event:
    return Event("step", step=number, loss=loss, **{"framework": "megatron", **more})  # type: ignore[arg-type]


def run(losses: list[float]) -> Training:
    training = Training()
    for number, loss in enumerate(losses, start=1):
        training.apply(step(number, loss), 100.0 + number)
    return training


def test_the_mean_is_over_the_last_ten() -> None:
    """
    No mean before the tenth loss; then that of the last ten, and the best is the lowest so far.
    """
    losses = [10.0 - number for number in range(10)]
    training = run(losses[:9])
    assert training.loss_mean is None

    training = run([*losses, 100.0])

    assert statistics.fmean([*losses[1:], 100.0]) == training.loss_mean
    assert statistics.fmean(losses) == training.loss_best_mean


def test_the_recent_minimum_needs_forty() -> None:
    """
    The lowest of the last 40 losses appears with the 40th and forgets what is older.
    """
    assert run([5.0] * 39).loss_recent_min is None
    assert 2.0 == run([5.0] * 39 + [2.0]).loss_recent_min
    assert 4.0 == run([1.0] + [4.0] + [5.0] * 39).loss_recent_min


def test_noise_is_robust() -> None:
    """
    Noise is that of the differences between prints, and a single spike does not move it.
    """
    calm = [5.0 + 0.1 * (number % 2) for number in range(100)]
    spiked = [*calm[:50], 500.0, *calm[51:]]

    assert 1.4826 * 0.1 / math.sqrt(2) == pytest.approx(run(calm).loss_noise)
    assert run(calm).loss_noise == pytest.approx(run(spiked).loss_noise)


def test_a_nan_counts_and_stays_out_of_the_windows() -> None:
    """
    The last loss is served as printed; means and minima know finite ones only.
    """
    training = run([2.0] * 10 + [math.nan, math.inf])

    assert math.inf == training.loss
    assert 2.0 == training.loss_mean
    assert 2 == training.nonfinite


def test_a_loss_that_was_left_out_or_filtered_is_not_finite() -> None:
    """
    Megatron leaves the loss out and counts it, the Trainer prints 0.0 beside a NaN gradient norm.
    """
    training = run([2.0] * 10)
    training.apply(step(11, None, nonfinite=True), 200.0)
    training.apply(step(12, 0.0, grad_norm=math.nan, framework="hf"), 201.0)

    assert (2, 2.0) == (training.nonfinite, training.loss_mean)


def test_steps_count_progress_only() -> None:
    """
    Progress is the sum of advances: the first print adds none, a repeat none, a fall after a resume none.
    """
    training = Training()
    for at, number in enumerate((100, 110, 110, 120, 50, 60)):
        training.apply(step(number), float(at))

    assert 10 + 10 + 10 == training.steps
    assert 60 == training.step
    assert 5.0 == training.last_progress


def test_a_repeated_step_is_no_progress() -> None:
    """
    The time of progress is that of the last advance, however often the step is printed.
    """
    training = Training()
    training.apply(step(1), 10.0)
    training.apply(step(2), 20.0)
    training.apply(step(2), 30.0)

    assert 20.0 == training.last_progress


def test_step_seconds_as_printed_else_from_the_clock() -> None:
    """
    A printed duration wins; without one the time between prints is divided by the steps between them.
    """
    printed, measured = Training(), Training()
    for number in range(1, 4):
        printed.apply(step(number * 10, step_seconds=0.5), number * 100.0)
        measured.apply(step(number * 10), number * 100.0)

    assert 0.5 == printed.step_seconds
    assert 10.0 == measured.step_seconds


def test_counters_that_restart_each_epoch_go_on() -> None:
    """
    Where the step restarts with the epoch, the served step counts through all epochs.
    """
    training = Training()
    for at, (epoch, number) in enumerate(((0, 499), (1, 1))):
        training.apply(step(number, epoch=float(epoch), total_steps=500, framework="lightning"), float(at))

    assert 501 == training.step
    assert 2 == training.steps
    assert training.total_steps is None


def test_checkpoints_have_step_time_and_duration() -> None:
    """
    A checkpoint is done when its end is printed; its duration is the time since its start.
    """
    training = Training()
    training.apply(step(500), 90.0)
    training.apply(Event("checkpoint_start", framework="megatron", step=500), 100.0)
    assert ("checkpoint", None) == (training.phase, training.checkpoint_step)

    training.apply(Event("checkpoint_end", framework="megatron", step=500), 107.5)

    assert (500, 107.5, 7.5) == (
        training.checkpoint_step,
        training.checkpoint_time,
        training.checkpoint_seconds,
    )
    assert "train" == training.phase


def test_a_checkpoint_without_an_end_is_done_at_the_next_step() -> None:
    """
    The Trainer says only that it saves: the next step shows that it has, the duration stays unknown.
    """
    training = Training()
    training.apply(Event("checkpoint_start", framework="hf", step=500), 100.0)
    training.apply(step(510, 1.0, framework="hf"), 130.0)

    assert (500, 130.0, None) == (
        training.checkpoint_step,
        training.checkpoint_time,
        training.checkpoint_seconds,
    )


def test_skipped_steps_are_not_counted_twice() -> None:
    """
    DeepSpeed announces each overflow and prints their total: together they are one count.
    """
    training = Training()
    training.apply(Event("overflow", framework="deepspeed"), 1.0)
    training.apply(Event("overflow", framework="deepspeed"), 2.0)
    training.apply(step(10, skipped=2, framework="deepspeed"), 3.0)
    assert 2 == training.skipped

    training.apply(step(20, skipped=3, framework="megatron"), 4.0)

    assert 5 == training.skipped


@pytest.mark.parametrize(
    ("events", "phase"),
    [
        pytest.param([], None, id="nothing was said"),
        pytest.param([Event("phase", phase="compile")], "compile", id="an announcement"),
        pytest.param([Event("phase", phase="eval"), step(1)], "train", id="a step ends an evaluation"),
        pytest.param([step(1), Event("phase", phase="finished")], "finished", id="the end"),
        pytest.param(
            [Event("phase", phase="eval"), Event("eval", loss=1.0)], "train", id="a result does too"
        ),
    ],
)
def test_phase_is_what_was_last_announced(events: list[Event], phase: str | None) -> None:
    """
    The phase is what the output last announced; steps are training.
    """
    training = Training()
    for event in events:
        training.apply(event, 1.0)

    assert phase == training.phase


def test_failures_are_counted_by_kind() -> None:
    """
    Every kind of failure exists at 0 and counts its own lines.
    """
    training = Training()
    training.apply(Event("oom"), 1.0)

    assert {"oom": 1, "exception": 0, "nccl_error": 0, "watchdog_timeout": 0} == training.failures
