"""Checks with three answers: pass, fail, and inconclusive when nothing can be concluded."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

from tocsin_remediator import promql
from tocsin_remediator.durations import words
from tocsin_remediator.errors import PrometheusError, Refused
from tocsin_remediator.model import CheckResult, Judgement, Verdict
from tocsin_remediator.prometheus import finite
from tocsin_remediator.runbook.model import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tocsin_remediator.prometheus import Answer, Prometheus
    from tocsin_remediator.runbook.model import Check

_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SHOWN: Final = 20


def judge(
    check: Check, query: str, answer: Answer | PrometheusError, reference: float | None, at: float
) -> CheckResult:
    """
    What `answer` says about `check`.

    `reference` is the baseline or the value before the action, where the check is relative to one.
    """
    verdict, reason, threshold = _judge(check, answer, reference)
    values = () if isinstance(answer, PrometheusError) else tuple((s.name, s.value) for s in answer.samples)
    return CheckResult(
        id=check.id,
        role=str(check.role),
        verdict=verdict,
        query=query,
        expected=expectation(check, threshold),
        values=values[:_SHOWN],
        reason=reason,
        at=at,
    )


def expectation(check: Check, threshold: float | None) -> str:
    """The expectation in words."""
    expect = check.expect
    if expect.op in ("empty", "nonempty"):
        return "no series" if expect.op == "empty" else "at least one series"
    if expect.of == "value":
        return f"{expect.quantifier} {expect.op} {expect.value:g}"
    against = (
        f"{expect.value:g} x the value before the fault"
        if expect.of == "baseline_ratio"
        else f"the value before the action + {expect.value:g}"
    )
    known = "" if threshold is None else f" (= {threshold:.6g})"
    return f"{expect.quantifier} {expect.op} {against}{known}"


def _judge(
    check: Check, answer: Answer | PrometheusError, reference: float | None
) -> tuple[Verdict, str, float | None]:
    expect = check.expect
    threshold: float | None = None
    if isinstance(answer, PrometheusError):
        return Verdict.INCONCLUSIVE, f"no answer ({answer.kind}): {answer}", threshold
    if answer.warnings and check.on_warning == "inconclusive":
        return Verdict.INCONCLUSIVE, f"the answer may be partial: {answer.warnings[0]}", threshold
    count = len(answer.samples)
    if expect.op == "empty":
        verdict = Verdict.PASS if count == 0 else Verdict.FAIL
        return verdict, f"{count} series", threshold
    if expect.op == "nonempty":
        return (Verdict.PASS, f"{count} series", threshold) if count else _no_data(check, threshold)
    if expect.of != "value":
        if reference is None or not finite(reference):
            return Verdict.INCONCLUSIVE, "there is no value from before to compare with", threshold
        threshold = reference * expect.value if expect.of == "baseline_ratio" else reference + expect.value
    else:
        threshold = expect.value
    if count == 0:
        return _no_data(check, threshold)
    if not expect.series.min <= count <= expect.series.max:
        wanted = f"{expect.series.min} to {expect.series.max}"
        return Verdict.INCONCLUSIVE, f"{count} series instead of {wanted}", threshold
    odd = [sample for sample in answer.samples if not finite(sample.value)]
    if odd:
        return Verdict.INCONCLUSIVE, f"{odd[0].value} is no number to compare", threshold
    limit = threshold
    holds = [_COMPARE[expect.op](sample.value, limit) for sample in answer.samples]
    good = all(holds) if expect.quantifier == "all" else any(holds)
    shown = ", ".join(f"{sample.value:.6g}" for sample in answer.samples[:3]) + (", …" if count > 3 else "")
    return (Verdict.PASS if good else Verdict.FAIL), f"{shown} against {expect.op} {limit:.6g}", threshold


def _no_data(check: Check, threshold: float | None) -> tuple[Verdict, str, float | None]:
    if check.on_no_data == "fail":
        return Verdict.FAIL, "no data, which counts as a failure here", threshold
    return Verdict.INCONCLUSIVE, "no data", threshold


def together(results: Sequence[CheckResult]) -> Judgement:
    """
    Several checks as one: a guard that does not pass makes the rest worthless, then a failure
    decides, then an inconclusive one.
    """
    for result in results:
        if result.role == Role.GUARD and result.verdict is not Verdict.PASS:
            return Judgement(
                Verdict.INCONCLUSIVE,
                f"guard {result.id}: {result.reason}; the rest proves nothing",
                tuple(results),
            )
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        for result in results:
            if result.verdict is verdict:
                return Judgement(verdict, f"{result.id}: {result.reason}", tuple(results))
    return Judgement(Verdict.PASS, f"{len(results)} of {len(results)} checks pass", tuple(results))


def ask(
    prometheus: Prometheus,
    checks: Sequence[Check],
    target: Mapping[str, str],
    references: Mapping[str, float],
    now: Callable[[], float],
) -> Judgement:
    """Ask Prometheus every check for this target and take the answers together."""
    values = {f"target.{name}": value for name, value in target.items()}
    results = []
    for check in checks:
        answer: Answer | PrometheusError
        try:
            query = promql.fill(check.query, values)
        except Refused as err:
            results.append(
                CheckResult(
                    check.id, str(check.role), Verdict.INCONCLUSIVE, check.query, "", (), str(err), now()
                )
            )
            continue
        try:
            answer = prometheus.instant(query)
        except PrometheusError as err:
            answer = err
        results.append(judge(check, query, answer, references.get(check.id), now()))
    return together(results)


def reference(
    prometheus: Prometheus, check: Check, target: Mapping[str, str], onset: float
) -> tuple[float | None, str]:
    """
    The value that a relative check compares with, and where it comes from.

    baseline_ratio: the median over the baseline's window, which ends before `onset` (Unix
    seconds) so that it never includes the fault. before_delta: the value now, before acting.
    """
    values = {f"target.{name}": value for name, value in target.items()}
    try:
        query = promql.fill(check.query, values)
        if check.expect.of == "before_delta":
            samples = prometheus.instant(query).samples
            if len(samples) == 1 and finite(samples[0].value):
                return samples[0].value, f"{query} before the action"
            return None, f"{query} had {len(samples)} usable series before the action"
        if check.baseline is None:
            return None, "no baseline stated"
        end = onset - check.baseline.before
        series = prometheus.range(
            query, end - check.baseline.window, end, max(check.baseline.window / 60, 1.0)
        )
    except (PrometheusError, Refused) as err:
        return None, str(err)
    points = sorted(value for one in series for _, value in one.points if finite(value))
    if len(series) != 1 or len(points) < 3:
        return None, f"{query}: {len(series)} series with {len(points)} points before the fault"
    return points[len(points) // 2], f"median of {query} over {words(check.baseline.window)} before the fault"
