"""The HTTP server: what it answers."""

from __future__ import annotations

import gzip
import itertools
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator

import pytest
from tests.exporter.web_support import TEXT, Registry, ask, connect, eventually, read_all, serving

from tocsin_exporter.errors import ConfigError
from tocsin_exporter.web import http
from tocsin_exporter.web.server import MetricsServer


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def server(registry: Registry) -> Iterator[MetricsServer]:
    with serving(registry) as running:
        yield running


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
_OPENMETRICS = "application/openmetrics-text; version={}; charset=utf-8"
_PLAIN = "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        pytest.param(PROMETHEUS_3, _OPENMETRICS.format("1.0.0"), id="Prometheus 3"),
        pytest.param(PROMETHEUS_2, _OPENMETRICS.format("1.0.0"), id="Prometheus 2"),
        pytest.param("application/openmetrics-text", _OPENMETRICS.format("1.0.0"), id="any version"),
        pytest.param(
            "application/openmetrics-text;version=0.0.1", _OPENMETRICS.format("0.0.1"), id="old version"
        ),
        pytest.param("application/openmetrics-text; version=2.0.0", _PLAIN, id="unknown version"),
        pytest.param(
            "application/openmetrics-text;version=2.0.0,application/openmetrics-text;version=1.0.0;q=0.5,"
            "text/plain;q=0.1",
            _OPENMETRICS.format("1.0.0"),
            id="unknown version first",
        ),
        pytest.param("text/plain;version=0.0.4", _PLAIN, id="text only"),
        pytest.param("text/plain;version=1.0.0;escaping=underscores", _PLAIN, id="newer text only"),
        pytest.param("text/plain, application/openmetrics-text;q=0.9", _PLAIN, id="rather text"),
        pytest.param("text/html,*/*;q=0.8", _PLAIN, id="browser"),
        pytest.param("application/openmetrics-text;q=0", _PLAIN, id="refused"),
        pytest.param("application/openmetrics-text;q=x, text/plain", _PLAIN, id="nonsense"),
        pytest.param("application/openmetrics-text;q=nan", _PLAIN, id="no number"),
        pytest.param("", _PLAIN, id="nothing"),
    ],
)
def test_the_client_chooses_the_format(server: MetricsServer, accept: str, kind: str) -> None:
    """OpenMetrics for those who prefer a version of it that there is, text for all others."""
    status, headers, body = ask(server, headers={"Accept": accept})

    assert (200, kind) == (status, headers["content-type"])
    assert ("openmetrics" in kind) == body.endswith(b"# EOF\n")
    assert "Accept, Accept-Encoding" == headers["vary"]


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("*", True),
        ("identity;q=0, *", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("*, gzip;q=0", False),
        ("gzip;q=0.5, identity", False),
        ("br", False),
        ("identity", False),
        ("", False),
    ],
)
def test_the_client_chooses_the_encoding(server: MetricsServer, encoding: str, packed: bool) -> None:
    """A scrape is packed for those who would rather have it so."""
    _, headers, body = ask(server, headers={"Accept-Encoding": encoding})

    assert packed == (headers.get("content-encoding") == "gzip")
    assert TEXT == (gzip.decompress(body) if packed else body).decode()


@pytest.mark.parametrize("encoding", ["identity;q=0", "*;q=0", "gzip;q=0, identity;q=0"])
def test_who_refuses_every_encoding_is_told(server: MetricsServer, encoding: str) -> None:
    """406 and the reason, rather than an answer that the client said it cannot read."""
    status, _, body = ask(server, headers={"Accept-Encoding": encoding})

    assert 406 == status
    assert b"Accept-Encoding" in body


def test_other_pages(server: MetricsServer, registry: Registry) -> None:
    """Health asks no collector and other paths do not exist."""
    assert (200, b"ok\n") == ask(server, "/-/healthy")[::2]
    assert 404 == ask(server, "/metrics/../etc/passwd")[0]
    assert 0 == registry.scrapes


