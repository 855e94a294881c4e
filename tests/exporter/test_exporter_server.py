"""The HTTP server: what it answers, and whom it does not let hold it up."""

from __future__ import annotations

import gzip
import http.client
import socket
import time
from collections.abc import Iterator

import pytest

from tocsin_exporter import server as module
from tocsin_exporter.errors import ConfigError
from tocsin_exporter.server import MetricsServer

TEXT = '# HELP a A.\n# TYPE a gauge\na{node="n"} 1\n'


class Registry:
    """A scrape that can be made to fail."""

    def __init__(self) -> None:
        self.scrapes = 0

    def scrape(self, *, openmetrics: bool = False) -> str:
        self.scrapes += 1
        return TEXT + ("# EOF\n" if openmetrics else "")


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def server(registry: Registry) -> Iterator[MetricsServer]:
    running = MetricsServer("127.0.0.1", 0, registry, "<node>", poll=0.02)
    running.start()
    yield running
    running.stop()


def ask(
    server: MetricsServer,
    path: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


# What Prometheus 3.5 and 2.42 send.
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        pytest.param(PROMETHEUS_3, "application/openmetrics-text", id="Prometheus 3"),
        pytest.param(PROMETHEUS_2, "application/openmetrics-text", id="Prometheus 2"),
        pytest.param("text/plain;version=0.0.4", "text/plain", id="text only"),
        pytest.param("text/html,*/*;q=0.8", "text/plain", id="browser"),
        pytest.param("application/openmetrics-text;q=0", "text/plain", id="refused"),
        pytest.param("application/openmetrics-text;q=x, text/plain", "text/plain", id="nonsense"),
        pytest.param("", "text/plain", id="nothing"),
    ],
)
def test_the_client_chooses_the_format(server: MetricsServer, accept: str, kind: str) -> None:
    """OpenMetrics for those who prefer it, text for all others, said in the content type."""
    status, headers, body = ask(server, "/metrics", headers={"Accept": accept})

    assert (200, kind) == (status, headers["content-type"].partition(";")[0])
    assert (kind != "text/plain") == body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [("gzip", True), ("deflate, gzip;q=0.5", True), ("gzip;q=0", False), ("identity", False), ("", False)],
)
def test_the_client_chooses_the_encoding(server: MetricsServer, encoding: str, packed: bool) -> None:
    """A scrape is packed for those who take it."""
    _, headers, body = ask(server, "/metrics", headers={"Accept-Encoding": encoding})

    assert packed == (headers.get("content-encoding") == "gzip")
    assert TEXT == (gzip.decompress(body) if packed else body).decode()


def test_other_pages(server: MetricsServer, registry: Registry) -> None:
    """Health asks no collector, the landing page escapes the node's name, other paths do not exist."""
    assert (200, b"ok\n") == ask(server, "/-/healthy")[::2]
    assert b"&lt;node&gt;" in ask(server, "/")[2]
    assert 404 == ask(server, "/metrics/../etc/passwd")[0]
    assert 0 == registry.scrapes


def test_head_has_the_headers_and_no_body(server: MetricsServer) -> None:
    """HEAD answers as GET would, without the body."""
    status, headers, body = ask(server, "/metrics", method="HEAD")

    assert (200, str(len(TEXT)), b"") == (status, headers["content-length"], body)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reading_is_allowed(server: MetricsServer, registry: Registry, method: str) -> None:
    """No method changes anything, and the answer says which ones there are."""
    status, headers, _ = ask(server, "/metrics", method=method, body=b"x" if method == "POST" else None)

    assert (405, "GET, HEAD") == (status, headers["allow"])
    assert 0 == registry.scrapes


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", id="TLS"),
        pytest.param(b"GET\r\n\r\n", id="no path"),
        pytest.param(b"GET /metrics HTTP/9.9\r\n\r\n", id="no such version"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n", id="too many headers"),
        pytest.param(b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n", id="too long a path"),
    ],
)
def test_malformed_requests_are_answered_and_survived(server: MetricsServer, sent: bytes) -> None:
    """Nonsense gets a 4xx or 505, and the next request is served."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.sendall(sent)
        raw.settimeout(5)
        answer = raw.recv(4096)

    assert b" 4" in answer[:400] or b" 505" in answer[:400]
    assert 200 == ask(server, "/metrics")[0]


def test_a_body_does_not_become_the_next_request(server: MetricsServer, registry: Registry) -> None:
    """A GET with a body closes the connection, so that the body is not taken for a request."""
    smuggled = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.sendall(
            b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(smuggled) + smuggled
        )
        raw.settimeout(5)
        while raw.recv(4096):
            pass

    assert 0 == registry.scrapes


def test_silent_connections_do_not_hold_up_a_scrape(server: MetricsServer) -> None:
    """With a few dozen connections open that never finish their request, a scrape is served."""
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(module.MAX_CONNECTIONS // 2)]
    try:
        for raw in idle:
            raw.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert 200 == ask(server, "/metrics")[0]
    finally:
        for raw in idle:
            raw.close()


def test_too_many_connections_are_refused_and_the_server_recovers(server: MetricsServer) -> None:
    """Beyond the limit a client gets 503; when the others leave, it is served."""
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(module.MAX_CONNECTIONS)]
    end = time.monotonic() + 5
    statuses = set()
    while 503 not in statuses and time.monotonic() < end:
        statuses.add(ask(server, "/-/healthy")[0])
    for raw in idle:
        raw.close()
    while time.monotonic() < end and ask(server, "/-/healthy")[0] != 200:
        time.sleep(0.05)

    assert 503 in statuses
    assert 200 == ask(server, "/metrics")[0]


def test_a_request_that_drips_is_cut_off(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However steadily bytes come, a request has an end in time."""
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.sendall(b"GET /metrics HTTP/1.1\r\n")
        closed = False
        for _ in range(60):
            try:
                raw.sendall(b"X")
                raw.settimeout(0.1)
                closed = raw.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
            if closed:
                break

    assert closed


def test_an_address_in_use_is_an_error_with_its_flag(server: MetricsServer, registry: Registry) -> None:
    """The message names the flag, the address and the reason."""
    with pytest.raises(ConfigError, match=rf"--web.listen-address.*{server.port}.*in use"):
        MetricsServer("127.0.0.1", server.port, registry, "n")
