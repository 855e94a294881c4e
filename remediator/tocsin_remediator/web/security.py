"""Who may ask for what: tokens, CSRF, hosts. Comparisons take constant time."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from fastapi import HTTPException

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COOKIE: Final = "tocsin_csrf"

# No script anywhere; the only style is the site's own stylesheet.
PAGE_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def bearer(headers: Mapping[str, str]) -> bytes | None:
    """The bearer token of a request, if it has one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip().encode() if scheme.lower() == "bearer" and token.strip() else None


def matches(token: bytes, known: Sequence[bytes]) -> bool:
    """Whether the token is one of these; all are compared, whichever fits."""
    found = False
    for one in known:
        found |= hmac.compare_digest(token, one)
    return found


def operator(token: bytes, known: Sequence[tuple[str, bytes]]) -> str | None:
    """The name of the operator with this token."""
    name = None
    for who, one in known:
        if hmac.compare_digest(token, one):
            name = who
    return name


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Csrf:
    """Form tokens: an HMAC of a random cookie. The key is the journal's, so pages survive a restart."""

    def __init__(self, secret: str) -> None:
        self._key = secret.encode()

    def cookie(self, present: str | None) -> str:
        """The visitor's cookie; a new one when it has none of a usable form."""
        return present if present and len(present) == 43 else secrets.token_urlsafe(32)

    def token(self, cookie: str) -> str:
        """The form token that belongs to this cookie."""
        return hmac.new(self._key, cookie.encode(), sha256).hexdigest()

    def valid(self, cookie: str | None, token: str) -> bool:
        """Whether the form came from a page that this server gave to this visitor."""
        return bool(cookie) and hmac.compare_digest(self.token(cookie or "").encode(), token.encode())


def same_site(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that the request comes from our own page (or that it is no browser)."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host", "")


def host_allowed(headers: Mapping[str, str], allowed: Sequence[str]) -> bool:
    """
    Whether the Host header names this server.

    A foreign name that resolves to the loopback address would make its page same-origin with us.
    """
    host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    return is_loopback(host) or host in allowed


def unproven(by: str) -> str:
    """Who decided, where no token proves it; 400 when the decision has no name on it."""
    name = by.strip()
    if not name:
        raise HTTPException(400, "a decision needs the name of who makes it (by)")
    return f"{name} (no token configured)"
