"""The decisions, as tables: state and facts in, next state and reason out."""

from __future__ import annotations

import pytest

from tocsin_remediator import decide
from tocsin_remediator.decide import Confirmation, Gate, Progress, Recovery, Standing, Waits
from tocsin_remediator.model import CheckResult, CloseCode, Judgement, Level, State, Stop, Verdict
from tocsin_remediator.runbook.model import Limits, Verify

WAITS = Waits(poll=5, confirm_quiet=30, confirm_deadline=900, clear_quiet=120)
LIMITS = Limits.model_validate(
    {"attempts": {"perTarget": 2, "window": "1h", "cooldown": "1m"}, "deadline": "30m"}
)
CHECKS = [
    {
        "id": "alive",
        "role": "guard",
        "query": "a",
        "expect": {"op": "nonempty"},
        "says": "the signal is alive",
    },
    {
        "id": "rate",
        "role": "indicator",
        "query": "b",
        "expect": {"op": ">=", "value": 1},
        "failureLimit": 2,
        "says": "steps come",
    },
]
VERIFY = Verify.model_validate(
    {
        "settle": "10s",
        "for": "30s",
        "interval": "10s",
        "deadline": "5m",
        "hold": "1m",
        "checks": CHECKS,
    }
)
PASS = Judgement(Verdict.PASS, "all pass")
FAIL = Judgement(
    Verdict.FAIL,
    "rate: 0",
    (
        CheckResult("alive", "guard", Verdict.PASS, "a", "", (), "", 0),
        CheckResult("rate", "indicator", Verdict.FAIL, "b", "", (), "", 0),
    ),
)
UNCLEAR = Judgement(Verdict.INCONCLUSIVE, "guard alive: no data")


@pytest.mark.parametrize(
    ("state", "standing", "facts", "now", "expected"),
    [
        pytest.param(State.CORRELATED, Standing.CONFIRMED, {}, 100, None, id="confirmed goes on"),
        pytest.param(State.CORRELATED, Standing.ABSENT, {}, 100, (None, None), id="absence must last"),
        pytest.param(
            State.CORRELATED,
            Standing.ABSENT,
            {"absent_since": 70.0},
            100,
            (State.CLOSED, CloseCode.STALE),
            id="never confirmed is stale",
        ),
        pytest.param(
            State.AWAITING_APPROVAL,
            Standing.ABSENT,
            {"absent_since": 0.5},
            100,
            (None, None),
            id="a confirmed one needs longer",
        ),
        pytest.param(
            State.AWAITING_APPROVAL,
            Standing.ABSENT,
            {"absent_since": 0.5},
            130,
            (State.CLOSED, CloseCode.SELF),
            id="gone by itself",
        ),
        pytest.param(
            State.QUEUED,
            Standing.INCONCLUSIVE,
            {},
            100,
            (None, None),
            id="an unanswered question is asked again",
        ),
        pytest.param(
            State.QUEUED,
            Standing.INCONCLUSIVE,
            {"unclear_since": 1.0},
            1000,
            (State.NEEDS_HUMAN, None),
            id="unanswered for long is a person's",
        ),
        pytest.param(
            State.RECOMMENDED,
            Standing.INCONCLUSIVE,
            {"unclear_since": 1.0},
            1000,
            (None, None),
            id="a recommendation waits on",
        ),
        pytest.param(
            State.QUEUED,
            Standing.SUPERSEDED,
            {},
            100,
            (State.CLOSED, CloseCode.SUPERSEDED),
            id="another cause took over",
        ),
        pytest.param(State.QUEUED, Standing.OUTRANKED, {}, 100, (None, None), id="a contributor waits"),
    ],
)
def test_standing_of_the_verdict_before_anything_was_done(
    state: State,
    standing: Standing,
    facts: dict[str, float],
    now: float,
    expected: tuple[State | None, CloseCode | None] | None,
) -> None:
    """
    Only a confirmed verdict goes on; an unanswered question never closes and never acts.
    """
    found = decide.before_acting(state, Confirmation(standing, "because"), facts, now, WAITS)

    assert expected == (None if found is None else (found.state, found.code))


@pytest.mark.parametrize(
    ("ceiling", "configured", "promoted", "current", "dry", "expected"),
    [
        pytest.param("auto", "recommend", None, False, False, Level.RECOMMEND, id="default"),
        pytest.param("auto", "approve", None, False, False, Level.APPROVE, id="configured"),
        pytest.param("approve", "auto", None, False, False, Level.APPROVE, id="the ceiling wins"),
        pytest.param("auto", "recommend", "auto", True, False, Level.AUTO, id="promoted"),
        pytest.param("auto", "approve", "auto", False, False, Level.RECOMMEND, id="edited since promoted"),
        pytest.param("auto", "auto", "auto", True, True, Level.RECOMMEND, id="dry run"),
        pytest.param("auto", "auto", "approve", True, False, Level.APPROVE, id="demoted"),
    ],
)
def test_level(
    ceiling: str, configured: str, promoted: str | None, current: bool, dry: bool, expected: Level
) -> None:
    """
    The lowest limit wins, and a promotion is for one content only.
    """
    found, _ = decide.level(
        ceiling=Level.of(ceiling),
        configured=Level.of(configured),
        promoted=Level.of(promoted) if promoted else None,
        promotion_current=current,
        dry_run=dry,
    )

    assert expected == found


