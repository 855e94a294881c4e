"""`tocsin-lab up`, as a person runs it: everything answers, Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tocsin_lab.errors import LabError
from tocsin_lab.stack import http, procs, programs
from tocsin_lab.stack.rundir import RunDir, StackRecord, read_record, running

START_SECONDS = 90.0


@dataclass
class Started:
    """A lab in a process of its own."""

    process: subprocess.Popen[bytes]
    run: RunDir
    output: Path

    def record(self) -> StackRecord:
        found = read_record(self.run.record)
        assert found is not None
        return found

    def lab(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "tocsin_lab", "--run-dir", str(self.run.root), *arguments]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def _mounts() -> set[str]:
    return {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}


def _start(folder: Path) -> Started:
    for name in ("prometheus", "alertmanager"):
        try:
            programs.program(name)
        except LabError as err:
            pytest.skip(str(err))
    run = RunDir(folder / "run")
    output = folder / "up.log"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tocsin_lab",
                "--run-dir",
                str(run.root),
                "up",
                "--any-ports",
                "--simulate",
            ],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = Started(process, run, output)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, output.read_text()
        record = read_record(run.record)
        if record is not None and record.ready:
            return started
        time.sleep(0.2)
    process.kill()
    pytest.fail(f"not ready after {START_SECONDS:.0f} s:\n{output.read_text()}")


@pytest.fixture(scope="module")
def mounts_before() -> set[str]:
    """The mounts before any lab was started."""
    return _mounts()


@pytest.fixture(scope="module")
def started(mounts_before: set[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """One running lab for the tests that only look at it."""
    lab = _start(tmp_path_factory.mktemp("lab"))
    yield lab
    if lab.process.poll() is None:
        lab.process.send_signal(signal.SIGTERM)
        lab.process.wait(60)


def test_every_part_runs_and_answers_on_the_loopback_address_alone(started: Started) -> None:
    record = started.record()
    names = {part.name for part in record.components}

    assert {"exporter-gpu-001", "exporter-gpu-002", "prometheus", "alertmanager", "remediator"} <= names
    assert all(procs.alive(part.process) for part in record.components)
    assert all(part.url.startswith("http://127.0.0.1:") for part in record.components if part.url)


def test_the_first_scrape_of_both_exporters_is_good(started: Started) -> None:
    rows = http.query(started.record().urls["prometheus"], 'up{job="tocsin-exporter"}')

    assert [value for _, value in rows] == [1.0, 1.0]


def test_the_rules_load_and_evaluate(started: Started) -> None:
    body = json.loads(http.get(started.record().urls["prometheus"] + "/api/v1/rules"))
    groups = body["data"]["groups"]
    failed = [rule["lastError"] for group in groups for rule in group["rules"] if rule["health"] == "err"]

    assert groups
    assert failed == []


def test_what_was_printed_names_every_address_and_the_next_step(started: Started) -> None:
    text = started.output.read_text()

    for url in started.record().urls.values():
        assert url.removesuffix("/metrics").removesuffix("/incidents") in text
    assert "inject fail_slow_gpu" in text
    assert "Ctrl-C" in text


def test_status_knows_the_parts_and_the_faults(started: Started) -> None:
    done = started.lab("status", "--json")
    found: dict[str, Any] = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert found["ready"]
    assert found["nodes"] == ["gpu-001", "gpu-002"]
    assert found["verdicts"] == []
    assert found["incidents"] == []


def test_a_second_lab_in_the_same_place_is_refused(started: Started) -> None:
    done = started.lab("up")

    assert done.returncode == 2
    assert "a lab already runs" in done.stderr
    assert running(started.record())


def test_a_fault_that_does_not_exist_is_refused_with_the_list(started: Started) -> None:
    done = started.lab("inject", "gremlins")

    assert done.returncode == 2
    assert "gremlins" in done.stderr
    assert "fail_slow_gpu" in done.stderr


def test_ctrl_c_leaves_no_process_and_no_mount(started: Started, mounts_before: set[str]) -> None:
    """The last test of this lab: it ends it."""
    below = procs.descendants(started.process.pid)
    assert len(below) >= 5

    os.kill(started.process.pid, signal.SIGINT)
    status = started.process.wait(60)

    assert status == 0, started.output.read_text()
    assert [process for process in below if procs.alive(process)] == []
    assert _mounts() == mounts_before
    assert not started.run.root.exists()
    assert "nothing is left running" in started.output.read_text()


@pytest.mark.long
def test_down_cleans_up_after_a_killed_lab(tmp_path: Path) -> None:
    lab = _start(tmp_path)
    below = procs.descendants(lab.process.pid)

    lab.process.kill()
    lab.process.wait()
    done = lab.lab("down")

    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 10
    while any(procs.alive(process) for process in below) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [process for process in below if procs.alive(process)] == []
    assert not lab.run.root.exists()


def test_no_lab_is_said_plainly(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tocsin_lab", "--run-dir", str(tmp_path / "none"), "status"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 2
    assert "no lab runs" in done.stderr
