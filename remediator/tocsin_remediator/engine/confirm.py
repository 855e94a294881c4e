"""Re-asking: the webhook is a hint, the recorded verdict is the fact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tocsin_remediator import promql
from tocsin_remediator.decide import Confirmation, Standing
from tocsin_remediator.errors import PrometheusError
from tocsin_remediator.prometheus import CONTRIBUTOR, RANKS_UP, VERDICT

GONE: Final = "the job's signal is gone"

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tocsin_remediator.model import Incident
    from tocsin_remediator.prometheus import Prometheus


def confirm(prometheus: Prometheus, incident: Incident, keys: Sequence[str]) -> Confirmation:
    """
    How Prometheus sees this incident's verdict now.

    `keys` are the labels that make the target. Asked by job alone: external labels of the webhook
    are on no series. No row proves absence only while the job's own series are still recorded.
    """
    subject = {"job_id": incident.subject}
    try:
        answer = prometheus.instant(promql.selector(VERDICT, subject))
        if answer.warnings:
            return Confirmation(Standing.INCONCLUSIVE, f"the answer may be partial: {answer.warnings[0]}")
        if not answer.samples:
            return _absent(prometheus, incident)
        rows = [dict(sample.labels) for sample in answer.samples]
        for row in rows:
            if row.get("family") != incident.family:
                continue
            other = [key for key in keys if row.get(key, "") != incident.labels.get(key, "")]
            if not other:
                return Confirmation(Standing.CONFIRMED, f"{VERDICT} still says {incident.family}", row)
            return Confirmation(
                Standing.SUPERSEDED, f"the verdict now names {other[0]}={row.get(other[0], '')!r} instead"
            )
        leader = rows[0].get("family", "?")
        contributors = prometheus.instant(
            promql.selector(CONTRIBUTOR, {**subject, "family": incident.family})
        )
        if contributors.samples:
            return Confirmation(Standing.OUTRANKED, f"{leader} leads this case; {incident.family} waits")
        return Confirmation(Standing.SUPERSEDED, f"the verdict is {leader} now")
    except PrometheusError as err:
        return Confirmation(Standing.INCONCLUSIVE, f"Prometheus gives no answer: {err}")


def _absent(prometheus: Prometheus, incident: Incident) -> Confirmation:
    guard = promql.selector(RANKS_UP, {"job_id": incident.subject})
    if prometheus.instant(guard).samples:
        return Confirmation(Standing.ABSENT, f"{VERDICT} has no row for {incident.subject}")
    return Confirmation(
        Standing.INCONCLUSIVE,
        f"neither a verdict nor {RANKS_UP} is recorded for {incident.subject}: {GONE}",
    )
