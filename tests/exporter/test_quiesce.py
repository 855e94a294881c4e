"""`tocsin-exporter quiesce`: the handles are given back, on root's word alone, for a bounded time."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.exporter.running import Running

from tocsin_exporter import control
from tocsin_exporter.control import ControlError, ControlServer, ask, usable_folder
from tocsin_lab.sim.layout import Node

_NOBODY = 65534


@pytest.fixture
def running(tmp_path: Path, nvml_library: Path) -> Iterator[Running]:
    exporter = Running(tmp_path, nvml_library)
    exporter.start()
    yield exporter
    exporter.close()


def quiet(text: str) -> bool:
    return text.count('reason="quiesced"} 0.0') == 2


def reading(text: str) -> bool:
    return 'tocsin_collector_success{collector="gpu"} 1' in text and 'reason="quiesced"} 0.0' not in text


def test_the_handles_are_given_back_and_taken_again(running: Running) -> None:
    """No child is left when the command returns, evidence is missing with a reason, and all comes back in time."""
    assert running.children()
    done = running.quiesce("--for", "4s")

    assert (0, "") == (done.returncode, done.stderr)
    assert "no process of this exporter holds a device" in done.stdout
    assert [] == running.children()
    text = running.scrape()
    assert quiet(text)
    assert 'tocsin_collector_success{collector="gpu"} 0' in text
    assert 'tocsin_collector_error_info{collector="gpu",reason="disabled"} 1' in text
    assert "tocsin_gpu_info{" in text
    assert "tocsin_gpu_power_watts{" not in text
    (until,) = (
        float(line.split()[1])
        for line in text.splitlines()
        if line.startswith("tocsin_exporter_quiesced_until_timestamp_seconds")
    )
    running.until(reading)
    # It never ends before what was promised.
    assert time.time() >= until - 0.1
    assert running.children()


def test_it_can_be_asked_and_ended(running: Running) -> None:
    """`--status` says until when; `--end` takes the devices up again at once."""
    before = running.quiesce("--status")
    running.quiesce("--for", "30m")
    during = running.quiesce("--status")
    ended = running.quiesce("--end")

    assert (0, "the devices are read\n") == (before.returncode, before.stdout)
    assert during.stdout.startswith("until ")
    assert (0, "the devices are read again\n") == (ended.returncode, ended.stdout)
    running.until(reading)


def test_a_second_quiesce_never_shortens_the_first(running: Running) -> None:
    """Two people work on the node: the longer wish holds."""
    first = running.quiesce("--for", "20m").stdout
    second = running.quiesce("--for", "10s").stdout
    longer = running.quiesce("--for", "40m").stdout

    assert first == second
    assert longer > second


def test_a_kill_in_the_middle_does_not_bring_the_exporter_back_into_the_reset(running: Running) -> None:
    """An exporter that is started anew stays away until the time is over, and takes up a socket that was left behind."""
    running.quiesce("--for", "6s")
    running.end(signal.SIGKILL)
    assert running.socket.exists()
    running.start(ready=False)

    running.until(lambda text: "\ntocsin_exporter_quiesced_until_timestamp_seconds" in text)
    running.until(lambda text: 'tocsin_collector_error_info{collector="gpu",reason="disabled"} 1' in text)
    assert [] == running.children()
    assert running.quiesce("--status").stdout.startswith("until ")
    running.until(reading)


def test_a_hanging_driver_does_not_keep_the_handles(running: Running) -> None:
    """A child that hangs in the driver is killed instead."""
    with Node(running.paths.devices) as node:
        node.state.hang = 1
    done = running.quiesce("--for", "1m")

    assert 0 == done.returncode
    assert [] == running.children()


def test_sigterm_takes_the_socket_away(running: Running) -> None:
    """An exporter that ends leaves no socket behind, and the command says what to do."""
    running.end(signal.SIGTERM)
    done = running.quiesce("--status")

    assert not running.socket.exists()
    assert 1 == done.returncode
    assert "--control.socket" in done.stderr


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
def test_no_path_of_the_web_surface_changes_state(running: Running, method: str) -> None:
    """Whatever is asked over HTTP, the devices are read on."""
    for path in ("/quiesce", "/-/quiesce?for=5m", "/-/reload", "/-/quit", "/control", "/api/v1/quiesce"):
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
        connection.request(method, path, body=b'{"command": "quiesce", "seconds": 60}' if method != "GET" else None)
        # A body that comes after the answer is not read: the connection may end before the answer was.
        with contextlib.suppress(ConnectionResetError):
            assert connection.getresponse().status in (404, 405)
        connection.close()
    assert reading(running.scrape())


@pytest.mark.parametrize("what", ["--for=0s", "--for=2h", "--for=soon", "--for=5m --end", "", "--socket=x --end"])
def test_unusable_flags_end_with_status_2(what: str) -> None:
    """Before anything is asked."""
    done = subprocess.run(
        [sys.executable, "-m", "tocsin_exporter", "quiesce", *what.split()], capture_output=True, text=True
    )

    assert 2 == done.returncode
    assert done.stderr.startswith("tocsin-exporter: ")


# The socket itself, in this process.


class Devices:
    """What would let go of the devices: writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.until: float | None = None
        self.ok, self.detail = True, "given back"

    def quiesce(self, seconds: float) -> Devices:
        self.asked.append(seconds)
        self.until = time.time() + seconds
        return self

    def resume(self) -> None:
        self.until = None

    def quiet_until(self) -> float | None:
        return self.until


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[Path, Devices]]:
    devices = Devices()
    server = ControlServer(tmp_path / "c" / "socket", devices)
    server.start()
    yield tmp_path / "c" / "socket", devices
    server.stop()


