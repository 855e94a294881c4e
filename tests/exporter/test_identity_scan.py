"""Following the processes of a node: who is the rank, who left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.exporter.support import Processes

from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.identity.resolver import DEPARTED_SECONDS, Resolver
from tocsin_exporter.sources.latest import ErrorCounter


class Clock:
    """A clock that tests turn."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def rank(number: int, job: str = "demo", **more: str) -> dict[str, str]:
    return {"RANK": str(number), "WORLD_SIZE": "4", "MASTER_ADDR": "h", "TORCHELASTIC_RUN_ID": job, **more}


def resolver(processes: Processes, clock: Clock, only: tuple[str, str] | None = None) -> Resolver:
    return Resolver(
        processes.root, ErrorCounter(), only, pods=processes.root / "pods", clock=clock, wall=clock
    )


def ranks(view: Resolver) -> dict[int, str]:
    return {who.pid: who.rank for who in view.living()}


def test_the_rank_is_the_process_above_its_helpers(processes: Processes) -> None:
    """Agent and data loaders carry the job's environment; only the rank itself counts."""
    processes.add(
        10, name="torchrun", command=("torchrun", "train.py"), environ={"TORCHELASTIC_RUN_ID": "demo"}
    )
    processes.add(11, parent=10, start=20, environ=rank(0))
    processes.add(12, parent=10, start=21, environ=rank(1))
    processes.add(13, parent=11, start=30, environ=rank(0), name="pt_data_worker")
    processes.add(14, parent=13, start=31, environ=rank(0))
    view = resolver(processes, Clock())
    view.scan()

    assert {11: "0", 12: "1"} == ranks(view)


def test_a_shell_around_the_rank_is_not_the_rank(processes: Processes) -> None:
    """Below a shell it is the program, also in a pipeline."""
    processes.add(10, name="bash", command=("bash", "run.sh"), environ=rank(0))
    processes.add(11, parent=10, start=1001, environ=rank(0))
    processes.add(12, parent=10, start=1001, name="tee", command=("tee", "log"), environ=rank(0))
    view = resolver(processes, Clock())
    view.scan()

    assert {11: "0"} == ranks(view)


def test_the_holder_of_the_device_is_the_rank(processes: Processes) -> None:
    """Where a plain program starts the rank, the one on the device counts."""
    processes.add(10, environ=rank(0))
    processes.add(11, parent=10, start=1001, environ=rank(0))
    view = resolver(processes, Clock())
    view.note_devices({11: (2,)}, {"GPU-x": 2})
    view.scan()

    assert {11: "0"} == ranks(view)
    assert (2,) == view.living()[0].gpu_indices
    assert "nvml" == view.living()[0].sources["gpu"]


def test_slurm_tasks_that_launch_are_no_ranks(processes: Processes) -> None:
    """srun's task that runs torchrun has a task number; the ranks are torchrun's."""
    slurm = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1"}
    processes.add(10, name="bash", command=("bash", "-c", "…"), environ=slurm)
    processes.add(11, parent=10, environ=slurm, name="launcher", command=("./launcher",))
    processes.add(12, parent=11, environ={**slurm, **rank(8)})
    processes.add(13, parent=11, environ={**slurm, **rank(9)})
    view = resolver(processes, Clock())
    view.scan()

    assert {12: "8", 13: "9"} == ranks(view)


def test_a_left_over_helper_does_not_become_the_rank(processes: Processes) -> None:
    """A data loader that outlives its rank does not keep the rank alive."""
    processes.add(11, environ=rank(0))
    processes.add(13, parent=11, start=1030, environ=rank(0))
    view = resolver(processes, Clock())
    view.scan()
    processes.remove(11)
    processes.add(13, parent=1, start=1030, environ=rank(0))
    view.scan()

    assert {} == ranks(view)
    assert [(11, "0")] == [(who.pid, who.rank) for who, _ in view.departed()]


def test_arrivals_and_departures_are_told_once(processes: Processes) -> None:
    """Listeners hear of each process once, of those living at the subscription at once."""
    clock = Clock()
    view = resolver(processes, clock)
    processes.add(11, environ=rank(0))
    view.scan()
    arrived: list[int] = []
    left: list[int] = []
    view.subscribe(lambda who: arrived.append(who.pid), lambda who: left.append(who.pid))
    processes.add(12, environ=rank(1))
    for _ in range(3):
        clock.now += 1
        view.scan()
    processes.remove(11)
    for _ in range(3):
        clock.now += 1
        view.scan()

    assert ([11, 12], [11]) == (arrived, left)


def test_a_reused_pid_is_another_process(processes: Processes) -> None:
    """The start time tells a new process under an old pid: one left, one arrived."""
    clock = Clock()
    view = resolver(processes, clock)
    processes.add(11, start=1000, environ=rank(0))
    view.scan()
    clock.now += 10
    processes.add(11, start=2000, environ=rank(3))
    view.scan()

    assert {11: "3"} == ranks(view)
    assert ["0"] == [who.rank for who, _ in view.departed()]


def test_a_task_that_its_starter_holds_back_is_found_when_it_starts(processes: Processes) -> None:
    """Slurm's step daemon forks, waits for the other nodes, and only then becomes the task."""
    clock = Clock()
    view = resolver(processes, clock)
    processes.add(10, name="slurmstepd", command=("slurmstepd: [7.0]",))
    processes.add(11, name="slurmstepd", command=("slurmstepd: [7.0]",), parent=10, start=1100)
    for _ in range(5):
        view.scan()
        clock.now += 1
    processes.add(11, parent=10, start=1100, environ={"SLURM_JOB_ID": "7", "SLURM_PROCID": "3"})
    view.scan()

    assert {11: "3"} == ranks(view)


