"""Ranks that end while the exporter is not there: its real process, killed and started again."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MARK = "TOCSIN_TEST_RESTART"
WAIT = "import sys; print(flush=True); sys.stdin.read()"
ENDS = re.compile(
    r'^tocsin_rank_exits_total\{node="n",job_id="torchrun/again",rank="0",kind="(\w+)"\} (\d+)$', re.MULTILINE
)
KILLS = re.compile(
    r'^tocsin_rank_oom_kills_total\{node="n",job_id="torchrun/again",rank="0",scope="(\w+)"\} (\d+)$',
    re.MULTILINE,
)


class Exporter:
    """The exporter's process, which sees only the ranks of this test."""

    def __init__(self, root: Path) -> None:
        self.state = root / "state.json"
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._records = 0

    def start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        off = ("gpu", "gpu_events", "pcie", "fabric", "cuda", "nccl", "output")
        flags = (
            *("--web.listen-address", f"127.0.0.1:{self._port}", "--ebpf.backend", "off", "--node.name", "n"),
            *("--path.kmsg", str(self._root / "kmsg"), "--path.state", str(self.state)),
            *("--identity.only-env", f"{MARK}={os.getpid()}", "--control.socket", ""),
            *(f"--no-collector.{name}" for name in off),
        )
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tocsin_exporter", *flags], stdout=log, stderr=log
            )

    def until(self, wanted: Callable[[str], object]) -> str:
        """Scrape until the text is as wanted."""
        text, end = "", time.monotonic() + 20
        while time.monotonic() < end:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
            with contextlib.suppress(OSError), contextlib.closing(connection):
                connection.request("GET", "/metrics")
                text = connection.getresponse().read().decode()
                if wanted(text):
                    return text
            time.sleep(0.05)
        raise AssertionError(text + (self._root / "log").read_text())

    def log(self, message: str) -> None:
        """Write a record of the kernel."""
        self._records += 1
        with (self._root / "kmsg").open("a") as log:
            log.write(f"6,{self._records},{int(time.monotonic() * 1e6)},-;{message}\n")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    (tmp_path / "kmsg").touch()
    made = Exporter(tmp_path)
    yield made
    made.kill()


@pytest.fixture
def start() -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start the rank's process."""
    started: list[subprocess.Popen[str]] = []

    def run() -> subprocess.Popen[str]:
        env = {
            **os.environ,
            MARK: str(os.getpid()),
            "RANK": "0",
            "WORLD_SIZE": "2",
            "TORCHELASTIC_RUN_ID": "again",
        }
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", WAIT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ends(text: str) -> dict[str, str]:
    return dict(ENDS.findall(text))


def test_an_end_while_the_exporter_was_away_is_not_lost(
    exporter: Exporter, start: Callable[[], subprocess.Popen[str]]
) -> None:
    """Killed and started again, it finds the rank gone: one end of unknown cause; then a restart."""
    rank = start()
    exporter.start()
    exporter.until(lambda text: ends(text) == {"ok": "0", "error": "0", "signal": "0", "unknown": "0"})
    while f"[{rank.pid}," not in (exporter.state.read_text() if exporter.state.exists() else ""):
        time.sleep(0.05)
    exporter.log(
        f"Memory cgroup out of memory: Killed process {rank.pid} (python) total-vm:1kB, anon-rss:1kB"
    )
    exporter.until(lambda text: KILLS.findall(text) == [("cgroup", "1"), ("global", "0")])
    exporter.kill()
    exporter.log(f"Out of memory: Killed process {rank.pid} (python) total-vm:1kB, anon-rss:1kB")
    rank.send_signal(signal.SIGKILL)
    rank.wait(10)
    began = time.time()
    exporter.start()
    text = exporter.until(lambda text: ends(text).get("unknown") == "1")

    last = re.search(r'^tocsin_job_last_exit_timestamp_seconds\{[^}]*rank="0"\} (\S+)$', text, re.MULTILINE)
    assert last is not None
    assert began - 1 <= float(last[1]) <= time.time()
    assert {"ok": "0", "error": "0", "signal": "0", "unknown": "1"} == ends(text)
    exporter.until(lambda text: KILLS.findall(text) == [("cgroup", "1"), ("global", "1")])

    start()
    exporter.until(
        lambda text: re.search(r'^tocsin_rank_restarts_total\{[^}]*rank="0"\} 1$', text, re.MULTILINE)
    )
