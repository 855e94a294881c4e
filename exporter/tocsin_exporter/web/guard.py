"""Who may ask, and how often: the rate limit and the passwords of the web configuration."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from tocsin_exporter.web.connection import Connection
from tocsin_exporter.web.http import Answer, Request, text
from tocsin_exporter.web.reload import Settings

if TYPE_CHECKING:
    from tocsin_exporter.web.auth import Passwords

__all__ = ["Guard", "Ticket"]

Ticket = tuple[Connection, Request]

_BUSY = {"Retry-After": "1"}


class Guard:
    """Runs in the loop's thread; *deliver* is called from the passwords' thread."""

    def __init__(
        self, deliver: Callable[[Ticket, bool], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._deliver = deliver
        self._clock = clock
        self._passwords: Passwords[Ticket] | None = None
        self._tokens = 0.0
        self._filled: float | None = None

    def stop(self) -> None:
        """End the passwords' thread."""
        if self._passwords is not None:
            self._passwords.stop()

    def admit(
        self, settings: Settings, request: Request, address: str, ticket: Ticket
    ) -> Answer | bool | None:
        """Return True, a refusal, or None when *ticket* will be delivered with the outcome."""
        if not self._take_token(settings):
            return text(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", _BUSY)
        if not settings.users:
            return True
        # hashlib and bcrypt are worth their memory only where there are users.
        from tocsin_exporter.web import auth

        if self._passwords is None:
            self._passwords = auth.Passwords(self._deliver)
        given = auth.credentials(request.fields.get("authorization", ""))
        if given is None:
            return self.refusal()
        if self._passwords.known(settings.users, given):
            return True
        if self._passwords.ask(settings.users, given, address, ticket):
            return None
        return text(HTTPStatus.TOO_MANY_REQUESTS, "too many passwords wait to be compared", _BUSY)

    @staticmethod
    def refusal() -> Answer:
        """Return the answer to a wrong or missing password."""
        challenge = {"WWW-Authenticate": 'Basic realm="tocsin-exporter", charset="UTF-8"'}
        return text(HTTPStatus.UNAUTHORIZED, "name and password are needed", challenge)

    def _take_token(self, settings: Settings) -> bool:
        """Say whether the rate limit lets one request more through."""
        if not settings.interval:
            return True
        now = self._clock()
        passed = now - self._filled if self._filled is not None else float("inf")
        self._filled = now
        self._tokens = min(settings.burst, self._tokens + passed / settings.interval)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
