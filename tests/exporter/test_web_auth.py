"""Passwords: who is let in, and what a flood of wrong ones costs others."""

from __future__ import annotations

import base64
import itertools
import logging
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest
from tests.exporter.web_support import TEXT, Registry, ask, connect, eventually, read_all, serving, stat

from tocsin_exporter.web import auth
from tocsin_exporter.web.server import MetricsServer
from tocsin_exporter.web.stats import WebStats

RIGHT = "wunderbar: ü"
COST = 6
HASH = bcrypt.hashpw(RIGHT.encode(), bcrypt.gensalt(COST))


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def config(folder: Path, users: dict[str, bytes]) -> Path:
    path = folder / "web.yml"
    fresh = folder / "web.yml.new"
    rows = "".join(f"  {name}: {one.decode()}\n" for name, one in users.items())
    fresh.write_text(f"basic_auth_users:\n{rows}")
    fresh.replace(path)
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MetricsServer]:
    with serving(config=config(tmp_path, {"prometheus": HASH})) as running:
        yield running


def test_the_right_password_is_let_in(server: MetricsServer) -> None:
    """With a colon and more than ASCII in it, the first time and from memory."""
    for _ in range(3):
        assert (200, TEXT.encode()) == ask(server, headers=basic("prometheus", RIGHT))[::2]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="none"),
        pytest.param(basic("prometheus", "falsch"), id="wrong password"),
        pytest.param(basic("prometheus", ""), id="empty password"),
        pytest.param(basic("someone", RIGHT), id="unknown user"),
        pytest.param(basic("", ""), id="nobody"),
        pytest.param({"Authorization": "Bearer " + RIGHT.partition(":")[0]}, id="another scheme"),
        pytest.param({"Authorization": "Basic ///"}, id="not base64"),
        pytest.param({"Authorization": "Basic " + base64.b64encode(b"\xff\xfe:x").decode()}, id="not UTF-8"),
        pytest.param({"Authorization": "Basic " + base64.b64encode(b"prometheus").decode()}, id="no colon"),
        pytest.param(basic("prometheus", RIGHT + "\0x"), id="NUL"),
        pytest.param(basic("prometheus", "x" * 5000), id="huge"),
    ],
)
def test_nobody_else_is_let_in(server: MetricsServer, headers: dict[str, str]) -> None:
    """401 with a challenge, for every path and method, and no collector runs."""
    for method, path in (("GET", "/metrics"), ("HEAD", "/"), ("GET", "/-/healthy"), ("POST", "/nowhere")):
        status, fields, body = ask(server, path, method=method, headers=headers)
        assert 401 == status
        assert fields["www-authenticate"].startswith("Basic realm=")
        assert TEXT.encode() not in body


