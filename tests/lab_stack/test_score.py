"""The scorer: right family, in time, none other first, none afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tocsin_lab.scenario import Expect, Fault, Scenario
from tocsin_lab.score import Timeline, deadline, judge

RIGHT = {"job_id": "torchrun/demo", "family": "FailSlowGpu", "verdict": "infrastructure", "rank": "4"}
OTHER = {"job_id": "torchrun/demo", "family": "CommsBound", "verdict": "job"}


def _scenario(
    *, verdict: Any = None, within: float | None = 90.0, until: float | None = None, quiet: Sequence[str] = ()
) -> Scenario:
    fault = Fault.model_construct(
        kind="fail_slow_gpu",
        at=100.0,
        until=until,
        rank=4,
        magnitude=0.5,
    )
    expected = {"family": "FailSlowGpu", "rank": "4"} if verdict is None else verdict
    return Scenario.model_construct(
        name="case",
        duration=300.0,
        faults=() if expected == "none" else (fault,),
        expect=Expect.model_construct(verdict=expected, within=within, quiet=tuple(quiet)),
    )


def _seen(*spans: tuple[Mapping[str, str], int, int], end: int = 300, loud: Sequence[str] = ()) -> Timeline:
    timeline = Timeline(gap=15.0)
    for second in range(end):
        rows = [labels for labels, first, last in spans if first <= second <= last]
        timeline.look(float(second), rows, loud)
    return timeline


def test_the_expected_row_in_time_is_right() -> None:
    case = judge(_scenario(), _seen((RIGHT, 160, 299)), 100.0, 300.0)

    assert case["ok"]
    assert case["seconds_to_verdict"] == 60.0
    # At half speed a step takes two seconds.
    assert case["steps_to_verdict"] == 30.0


def test_a_late_row_is_wrong() -> None:
    case = judge(_scenario(), _seen((RIGHT, 220, 299)), 100.0, 300.0)

    assert not case["ok"]
    assert "120 s instead of 90 s" in case["why"]


def test_no_row_is_wrong() -> None:
    assert "no verdict" in judge(_scenario(), _seen(), 100.0, 300.0)["why"]


def test_a_row_before_the_fault_is_wrong_whatever_follows() -> None:
    case = judge(_scenario(), _seen((RIGHT, 90, 299)), 100.0, 300.0)

    assert "before anything was wrong" in case["why"]


def test_another_family_first_is_wrong_only_when_it_stands() -> None:
    """A superseded row of up to 30 s is the price of a symptom seen before its cause."""
    short = judge(_scenario(), _seen((OTHER, 130, 150), (RIGHT, 151, 299)), 100.0, 300.0)
    long = judge(_scenario(), _seen((OTHER, 120, 160), (RIGHT, 161, 299)), 100.0, 300.0)

    assert short["ok"]
    assert "CommsBound" in long["why"]


def test_the_row_that_stands_longest_decides() -> None:
    case = judge(_scenario(), _seen((RIGHT, 120, 150), (OTHER, 151, 299)), 100.0, 300.0)

    assert "CommsBound" in case["why"]


def test_the_wrong_rank_is_wrong() -> None:
    case = judge(_scenario(), _seen(({**RIGHT, "rank": "5"}, 150, 299)), 100.0, 300.0)

    assert "rank=5" in case["why"]


def test_a_row_must_be_gone_five_minutes_after_the_cause() -> None:
    stands = judge(_scenario(until=200.0), _seen((RIGHT, 150, 599), end=600), 100.0, 600.0)
    gone = judge(_scenario(until=200.0), _seen((RIGHT, 150, 400), end=600), 100.0, 600.0)

    assert "five minutes" in stands["why"]
    assert gone["ok"]


def test_a_healthy_run_bears_no_row_and_no_family() -> None:
    healthy = _scenario(verdict="none")

    assert judge(healthy, _seen(), None, 300.0)["ok"]
    assert not judge(healthy, _seen((OTHER, 10, 12)), None, 300.0)["ok"]
    assert not judge(healthy, _seen(loud=["FailSlowGpu"]), None, 300.0)["ok"]


def test_a_run_that_never_saw_prometheus_is_not_healthy() -> None:
    assert not judge(_scenario(verdict="none"), Timeline(gap=15.0), None, 300.0)["ok"]


def test_a_family_that_had_to_stay_quiet_is_wrong() -> None:
    case = judge(_scenario(quiet=["CommsBound"]), _seen((RIGHT, 150, 299), loud=["CommsBound"]), 100.0, 300.0)

    assert "CommsBound fired" in case["why"]


def test_deadlines_follow_the_length_of_a_step_during_the_fault() -> None:
    slow = _scenario(within=None)
    strong = Fault.model_construct(kind="throttle", at=0.0, rank=1, magnitude=0.05)

    assert deadline(slow, slow.faults[0]) == 90.0
    assert deadline(slow, strong) == 200.0
    assert deadline(slow, Fault.model_construct(kind="loss_divergence", at=0.0, magnitude=8.0)) == 110.0
    assert deadline(slow, Fault.model_construct(kind="rank_exit", at=0.0)) == 30.0