def raw(path: Path, data: bytes, *, close: bool = False) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(path))
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(data)
        if close:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                answer += part
        return answer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_others_may_not_ask() -> None:
    """Another user is kept out by the folder, by the socket's mode, and by the kernel's word where both are open."""
    script = (
        "import contextlib,socket,sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n"
        "with contextlib.suppress(BrokenPipeError):\n"
        '    s.sendall(b\'{"command": "quiesce", "seconds": 60}\\n\')\nprint(s.recv(4096).decode())'
    )
    # An interpreter that anybody may run: the project's own may lie in root's home.
    python = next(path for path in ("/usr/bin/python3", sys.executable) if Path(path).exists())
    user = ("setpriv", "--reuid", str(_NOBODY), "--regid", str(_NOBODY), "--clear-groups")
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        path, devices = Path(root) / "c" / "socket", Devices()
        server = ControlServer(path, devices)
        server.start()

        def attempt() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*user, python, "-c", script, str(path)], capture_output=True, text=True, cwd="/"
            )

        assert 0o700 == stat.S_IMODE(path.parent.stat().st_mode)
        assert 0o600 == stat.S_IMODE(path.stat().st_mode)
        assert "PermissionError" in attempt().stderr
        path.parent.chmod(0o755)
        assert "PermissionError" in attempt().stderr
        path.chmod(0o666)
        answered = attempt()
        server.stop()

    assert "may not ask" in answered.stdout, answered.stderr
    assert [] == devices.asked


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"\n", id="nothing"),
        pytest.param(b"quiesce\n", id="no JSON"),
        pytest.param(b"[1]\n", id="no object"),
        pytest.param(b"[" * 3000 + b"\n", id="deep"),
        pytest.param(b'{"command": "reboot"}\n', id="another command"),
        pytest.param(b'{"command": ["quiesce"]}\n', id="a command of another type"),
        pytest.param(b'{"command": "quiesce"}\n', id="no time"),
        pytest.param(b'{"command": "quiesce", "seconds": true}\n', id="a truth"),
        pytest.param(b'{"command": "quiesce", "seconds": "60"}\n', id="a text"),
        pytest.param(b'{"command": "quiesce", "seconds": 0}\n', id="too short"),
        pytest.param(b'{"command": "quiesce", "seconds": 3601}\n', id="too long"),
        pytest.param(b'{"command": "quiesce", "seconds": NaN}\n', id="not a number"),
        pytest.param(b'{"command": "quiesce", "seconds": 1e999}\n', id="endless"),
        pytest.param(b"\xff\xfe\n", id="no text"),
        pytest.param(b"x" * 100_000, id="a flood"),
    ],
)
def test_a_bad_request_is_answered_with_the_reason(listening: tuple[Path, Devices], line: bytes) -> None:
    """One line comes back, nothing is asked of the devices, and the next request is served."""
    path, devices = listening
    answer = raw(path, line)

    # Of a flood the answer may be lost with the connection.
    if len(line) < 10_000:
        assert set(json.loads(answer)) == {"error"}
        assert 1 == answer.count(b"\n")
    assert [] == devices.asked
    assert ask(path, {"command": "status"})["ok"]