def test_curl_is_let_in(server: MetricsServer) -> None:
    """What curl sends is what is understood."""
    curl = shutil.which("curl") or pytest.skip("needs curl")
    done = subprocess.run(
        [curl, "-sS", "--noproxy", "*", "-u", f"prometheus:{RIGHT}",
         f"http://127.0.0.1:{server.ports[0]}/metrics"],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip

    assert (TEXT, "") == (done.stdout, done.stderr)


def test_a_long_password_counts_as_far_as_bcrypt_reads(tmp_path: Path) -> None:
    """Passwords beyond 72 bytes work, as with the tools that made their hash."""
    password = "p" * 100
    stored = bcrypt.hashpw(password.encode()[:72], bcrypt.gensalt(4))
    with serving(config=config(tmp_path, {"a": stored})) as server:
        assert 200 == ask(server, headers=basic("a", password))[0]
        assert 401 == ask(server, headers=basic("a", "p" * 71))[0]


def test_a_changed_password_holds_from_the_next_request(tmp_path: Path) -> None:
    """What was right is forgotten with its hash; the users cannot vanish while it runs."""
    stats = WebStats()
    with serving(config=config(tmp_path, {"a": HASH}), stats=stats) as server:
        assert 200 == ask(server, headers=basic("a", RIGHT))[0]
        config(tmp_path, {"a": bcrypt.hashpw(b"neu", bcrypt.gensalt(4))})
        assert eventually(lambda: ask(server, headers=basic("a", RIGHT))[0] == 401)
        assert eventually(lambda: ask(server, headers=basic("a", "neu"))[0] == 200)
        (tmp_path / "web.yml").write_text("")
        assert eventually(lambda: stat(stats, "tocsin_exporter_web_config_success") == 0)
        assert 401 == ask(server)[0]


def test_nothing_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not at the most talkative level, for right and wrong passwords and broken hashes."""
    caplog.set_level(logging.DEBUG)
    path = config(tmp_path, {"a": HASH})
    with serving(config=path) as server:
        ask(server, headers=basic("a", RIGHT))
        ask(server, headers=basic("a", "falsches-geheimnis"))
        path.write_text("basic_auth_users: {a: klartext-geheimnis}")
        assert eventually(lambda: "not taken over" in caplog.text)
    for secret in (RIGHT, "geheimnis", HASH.decode()[10:], basic("a", RIGHT)["Authorization"][6:]):
        assert secret not in caplog.text


def _waits(count: int) -> tuple[auth.Passwords[int], dict[int, bool], threading.Event]:
    """Return passwords, what they delivered, and an event for the *count*-th delivery."""
    found: dict[int, bool] = {}
    done = threading.Event()

    def deliver(ticket: int, right: bool) -> None:
        found[ticket] = right
        if len(found) == count:
            done.set()

    return auth.Passwords(deliver, rest=0.0), found, done


def test_an_unknown_user_costs_what_a_known_one_costs() -> None:
    """The time of a refusal does not tell which names exist."""
    users = {"known": bcrypt.hashpw(b"x", bcrypt.gensalt(9)), "cheap": HASH}
    took: dict[str, list[float]] = {"known": [], "unknown": []}
    for _, name in itertools.product(range(8), took):
        passwords, _, done = _waits(1)
        began = time.perf_counter()
        assert passwords.ask(users, auth.Credentials(name, b"wrong"), "a", 1)
        assert done.wait(30)
        took[name].append(time.perf_counter() - began)
        passwords.stop()

    # The best of each: a busy machine only ever adds.
    assert 0.5 < min(took["unknown"]) / min(took["known"]) < 2


def test_waiting_room_is_bounded_and_shared_out() -> None:
    """One address may have a few waiting; another address is still heard, and in turn."""
    users = {"a": bcrypt.hashpw(b"right", bcrypt.gensalt(8))}
    most = auth.MOST_WAITING_PER_ADDRESS
    passwords, found, done = _waits(most + 2)
    # One is being compared, the others wait.
    taken = [passwords.ask(users, auth.Credentials("a", b"%d" % n), "flood", n) for n in range(100)]
    assert passwords.ask(users, auth.Credentials("a", b"right"), "prometheus", 1000)
    assert sum(taken) in (most, most + 1)
    if sum(taken) == most:
        assert passwords.ask(users, auth.Credentials("a", b"last"), "third", 1001)
    assert done.wait(30)
    passwords.stop()

    order = list(found)
    assert found[1000]
    assert 1 == sum(found.values())
    # Not behind the whole queue of the other.
    assert order.index(1000) <= 2


def test_all_addresses_together_have_a_bound() -> None:
    """Many addresses fill the room once, and are told so."""
    users = {"a": bcrypt.hashpw(b"right", bcrypt.gensalt(10))}
    passwords, _, _ = _waits(1)
    taken = [passwords.ask(users, auth.Credentials("a", b"x"), str(n), n) for n in range(200)]
    passwords.stop()

    assert auth.MOST_WAITING <= sum(taken) < 2 * auth.MOST_WAITING


def test_what_was_right_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of right passwords does not grow, and wrong ones are not in it."""
    monkeypatch.setattr(auth, "MOST_REMEMBERED", 3)
    users = {str(n): bcrypt.hashpw(b"right", bcrypt.gensalt(4)) for n in range(6)}
    passwords, _, done = _waits(12)
    for n, (name, password) in enumerate(itertools.product(users, (b"right", b"wrong"))):
        while not passwords.ask(users, auth.Credentials(name, password), str(n), n):
            time.sleep(0.01)
    assert done.wait(30)
    passwords.stop()
    known = [name for name in users if passwords.known(users, auth.Credentials(name, b"right"))]

    assert ["3", "4", "5"] == known
    assert not any(passwords.known(users, auth.Credentials(name, b"wrong")) for name in users)


def test_a_flood_of_wrong_passwords_stops_no_scrape_and_little_cpu(tmp_path: Path) -> None:
    """While four clients guess without pause, who was let in is scraped on and the CPU is mostly free."""
    stored = bcrypt.hashpw(RIGHT.encode(), bcrypt.gensalt(10))
    stats = WebStats()
    path = config(tmp_path, {"prometheus": stored})
    with serving(Registry(), path, stats=stats) as server:
        assert 200 == ask(server, headers=basic("prometheus", RIGHT))[0]
        guess = (
            "import base64, http.client, itertools, sys, time\n"
            "for n in itertools.count():\n"
            "    c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=60)\n"
            "    word = base64.b64encode(b'prometheus:%d-%d' % (n, id(c))).decode()\n"
            "    c.request('GET', '/metrics', headers={'Authorization': 'Basic ' + word})\n"
            "    assert c.getresponse().status in (401, 429)\n"
            "    c.close()\n"
            "    time.sleep(0.02)\n"
        )
        flood = [
            subprocess.Popen([sys.executable, "-c", guess, str(server.ports[0])], stderr=subprocess.DEVNULL)
            for _ in range(8)
        ]
        try:
            name = "tocsin_exporter_http_requests_total"
            assert eventually(lambda: (stat(stats, name, "429") or 0) > 20)
            tried, began = stat(stats, name, "401") or 0, time.perf_counter()
            statuses = []
            while time.perf_counter() - began < 4:
                statuses.append(ask(server, headers=basic("prometheus", RIGHT))[0])
                time.sleep(0.05)
            passed = time.perf_counter() - began
            compared = (stat(stats, name, "401") or 0) - tried
        finally:
            for process in flood:
                process.kill()
                process.wait()

    assert {200} == set(statuses)
    one = min(_seconds_of_one(stored) for _ in range(3))
    # A fifth by design; a comparison that others slow down rests longer, so it can only be less.
    assert compared * one < 0.4 * passed


def _seconds_of_one(stored: bytes) -> float:
    began = time.perf_counter()
    bcrypt.checkpw(b"x", stored)
    return time.perf_counter() - began


def test_without_users_no_password_module_is_loaded() -> None:
    """Nobody pays for bcrypt, ssl and YAML who does not ask for them."""
    probe = (
        "import sys, socket\n"
        "from tocsin_exporter.web.reload import Reloader\n"
        "from tocsin_exporter.web.server import MetricsServer\n"
        "from tocsin_exporter.web.stats import WebStats\n"
        "class R:\n"
        "    def scrape(self, *, openmetrics=False): return 'a 1\\n'\n"
        "    def status(self): return []\n"
        "s = MetricsServer([('127.0.0.1', 0)], R(), 'n', reloader=Reloader(None, WebStats()))\n"
        "s.start()\n"
        "c = socket.create_connection(('127.0.0.1', s.ports[0]))\n"
        "c.sendall(b'GET /metrics HTTP/1.0\\r\\n\\r\\n')\n"
        "assert c.recv(100).startswith(b'HTTP/1.1 200')\n"
        "dear = ('ssl', 'bcrypt', 'yaml', 'hashlib', 'asyncio', 'http.server', 'socketserver')\n"
        "print([name for name in dear if name in sys.modules])\n"
        "s.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)

    assert ("[]\n", "") == (done.stdout, done.stderr)


def test_pipelined_requests_keep_their_order_while_a_password_is_compared(server: MetricsServer) -> None:
    """A request behind one whose password is new waits for it."""
    right = basic("prometheus", RIGHT)["Authorization"].encode()
    one = b"GET /%b HTTP/1.1\r\nHost: x\r\nAuthorization: %b\r\n%b\r\n"
    both = one % (b"metrics", right, b"") + one % (b"-/healthy", right, b"Connection: close\r\n")
    with connect(server, both) as raw:
        answer = read_all(raw)

    assert 2 == answer.count(b"HTTP/1.1 200")
    assert answer.index(TEXT.encode()) < answer.index(b"ok\n")
