"""Asking other servers over HTTP: bounded in time and size, never redirected, past any proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import requests
from urllib3.exceptions import HTTPError
from urllib3.exceptions import TimeoutError as ReadTimeout

if TYPE_CHECKING:
    from collections.abc import Mapping


class Unanswered(Exception):  # noqa: N818  says what happened
    """No whole answer. The text says why in words that are the same for the same cause."""

    def __init__(self, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.timed_out = timed_out


def session(headers: Mapping[str, str] | None = None) -> requests.Session:
    """A session that asks what the configuration names: proxies of the environment are no part of it."""
    made = requests.Session()
    made.trust_env = False
    made.headers.update(headers or {})
    return made


def shown(url: str) -> str:
    """The address as logs and pages may show it: without a password."""
    scheme, found, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return scheme + found + host.rpartition("@")[2] + slash + path


def fetch(
    asking: requests.Session, method: str, url: str, *, timeout: float, limit: int, **more: Any
) -> tuple[int, bytes]:
    """Status and body of one request, whatever the status; Unanswered, also for more than `limit` bytes."""
    try:
        with asking.request(
            method, url, timeout=timeout, allow_redirects=False, stream=True, **more
        ) as answer:
            body = answer.raw.read(limit + 1, decode_content=True)
    # Reading the body ourselves, we get urllib3's own errors too.
    except (requests.Timeout, ReadTimeout) as err:
        raise Unanswered(f"{shown(url)} did not answer in time", timed_out=True) from err
    except (requests.RequestException, HTTPError, OSError) as err:
        raise Unanswered(f"{shown(url)} cannot be asked: {_cause(err)}") from err
    if len(body) > limit:
        raise Unanswered(f"{shown(url)} answered with more than {limit} bytes")
    return answer.status_code, body


def _cause(err: BaseException) -> str:
    # The texts on top hold addresses of objects: no two are equal, and each would be a line of a timeline.
    at: BaseException | None = err
    last = err
    while at is not None:
        last = at
        if isinstance(at, OSError) and at.strerror:
            return at.strerror
        at = at.__cause__ or at.__context__
    return type(last).__name__
