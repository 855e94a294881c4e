"""Asking for everything a case file says; bounded in time, and honest about what did not answer."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tocsin_remediator import __version__, promql
from tocsin_remediator.casefile.blind import CANNOT_SEE, FIXED
from tocsin_remediator.casefile.statement import Ledger, values_of
from tocsin_remediator.errors import PrometheusError
from tocsin_remediator.model import number
from tocsin_remediator.prometheus import CONTRIBUTOR, EVIDENCE_COMPLETE, EVIDENCE_MISSING, VERDICT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tocsin_remediator.model import Incident
    from tocsin_remediator.prometheus import Prometheus, Rule, RuleAlert

_RULES_ASKED: Final = 60
_POINTS: Final = 120
_LOOKBACK: Final = 900.0
_LABEL: Final = re.compile(r"\{\{-?\s*\$labels\.([A-Za-z_][A-Za-z0-9_]*)\s*-?\}\}")
_MATCHER: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"\{\{-?\s*\$labels\.[A-Za-z_]\w*\s*-?\}\}"')

_COMPARISON: Final = re.compile(r"\s*(?:==|!=|<=|>=|<|>)\s*-?[0-9.]+(?:e[+-]?[0-9]+)?\s*$")
_SET_OPERATOR: Final = re.compile(r"\b(?:and|or|unless)\b")

_PLOTS: Final = (
    ("Steps per second", "tocsin_job:steps_per_second:rate1m", ""),
    ("Step", "tocsin_job:step:max", ""),
    ("Loss", "tocsin_job:loss:mean", ""),
    ("Ranks alive", "tocsin_job:ranks_up:count", ""),
    ("SM activity per rank", "tocsin_rank:sm_active:avg1m", "rank"),
    ("SM activity over the peers' median", "tocsin_rank:activity:relative", "rank"),
    ("Tensor activity per rank", "tocsin_rank:tensor_active:avg1m", "rank"),
)


@dataclass
class _Budget:
    """Seconds left for asking; past it, questions are listed as not asked."""

    until: float

    @property
    def spent(self) -> bool:
        return time.monotonic() >= self.until


def collect(
    prometheus: Prometheus,
    incident: Incident,
    *,
    moment: str,
    now: Callable[[], float],
    budget: float,
) -> dict[str, Any]:
    """The case file of an incident as plain JSON, within about `budget` seconds."""
    ledger = Ledger()
    left = _Budget(time.monotonic() + budget)
    at = now()
    subject = {"job_id": incident.subject}
    missing: list[dict[str, Any]] = []
    verdict = _series(prometheus, ledger, VERDICT, subject, "The verdict as recorded", now, missing)
    contributors = _series(
        prometheus, ledger, CONTRIBUTOR, subject, "Other families that fire for this job", now, missing
    )
    for query, text in (
        (EVIDENCE_MISSING, "Evidence that is missing"),
        (EVIDENCE_COMPLETE, "Whether the evidence of this job is complete"),
    ):
        said = _series(prometheus, ledger, query, subject, text, now, missing)
        if said is None:
            continue
        incomplete = query == EVIDENCE_MISSING and said["values"]
        incomplete = incomplete or (
            query == EVIDENCE_COMPLETE and any(v["value"] != 1.0 for v in said["values"])
        )
        if incomplete:
            missing.append(said)
    fired, quiet = _rules(prometheus, ledger, incident, left, now, missing)
    return {
        "schema": "tocsin/case-file/v1",
        "made_by": f"tocsin-remediator {__version__}",
        "moment": moment,
        "at": at,
        "case": incident.case_id,
        "incident": incident.id,
        "family": incident.family,
        "subject": incident.subject,
        "target": incident.target,
        "summary": incident.annotations.get("summary", ""),
        "description": incident.annotations.get("description", ""),
        "verdict": {"labels": dict(incident.labels), "statement": verdict},
        "contributors": contributors,
        "fired": fired,
        "quiet": quiet,
        "missing": missing,
        "cannot_see": [FIXED, *CANNOT_SEE.get(incident.labels.get("layer", ""), ())],
        "plots": _plots(prometheus, incident, at, left, missing, ledger),
    }


def _series(
    prometheus: Prometheus,
    ledger: Ledger,
    metric: str,
    labels: Mapping[str, str],
    text: str,
    now: Callable[[], float],
    missing: list[dict[str, Any]],
) -> dict[str, Any] | None:
    query = promql.selector(metric, labels)
    try:
        answer = prometheus.instant(query)
    except PrometheusError as err:
        missing.append(ledger.say(f"{text}: no answer ({err.kind}: {err})", query, [], now()))
        return None
    return ledger.say(text, query, values_of(answer), now())


def _rules(
    prometheus: Prometheus,
    ledger: Ledger,
    incident: Incident,
    left: _Budget,
    now: Callable[[], float],
    missing: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    fired: list[dict[str, Any]] = []
    quiet: list[dict[str, Any]] = []
    try:
        rules = [rule for rule in prometheus.alerting_rules() if _is_family(rule)]
    except PrometheusError as err:
        missing.append(
            ledger.say(f"The rules could not be read ({err.kind}: {err})", "/api/v1/rules", [], now())
        )
        return fired, quiet
    # The family itself first, so that a short budget is spent on what matters most.
    rules.sort(key=lambda rule: (rule.labels.get("family") != incident.family, rule.name))
    # A family with two verdicts is two rules; one that fires settles it for both.
    firing = {
        _family(rule)
        for rule in rules
        if any(a.labels.get("job_id") == incident.subject and a.state == "firing" for a in rule.alerts)
    }
    told: set[str] = set()
    for rule in rules[:_RULES_ASKED]:
        family = _family(rule)
        active = [
            a for a in rule.alerts if a.labels.get("job_id") == incident.subject and a.state == "firing"
        ]
        if rule.health != "ok":
            missing.append(
                ledger.say(
                    f"{family} could not be evaluated: {rule.last_error or rule.health}",
                    rule.query,
                    [],
                    now(),
                )
            )
            continue
        if left.spent:
            missing.append(
                ledger.say(
                    f"{family} was not asked: the time for evidence was used up", rule.query, [], now()
                )
            )
            continue
        for alert in active:
            fired.append(_fired(prometheus, ledger, rule, alert, family, now))
        if family not in firing and family not in told:
            told.add(family)
            _quiet(prometheus, ledger, rule, family, incident, now, quiet, missing)
    return fired, quiet


def _family(rule: Rule) -> str:
    return rule.labels.get("family") or rule.name.removeprefix("Tocsin")


def _is_family(rule: Rule) -> bool:
    family = _family(rule)
    return rule.name == f"Tocsin{family}" and family not in ("Verdict", "EvidenceMissing")


def _fired(
    prometheus: Prometheus,
    ledger: Ledger,
    rule: Rule,
    alert: RuleAlert,
    family: str,
    now: Callable[[], float],
) -> dict[str, Any]:
    query = alert.annotations.get("evidence") or rule.query
    summary = alert.annotations.get("summary") or f"{family} fires"
    try:
        values = values_of(prometheus.instant(query))
    except PrometheusError as err:
        return ledger.say(
            f"{summary} (its value cannot be read now: {err})",
            query,
            [],
            now(),
            family=family,
            since=alert.active_at,
        )
    return ledger.say(summary, query, values, now(), family=family, since=alert.active_at)


def _quiet(
    prometheus: Prometheus,
    ledger: Ledger,
    rule: Rule,
    family: str,
    incident: Incident,
    now: Callable[[], float],
    quiet: list[dict[str, Any]],
    missing: list[dict[str, Any]],
) -> None:
    # The rule itself decides; its evidence query shows how far from firing it is.
    evidence = unfiltered(for_job(rule.annotations.get("evidence", ""), incident.subject))
    query = evidence or rule.query
    values: list[dict[str, Any]] = []
    note = ""
    if evidence:
        try:
            values = values_of(prometheus.instant(evidence))
        except PrometheusError as err:
            note = f" (its evidence cannot be read: {err})"
        else:
            if not values:
                note = " (its evidence has no series for this job)"
    statement = ledger.say(
        f"{family} does not fire for this job{note}",
        query,
        values,
        now(),
        family=family,
        evaluated=rule.evaluated_at,
        layer=rule.labels.get("layer", ""),
    )
    # A rule whose evidence has no series has not been ruled out: it had nothing to look at.
    (missing if note else quiet).append(statement)


def unfiltered(query: str) -> str:
    """
    The query without a comparison with a number at its end.

    Such an evidence query is empty when all is well, which looks like having nothing to look at.
    """
    shorter = _COMPARISON.sub("", query)
    # Only where the comparison is the outermost part: then what is left stands for itself.
    balanced = all(shorter.count(a) == shorter.count(b) for a, b in ("()", "[]", "{}"))
    return shorter if balanced and not _SET_OPERATOR.search(shorter) else query


def for_job(template: str, job_id: str) -> str:
    """
    A rule's evidence annotation as a query about one job: the job is filled in, matchers of
    other labels match everything. Empty when something else remains to be filled in.
    """

    def matcher(found: re.Match[str]) -> str:
        if found[1] == "job_id":
            return f"job_id={promql.quote(job_id)}"
        return f'{found[1]}=~".*"'

    query = _MATCHER.sub(matcher, template)
    return "" if _LABEL.search(query) or "{{" in query else query


def _plots(
    prometheus: Prometheus,
    incident: Incident,
    end: float,
    left: _Budget,
    missing: list[dict[str, Any]],
    ledger: Ledger,
) -> list[dict[str, Any]]:
    start = incident.opened_at - _LOOKBACK
    step = max((end - start) / _POINTS, 1.0)
    plots = []
    for title, metric, label in _PLOTS:
        query = promql.selector(metric, {"job_id": incident.subject})
        if left.spent:
            missing.append(
                ledger.say(f"{title} was not asked: the time for evidence was used up", query, [], end)
            )
            continue
        try:
            series = prometheus.range(query, start, end, step)
        except PrometheusError as err:
            missing.append(ledger.say(f"{title}: no answer ({err.kind}: {err})", query, [], end))
            continue
        if not any(one.points for one in series):
            continue
        plots.append(
            {
                "title": title,
                "query": query,
                "start": start,
                "end": end,
                "step": step,
                "onset": incident.opened_at,
                "left_out": max(len(series) - 16, 0),
                "series": [
                    {
                        "name": f"{label} {one.labels[label]}" if one.labels.get(label) else one.name,
                        "points": [[at, number(value)] for at, value in one.points],
                    }
                    for one in sorted(series, key=lambda one: _order(one.labels.get(label, "")))[:16]
                ],
            }
        )
    return plots


def _order(label: str) -> tuple[int, str]:
    return (int(label), "") if label.isdigit() else (0, label)
