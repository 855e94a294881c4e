"""Asking Alertmanager for what a truncated notice left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tocsin_remediator import outbound, webhook
from tocsin_remediator.errors import BadNotification, PrometheusError, QueryFailure

if TYPE_CHECKING:
    from tocsin_remediator.model import Notification

_MAX_ANSWER: Final = 64 << 20
_TIMEOUT: Final = 10.0


def verdicts(url: str) -> Notification:
    """
    All verdicts that Alertmanager has active, as one notification.

    PrometheusError when it does not answer; nothing that is absent here counts as resolved.
    """
    with outbound.session() as asking:
        try:
            status, raw = outbound.fetch(
                asking,
                "GET",
                f"{url.rstrip('/')}/api/v2/alerts",
                params={"filter": 'alertname="TocsinVerdict"', "active": "true"},
                timeout=_TIMEOUT,
                limit=_MAX_ANSWER,
            )
        except outbound.Unanswered as err:
            raise PrometheusError(QueryFailure.UNREACHABLE, str(err)) from err
    if status != 200:
        raise PrometheusError(QueryFailure.BAD_ANSWER, f"{outbound.shown(url)} answered {status}")
    try:
        rows = json.loads(raw)
        # The API's status is an object; whatever it lists is firing.
        alerts = [{**row, "status": "firing"} for row in rows]
        body = json.dumps({"version": "4", "alerts": alerts, "externalURL": url})
        return webhook.parse(body.encode())
    except (ValueError, TypeError, BadNotification) as err:
        raise PrometheusError(
            QueryFailure.BAD_ANSWER, f"{outbound.shown(url)} gave an answer of unknown form: {err}"
        ) from err
