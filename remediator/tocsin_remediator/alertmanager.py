"""Asking Alertmanager for what a truncated notice left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import requests

from tocsin_remediator import webhook
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
    session = requests.Session()
    session.trust_env = False
    try:
        with session.get(
            f"{url.rstrip('/')}/api/v2/alerts",
            params={"filter": 'alertname="TocsinVerdict"', "active": "true"},
            timeout=_TIMEOUT,
            allow_redirects=False,
            stream=True,
        ) as answer:
            raw = answer.raw.read(_MAX_ANSWER + 1, decode_content=True)
            if answer.status_code != 200 or len(raw) > _MAX_ANSWER:
                raise PrometheusError(QueryFailure.BAD_ANSWER, f"{url} answered {answer.status_code}")
    except (requests.RequestException, OSError) as err:
        raise PrometheusError(QueryFailure.UNREACHABLE, f"{url} cannot be asked: {err}") from err
    finally:
        session.close()
    try:
        rows = json.loads(raw)
        # The API's status is an object; whatever it lists is firing.
        alerts = [{**row, "status": "firing"} for row in rows]
        body = json.dumps({"version": "4", "alerts": alerts, "externalURL": url})
        return webhook.parse(body.encode())
    except (ValueError, TypeError, BadNotification) as err:
        raise PrometheusError(
            QueryFailure.BAD_ANSWER, f"{url} gave an answer of unknown form: {err}"
        ) from err