def test_the_landing_page_shows_the_node_and_how_its_collectors_fare(
    server: MetricsServer, registry: Registry
) -> None:
    """Node and states are escaped, nothing is loaded from elsewhere, and no collector runs for it."""
    status, headers, body = ask(server, "/")
    page = body.decode()

    assert (200, "text/html; charset=utf-8") == (status, headers["content-type"])
    assert "&lt;node&gt;" in page
    assert "<td>gpu</td><td>ok</td>" in page
    assert "<td>fabric</td><td>no_permission &lt;b&gt;</td>" in page
    assert 'href="/metrics"' in page
    assert "http:" not in page
    assert "src=" not in page
    assert 0 == registry.scrapes


def test_head_has_the_headers_and_no_body(server: MetricsServer) -> None:
    """HEAD answers as GET would, without the body, and the connection goes on."""
    with connect(server, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n") as raw:
        head = raw.recv(4096)
        raw.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        rest = read_all(raw)

    assert f"Content-Length: {len(TEXT)}\r\n".encode() in head
    assert head.endswith(b"\r\n\r\n")
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


CLOSE = b"Connection: close\r\n\r\n"
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "QUIESCE", "get")
PATHS = ("/", "/metrics", "/-/healthy", "/-/reload", "/-/quit", "/-/quiesce", "/quiesce", "/debug/pprof", "*")


@pytest.mark.parametrize(("method", "path"), list(itertools.product(METHODS, PATHS)))
def test_no_request_changes_anything(
    server: MetricsServer, registry: Registry, method: str, path: str
) -> None:
    """Only GET and HEAD are answered, the same before and after, and only a scrape runs collectors."""
    before = ask(server)[2]
    status, headers, _ = ask(server, path, method=method, body=b"x" if method == "POST" else None)

    if method in ("GET", "HEAD"):
        assert status == (200 if path in ("/", "/metrics", "/-/healthy") else 404)
    else:
        assert (405, "GET, HEAD") == (status, headers["allow"])
    assert (1 if status == 200 and path == "/metrics" else 0) == registry.scrapes - 1
    assert before == ask(server)[2]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400, id="TLS"),
        pytest.param(b"GET\r\n\r\n", 400, id="no path"),
        pytest.param(b"GET /metrics\r\n\r\n", 400, id="no version"),
        pytest.param(b"GET  /metrics HTTP/1.1\r\n\r\n", 400, id="two spaces"),
        pytest.param(b"GET /metrics HTTP/1.1\r\n\r\n", 400, id="no host"),
        pytest.param(b"GET /metrics HTTP/2.0\r\n\r\n", 505, id="no such version"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, id="HTTP/2"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n", 431, id="too many headers"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 20000 + b"\r\n\r\n", 431, id="huge header"),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + b"b" * 30000, 431, id="endless header"),
        pytest.param(b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n", 414, id="too long a path"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400, id="folded header"),
        pytest.param(b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, id="space before the colon"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\x00\r\n\r\n", 400, id="NUL"),
    ],
)
def test_malformed_requests_are_answered_and_survived(
    server: MetricsServer, sent: bytes, status: int
) -> None:
    """Nonsense gets its status at once and the connection ends; the next request is served."""
    with connect(server, sent) as raw:
        answer = read_all(raw)

    assert f"HTTP/1.1 {status} ".encode() == answer[: len(f"HTTP/1.1 {status} ")]
    assert b"\r\nConnection: close\r\n" in answer
    assert 200 == ask(server)[0]


def test_no_bytes_break_the_reading_of_a_request() -> None:
    """Whatever comes, in whatever pieces, is a request, unfinished, or refused with a status."""
    dice = random.Random(7)
    whole = b"GET /metrics?a=b HTTP/1.1\r\nHost: n:9836\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    seen: set[str] = set()
    statuses: set[int] = set()
    for _ in range(5000):
        sent = bytearray(whole)
        for _ in range(dice.randrange(4)):
            place = dice.randrange(len(sent))
            sent[place : place + dice.randrange(3)] = dice.randbytes(dice.randrange(3))
        buffer, searched, end = bytearray(), 0, 0
        try:
            while sent and not end:
                piece = dice.randrange(1, len(sent) + 1)
                buffer += sent[:piece]
                del sent[:piece]
                end = http.end_of_head(buffer, searched)
                searched = len(buffer)
            if end:
                http.parse(bytes(buffer[:end]))
            seen.add("request" if end else "unfinished")
        except http.BadRequestError as err:
            statuses.add(err.status)
            seen.add("refused")

    assert {400} <= statuses <= {400, 414, 431, 505}
    assert {"request", "unfinished", "refused"} == seen


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET /metrics HTTP/1.0\r\n\r\n", id="HTTP/1.0"),
        pytest.param(b"GET /metrics HTTP/1.0\n\n", id="typed by hand"),
        pytest.param(b"\r\n\r\nGET /metrics?x=y HTTP/1.1\r\nHost: x\r\n" + CLOSE, id="empty lines"),
        pytest.param(b"GET http://n:9836/metrics HTTP/1.1\r\nHost: x\r\n" + CLOSE, id="proxy's form"),
    ],
)
def test_unusual_requests_are_understood(server: MetricsServer, sent: bytes) -> None:
    """What the standard allows is served, and the connection ends where the client says so."""
    with connect(server, sent) as raw:
        answer = read_all(raw)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(TEXT.encode())


