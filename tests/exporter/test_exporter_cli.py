"""The command as a user runs it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.exporter.support import Processes

from tocsin_exporter.cli import main
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import create_node

COMMAND = (sys.executable, "-m", "tocsin_exporter", "--ebpf.backend", "off", "--control.socket", "")


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **more},
        input="",
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param(["--collect.interval", "banana"], "--collect.interval", id="no duration"),
        pytest.param(["--collect.interval", "1ms"], "--collect.interval", id="too short"),
        pytest.param(["--web.listen-address", "9836"], "--web.listen-address", id="no colon"),
        pytest.param(["--web.listen-address", ":70000"], "--web.listen-address", id="no such port"),
        pytest.param(["--web.config.file", "/nowhere"], "--web.config.file", id="no web configuration"),
        pytest.param(["--node.name", "a b"], "--node.name", id="a space in a name"),
        pytest.param(["--path.procfs", "/nowhere"], "--path.procfs", id="no folder"),
        pytest.param(["--path.sysfs", "/etc/passwd"], "--path.sysfs", id="a file for a folder"),
        pytest.param(["--path.state", "/tmp"], "--path.state", id="a folder for a file"),
        pytest.param(["--nvml.library", "/nowhere.so"], "--nvml.library", id="no library"),
        pytest.param(["--identity.only-env", "=x"], "--identity.only-env", id="no name"),
        pytest.param(["--ebpf.backend", "magic"], "--ebpf.backend", id="no backend"),
        pytest.param(["--tier", "all"], "--tier", id="no tier"),
        pytest.param(["--log.level", "loud"], "--log.level", id="no level"),
        pytest.param(["--no-collector.nonsense"], "--no-collector.nonsense", id="no collector"),
        pytest.param(["nonsense"], "nonsense", id="no command"),
        pytest.param(["identity", "abc"], "abc", id="no pid"),
        pytest.param(["parse-kmsg", "/nowhere"], "/nowhere", id="no file"),
        pytest.param(["parse-kmsg", "/tmp"], "/tmp", id="a folder to parse"),
    ],
)
def test_bad_flags_end_with_status_2_and_their_name(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, one line, the flag's name, no traceback."""
    status = main(arguments)
    said = capsys.readouterr().err.strip()

    assert 2 == status
    assert named in said
    assert 1 == len(said.splitlines())


