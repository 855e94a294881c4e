"""Alertmanager's webhook body (version 4) into types, strictly enough that nothing odd gets further."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from tocsin_remediator.errors import BadNotification
from tocsin_remediator.model import Alert, Notification

_MAX_DEPTH: Final = 32
_MAX_ALERTS: Final = 20_000
_MAX_LABELS: Final = 128
_MAX_TEXT: Final = 65_536
_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_STATUSES: Final = ("firing", "resolved")


def parse(body: bytes) -> Notification:
    """
    The notification in `body`; unknown fields are ignored.

    BadNotification, with what is wrong, when it can never be read.
    """
    value = _json(body)
    if not isinstance(value, dict):
        raise BadNotification("the body is not a JSON object")
    if value.get("version") != "4":
        raise BadNotification(
            f'version is {str(value.get("version"))[:40]!r}, not "4": this is not '
            "Alertmanager's standard webhook payload"
        )
    alerts = value.get("alerts")
    if not isinstance(alerts, list):
        raise BadNotification("alerts is not a list")
    if len(alerts) > _MAX_ALERTS:
        raise BadNotification(f"more than {_MAX_ALERTS} alerts in one notice; set max_alerts in the receiver")
    truncated = value.get("truncatedAlerts", 0)
    if isinstance(truncated, bool) or not isinstance(truncated, int) or truncated < 0:
        raise BadNotification("truncatedAlerts is no count")
    return Notification(
        receiver=_text(value, "receiver", "", ""),
        group_key=_text(value, "groupKey", "", ""),
        external_url=_text(value, "externalURL", "", ""),
        truncated=truncated,
        alerts=tuple(_alert(alert, f"alerts[{place}]") for place, alert in enumerate(alerts)),
    )


def _alert(value: object, where: str) -> Alert:
    if not isinstance(value, dict):
        raise BadNotification(f"{where} is not an object")
    status = value.get("status")
    if status not in _STATUSES:
        raise BadNotification(f"{where}.status is neither firing nor resolved")
    labels = _texts(value, "labels", where)
    if not labels.get("alertname"):
        raise BadNotification(f"{where}.labels has no alertname")
    return Alert(
        status=str(status),
        labels=labels,
        annotations=_texts(value, "annotations", where),
        # Times are for display: startsAt moves between notices, endsAt of a firing alert is year 1.
        starts_at=_text(value, "startsAt", where, "")[:64],
        fingerprint=_text(value, "fingerprint", where, "")[:128],
    )


def _texts(value: dict[str, Any], key: str, where: str) -> dict[str, str]:
    found = value.get(key, {})
    if not isinstance(found, dict):
        raise BadNotification(f"{where}.{key} is not an object")
    if len(found) > _MAX_LABELS:
        raise BadNotification(f"{where}.{key} has more than {_MAX_LABELS} entries")
    for name, text in found.items():
        if not isinstance(text, str):
            raise BadNotification(f"{where}.{key}.{name[:60]} is not text")
        _bounded(text, f"{where}.{key}.{name[:60]}")
        _bounded(name, f"a name in {where}.{key}")
    return found


def _text(value: dict[str, Any], key: str, where: str, default: str) -> str:
    found = value.get(key, default)
    name = f"{where}.{key}" if where else key
    if not isinstance(found, str):
        raise BadNotification(f"{name} is not text")
    return _bounded(found, name)


def _bounded(text: str, name: str) -> str:
    if len(text) > _MAX_TEXT:
        raise BadNotification(f"{name} is longer than {_MAX_TEXT} characters")
    try:
        # A lone surrogate is legal JSON and can be stored nowhere; NUL ends text in PostgreSQL.
        text.encode("utf-8")
    except UnicodeEncodeError as err:
        raise BadNotification(f"{name} is not Unicode text") from err
    if "\x00" in text:
        raise BadNotification(f"{name} contains NUL")
    return text


def _json(body: bytes) -> object:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as err:
        raise BadNotification("the body is not UTF-8") from err
    if _depth(text) > _MAX_DEPTH:
        raise BadNotification(f"the body is nested deeper than {_MAX_DEPTH}")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except BadNotification:
        raise
    except (ValueError, RecursionError) as err:
        raise BadNotification(f"the body is not JSON: {err}") from err


def _depth(text: str) -> int:
    # Before parsing, since the parser recurses; brackets in strings do not count.
    deepest = depth = 0
    for found in _BRACKET.finditer(text):
        char = found[0]
        if char in "[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > _MAX_DEPTH:
                break
        elif char in "]}":
            depth -= 1
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadNotification(f"key {twice[:60]!r} stands twice in one object")
    return found


def _constant(name: str) -> object:
    raise BadNotification(f"{name} is no JSON number")
