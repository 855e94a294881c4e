"""Crowds of connections that ask for nothing, or do not listen, change nothing for who scrapes."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.exporter.web_support import (
    Authority,
    Registry,
    ask,
    connect,
    eventually,
    limits,
    read_all,
    serving,
    stat,
)

from tocsin_exporter.web.server import Limits, MetricsServer
from tocsin_exporter.web.stats import WebStats

CROWD = 300
CUT = "tocsin_exporter_http_cut_connections_total"
# A server of its own process, with a scrape of 3,000 series; argv: the configuration file or "".
SERVER = """
import sys
from pathlib import Path
from tocsin_exporter.web.reload import Reloader
from tocsin_exporter.web.server import MetricsServer
from tocsin_exporter.web.stats import WebStats

class Registry:
    def scrape(self, *, openmetrics=False):
        return "".join(f'tocsin_host_load1{{node="n",job_id="{n}"}} {n}\\n' for n in range(3000))
    def status(self):
        return []

stats = WebStats()
path = Path(sys.argv[1]) if sys.argv[1] else None
server = MetricsServer([("127.0.0.1", 0)], Registry(), "n", stats=stats, reloader=Reloader(path, stats))
server.start()
print(server.ports[0], flush=True)
sys.stdin.readline()
for sample in stats.samples():
    print(sample.family, ",".join(sample.labels), float(sample.value), flush=True)
"""


class Child:
    """The server's process."""

    def __init__(self, config: Path | None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(config or "")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def memory(self) -> int:
        """Return the proportional set size in bytes."""
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no Pss")

    def end(self) -> dict[tuple[str, str], float]:
        """End it and return the server's own series by name and labels."""
        out, _ = self.process.communicate("\n", timeout=30)
        rows = [line.split(" ") for line in out.splitlines()]
        return {(name, labels): float(value) for name, labels, value in rows}


@contextmanager
def child(config: Path | None = None) -> Iterator[Child]:
    running = Child(config)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def _scrape(port: int, tls: ssl.SSLContext | None) -> float:
    """Return the seconds of one scrape on a connection of its own."""
    began = time.perf_counter()
    connection: http.client.HTTPConnection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        if tls is None
        else http.client.HTTPSConnection("localhost", port, timeout=30, context=tls)
    )
    connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    assert 200 == answer.status
    answer.read()
    connection.close()
    return time.perf_counter() - began


def _raw(port: int, sent: bytes = b"") -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", port), timeout=30)
    raw.sendall(sent)
    return raw


