"""
Reads the web configuration file and what it names, and again when any of it changes.

A thread of its own looks: a file system that hangs stops the reloading and nothing else. A new file that
is broken, or that would turn TLS, passwords or the check of client certificates off, changes nothing: an
empty or shortened file is what a writer leaves half way, and it would open the exporter to everyone.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin_exporter.errors import ConfigError, SourceError
from tocsin_exporter.sources.procfs import read_small
from tocsin_exporter.web.stats import WebStats

if TYPE_CHECKING:
    import ssl

    from tocsin_exporter.web.webconfig import WebConfig

__all__ = ["Reloader", "Settings"]

log = logging.getLogger(__name__)

# A certificate's owner replaces it days before it ends.
LOOK_SECONDS = 5.0
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """What the server goes by. A connection keeps its ``tls_state`` until it ends."""

    users: dict[str, bytes] = field(default_factory=dict, repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    interval: float = 0.0
    burst: int = 0
    tls: ssl.SSLContext | None = None
    allowed_sans: frozenset[str] = frozenset()
    tls_state: str = ""


class Reloader:
    """
    Holds the settings of the file at *path*; without one, the settings of a server that is open to all.

    Raises:
        ConfigError: The file as it is now cannot be used.

    """

    def __init__(
        self,
        path: Path | None,
        stats: WebStats,
        *,
        wall: Callable[[], float] = time.time,
        look: float = LOOK_SECONDS,
    ) -> None:
        self._path = path
        self._stats = stats
        self._wall = wall
        self._look = look
        self._end = threading.Event()
        self._parsed: tuple[bytes, WebConfig] | None = None
        # What the last look found: a digest, or why there is none.
        self._seen = self._used = ""
        self._good_at = 0.0
        self.current = Settings()
        if path is not None:
            config, bodies, self._used = self._read(path)
            self._seen = self._used
            self.current = self._settings(config, bodies)
            self._taken_over(path, config)
        self._thread = threading.Thread(target=self._run, name="web-config", daemon=True)

    def start(self) -> None:
        """Look for changes from a thread, when there is a file to look at."""
        if self._path is not None:
            self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(self._look):
            try:
                self.look()
            except Exception:
                # A thread that ends would leave a renewed certificate unseen until the old one expires.
                log.exception("web configuration cannot be looked at")
                self._stats.configured(False, self._good_at)

    def look(self) -> None:
        """Take over what has changed; keep what is in use when it cannot be used."""
        if self._path is None:
            return
        try:
            config, bodies, state = self._read(self._path)
        except ConfigError as err:
            if self._seen != str(err):
                self._seen = str(err)
                self._kept(err)
            return
        if state == self._seen:
            return
        self._seen = state
        try:
            if state != self._used:
                fresh = self._settings(config, bodies)
                self._refuse_opening(fresh)
                self.current, self._used = fresh, state
        except ConfigError as err:
            self._kept(err)
        else:
            self._taken_over(self._path, config)

    def _refuse_opening(self, fresh: Settings) -> None:
        for what, now, then in (
            ("TLS", self.current.tls is not None, fresh.tls is not None),
            ("passwords", bool(self.current.users), bool(fresh.users)),
            ("client certificates", _certificates_needed(self.current), _certificates_needed(fresh)),
            ("client_allowed_sans", bool(self.current.allowed_sans), bool(fresh.allowed_sans)),
        ):
            if now and not then:
                raise ConfigError(
                    f"--web.config.file: {self._path} would turn {what} off, which takes a restart"
                )

    def _taken_over(self, path: Path, config: WebConfig) -> None:
        self._good_at = self._wall()
        self._stats.configured(True, self._good_at)
        _warn_of_readers(path, config)
        log.info("web configuration in use path=%s tls=%s", path, "on" if config.tls else "off")

    def _kept(self, err: ConfigError) -> None:
        self._stats.configured(False, self._good_at)
        log.error("web configuration not taken over, the one before stays in use: %s", err)

    def _read(self, path: Path) -> tuple[WebConfig, dict[str, bytes], str]:
        """Return what the file says, the bytes of each certificate or key by its name, a digest of it all."""
        # YAML, and ssl below, are worth their memory only to those who configure something.
        from tocsin_exporter.web import webconfig

        body = _read_file(path, "the file")
        if self._parsed is None or self._parsed[0] != body:
            self._parsed = body, webconfig.parse(body, path)
        config = self._parsed[1]
        bodies: dict[str, bytes] = {}
        if config.tls is not None:
            for material in (config.tls.cert, config.tls.key, config.tls.client_ca):
                if material is not None:
                    bodies[material.name] = (
                        material.text.encode()
                        if material.path is None
                        else _read_file(material.path, material.name)
                    )
        return config, bodies, _digest(body, bodies)

    @staticmethod
    def _settings(config: WebConfig, bodies: dict[str, bytes]) -> Settings:
        context = None
        if config.tls is not None:
            from tocsin_exporter.web import tls

            context = tls.build(config.tls, bodies)
        if config.users:
            from tocsin_exporter.web import auth

            auth.require_bcrypt()
        limit = config.rate_limit
        return Settings(
            users=dict(config.users),
            headers=config.headers,
            interval=limit.interval if limit else 0.0,
            burst=limit.burst if limit else 0,
            tls=context,
            allowed_sans=config.tls.allowed_sans if config.tls else frozenset(),
            tls_state=_digest(repr(config.tls).encode(), bodies),
        )


def _certificates_needed(settings: Settings) -> bool:
    if settings.tls is None:
        return False
    import ssl

    return settings.tls.verify_mode is ssl.CERT_REQUIRED


def _read_file(path: Path, what: str) -> bytes:
    """Return the bytes of a file; ConfigError names *what* it is, its path and the reason."""
    try:
        body = read_small(path, _MOST_BYTES + 1)
    except SourceError as err:
        raise ConfigError(f"--web.config.file: {what} cannot be read: {err.detail}") from None
    if len(body) > _MOST_BYTES:
        raise ConfigError(f"--web.config.file: {what} {path} has more than 1 MiB")
    return body


def _warn_of_readers(path: Path, config: WebConfig) -> None:
    """Say when everyone on the node can read a key."""
    if config.tls is None:
        return
    secret = config.tls.key.path or path
    try:
        mode = os.stat(secret).st_mode
    except OSError:
        return
    if mode & stat.S_IROTH:
        log.warning("every user of this node can read the TLS key path=%s; chmod o-r it", secret)


def _digest(body: bytes, bodies: dict[str, bytes]) -> str:
    import hashlib

    whole = hashlib.sha256()
    for part in (body, *(piece for name in sorted(bodies) for piece in (name.encode(), bodies[name]))):
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()