def test_a_body_does_not_become_the_next_request(server: MetricsServer, registry: Registry) -> None:
    """A GET with a body closes the connection, so that the body is not taken for a request."""
    smuggled = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
    with connect(server, head + smuggled) as raw:
        answer = read_all(raw)

    assert 1 == answer.count(b"HTTP/1.1 200")
    assert 0 == registry.scrapes


def test_requests_sent_together_are_answered_in_their_order(server: MetricsServer) -> None:
    """Pipelined requests each get their answer."""
    one = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with connect(server, one % b"/-/healthy" + one % b"/metrics" + one % b"/nowhere" + last) as raw:
        answer = read_all(raw)

    assert [b"200", b"200", b"404", b"200"] == [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert answer.index(b"ok\n") < answer.index(TEXT.encode()) < answer.index(b"not found")


def test_scrapes_that_wait_share_one() -> None:
    """Twenty scrapers that ask while a scrape is made get one that was begun after they asked."""
    registry = Registry(seconds=0.5)
    with serving(registry) as server:
        first = threading.Thread(target=ask, args=(server,))
        first.start()
        assert eventually(lambda: registry.scrapes == 1)
        answers: list[int] = []
        others = [threading.Thread(target=lambda: answers.append(ask(server)[0])) for _ in range(20)]
        for thread in others:
            thread.start()
        for thread in [first, *others]:
            thread.join()

    assert [200] * 20 == answers
    # The second may have begun before the last of them had connected.
    assert registry.scrapes <= 3


def test_a_failing_scrape_is_said_and_the_next_one_served(caplog: pytest.LogCaptureFixture) -> None:
    """What no collector's boundary caught is a 500, not a connection that hangs."""

    class Broken(Registry):
        def scrape(self, *, openmetrics: bool = False) -> str:
            text = super().scrape(openmetrics=openmetrics)
            if self.scrapes == 1:
                raise RuntimeError("no")
            return text

    with serving(Broken()) as server:
        assert 500 == ask(server)[0]
        assert 200 == ask(server)[0]
    assert "scrape failed" in caplog.text


def test_it_listens_on_every_address_it_is_given() -> None:
    """Several addresses, of both families, serve the same."""
    server = MetricsServer([("127.0.0.1", 0), ("::1", 0), ("", 0)], Registry(), "n")
    server.start()
    try:
        for host, port in zip(("127.0.0.1", "[::1]", "127.0.0.1"), server.ports, strict=True):
            done = subprocess.run(
                [shutil.which("curl") or pytest.skip("needs curl"), "-sS", "--noproxy", "*", f"http://{host}:{port}/-/healthy"],
                capture_output=True, text=True, timeout=20,
            )  # fmt: skip
            assert ("ok\n", "") == (done.stdout, done.stderr)
    finally:
        server.stop()


def test_an_address_in_use_is_an_error_with_its_flag(server: MetricsServer, registry: Registry) -> None:
    """The message names the flag, the address and the reason."""
    with pytest.raises(ConfigError, match=rf"--web.listen-address.*{server.ports[0]}.*in use"):
        MetricsServer([("127.0.0.1", server.ports[0])], registry, "n")


def test_a_name_that_does_not_resolve_is_an_error_with_its_flag(registry: Registry) -> None:
    """A host name with a typo ends the start with the flag's name."""
    with pytest.raises(ConfigError, match=r"--web.listen-address.*nowhere\.invalid"):
        MetricsServer([("nowhere.invalid", 0)], registry, "n")