def test_one_who_says_nothing_does_not_keep_others_out(listening: tuple[Path, Devices]) -> None:
    """A silent or half-closed connection is let go, and the next one is served."""
    path, _ = listening
    assert b"error" in raw(path, b'{"command"', close=True)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        assert ask(path, {"command": "status"})["ok"]


def test_a_folder_that_others_may_enter_is_not_used(tmp_path: Path) -> None:
    """No socket is made where another user could have one of his own in its place."""
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    server = ControlServer(folder / "socket", Devices())
    server.start()

    assert "chmod 700" in server.problem
    assert [] == list(folder.iterdir())
    assert "not a folder" in usable_folder(Path("/dev/null"))
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert "not a folder" in usable_folder(link)


def test_a_socket_that_is_answered_is_left_to_its_owner(listening: tuple[Path, Devices]) -> None:
    """A second exporter with the same path goes without, and the first one is asked as before."""
    path, devices = listening
    second = ControlServer(path, Devices())
    second.start()
    second.stop()

    assert "another exporter" in second.problem
    assert ask(path, {"command": "quiesce", "seconds": 5})["ok"]
    assert [5.0] == devices.asked


@pytest.mark.parametrize(
    ("memo", "expected"),
    [
        pytest.param('{"until": %f}', 100.0, id="still on"),
        pytest.param('{"until": -%f}', None, id="over"),
        pytest.param('{"until": 9%f}', 3600.0, id="a clock that was set back"),
        pytest.param("{}", None, id="no time"),
        pytest.param('{"until": "soon"}', None, id="no number"),
        pytest.param("nonsense", None, id="no JSON"),
        pytest.param('{"until": 1' + "0" * 400 + "}", None, id="longer than any number"),
    ],
)
def test_what_was_asked_before_a_restart(tmp_path: Path, memo: str, expected: float | None) -> None:
    """It holds for what is left of it, never for more than one may ask for; what cannot be read holds nothing."""
    folder = tmp_path / "c"
    folder.mkdir(mode=0o700)
    text = memo % (time.time() + 100) if "%" in memo else memo
    (folder / "socket.quiesced").write_text(text)
    devices = Devices()
    server = ControlServer(folder / "socket", devices)
    server.start()
    server.stop()

    assert server.problem == ""
    assert [] == devices.asked if expected is None else [pytest.approx(expected, abs=50)] == devices.asked


def test_what_was_asked_holds_where_nobody_can_ask_any_more(tmp_path: Path) -> None:
    """A folder that was opened to others in the meantime takes the socket, not the reset's peace."""
    folder = tmp_path / "c"
    folder.mkdir(mode=0o755)
    (folder / "socket.quiesced").write_text(json.dumps({"until": time.time() + 100}))
    devices = Devices()
    server = ControlServer(folder / "socket", devices)
    server.start()

    assert "chmod 700" in server.problem
    assert 1 == len(devices.asked)


def test_a_socket_that_fails_for_a_while_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor for one client must not end quiesce for good."""
    monkeypatch.setattr(control, "_PAUSE_SECONDS", 0.05)
    server = ControlServer(tmp_path / "c" / "socket", Devices())
    server.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            # The kernel set a descriptor aside for this one when the waiting began; there is none for the next.
            client.connect(os.fspath(tmp_path / "c" / "socket"))
            client.close()
            until(lambda: "Too many open files" in server.problem)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    until(lambda: ask(tmp_path / "c" / "socket", {"command": "status"})["ok"])
    assert "" == server.problem
    server.stop()


def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds; fail when it never does."""
    for _ in range(400):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it never held")


def test_handles_that_are_not_given_back_are_told(listening: tuple[Path, Devices]) -> None:
    """The answer says that a reset would fail, and why; the devices are left alone all the same."""
    path, devices = listening
    devices.ok, devices.detail = False, "processes [7] do not die"
    answer = ask(path, {"command": "quiesce", "seconds": 5})

    assert (False, "processes [7] do not die") == (answer["ok"], answer["detail"])
    assert answer["until"] is not None


def test_nobody_listens(tmp_path: Path) -> None:
    """The error says what to do."""
    with pytest.raises(ControlError, match=r"--control\.socket"):
        ask(tmp_path / "socket", {"command": "status"})
