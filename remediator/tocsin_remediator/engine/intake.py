"""From the inbox to one open incident per (family, target)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tocsin_remediator import typed
from tocsin_remediator.engine import planning
from tocsin_remediator.errors import Refused

if TYPE_CHECKING:
    from tocsin_remediator.engine.context import Context
    from tocsin_remediator.model import Alert, InboxItem

_VERDICT_ALERT: Final = "TocsinVerdict"


def settled(alert: Alert) -> str | None:
    """The result of an alert that opens nothing: it is context, which Prometheus knows better."""
    if alert.labels.get("alertname") == _VERDICT_ALERT:
        return None
    return "context: only TocsinVerdict opens incidents"


def handle(context: Context, item: InboxItem) -> str:
    """
    Deal with one alert; how, as the inbox keeps it.

    Only verdicts open incidents. A `resolved` notice proves nothing and only has its incidents
    looked at again.
    """
    alert = item.alert
    other = settled(alert)
    if other is not None:
        context.metrics.inbox.labels("context").inc()
        return other
    try:
        subject = typed.check("job_id", alert.labels.get("job_id", ""))
        family = typed.check("family", alert.labels.get("family", ""))
        if not alert.firing:
            return _recheck(context, subject, family)
        target = _target(context, family, alert)
    except Refused as err:
        context.metrics.inbox.labels("refused").inc()
        return f"refused: {err}"
    now = context.now()
    incident, opened = context.journal.incidents.open(
        family=family,
        target=target,
        subject=subject,
        labels=alert.labels,
        annotations=alert.annotations,
        now=now,
    )
    if opened:
        context.metrics.inbox.labels("opened").inc()
        return f"opened incident {incident.id}"
    context.metrics.inbox.labels("merged").inc()
    if incident.next_at > now:
        context.journal.incidents.wake(incident.id, now)
    return f"merged into incident {incident.id}, delivered by {item.external_url or 'an unnamed sender'}"


def _target(context: Context, family: str, alert: Alert) -> str:
    book = context.books.get(family)
    if book is None:
        return planning.canonical(["job_id"], {"job_id": typed.check("job_id", alert.labels["job_id"])})
    values = planning.target_values(book, alert.labels)
    return planning.canonical(book.spec.target.key, values)


def _recheck(context: Context, subject: str, family: str) -> str:
    woken = [one for one in context.journal.incidents.open_of_subject(subject) if one.family == family]
    for incident in woken:
        context.journal.incidents.wake(incident.id, context.now())
    context.metrics.inbox.labels("recheck").inc()
    return f"resolved notice: {len(woken)} incidents are asked about again"
