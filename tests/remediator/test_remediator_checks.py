"""Checks, queries and typed values."""

from __future__ import annotations

import math

import pytest

from tocsin_remediator import checks, promql, typed
from tocsin_remediator.casefile.collect import for_job, unfiltered
from tocsin_remediator.errors import PrometheusError, QueryFailure, Refused
from tocsin_remediator.model import CheckResult, Verdict
from tocsin_remediator.prometheus import Answer, Sample
from tocsin_remediator.runbook.model import Check


def check(op: str = ">=", value: float = 1.0, **more: object) -> Check:
    """A check."""
    expect = {
        "op": op,
        "value": value,
        **{k: v for k, v in more.items() if k in ("of", "quantifier", "series")},
    }
    rest = {k: v for k, v in more.items() if k not in expect}
    return Check.model_validate(
        {"id": "c", "role": "indicator", "query": "q", "says": "says", "expect": expect, **rest}
    )


def answer(*values: float, warnings: tuple[str, ...] = ()) -> Answer:
    """An instant vector."""
    return Answer("q", tuple(Sample({"n": str(i)}, v, 0.0) for i, v in enumerate(values)), warnings)


@pytest.mark.parametrize(
    ("one", "given", "reference", "expected"),
    [
        pytest.param(check(), answer(1), None, "pass", id="holds"),
        pytest.param(check(), answer(0), None, "fail", id="does not hold"),
        pytest.param(check(), answer(), None, "inconclusive", id="no data"),
        pytest.param(check(onNoData="fail"), answer(), None, "fail", id="no data counted as failure"),
        pytest.param(check(), answer(math.nan), None, "inconclusive", id="not a number"),
        pytest.param(check(), answer(math.inf), None, "inconclusive", id="infinite"),
        pytest.param(check(), answer(1, warnings=("partial",)), None, "inconclusive", id="a partial answer"),
        pytest.param(
            check(onWarning="ignore"), answer(1, warnings=("x",)), None, "pass", id="warnings ignored"
        ),
        pytest.param(check(series={"max": 1}), answer(1, 1), None, "inconclusive", id="too many series"),
        pytest.param(check(), answer(1, 0), None, "fail", id="all must hold"),
        pytest.param(check(quantifier="any"), answer(1, 0), None, "pass", id="any may hold"),
        pytest.param(check("empty"), answer(), None, "pass", id="empty as wished"),
        pytest.param(check("empty"), answer(1), None, "fail", id="not empty"),
        pytest.param(check("nonempty"), answer(0), None, "pass", id="a zero is data"),
        pytest.param(check("nonempty"), answer(), None, "inconclusive", id="nothing to see"),
        pytest.param(
            check(value=0.8, of="before_delta"), answer(9), None, "inconclusive", id="nothing from before"
        ),
        pytest.param(check(value=0.8, of="baseline_ratio"), answer(9), 10.0, "pass", id="as before"),
        pytest.param(check(value=0.8, of="baseline_ratio"), answer(7), 10.0, "fail", id="slower than before"),
        pytest.param(check(">", 0, of="before_delta"), answer(10), 10.0, "fail", id="not beyond"),
        pytest.param(
            check(),
            PrometheusError(QueryFailure.TIMEOUT, "late"),
            None,
            "inconclusive",
            id="no answer in time",
        ),
        pytest.param(
            check("empty"),
            PrometheusError(QueryFailure.EXECUTION, "x"),
            None,
            "inconclusive",
            id="an error is not empty",
        ),
    ],
)
def test_a_check_has_three_answers(
    one: Check, given: Answer | PrometheusError, reference: float | None, expected: str
) -> None:
    """
    Only data that can be compared passes or fails.
    """
    assert expected == checks.judge(one, "q", given, reference, 0.0).verdict


