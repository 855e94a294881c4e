"""Ends of real processes as identity sees them: threads, exec, requeue, what a rank that ended leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.exporter.support import Processes

from tocsin_exporter.collectors import exits
from tocsin_exporter.identity.resolver import Resolver
from tocsin_exporter.life import Life
from tocsin_exporter.parser.event import Event
from tocsin_exporter.parser.training import Training
from tocsin_exporter.sources import procfs
from tocsin_exporter.sources.latest import ErrorCounter

PROC = Path("/proc")
MARK = "TOCSIN_TEST_EXITS"
RANK = {"RANK": "5", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "ends"}


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program with the states that a script cannot get into."""
    program = tmp_path_factory.mktemp("waits") / "waits"
    source = Path(__file__).parent / "waits.c"
    subprocess.run(["gcc", "-O1", "-w", "-pthread", str(source), "-o", str(program)], check=True)
    return str(program)


@pytest.fixture
def view() -> Iterator[Resolver]:
    """Identity of the processes of this test alone."""
    made = Resolver(PROC, ErrorCounter(), (MARK, str(os.getpid())))
    yield made
    made.stop()


@pytest.fixture
def start(waits: str) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start the program as a rank."""
    started: list[subprocess.Popen[bytes]] = []

    def run(what: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, **RANK, MARK: str(os.getpid())}
        started.append(
            subprocess.Popen([waits, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, bufsize=0)
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def until(view: Resolver, wanted: Callable[[], object]) -> None:
    """Scan until it is as wanted."""
    for _ in range(300):
        view.scan()
        if wanted():
            return
        time.sleep(0.01)
    raise AssertionError(f"it did not happen within 3 s: {view.living()}")


def state(pid: int) -> str:
    """The letter of the first thread."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]


def test_a_rank_lives_on_without_its_first_thread(
    view: Resolver, start: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    """It is known although its first thread has ended, and lives until the last one ends."""
    process = start("leader")
    life = Life(view)
    life.start()
    until(view, view.living)
    while state(process.pid) != "Z":
        time.sleep(0.01)
    for _ in range(3):
        view.scan()
    assert [process.pid] == [who.pid for who in view.living()]
    assert () == view.departed()

    process.send_signal(signal.SIGKILL)
    until(view, view.departed)

    assert () == view.living()


@pytest.mark.parametrize(
    ("pending", "flags", "ended"),
    [
        pytest.param(0, 0, False, id="another thread goes on"),
        pytest.param(1 << 8, 0, True, id="the other one is to be killed and is stuck"),
        pytest.param(0, 4, True, id="the other one is on its way out"),
    ],
)
def test_a_process_that_ends_as_a_whole_has_ended(
    pending: int, flags: int, ended: bool, processes: Processes
) -> None:
    """In a process that was killed each thread has the signal pending or ends: a stuck one is no rank."""
    processes.add(11, environ=RANK, state="Z", flags=4)
    for tid in (11, 12):
        folder = processes.root / "11/task" / str(tid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{tid} (python) D 1 1 1 0 -1 {flags} 0 0\n")
        (folder / "status").write_text(f"Name:\tpython\nSigPnd:\t{pending:016x}\n")
    found = procfs.process_stat(processes.root, 11)

    assert found is not None
    assert ended is found.ended


def test_an_exec_is_no_end(view: Resolver, start: Callable[[str], subprocess.Popen[bytes]]) -> None:
    """A rank that becomes another program is the same rank."""
    process = start("exec")
    life = Life(view)
    life.start()
    until(view, view.living)
    assert process.stdin is not None
    for _ in range(3):
        process.stdin.write(b".")
        view.scan()

    (rank,) = life.ranks().values()
    assert (0, 0) == (rank.restarts, sum(rank.counts.values()))
    assert [process.pid] == [who.pid for who in view.living()]


def test_a_requeued_job_is_the_same_job(processes: Processes) -> None:
    """Slurm keeps the number: the rank's end and its start in the next attempt are counted as one restart."""
    clock = [1000.0]
    view = Resolver(processes.root, ErrorCounter(), clock=lambda: clock[0], wall=lambda: clock[0])
    life = Life(view, lambda: clock[0])
    life.start()
    slurm = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_RESTART_COUNT": "0"}
    cgroup = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"
    processes.add(11, environ=slurm, cgroup=cgroup, start=100)
    for _ in range(4):
        view.scan()
        clock[0] += 1
    processes.remove(11)
    view.scan()
    clock[0] += 60
    life.ranks()
    processes.add(21, environ={**slurm, "SLURM_RESTART_COUNT": "1"}, cgroup=cgroup, start=9000)
    for _ in range(4):
        view.scan()
        clock[0] += 1

    ((key, rank),) = life.ranks().items()
    assert ("slurm/7", "0") == key
    assert (1, {"ok": 0, "error": 0, "signal": 0, "unknown": 1}) == (rank.restarts, rank.counts)
    assert [("1", 21)] == [(who.attempt, who.pid) for who in view.living()]


def test_the_last_losses_of_a_rank_are_served(view: Resolver) -> None:
    """What its output said last stays, with the loss as printed; a rank without losses has no such series."""

    class Output:
        def ended_training(self) -> dict[tuple[str, str], Training]:
            told = Training()
            for step in range(1, 13):
                told.apply(
                    Event("step", step, step=step, loss=float(13 - step), learning_rate=0.5), float(step)
                )
            silent = Training()
            silent.step = 3
            return {("slurm/7", "0"): told, ("slurm/7", "1"): silent}

    collector = exits.build(None, view, Output(), lambda: 1000.0)  # type: ignore[arg-type]
    rows = {(each.family, each.labels[1]): each.value for each in collector.collect()}

    assert (12, 1.0, 5.5, 0.5) == tuple(
        rows[f"tocsin_job_last_{fact}", "0"] for fact in ("step", "loss", "loss_mean", "learning_rate")
    )
    assert 5.5 == rows["tocsin_job_last_loss_best_mean", "0"]
    assert {"tocsin_job_last_step", "tocsin_job_last_steps", "tocsin_job_last_nonfinite_losses"} == {
        family for family, rank in rows if rank == "1"
    }
