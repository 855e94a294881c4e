"""Certificates, a scrape to serve and raw clients, for the tests of the web surface."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tocsin_exporter.web.reload import Reloader
from tocsin_exporter.web.server import Limits, MetricsServer
from tocsin_exporter.web.stats import WebStats

TEXT = '# HELP a A.\n# TYPE a gauge\na{node="n"} 1\n'
ADDRESS = ("127.0.0.1", 0)
Answer = tuple[int, dict[str, str], bytes]


class Registry:
    """A scrape of *text* that takes *seconds*, and a count of how many were made."""

    def __init__(self, text: str = TEXT, seconds: float = 0.0) -> None:
        self.text = text
        self.seconds = seconds
        self.scrapes = 0

    def scrape(self, *, openmetrics: bool = False) -> str:
        self.scrapes += 1
        time.sleep(self.seconds)
        return self.text + ("# EOF\n" if openmetrics else "")

    def status(self) -> Iterable[tuple[str, str]]:
        return [("gpu", "ok"), ("fabric", "no_permission <b>")]


@contextmanager
def serving(
    registry: Registry | None = None,
    config: Path | None = None,
    *,
    limits: Limits | None = None,
    stats: WebStats | None = None,
    look: float = 0.02,
) -> Iterator[MetricsServer]:
    """Serve until the end of the block; *look*: seconds between two looks at the configuration."""
    stats = stats or WebStats()
    server = MetricsServer(
        [ADDRESS],
        registry or Registry(),
        "<node>",
        stats=stats,
        reloader=Reloader(config, stats, look=look),
        limits=limits,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def limits(**more: float) -> Limits:
    """Return the server's limits with some of them changed."""
    made = Limits()
    for name, value in more.items():
        setattr(made, name, value)
    return made


def ask(
    server: MetricsServer,
    path: str = "/metrics",
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send one request on a connection of its own."""
    port = server.ports[0]
    connection: http.client.HTTPConnection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        if tls is None
        else http.client.HTTPSConnection("localhost", port, timeout=10, context=tls)
    )
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def connect(server: MetricsServer, sent: bytes = b"") -> socket.socket:
    """Open a connection and send *sent*."""
    raw = socket.create_connection(("127.0.0.1", server.ports[0]), timeout=10)
    if sent:
        raw.sendall(sent)
    return raw


def read_all(raw: socket.socket) -> bytes:
    """Return everything until the server closes."""
    found = b""
    while chunk := raw.recv(65536):
        found += chunk
    return found


def eventually(fact: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Say whether *fact* comes true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if fact():
            return True
        time.sleep(0.02)
    return fact()


def stat(stats: WebStats, name: str, *labels: str) -> float | None:
    """Return the value of one of the server's own series, None when it has no sample."""
    return next(
        (one.value for one in stats.samples() if one.family == name and one.labels == labels), None
    )


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


class Authority:
    """A certificate authority in *folder*, made by the openssl program."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign",
            "-keyout", str(self._key), "-out", str(self.certificate),
        )  # fmt: skip

    def issue(self, name: str, sans: str = "DNS:localhost,IP:127.0.0.1") -> tuple[Path, Path]:
        """Return certificate and key for *name*."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-addext", f"subjectAltName={sans}",
            "-addext", "basicConstraints=critical,CA:FALSE", "-addext", "keyUsage=critical,digitalSignature",
            "-CA", str(self.certificate), "-CAkey", str(self._key),
            "-keyout", str(key), "-out", str(certificate),
        )  # fmt: skip
        return certificate, key

    def client(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return a client's context that trusts this authority and shows *certificate*."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context
