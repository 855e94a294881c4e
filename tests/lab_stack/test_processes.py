"""The lab's processes: none outlives it, none that is not its own is ever signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tocsin_lab.errors import LabError
from tocsin_lab.stack import ports, procs, programs, rundir
from tocsin_lab.stack.components import Part
from tocsin_lab.stack.procs import Child, ProcessId
from tocsin_lab.stack.rundir import Component, RunDir, StackRecord
from tocsin_lab.stack.stack import Stack, clean_environment

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
# Starts a grandchild, prints its pid and waits.
_PARENT = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""
PARENT = (sys.executable, "-c", _PARENT)
_STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(60)
"""
STUBBORN = (sys.executable, "-c", _STUBBORN)


def _eventually(fact: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if fact():
            return True
        time.sleep(0.02)
    return fact()


def _child(folder: Path, argv: tuple[str, ...]) -> Child:
    return Child("part", argv, os.environ, folder / "part.log", folder)


def test_a_process_is_known_by_pid_and_start_time() -> None:
    """The same pid with another start time is a stranger."""
    me = procs.identify(os.getpid())

    assert me is not None
    assert procs.alive(me)
    assert not procs.alive(ProcessId(me.pid, me.start + 1))


def test_a_process_name_with_parentheses_does_not_shift_the_fields(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text("7 (a) R 1 (b) S 1 7 7 0 -1 " + " ".join(["0"] * 13) + " 4242 0 0\n")

    assert procs.identify(7, tmp_path) == ProcessId(7, 4242)


def test_a_part_and_what_it_started_end_together(tmp_path: Path) -> None:
    child = _child(tmp_path, PARENT)
    assert _eventually(lambda: child.tail() != "")
    grandchild = procs.identify(int(child.tail()))
    assert grandchild is not None

    child.stop(grace=5.0)

    assert _eventually(lambda: not procs.alive(grandchild))


def test_a_part_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    child = _child(tmp_path, STUBBORN)
    assert _eventually(lambda: child.tail() == "deaf")

    assert child.stop(grace=0.2) == -signal.SIGKILL


def test_a_killed_lab_takes_its_parts_along(tmp_path: Path) -> None:
    """kill -9 leaves no time to clean up, so the kernel has to do it."""
    script = (
        "import os, sys, time; from pathlib import Path; from tocsin_lab.stack.procs import Child\n"
        f"child = Child('part', {SLEEP!r}, os.environ, Path({str(tmp_path / 'part.log')!r}), Path('/'))\n"
        "print(child.id.pid, flush=True); time.sleep(60)"
    )
    lab = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert lab.stdout is not None
    part = procs.identify(int(lab.stdout.readline()))
    assert part is not None

    lab.kill()
    lab.wait()
    lab.stdout.close()

    assert _eventually(lambda: not procs.alive(part))


def _record(component: ProcessId, supervisor: ProcessId) -> StackRecord:
    parts = (Component("prometheus", component.pid, component.start, "/log"),)
    return StackRecord(supervisor, rundir.boot_id(), True, {}, parts)


def test_what_a_killed_lab_left_is_stopped_and_removed(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.prepare()
    child = _child(tmp_path, SLEEP)
    _record(child.id, ProcessId(1, 0)).write(run.record)
    record = rundir.read_record(run.record)
    assert record is not None

    assert not rundir.running(record)
    assert rundir.clean_up(run, record) == ["prometheus"]
    assert child.exit_status() is not None
    assert not run.root.exists()


def test_a_stranger_with_a_recorded_pid_is_left_alone(tmp_path: Path) -> None:
    """Pids are given out again; the start time tells whose it is now."""
    run = RunDir(tmp_path / "run")
    run.prepare()
    child = _child(tmp_path, SLEEP)
    stranger = ProcessId(child.id.pid, child.id.start - 1)
    record = _record(stranger, ProcessId(1, 0))

    assert rundir.clean_up(run, record) == []
    assert child.exit_status() is None
    child.stop(1.0)


def test_a_record_that_is_no_record_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    assert rundir.read_record(path) is None
    for text in ("", "[]", '{"supervisor": {"pid": 1}}'):
        path.write_text(text)
        with pytest.raises(LabError, match=r"stack\.json: not a record"):
            rundir.read_record(path)


def test_a_run_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """Under /tmp another user could have laid out a link or a folder first."""
    target = tmp_path / "target"
    target.mkdir()
    link = tmp_path / "run"
    link.symlink_to(target)

    with pytest.raises(LabError, match="not a directory of this user"):
        RunDir(link).prepare()
    run = RunDir(tmp_path / "mine")
    run.prepare()
    assert run.root.stat().st_mode & 0o077 == 0


def test_a_record_that_others_could_have_written_ends_nothing(tmp_path: Path) -> None:
    """It names processes, and whoever starts or stops a lab may be root."""
    victim = procs.identify(os.getpid())
    assert victim is not None
    run = RunDir(tmp_path / "run")
    run.prepare()
    StackRecord(victim, rundir.boot_id(), True, {}).write(run.record)
    assert rundir.read_record(run.record) is not None

    run.root.chmod(0o777)
    with pytest.raises(LabError, match="not a directory of this user alone"):
        rundir.read_record(run.record)


def test_a_file_beside_the_run_directory_is_never_reached_through_a_link(tmp_path: Path) -> None:
    """Under /tmp a link of that name may lead to any file of ours."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "run.log").symlink_to(precious)
    os.mkfifo(tmp_path / "pipe.log")

    for name in ("run.log", "pipe.log"):
        with pytest.raises(LabError, match=name):
            rundir.open_own(tmp_path / name)
    assert precious.read_text() == "kept"


def test_a_part_that_ends_is_told_with_its_log_and_started_again(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.prepare()
    told: list[str] = []
    stack = Stack(run, os.environ, told.append)
    argv = (sys.executable, "-c", "print('out of luck'); raise SystemExit(3)")
    stack.start(Part("fragile", argv))

    def down() -> bool:
        stack.watch()
        return any("stays down" in line for line in told)

    assert _eventually(down)
    assert "ended with status 3" in told[0]
    assert "out of luck" in told[0]
    assert sum("started again" in line for line in told) == 3
    assert stack.stop() == []


def test_a_part_that_ends_while_starting_says_why(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.prepare()
    stack = Stack(run, os.environ, lambda _: None)
    argv = (sys.executable, "-c", "print('no such flag'); raise SystemExit(2)")
    stack.start(Part("wrong", argv, ready="http://127.0.0.1:9/"))

    with pytest.raises(LabError, match=r"wrong ended with status 2 while starting[\s\S]*no such flag"):
        stack.wait_ready()
    stack.stop()


def test_only_what_came_after_the_lab_is_swept_up(tmp_path: Path) -> None:
    """A caller's own children are none of the lab's business."""
    run = RunDir(tmp_path / "run")
    run.prepare()
    before = _child(tmp_path, SLEEP)
    stack = Stack(run, os.environ, lambda _: None)
    after = _child(tmp_path, SLEEP)

    assert stack.stop() == []
    assert before.exit_status() is None
    assert after.exit_status() == -signal.SIGTERM
    before.stop(1.0)


def test_a_busy_port_is_replaced_and_none_is_given_twice() -> None:
    [busy] = ports.choose([0])
    import socket

    with socket.socket() as holder:
        holder.bind((ports.LOOPBACK, busy))
        holder.listen()
        chosen = ports.choose([busy, busy, 0])

    assert busy not in chosen
    assert len(set(chosen)) == 3


def test_two_exporters_do_not_take_the_remediators_port() -> None:
    assert ports.exporter_wishes(3) == [9836, 9838, 9839]


def test_the_identity_of_a_surrounding_job_is_not_passed_on() -> None:
    """A lab started inside a batch job must not make its ranks look like that job's."""
    env = {"PATH": "/bin", "SLURM_JOB_ID": "4711", "RANK": "3", "OMPI_COMM_WORLD_RANK": "3", "HOME": "/root"}

    assert clean_environment(env) == {"PATH": "/bin", "HOME": "/root", "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    ("capability", "may"),
    [
        ("CapEff:\t0000000000000000", False),
        ("CapEff:\t000001ffffffffff", True),
        ("CapEff:\t000000c000000000", True),  # CAP_BPF and CAP_PERFMON
        ("CapEff:\t0000008000000000", False),  # CAP_BPF alone
        ("Name:\tx", False),
    ],
)
def test_the_right_to_trace_is_read_from_the_capabilities(capability: str, may: bool) -> None:
    assert programs.may_trace(programs.capabilities(f"Name:\tx\n{capability}\n")) is may