def _kept_alive(port: int) -> socket.socket:
    raw = _raw(port, b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
    while b"ok\n" not in raw.recv(4096):
        pass
    return raw


def _never_reading(port: int) -> socket.socket:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", port))
    raw.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
    return raw


GREETING = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 32
PLAIN: dict[str, Callable[[int], socket.socket]] = {
    "no byte": _raw,
    "half a request": lambda port: _raw(port, b"GET /metrics HTTP/1.1\r\nX-Slow: "),
    "half a huge header": lambda port: _raw(port, b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 8000),
    "resting after a request": _kept_alive,
    "never reading": _never_reading,
}


@functools.cache
def _greeting() -> bytes:
    """Return what a client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


OVER_TLS: dict[str, Callable[[int], socket.socket]] = {
    "no byte": _raw,
    "half a greeting": lambda port: _raw(port, GREETING),
    "a greeting and nothing more": lambda port: _raw(port, _greeting()),
}


@contextmanager
def crowd(kind: Callable[[int], socket.socket], port: int) -> Iterator[list[socket.socket]]:
    """Hold CROWD connections of *kind*, some of which send a byte now and then."""
    with ExitStack() as stack:
        held = [stack.enter_context(kind(port)) for _ in range(CROWD)]
        end = threading.Event()

        def drip() -> None:
            while not end.wait(0.5):
                for raw in held:
                    try:
                        raw.send(b"\x00" if kind is OVER_TLS["half a greeting"] else b"b")
                    except OSError:
                        continue

        dripping = threading.Thread(target=drip)
        if kind in (PLAIN["half a request"], OVER_TLS["half a greeting"]):
            dripping.start()
        yield held
        end.set()
        if dripping.is_alive():
            dripping.join()


def _compare(
    running: Child, kind: Callable[[int], socket.socket], tls: ssl.SSLContext | None
) -> tuple[list[float], list[float], int]:
    """Return seconds of scrapes alone and in the crowd, in turns, and the memory that the crowd took."""
    alone: list[float] = []
    crowded: list[float] = []
    for _ in range(10):
        _scrape(running.port, tls)
    before = running.memory()
    for _ in range(2):
        alone += [_scrape(running.port, tls) for _ in range(40)]
        with crowd(kind, running.port):
            # That they come is work for a moment; what must cost nothing is that they stay.
            for _ in range(3):
                _scrape(running.port, tls)
            crowded += [_scrape(running.port, tls) for _ in range(40)]
            after = running.memory()
    return sorted(alone), sorted(crowded), after - before


def _hold(alone: list[float], crowded: list[float]) -> None:
    # Ratios with room for a busy machine: what is looked for is a factor of a hundred.
    assert statistics.median(crowded) < 4 * statistics.median(alone)
    assert crowded[int(0.95 * len(crowded))] < 8 * alone[int(0.95 * len(alone))]


@pytest.mark.parametrize("kind", PLAIN)
def test_a_crowd_changes_nothing(kind: str) -> None:
    """300 connections of a kind: every scrape is answered, as quickly as without, for a few MiB of memory."""
    with child() as running:
        alone, crowded, memory = _compare(running, PLAIN[kind], None)
        seen = running.end()

    _hold(alone, crowded)
    assert not [key for key in seen if key[1] == "503"]
    # What nobody reads may take 8 MiB itself.
    assert memory < (20 if kind == "never reading" else 8) << 20


@pytest.mark.parametrize("kind", OVER_TLS)
def test_a_crowd_changes_nothing_over_tls(kind: str, tmp_path: Path) -> None:
    """The same where the crowd does not finish its handshakes."""
    authority = Authority(tmp_path)
    authority.issue("server")
    config = tmp_path / "web.yml"
    config.write_text("tls_server_config: {cert_file: server.pem, key_file: server.key}")
    with child(config) as running:
        alone, crowded, memory = _compare(running, OVER_TLS[kind], authority.client())

    _hold(alone, crowded)
    assert memory < 16 << 20


def test_a_crowd_at_the_limit_makes_place_for_a_scrape() -> None:
    """With every place taken by the silent, a scrape is served at once: the oldest of them goes."""
    stats = WebStats()
    with serving(limits=limits(connections=20, grace=0.1), stats=stats) as server, ExitStack() as stack:
        held = [stack.enter_context(connect(server)) for _ in range(20)]
        assert eventually(lambda: stat(stats, "tocsin_exporter_http_connections") == 20)
        assert [200] * 5 == [ask(server)[0] for _ in range(5)]
        assert b"" == held[0].recv(1)
        cut = stat(stats, CUT, "crowded")
        assert cut is not None
        assert 1 <= cut <= 5


def test_a_crowd_from_one_address_pushes_out_its_own() -> None:
    """A client from elsewhere keeps its connection, however old it is."""
    with serving(limits=limits(connections=20, grace=0.05)) as server, ExitStack() as stack:
        other = stack.enter_context(
            socket.create_connection(("127.0.0.1", server.ports[0]), 10, ("127.0.0.2", 0))
        )
        other.sendall(b"GET /-/healthy HTTP/1.1\r\n")
        for _ in range(60):
            stack.enter_context(connect(server))
        assert 200 == ask(server)[0]
        other.sendall(b"Host: x\r\nConnection: close\r\n\r\n")
        assert read_all(other).endswith(b"ok\n")


def test_while_all_are_being_answered_others_wait_their_turn() -> None:
    """Nobody is refused when no place can be made: who waits in the queue is answered afterwards."""
    registry = Registry(seconds=0.5)
    with serving(registry, limits=limits(connections=4)) as server:
        statuses: list[int] = []
        many = [threading.Thread(target=lambda: statuses.append(ask(server)[0])) for _ in range(12)]
        for thread in many:
            thread.start()
        for thread in many:
            thread.join()

    assert [200] * 12 == statuses


@pytest.mark.parametrize(
    "sent", [b"", b"GET /metrics HTTP/1.1\r\n", b"\r\n", b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\nGET"]
)
def test_an_unfinished_request_is_cut_off(sent: bytes) -> None:
    """However steadily bytes come, a request has an end in time; it is counted."""
    stats = WebStats()
    with serving(limits=limits(request=0.5), stats=stats) as server, connect(server, sent) as raw:
        closed = False
        end = time.monotonic() + 30
        while not closed and time.monotonic() < end:
            try:
                raw.sendall(b"\n" if sent == b"\r\n" else b"X" if sent else b"")
                raw.settimeout(0.1)
                closed = raw.recv(4096) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True

    assert closed
    assert 1 == stat(stats, CUT, "late")


def test_a_connection_at_rest_is_ended_without_ado() -> None:
    """A client that keeps its connection and sends nothing is no fault."""
    stats = WebStats()
    with (
        serving(limits=limits(idle=0.2), stats=stats) as server,
        connect(server, b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n") as raw,
    ):
        assert read_all(raw).endswith(b"ok\n")
    assert 0 == stat(stats, CUT, "late")


def test_who_does_not_take_its_answer_is_cut_off() -> None:
    """The deadline of an answer ends a connection that does not read."""
    stats = WebStats()
    registry = Registry("# " + "x" * (8 << 20) + "\n")
    with serving(registry, limits=limits(answer=0.5), stats=stats) as server:
        raw = connect(server, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert eventually(lambda: stat(stats, CUT, "late") == 1)
        raw.close()


def test_answers_that_nobody_takes_have_a_bound() -> None:
    """Beyond the memory set aside for them the oldest is dropped; a scraper that reads gets its own whole."""
    stats = WebStats()
    registry = Registry("# " + "x" * (4 << 20) + "\n")
    with serving(registry, limits=limits(unread=10 << 20), stats=stats) as server, ExitStack() as stack:
        for number in range(1, 8):
            stack.enter_context(connect(server, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))
            # One scrape each: those who wait together would share one.
            assert eventually(lambda number=number: registry.scrapes == number)  # type: ignore[misc]
        assert eventually(lambda: (stat(stats, CUT, "unread") or 0) >= 5)
        assert registry.text.encode() == ask(server)[2]


def test_without_descriptors_it_survives(tmp_path: Path) -> None:
    """With no file descriptor left a scrape is still answered, at the price of a silent connection."""
    program = SERVER.replace(
        "server.start()",
        "import os, resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "server.start()\n"
        "held = [os.open('/dev/null', os.O_RDONLY) for _ in range(180)]\n"
        "used = len(os.listdir('/proc/self/fd'))\n"
        "held += [os.open('/dev/null', os.O_RDONLY) for _ in range(max(0, 190 - used))]",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(_raw(port))
            took = [_scrape(port, None) for _ in range(5)]
        out, _ = process.communicate("\n", timeout=30)
    finally:
        process.kill()
        process.communicate()

    assert 5 == len(took)
    assert f"{CUT} descriptors 0" not in out
    assert f"{CUT} descriptors" in out


def test_the_room_lies_below_the_limit_of_descriptors() -> None:
    """With the usual 1,024 descriptors there is room for 300 silent connections and for all else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 256:
        pytest.skip("few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, soft), hard))
    try:
        room = Limits().room()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert CROWD < room <= 512
    assert len(os.listdir("/proc/self/fd")) + room < 1024


def test_pipelined_requests_do_not_push_others_back(server_of_slow: MetricsServer) -> None:
    """A thousand requests on one connection are answered one in each turn; a scrape comes in between."""
    raw = connect(server_of_slow, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
    began = time.perf_counter()
    assert 200 == ask(server_of_slow)[0]
    one = time.perf_counter() - began
    raw.settimeout(30)
    answers = 0
    while answers < 100:
        answers += raw.recv(65536).count(b"HTTP/1.1 200")
    hundred = time.perf_counter() - began
    raw.close()

    assert one < hundred / 4


@pytest.fixture
def server_of_slow() -> Iterator[MetricsServer]:
    with serving(Registry(seconds=0.02)) as running:
        yield running
