"""
The web configuration file, in the form that Prometheus and its exporters share.

What is accepted here passes ``promtool check web-config``. The reverse does not hold: what Python's `ssl`
cannot do, and what would leave the exporter open or shut to everyone, is refused with the reason. Messages
and representations never hold a key, a hash or a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import yaml

from tocsin_exporter.errors import ConfigError

__all__ = ["FLAG", "Material", "RateLimit", "TlsSettings", "WebConfig", "parse"]

FLAG = "--web.config.file"

# Header fields that may be set, and the values that some of them are held to.
_HEADERS: dict[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
_HASH = re.compile(r"\$2[abxy]?\$([0-9]{2})\$[./A-Za-z0-9]{53}")
# At 16 one comparison takes four seconds, which is most of a scrape's time.
MOST_COST = 16
MOST_USERS = 100
_TRUE, _FALSE = ("true", "yes", "on", "y"), ("false", "no", "off", "n")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NULL, _STRING = "tag:yaml.org,2002:null", "tag:yaml.org,2002:str"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Material:
    """A certificate or key: in a file, or as text in the web configuration itself."""

    name: str
    path: Path | None
    text: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """``tls_server_config`` with TLS on. Names are those of the file, checked by the tls module."""

    cert: Material
    key: Material
    client_ca: Material | None
    client_auth: str
    allowed_sans: frozenset[str]
    min_version: str
    max_version: str
    cipher_suites: tuple[str, ...]
    prefer_server_suites: bool
    curves: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RateLimit:
    """One request per ``interval`` seconds on average, ``burst`` at once."""

    interval: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The whole file. ``users``: name → bcrypt hash."""

    tls: TlsSettings | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    rate_limit: RateLimit | None = None


def parse(body: bytes, path: Path) -> WebConfig:
    """Return what *body* says; relative paths in it start at the folder of *path*. Raises ConfigError."""
    return _File(path).read(body)