def result(role: str, verdict: Verdict) -> CheckResult:
    """A result."""
    return CheckResult(role, role, verdict, "q", "", (), "", 0.0)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        pytest.param([("guard", "pass"), ("fault", "pass")], "pass", id="all pass"),
        pytest.param([("guard", "fail"), ("fault", "pass")], "inconclusive", id="dead guard, fault gone"),
        pytest.param(
            [("guard", "inconclusive"), ("fault", "fail")], "inconclusive", id="dead guard, fault there"
        ),
        pytest.param(
            [("guard", "pass"), ("fault", "fail"), ("x", "inconclusive")], "fail", id="a failure decides"
        ),
        pytest.param([("guard", "pass"), ("x", "inconclusive")], "inconclusive", id="one unknown"),
    ],
)
def test_a_guard_that_does_not_pass_makes_the_rest_worthless(
    results: list[tuple[str, str]], expected: str
) -> None:
    """
    Neither a success nor a failure is concluded from a dead signal.
    """
    judged = checks.together([result(role, Verdict(verdict)) for role, verdict in results])

    assert expected == judged.verdict


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(
            pytest.param("node", value, id=f"node {value!r}")
            for value in (
                "node[1-8]", "ALL", "all", "n1,n2", "n1 State=DOWN", "", "-x", "--all", "n1\n", ";reboot",
                "$(x)", "n\x00", "nоde", "../x", "a" * 300, "*", "a..b",
            )
        ),
        *(
            pytest.param("rank", value, id=f"rank {value!r}")
            for value in ("", "-1", "1-3", "01", "1,2", "٣", "1\n")
        ),
        *(
            pytest.param("gpu_uuid", value, id=f"uuid {value!r}")
            for value in ("0", "all", "GPU-1", "0,1", "gpu-00000000-0000-0000-0000-000000000000")
        ),
        *(
            pytest.param("job_id", value, id=f"job {value!r}")
            for value in (
                "1,2", "jobname=train", "--user=root", "slurm/0", "slurm/-1", "slurm/1-3", "slurm/1,2",
                "slurm/", "k8s/a", "k8s/a/../b", "torchrun/a b", "torchrun/a\n", "torchrun/-x",
                "torchrun/a=b",
            )
        ),
    ],
)  # fmt: skip
def test_hostile_values_are_refused(kind: str, value: str) -> None:
    """
    What could be a set, an option, a shell word or a path is no value.
    """
    with pytest.raises(Refused):
        typed.check(kind, value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param("job_id", value, id=value)
        for value in (
            "slurm/4711", "k8s/team-a/train", "torchrun/demo", "torchrun/10.0.0.1:29500", "proc/17@0a1b2c3d",
            "mpi/ompi.gpu-001.1234", "ray/raysubmit_x",
        )
    ]
    + [
        pytest.param("node", "gpu-001.cluster.local", id="a full host name"),
        pytest.param("rank", "0", id="rank 0"),
    ],
)  # fmt: skip
def test_good_values_are_values(kind: str, value: str) -> None:
    """
    They come back unchanged.
    """
    assert value == typed.check(kind, value)


def test_a_value_cannot_leave_its_quotes() -> None:
    """
    Quotes, backslashes and newlines of a label are characters of the matcher.
    """
    query = promql.fill('m{node="${target.node}"}', {"target.node": 'n1"} or vector(0) #\n\\'})

    assert r'm{node="n1\"} or vector(0) #\n\\"}' == query


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param('m{a="${target.a}"}', None, id="a whole matcher"),
        pytest.param('m{a=~"${target.a}"}', "${target.a}", id="a regular expression"),
        pytest.param('m{a="x-${target.a}"}', "${target.a}", id="a part of a value"),
        pytest.param("m > ${target.a}", "${target.a}", id="a number"),
        pytest.param('m{a!="${target.a}"}', "${target.a}", id="a negation"),
        pytest.param('m{a="${target.A}"}', "${", id="no known form"),
    ],
)
def test_where_a_variable_may_stand(query: str, expected: str | None) -> None:
    """
    Only as the whole of a quoted equality matcher.
    """
    assert expected == promql.misplaced(query)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param("up == 0", "up", id="a comparison at the end"),
        pytest.param('m{a="1"} >= 0.5', 'm{a="1"}', id="after a selector"),
        pytest.param("a and b == 1", "a and b == 1", id="part of a set operation"),
        pytest.param("sum(a > 1)", "sum(a > 1)", id="inside"),
        pytest.param("a / b", "a / b", id="none"),
    ],
)
def test_a_filter_is_taken_off_to_see_the_value(query: str, expected: str) -> None:
    """
    Quiet evidence shows how far from firing it is, where that can be told.
    """
    assert expected == unfiltered(query)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        pytest.param(
            'a{job_id="{{ $labels.job_id }}", rank="{{ $labels.rank }}"}',
            'a{job_id="j", rank=~".*"}',
            id="both",
        ),
        pytest.param("a{x='{{ $labels.x }}'}", "", id="not understood"),
        pytest.param("up == 0", "up == 0", id="nothing to fill in"),
    ],
)
def test_a_rules_evidence_is_asked_for_one_job(template: str, expected: str) -> None:
    """
    The job is filled in, other labels match everything; what is not understood is not asked.
    """
    assert expected == for_job(template, "j")