def test_a_process_that_is_being_taken_down_has_ended(processes: Processes) -> None:
    """While the kernel takes a process down it shows neither environment nor cgroup, and is no zombie yet."""
    view = resolver(processes, Clock())
    processes.add(11, environ=rank(0))
    view.scan()
    processes.add(11, command=(), flags=0x400004, state="R")
    view.scan()

    assert {} == ranks(view)
    assert [(11, "0")] == [(who.pid, who.rank) for who, _ in view.departed()]


def test_a_zombie_has_ended(processes: Processes) -> None:
    """A process whose parent has not looked yet is gone all the same."""
    view = resolver(processes, Clock())
    processes.add(11, environ=rank(0))
    view.scan()
    processes.add(11, environ=rank(0), state="Z")
    view.scan()

    assert {} == ranks(view)
    assert 1 == len(view.departed())


def test_departed_processes_are_kept_a_quarter_of_an_hour(processes: Processes) -> None:
    """Who a process was is known for 15 minutes after its end, and no longer."""
    clock = Clock()
    view = resolver(processes, clock)
    processes.add(11, environ=rank(0))
    view.scan()
    processes.remove(11)
    view.scan()
    clock.now += DEPARTED_SECONDS - 1
    kept: ProcessIdentity | None = view.by_pid(11)
    clock.now += 2

    assert kept is not None
    assert () == view.departed()


def test_an_environment_that_changes_at_exec_is_read_again(processes: Processes) -> None:
    """Between fork and exec a rank shows its launcher's environment; that is not its last word."""
    clock = Clock()
    view = resolver(processes, clock)
    processes.add(11, environ={"PATH": "/bin"})
    view.scan()
    clock.now += 1
    processes.add(11, environ=rank(2))
    view.scan()

    assert {11: "2"} == ranks(view)


def test_only_env_limits_what_is_seen(processes: Processes) -> None:
    """Of two virtual nodes on one machine each sees its own processes."""
    processes.add(11, environ=rank(0, TOCSIN_LAB_NODE="gpu-001"))
    processes.add(12, environ=rank(1, TOCSIN_LAB_NODE="gpu-002"))
    view = resolver(processes, Clock(), ("TOCSIN_LAB_NODE", "gpu-002"))
    view.scan()

    assert {12: "1"} == ranks(view)


def test_kernel_threads_and_broken_entries_are_passed_over(processes: Processes) -> None:
    """A kernel thread, a half-written stat and an unreadable environment cost nothing but themselves."""
    processes.add(2, name="kthreadd", flags=0x200000, environ=rank(1))
    processes.add(11, environ=rank(0))
    processes.add(12, environ=rank(1))
    (processes.root / "12/stat").write_text("12 (python")
    processes.add(13, environ=rank(2))
    (processes.root / "13/environ").unlink()
    view = resolver(processes, Clock())
    view.scan()

    assert {11: "0"} == ranks(view)


def test_a_huge_environment_is_read_in_part(processes: Processes) -> None:
    """What names the job is found within the bound, and the rest is not read."""
    processes.add(11, environ={**rank(0), "JUNK": "x" * (1 << 20), "RANK_LATE": "9"})
    view = resolver(processes, Clock())
    view.scan()

    assert {11: "0"} == ranks(view)


def test_a_plain_process_on_a_device_is_a_job(processes: Processes) -> None:
    """What the driver lists and no allocator knows is named by its process group."""
    processes.add(40, group=39)
    view = resolver(processes, Clock())
    view.scan()
    assert {} == ranks(view)
    view.note_devices({40: (0,)}, {})
    view.scan()

    assert ["proc/39@9dcfcddf"] == [who.job_id for who in view.living()]


def test_the_pod_is_named_by_the_kubelet_and_not_by_the_container(processes: Processes) -> None:
    """The kubelet's log folder beats the environment that a container can choose."""
    uid = "3f1c2b7e-90ab-4cde-8f01-23456789abcd"
    (processes.root / f"pods/team-a_llm-worker-0_{uid}").mkdir(parents=True)
    processes.add(11, environ=rank(0, HOSTNAME="forged"), cgroup=f"0::/kubepods/pod{uid}/c\n")
    view = resolver(processes, Clock())
    view.scan()

    assert ["k8s/team-a/llm"] == [who.job_id for who in view.living()]


def test_conflicts_are_counted_once_per_process(processes: Processes) -> None:
    """A disagreement is one count, however often it is looked at."""
    clock = Clock()
    processes.add(11, environ=rank(0, OMPI_COMM_WORLD_RANK="5"))
    view = resolver(processes, clock)
    for _ in range(4):
        view.scan()
        clock.now += 1

    assert {"job": 0, "rank": 1, "gpu": 0} == view.conflicts()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no Linux /proc")
def test_a_real_process_is_seen_to_end() -> None:
    """On the real /proc a rank is found, and its end noticed without waiting for a scan."""
    environ = {**os.environ, **rank(0, job=f"real-{os.getpid()}")}
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environ)
    view = Resolver(Path("/proc"), ErrorCounter())
    view.start()
    try:
        assert view.wait_first(5)
        end = time.monotonic() + 5
        while view.by_pid(child.pid) is None and time.monotonic() < end:
            time.sleep(0.05)
        assert [child.pid] == [
            who.pid for who in view.living() if who.job_id == f"torchrun/real-{os.getpid()}"
        ]
        child.send_signal(signal.SIGKILL)
        while not view.departed() and time.monotonic() < end:
            time.sleep(0.02)
        assert [child.pid] == [who.pid for who, _ in view.departed()]
    finally:
        child.kill()
        child.wait()
        view.stop()