class _File:
    """Walks the nodes of one file, so that a message has the line and a scalar its own spelling."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, body: bytes) -> WebConfig:
        try:
            root = yaml.compose(body, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as err:
            line = err.problem_mark.line + 1 if err.problem_mark else 1
            # Not the library's own text: it quotes the line, which may hold a hash.
            raise ConfigError(f"{FLAG}: {self._path}:{line}: not YAML: {err.problem}") from None
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
            raise ConfigError(f"{FLAG}: {self._path}: not YAML") from None
        top = self._mapping(
            root, ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
        )
        return WebConfig(
            tls=self._tls(top.get("tls_server_config")),
            headers=self._headers(top.get("http_server_config")),
            users=self._users(top.get("basic_auth_users")),
            rate_limit=self._rate(top.get("rate_limit")),
        )

    def _fail(self, node: yaml.Node | None, detail: str) -> ConfigError:
        line = f":{node.start_mark.line + 1}" if node is not None and node.start_mark else ""
        return ConfigError(f"{FLAG}: {self._path}{line}: {detail}")

    def _tls(self, node: yaml.Node | None) -> TlsSettings | None:
        rows = self._mapping(
            node,
            (
                "cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file", "client_auth_type",
                "client_allowed_sans", "min_version", "max_version", "cipher_suites",
                "prefer_server_cipher_suites", "curve_preferences",
            ),
        )  # fmt: skip
        cert, key, client_ca = (self._material(rows, name) for name in ("cert", "key", "client_ca"))
        auth = self._string(rows.get("client_auth_type"))
        sans = self._strings(rows.get("client_allowed_sans"))
        if not rows:
            return None
        if cert is None or key is None:
            lacks = "cert_file" if cert is None else "key_file"
            raise self._fail(node, f"tls_server_config has no {lacks}, so there would be no TLS")
        settings = TlsSettings(
            cert=cert,
            key=key,
            client_ca=client_ca,
            client_auth=auth or "NoClientCert",
            allowed_sans=frozenset(sans or ()),
            min_version=self._string(rows.get("min_version")) or "TLS12",
            max_version=self._string(rows.get("max_version")) or "TLS13",
            cipher_suites=self._strings(rows.get("cipher_suites")) or (),
            prefer_server_suites=self._boolean(rows.get("prefer_server_cipher_suites"), default=True),
            curves=self._strings(rows.get("curve_preferences")) or (),
        )
        if client_ca is not None and settings.client_auth == "NoClientCert":
            raise self._fail(node, "client_ca_file without a client_auth_type that asks for a certificate")
        if client_ca is None and settings.client_auth in (
            "VerifyClientCertIfGiven",
            "RequireAndVerifyClientCert",
        ):
            raise self._fail(
                node,
                f"client_auth_type {settings.client_auth} needs client_ca_file: without it every client with "
                "a certificate of any public authority would be let in",
            )
        if sans is not None and (not sans or settings.client_auth != "RequireAndVerifyClientCert"):
            raise self._fail(
                node,
                "client_allowed_sans needs a name and client_auth_type RequireAndVerifyClientCert: otherwise "
                "it keeps nobody or everybody out",
            )
        return settings

    def _material(self, rows: Mapping[str, yaml.Node], name: str) -> Material | None:
        inline, file = self._string(rows.get(name)), self._string(rows.get(f"{name}_file"))
        if inline and file:
            raise self._fail(rows[name], f"{name} and {name}_file are both there; keep one")
        if file:
            return Material(f"{name}_file", self._path.parent / file)
        return Material(name, None, inline) if inline else None

    def _headers(self, node: yaml.Node | None) -> tuple[tuple[str, str], ...]:
        rows = self._mapping(node, ("http2", "headers"))
        # Offered, not demanded, by the form: a server without it speaks HTTP/1.1 to the same clients.
        self._boolean(rows.get("http2"), default=True)
        found: list[tuple[str, str]] = []
        for name, value in self._mapping(rows.get("headers"), None).items():
            if name not in _HEADERS:
                raise self._fail(value, f"header {name!r} cannot be set; {', '.join(_HEADERS)} can")
            text, allowed = self._string(value), _HEADERS[name]
            if allowed and text not in allowed:
                raise self._fail(value, f"{name} must be {' or '.join(allowed)}, not {text!r}")
            if not text.isprintable() or not text.isascii():
                raise self._fail(value, f"the value of {name} has characters that a header cannot carry")
            if text:
                found.append((name, text))
        return tuple(found)

    def _users(self, node: yaml.Node | None) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        rows = self._mapping(node, None)
        if len(rows) > MOST_USERS:
            raise self._fail(node, f"more than {MOST_USERS} basic_auth_users; use client certificates")
        for name, value in rows.items():
            if ":" in name or not name.isprintable():
                raise self._fail(value, f"user name {name!r} cannot be sent by any client")
            known = _HASH.fullmatch(self._string(value))
            if known is None:
                raise self._fail(
                    value, f"the password of {name!r} is not a bcrypt hash; make one with htpasswd -nBC 10 ''"
                )
            if not 4 <= int(known[1]) <= MOST_COST:
                raise self._fail(
                    value,
                    f"the bcrypt cost {known[1]} of {name!r} is out of range; it must lie between 4 and "
                    f"{MOST_COST}, or one comparison takes longer than a scrape may",
                )
            found[name] = known[0].encode()
        return found

    def _rate(self, node: yaml.Node | None) -> RateLimit | None:
        rows = self._mapping(node, ("interval", "burst"))
        text = self._string(rows.get("interval")) or "0"
        burst = self._string(rows.get("burst")) or "0"
        interval = _go_duration(text)
        if interval is None:
            raise self._fail(rows["interval"], f"interval {text!r} is not a duration such as 100ms or 1m30s")
        if not burst.isascii() or not burst.removeprefix("-").isdigit():
            raise self._fail(rows["burst"], f"burst {burst!r} is not a number")
        if not interval:
            return None
        if interval < 0 or not 1 <= int(burst) <= 1_000_000:
            raise self._fail(
                node, "rate_limit needs a positive interval and a burst of at least 1, or nobody is answered"
            )
        return RateLimit(interval, int(burst))

    def _mapping(self, node: yaml.Node | None, keys: Iterable[str] | None) -> dict[str, yaml.Node]:
        """Return the entries of a mapping that are set; *keys* are the only ones it may have."""
        if node is None or node.tag == _NULL:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise self._fail(node, "a mapping of names to values is needed here")
        seen: set[str] = set()
        found: dict[str, yaml.Node] = {}
        allowed = None if keys is None else tuple(keys)
        for name_node, value in node.value:
            name = self._string(name_node)
            if allowed is not None and name not in allowed:
                raise self._fail(name_node, f"unknown key {name[:100]!r}; known: {', '.join(allowed)}")
            if name in seen:
                raise self._fail(name_node, f"{name[:100]!r} is there twice")
            seen.add(name)
            # An open mapping may have null values (a user without a hash), a closed one means "not set".
            if allowed is None or value.tag != _NULL:
                found[name] = value
        return found

    def _scalar(self, node: yaml.Node | None, default: _T, read: Callable[[yaml.ScalarNode], _T]) -> _T:
        if node is None or node.tag == _NULL:
            return default
        if not isinstance(node, yaml.ScalarNode):
            raise self._fail(node, "a single value is needed here")
        return read(node)

    def _string(self, node: yaml.Node | None) -> str:
        return self._scalar(node, "", lambda scalar: str(scalar.value))

    def _strings(self, node: yaml.Node | None) -> tuple[str, ...] | None:
        if node is None or node.tag == _NULL:
            return None
        if not isinstance(node, yaml.SequenceNode):
            raise self._fail(node, "a list is needed here")
        return tuple(self._string(item) for item in node.value)

    def _boolean(self, node: yaml.Node | None, *, default: bool) -> bool:
        def read(scalar: yaml.ScalarNode) -> bool:
            # "true" in quotes is a text.
            word = "" if scalar.style else str(scalar.value).lower()
            if word not in (*_TRUE, *_FALSE):
                raise self._fail(scalar, "true or false is needed here")
            return word in _TRUE

        return self._scalar(node, default, read)


def _go_duration(text: str) -> float | None:
    """Return the seconds of a duration as Go writes it; a bare number is nanoseconds."""
    sign, bare = (-1.0, text[1:]) if text[:1] == "-" else (1.0, text.removeprefix("+"))
    if bare.isascii() and bare.isdigit():
        return sign * int(bare) * 1e-9
    parts = list(_DURATION.finditer(bare))
    if not parts or "".join(part[0] for part in parts) != bare:
        return None
    return sign * sum(float(part[1]) * _UNITS[part[2]] for part in parts)