def test_once_without_a_gpu_and_without_rights(tmp_path: Path, promtool: str) -> None:
    """Without driver, log, ports and processes there is a scrape that says what is missing and why."""
    for name in ("proc", "sys"):
        (tmp_path / name).mkdir()
    done = run(
        "--once", "--node.name", "bare", "--path.procfs", str(tmp_path / "proc"),
        "--path.sysfs", str(tmp_path / "sys"), "--path.kmsg", str(tmp_path / "none"),
        LD_LIBRARY_PATH=str(tmp_path),
    )  # fmt: skip

    assert 0 == done.returncode
    assert "Traceback" not in done.stderr
    for collector, reason in (("gpu", "no_library"), ("gpu_events", "unsupported"), ("host", "unsupported")):
        assert (
            f'tocsin_collector_error_info{{node="bare",collector="{collector}",reason="{reason}"}} 1'
            in done.stdout
        )
    for collector in ("identity", "fabric"):
        assert f'tocsin_collector_success{{node="bare",collector="{collector}"}} 1' in done.stdout
    assert "tocsin_gpu_" not in done.stdout
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=done.stdout, text=True, capture_output=True
    )
    assert (0, "") == (checked.returncode, checked.stdout + checked.stderr)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv to drop rights"
)
def test_once_without_capabilities(tmp_path: Path) -> None:
    """Without any capability the scrape has what is open to everyone, and names what is not."""
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", sys.executable, "-m", "tocsin_exporter",
         "--once", "--node.name", "poor", "--path.sysfs", str(tmp_path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert 0 == done.returncode
    assert "Traceback" not in done.stderr
    assert (
        'tocsin_collector_error_info{node="poor",collector="gpu_events",reason="no_permission"} 1'
        in done.stdout
    )
    for collector in ("cuda", "nccl"):
        assert f'tocsin_collector_success{{node="poor",collector="{collector}"}} 0' in done.stdout
    assert 'tocsin_collector_success{node="poor",collector="host"} 1' in done.stdout
    assert 'tocsin_host_load1{node="poor"}' in done.stdout


def test_doctor_says_what_is_missing_and_what_it_costs(tmp_path: Path) -> None:
    """A bare node is no error; each lack has its cost."""
    done = run(
        "--path.sysfs", str(tmp_path), "--path.kmsg", str(tmp_path / "none"), "--node.name", "bare", "doctor"
    )

    assert 0 == done.returncode
    assert "kernel log" in done.stdout
    assert done.stdout.count("costs:") >= 2


@pytest.mark.parametrize(
    ("counting", "words"),
    [
        pytest.param(True, "8 ports above them, error counters (AER) on 12 of 12, 0 files", id="AER"),
        pytest.param(False, "CONFIG_PCIEAER", id="a kernel without AER"),
    ],
)  # fmt: skip
def test_doctor_says_whether_links_count_their_errors(tmp_path: Path, counting: bool, words: str) -> None:
    """A kernel without AER is named with what that costs."""
    root = create_node(tmp_path, "n", gpus=2, hcas=2).sysfs
    for file in () if counting else (root / "devices").rglob("aer_*"):
        file.unlink()
    done = run("--path.sysfs", str(root), "--node.name", "n", "doctor")

    assert 0 == done.returncode
    assert words in done.stdout


def test_identity_of_a_process(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    """Facts, verdict and sources are printed as JSON; other variables of the process are not."""
    processes.add(
        77, environ={"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "demo", "API_TOKEN": "geheim"}
    )
    status = main(["--path.procfs", str(processes.root), "identity", "77"])
    text = capsys.readouterr().out
    answer = json.loads(text)

    assert 0 == status
    assert ("torchrun/demo", "3", 8) == tuple(
        answer["identity"][key] for key in ("job_id", "rank", "world_size")
    )
    assert {"job": "environ", "rank": "environ:RANK"} == answer["identity"]["sources"]
    assert "geheim" not in text


def test_identity_of_no_process(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    """A pid that is not there is told as such, with status 1."""
    assert 1 == main(["--path.procfs", str(processes.root), "identity", "4242"])
    assert json.loads(capsys.readouterr().out)["found"] is False


def test_parse_kmsg_prints_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each event is one strict JSON object on a line; bytes that are no text are survived."""
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe junk\n3,1,5,-;NVRM: Xid (PCI:0000:3b:00): 79, x\nnfs: server n OK")

    assert 0 == main(["parse-kmsg", str(log)])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [("xid", 2), ("nfs", 3)] == [(event["kind"], event["line"]) for event in found]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(*arguments: str, **more: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    port = free_port()
    process = subprocess.Popen(
        [*COMMAND, "--web.listen-address", f"127.0.0.1:{port}", *arguments],
        text=True, stderr=subprocess.PIPE, env={**os.environ, **more},
    )  # fmt: skip
    try:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                fetch(port, "/-/healthy")
                break
            except OSError:
                time.sleep(0.1)
        yield process, port
    finally:
        process.kill()
        process.communicate(timeout=10)


def fetch(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def get(port: int) -> tuple[str, float]:
    began = time.monotonic()
    return fetch(port, "/metrics"), time.monotonic() - began


def wait_for(port: int, wanted: str, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if wanted in get(port)[0]:
            return True
        time.sleep(0.1)
    return False


def test_a_hung_driver_does_not_hold_up_a_scrape(tmp_path: Path, nvml_library: Path) -> None:
    """While every driver call hangs, scrapes take a small part of the driver's deadline, and say `hung`."""
    node = create_node(tmp_path, "gpu-001", gpus=2, hcas=2)
    deadline = 2.0
    with serving(
        "--node.name", "gpu-001", "--nvml.library", str(nvml_library), "--path.sysfs", str(node.sysfs),
        "--path.kmsg", str(node.kmsg), "--collect.interval", "500ms", "--nvml.deadline", "2s",
        TOCSIN_SIM_DEVICES=str(node.devices),
    ) as (_, port):  # fmt: skip
        assert wait_for(port, 'tocsin_collector_success{node="gpu-001",collector="gpu"} 1')
        with Node(node.devices) as mapped:
            mapped.state.hang = 1
        slowest = 0.0
        seen = False
        end = time.monotonic() + 15
        while not seen and time.monotonic() < end:
            text, took = get(port)
            slowest = max(slowest, took)
            seen = (
                'reason="hung"' in text
                and 'tocsin_collector_success{node="gpu-001",collector="gpu"} 0' in text
            )
            time.sleep(0.05)
        with Node(node.devices) as mapped:
            mapped.state.hang = 0

        assert seen
        assert slowest < deadline / 4
        assert wait_for(port, 'tocsin_collector_success{node="gpu-001",collector="gpu"} 1')


def test_sigterm_ends_it_and_its_children(tmp_path: Path, nvml_library: Path) -> None:
    """The exporter ends with status 0 on SIGTERM and leaves no process behind."""
    node = create_node(tmp_path, "gpu-001", gpus=1, hcas=0)
    with serving(
        "--nvml.library",
        str(nvml_library),
        "--path.kmsg",
        str(node.kmsg),
        TOCSIN_SIM_DEVICES=str(node.devices),
    ) as (process, port):
        assert wait_for(port, "tocsin_gpu_info")
        below: list[str] = []
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            # Threads that answered a scrape end meanwhile.
            with contextlib.suppress(FileNotFoundError):
                below += (task / "children").read_text().split()
        process.send_signal(signal.SIGTERM)

        assert 0 == process.wait(timeout=15)
        assert below
        assert not [child for child in below if Path(f"/proc/{child}").exists()]


def test_it_listens_on_each_address_of_the_command_line() -> None:
    """`--web.listen-address` may be repeated; an IPv6 address stands in brackets."""
    second = free_port()
    with serving("--web.listen-address", f"[::1]:{second}") as (_, port):
        connection = http.client.HTTPConnection("::1", second, timeout=30)
        connection.request("GET", "/-/healthy")
        assert b"ok\n" == connection.getresponse().read()
        connection.close()
        assert "ok\n" == fetch(port, "/-/healthy")
