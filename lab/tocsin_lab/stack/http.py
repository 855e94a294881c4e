"""Small questions to the stack's own servers on the loopback address, past any proxy."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from tocsin_lab.errors import LabError

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
MAX_BODY = 32 * 1024 * 1024


def get(url: str, timeout: float = 5.0) -> str:
    """Return the body of *url*; LabError with the reason when there is no good answer."""
    if not url.startswith("http://"):
        raise LabError(f"{url}: only http:// addresses are asked")
    try:
        with _OPENER.open(url, timeout=timeout) as answer:
            body: bytes = answer.read(MAX_BODY)
    except urllib.error.HTTPError as err:
        with err:
            text = err.read(500).decode("utf-8", "replace")
        raise LabError(f"{url}: answered {err.code}: {text}") from err
    except (OSError, ValueError) as err:
        raise LabError(f"{url}: no answer ({err})") from err
    return body.decode("utf-8", "replace")


def answers(url: str) -> bool:
    """Tell whether *url* answers with success."""
    try:
        get(url, timeout=2.0)
    except LabError:
        return False
    return True


def query(prometheus: str, expression: str) -> list[tuple[dict[str, str], float]]:
    """Return the rows of an instant query as (labels, value); LabError when Prometheus does not answer."""
    url = f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    return [(row["metric"], float(row["value"][1])) for row in _result(url)]


def _result(url: str) -> list[dict[str, Any]]:
    try:
        body = json.loads(get(url))
    except ValueError as err:
        raise LabError(f"{url}: the answer is no JSON") from err
    if body.get("status") != "success":
        raise LabError(f"{url}: {body.get('error', 'no result')}")
    result: list[dict[str, Any]] = body["data"]["result"]
    return result