def test_an_inconclusive_verdict_never_acts() -> None:
    """
    Even at level auto it is only recommended.
    """
    assert State.RECOMMENDED == decide.planned(Level.AUTO, "", "inconclusive").state


def gate(**changes: object) -> Gate:
    """An open gate with changes."""
    values: dict[str, object] = {
        "stop": Stop.NONE,
        "why": "the stop switch",
        "busy": "",
        "running": 0,
        "attempts": 0,
        "last_attempt": None,
        "preconditions": PASS,
        "queued_since": 0.0,
        **changes,
    }
    return Gate(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(gate(stop=Stop.FREEZE), None, id="frozen waits"),
        pytest.param(gate(stop=Stop.HALT), None, id="halted waits"),
        pytest.param(gate(attempts=2), State.ESCALATED, id="attempts used up"),
        pytest.param(gate(attempts=1, last_attempt=80.0), None, id="cooling down"),
        pytest.param(gate(busy="incident 3 is acting"), None, id="one action per job"),
        pytest.param(gate(running=4), None, id="too many jobs at once"),
        pytest.param(gate(preconditions=FAIL), State.NEEDS_HUMAN, id="a precondition fails"),
        pytest.param(gate(preconditions=UNCLEAR), None, id="a precondition is inconclusive"),
        pytest.param(gate(queued_since=-2000.0), State.NEEDS_HUMAN, id="waited too long"),
    ],
)
def test_closed_gates(facts: Gate, expected: State | None) -> None:
    """
    Each closed gate keeps the run from beginning, with a reason.
    """
    found = decide.gate(facts, LIMITS, 4, 100.0, WAITS)

    assert found is not None
    assert expected == found.state
    assert found.reason


def test_an_open_gate_lets_the_run_begin() -> None:
    """
    None means: begin.
    """
    assert None is decide.gate(gate(), LIMITS, 4, 100.0, WAITS)


def samples(*judged: tuple[float, Judgement]) -> tuple[Progress, decide.Decision]:
    """A verification that began at 0, sampled at these times."""
    progress, decision = Progress(since=0), decide.Decision(None, "")
    for now, one in judged:
        progress, decision = decide.verification(progress, one, VERIFY, now)
    return progress, decision


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        pytest.param([(10, PASS), (25, PASS)], None, id="not long enough"),
        pytest.param([(10, PASS), (25, PASS), (40, PASS)], State.HELD, id="without a break"),
        pytest.param(
            [(10, PASS), (25, UNCLEAR), (40, PASS)], None, id="an inconclusive sample breaks the streak"
        ),
        pytest.param([(10, FAIL), (20, FAIL)], None, id="failing at first is no failure"),
        pytest.param([(10, FAIL), (20, FAIL), (30, FAIL)], State.ROLLING_BACK, id="over the failure limit"),
        pytest.param([(10, FAIL), (20, PASS), (30, FAIL), (40, FAIL)], None, id="a pass resets the count"),
        pytest.param([(300, FAIL)], State.ROLLING_BACK, id="failing at the deadline"),
        pytest.param([(300, UNCLEAR)], State.NEEDS_HUMAN, id="inconclusive at the deadline"),
        pytest.param([(10, UNCLEAR)] * 30, None, id="inconclusive is never a failure"),
        pytest.param([(290, PASS), (300, PASS)], None, id="a streak at the deadline may finish"),
        pytest.param([(290, PASS), (300, PASS), (320, PASS)], State.HELD, id="and then holds"),
    ],
)
def test_verification(judged: list[tuple[float, Judgement]], expected: State | None) -> None:
    """
    Three outcomes: held, rolled back, or a person; never a success out of missing data.
    """
    assert expected == samples(*judged)[1].state


def test_progress_survives_the_journal() -> None:
    """
    What is stored is what is read.
    """
    progress, _ = samples((10, PASS), (20, FAIL))

    assert progress == Progress.of(progress.as_json(), 99)


@pytest.mark.parametrize(
    ("since", "fault", "expected"),
    [
        pytest.param(50.0, Verdict.PASS, (None, None), id="not yet"),
        pytest.param(10.0, Verdict.PASS, (State.CLOSED, CloseCode.FIXED), id="held"),
        pytest.param(90.0, Verdict.FAIL, (State.ROLLING_BACK, None), id="came back"),
        pytest.param(10.0, Verdict.INCONCLUSIVE, (None, None), id="not observable does not end it"),
    ],
)
def test_hold(since: float, fault: Verdict, expected: tuple[State | None, CloseCode | None]) -> None:
    """
    A fix is on probation until the fault has been seen to stay away.
    """
    found = decide.holding(since, 60, fault, "", 100.0, 5)

    assert expected == (found.state, found.code)


@pytest.mark.parametrize(
    ("idempotent", "running", "expected"),
    [
        pytest.param(True, True, Recovery.WAIT, id="still at it"),
        pytest.param(False, True, Recovery.WAIT, id="still at it, cannot be asked"),
        pytest.param(True, False, Recovery.RESEND, id="ask under the same id"),
        pytest.param(False, False, Recovery.ASK, id="a person"),
    ],
)
def test_recovery(idempotent: bool, running: bool, expected: Recovery) -> None:
    """
    An intent without an outcome is sent again only where the other side does it once.
    """
    assert expected == decide.recover(idempotent=idempotent, still_running=running)[0]
