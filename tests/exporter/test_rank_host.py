"""The host's side of ranks that are real processes: where they run, what they wait for, who works there."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.exporter.rank_host_support import PROC, Scene, View, beside

from tocsin_exporter.collectors import host
from tocsin_exporter.metrics import FAMILIES
from tocsin_exporter.metrics.rank import MOST_HOST_SERIES
from tocsin_exporter.sources.host import HostSource
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.rank_host import RankHostSource
from tocsin_exporter.sources.rank_host.places import parse_list

HERE = Path(__file__).parent
WAIT = "import sys; print(flush=True); sys.stdin.read()"
# Two children, one of which has a child of its own; all end with the standard input.
FAMILY = """
import os, sys
for depth in (1, 2):
    if os.fork() == 0:
        if depth == 2 and os.fork() != 0:
            os.wait(); os._exit(0)
        sys.stdin.read(); os._exit(0)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "sys")
    yield made
    made.close()


@pytest.fixture(scope="session")
def waits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program with the states that a script cannot get into."""
    program = tmp_path_factory.mktemp("waits") / "waits"
    subprocess.run(["gcc", "-O1", "-w", "-pthread", str(HERE / "waits.c"), "-o", str(program)], check=True)
    return str(program)


def below(pid: int) -> list[int]:
    """The children of a process."""
    return [int(word) for word in (PROC / str(pid) / "task" / str(pid) / "children").read_text().split()]


def test_binding_is_told_against_the_gpu(scene: Scene, tmp_path: Path) -> None:
    """A rank on the CPUs beside its GPU, and one on the other's; where they ran is told too."""
    beside(tmp_path / "sys", "0000:3b:00.0", 0, "0")
    beside(tmp_path / "sys", "0000:d8:00.0", 1, "1")
    scene.devices = {0: "0000:3b:00.0", 1: "0000:d8:00.0"}
    if len(os.sched_getaffinity(0)) < 2 or not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs CPUs 0 and 1")
    busy = (
        "import os, sys, time; os.sched_setaffinity(0, {0}); print(flush=True)\nwhile True: time.sleep(0.001)"
    )
    for rank, gpus in (("0", (0,)), ("1", (1,)), ("2", (0, 1)), ("3", ())):
        scene.rank(scene.script(busy).pid, rank, gpus)
    scene.reading()
    time.sleep(0.05)
    rows = {row.rank: row for row in scene.reading().ranks}

    assert [1.0, 0.0, 1.0, None] == [rows[rank].cpu_local for rank in "0123"]
    assert [1.0, 0.0, 1.0, None] == [rows[rank].ran_local for rank in "0123"]
    assert {(1, 0)} == {(row.cpus_allowed, row.last_cpu) for row in rows.values()}


@pytest.mark.parametrize(
    ("mode", "policy", "local"),
    [
        (0, ("default", ""), 0.0),
        (2, ("bind", "0"), 0.0),
        (3, ("interleave", "0"), 0.0),
        (1, ("prefer", "0"), 0.0),
    ],
)
def test_the_memory_policy_is_told(
    mode: int, policy: tuple[str, str], local: float, scene: Scene, tmp_path: Path
) -> None:
    """By which rule memory is placed, against the GPU's node, which is another one here."""
    if os.geteuid() != 0:
        pytest.skip("needs root to look at the maps of others")
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("no memory policies in this kernel")
    beside(tmp_path / "sys", "0000:3b:00.0", 7, "0-1")
    scene.devices = {0: "0000:3b:00.0"}
    script = (
        "import ctypes, sys; nodes = ctypes.c_ulong(1); mode = int(sys.argv[1]);"
        " failed = mode and ctypes.CDLL(None).syscall(238, mode, ctypes.byref(nodes), 64);"
        " print(flush=True); sys.exit(1) if failed else sys.stdin.read()"
    )
    scene.rank(scene.script(script, str(mode)).pid, "0", (0,))
    row = scene.read()

    assert (policy, local) == (row.memory_policy, row.memory_nodes_local)


def test_a_driver_that_answers_late_is_waited_for(scene: Scene, tmp_path: Path) -> None:
    """Where the GPU is becomes known after the first reading: the next one tells."""
    beside(tmp_path / "sys", "0000:3b:00.0", 0, "0-4095")
    scene.rank(scene.script(WAIT).pid, "0", (0,))
    assert scene.read().cpu_local is None

    scene.devices = {0: "0000:3b:00.0"}

    assert 1.0 == scene.read().cpu_local


def test_without_word_from_the_firmware_nothing_is_local(scene: Scene, tmp_path: Path) -> None:
    """A GPU whose node is -1 and one whose files are missing say nothing of what lies beside them."""
    beside(tmp_path / "sys", "0000:3b:00.0", -1, "0-1")
    scene.devices = {0: "0000:3b:00.0", 1: "0000:d8:00.0"}
    pid = scene.script(WAIT).pid
    scene.rank(pid, "0", (0,))
    scene.rank(pid, "1", (1,))

    assert {None} == {row.cpu_local for row in scene.reading().ranks}


def test_threads_that_share_a_cpu_wait_for_it(scene: Scene) -> None:
    """Two threads with work for one CPU: the wait grows, and with it slices and involuntary switches."""
    busy = """
import os, sys, threading, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if os.fork() == 0:
    print(flush=True)
end = time.monotonic() + 0.4
while time.monotonic() < end: pass
sys.stdin.read()
"""
    scene.rank(scene.script(busy).pid)
    scene.read()
    row = scene.until(lambda row: (row.run_wait_seconds or 0) > 0.05 and row.last_run)

    assert row.first_run_wait_seconds is not None
    assert row.timeslices is not None
    assert row.timeslices > 0
    assert row.involuntary_switches is not None
    assert row.involuntary_switches > 0
    assert scene.now == row.last_run


def test_what_has_ended_still_counts(scene: Scene) -> None:
    """Sums over threads do not fall when threads end, and count each of them once."""
    threads = """
import sys, threading
def work():
    for _ in range(200): time.sleep(0)
import time
stop = threading.Event()
several = [threading.Thread(target=stop.wait) for _ in range(20)]
for each in several: each.start()
print(flush=True)
sys.stdin.readline()
stop.set()
for each in several: each.join()
print(flush=True)
sys.stdin.read()
"""
    process = scene.script(threads)
    scene.rank(process.pid)
    many = scene.read()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    few = [scene.until(lambda row: row.threads == 1), *(scene.read() for _ in range(5))]

    assert 21 == many.threads
    sums = [row.timeslices or 0 for row in (many, *few)]
    assert 21 <= sums[0]
    assert sorted(sums) == sums
    assert sums[-1] < 2 * sums[0] + 100


def test_workers_are_the_children_without_a_gpu(scene: Scene) -> None:
    """Children and their children work for the rank, other ranks and holders of GPUs do not."""
    process = scene.script(FAMILY)
    scene.rank(process.pid)
    row = scene.until(lambda row: row.states["sleeping"] == 4)
    first, second = below(process.pid)
    assert {"sleeping": 4} == {state: count for state, count in row.states.items() if count}
    assert row.workers is not None
    assert row.workers.resident_bytes > 0

    scene.on_gpu = {first}
    without_holder = scene.read().workers
    scene.rank(second, "1")
    without_rank = scene.read().workers

    assert without_holder is not None
    assert without_rank is not None
    # The second child has one of its own.
    assert (3, 2, 0) == (row.workers.count, without_holder.count, without_rank.count)
    assert ("torchrun/test", "0") == scene.source.rank_of_child(first)


def test_a_dead_worker_is_a_zombie_and_its_work_stays(scene: Scene) -> None:
    """What a worker had used stays in the sum; until the rank looks it is a zombie, and no worker."""
    script = """
import os, sys, time
if os.fork() == 0:
    end = time.process_time() + 0.1
    while time.process_time() < end: pass
    print(flush=True)
    sys.stdin.read()
time.sleep(60)
"""
    process = scene.script(script)
    scene.rank(process.pid)
    before = scene.read().workers
    assert before is not None
    assert 1 == before.count
    (worker,) = below(process.pid)
    os.kill(worker, signal.SIGKILL)
    row = scene.until(lambda row: row.states["zombie"] == 1)

    assert row.workers is not None
    assert 0 == row.workers.count
    assert row.workers.cpu_seconds >= before.cpu_seconds > 0.05


def test_who_left_the_tree_is_no_worker(scene: Scene) -> None:
    """After a double fork the process is nobody's child: it does not count for the rank."""
    script = """
import os, sys
if os.fork() == 0:
    if os.fork() == 0:
        sys.stdin.read()
    os._exit(0)
os.wait()
print(flush=True)
sys.stdin.read()
"""
    scene.rank(scene.script(script).pid)
    workers = scene.read().workers

    assert workers is not None
    assert 0 == workers.count


def test_a_stopped_rank_is_told_since_when(scene: Scene) -> None:
    """Stopped by a signal since the reading that found it; going on, it is stopped no more."""
    process = scene.script(WAIT)
    scene.rank(process.pid)
    assert scene.read().stopped is None
    process.send_signal(signal.SIGSTOP)
    row = scene.until(lambda row: row.stopped)
    assert row.stopped is not None
    since = row.stopped.since
    later = scene.read().stopped
    process.send_signal(signal.SIGCONT)

    assert ("stopped", since) == (row.stopped.where, scene.now - 5.0)
    assert later is not None
    assert since == later.since
    assert 1 == row.states["stopped"]
    assert scene.until(lambda row: row.stopped is None).states["stopped"] == 0


def test_a_traced_rank_is_told_apart(scene: Scene) -> None:
    """A debugger holds the process: that is not the stop of a signal."""
    libc = ctypes.CDLL(None, use_errno=True)
    script = (
        "import ctypes, os, signal; ctypes.CDLL(None).ptrace(0, 0, 0, 0); print(flush=True);"
        " os.kill(os.getpid(), signal.SIGSTOP); import time; time.sleep(60)"
    )
    process = scene.script(script)
    os.waitpid(process.pid, os.WUNTRACED)
    scene.rank(process.pid)
    row = scene.read()
    libc.ptrace(8, process.pid, 0, 0)

    assert row.stopped is not None
    assert ("traced", 1) == (row.stopped.where, row.states["traced"])


def test_a_blocked_rank_is_told_where_and_since_when(scene: Scene, waits: str) -> None:
    """A thread that is deaf to signals and does not run: since the reading that first found it so."""
    scene.rank(scene.start(waits, "blocked").pid)
    first = scene.until(lambda row: row.states["blocked"] == 1)
    at = scene.now
    row, again = scene.read(), scene.read()

    assert () == first.blocked
    assert [("rank", at), ("rank", at)] == [
        (each.process, each.since) for each in (*row.blocked, *again.blocked)
    ]
    assert 10.0 == again.blocked_seconds - first.blocked_seconds
    if os.geteuid() == 0:
        # Between two readings of the test lie moments: it may not have left its CPU yet.
        assert scene.until(lambda row: row.blocked[0].where)


def test_a_process_goes_on_without_its_first_thread(scene: Scene, waits: str) -> None:
    """Where only the first thread has ended, the rank is still read."""
    process = scene.start(waits, "leader")
    scene.rank(process.pid)
    scene.until(lambda row: (PROC / str(process.pid) / "stat").read_text().split()[2] == "Z")
    row = scene.until(lambda row: not row.states["running"])

    assert 2 == row.threads
    assert {"sleeping"} == {state for state, count in row.states.items() if count}


def test_an_exec_changes_nothing(scene: Scene, waits: str) -> None:
    """A rank that becomes another program is the same process, and no sum falls."""
    process = subprocess.Popen([waits, "exec"], stdin=subprocess.PIPE, bufsize=0)
    try:
        scene.rank(process.pid)
        before = scene.read()
        assert process.stdin is not None
        for _ in range(3):
            process.stdin.write(b".")
        rows = [scene.read() for _ in range(3)]
    finally:
        process.communicate()

    sums = [row.timeslices or 0 for row in (before, *rows)]
    assert sorted(sums) == sums


def test_a_reused_pid_is_not_the_rank(scene: Scene) -> None:
    """A process with another start is somebody else: the rank is gone."""
    who = scene.rank(scene.script(WAIT).pid)
    scene.view.here[0] = type(who)(who.pid, who.start_ticks - 1, 0.0, who.job_id, who.rank, who.allocator)

    assert () == scene.reading().ranks


def test_an_ended_rank_that_nobody_collects_is_told(scene: Scene) -> None:
    """A zombie until its parent looks, and children that live on after it; then neither."""
    process = scene.script(FAMILY)
    who = scene.rank(process.pid)
    scene.until(lambda row: row.workers is not None and row.workers.count == 3)
    process.kill()
    while (PROC / str(process.pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    scene.ended(who)
    at = scene.now
    (left,) = scene.defunct()
    assert ("torchrun/test", "0", at, 3) == (left.job_id, left.rank, left.zombie_since, left.left_over)

    process.wait()
    (left,) = scene.defunct()
    assert (None, 3) == (left.zombie_since, left.left_over)

    os.killpg(process.pid, signal.SIGKILL)
    for _ in range(100):
        if not scene.defunct():
            break
        time.sleep(0.02)
    assert [] == scene.defunct()


def test_a_rank_in_a_container_has_its_children_out_here(scene: Scene) -> None:
    """Children of a rank in a pid namespace of its own are found by their pids of the host."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("namespaces need root and unshare")
    process = scene.start("unshare", "--pid", "--mount", "--fork", "--mount-proc", "python3", "-c", FAMILY)
    (inside,) = below(process.pid)
    scene.rank(inside)

    assert scene.until(lambda row: row.workers is not None and row.workers.count == 3).threads == 1


def test_open_files_and_their_limit(scene: Scene) -> None:
    """How many files are open, where the kernel tells without a listing, and how many may be."""
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        " kept = [open('/dev/null') for _ in range(30)]; print(flush=True); sys.stdin.read()"
    )
    scene.rank(scene.script(script).pid)
    row = scene.read()

    assert 64 == row.open_files_limit
    assert row.open_files is None or 33 <= row.open_files <= 64


def test_a_storm_of_threads_and_children_is_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bounds nothing is read, and that is counted once a minute."""
    monkeypatch.setattr("tocsin_exporter.sources.rank_host.follow.MOST_WORKERS", 2)
    monkeypatch.setattr("tocsin_exporter.sources.rank_host.follow.MOST_THREADS", 1)
    script = FAMILY.replace(
        "print(", "import threading\nthreading.Thread(target=sys.stdin.read).start()\nprint("
    )
    scene.rank(scene.script(script).pid)
    rows = [scene.read() for _ in range(3)]

    assert {2} == {row.workers.count for row in rows if row.workers is not None}
    counts = scene.errors.counts()
    assert (1, 1) == (counts["rank_host", "too_many_threads"], counts["rank_host", "too_many_workers"])


def test_costly_readings_are_made_less_often(tmp_path: Path) -> None:
    """Reading takes a hundredth of a CPU at most, and yet comes three times before values are too old."""
    times = iter([0.0, 0.02, 0.0, 0.12, 0.0, 0.9, 0.0, 0.01])
    source = RankHostSource(PROC, tmp_path, 5.0, 60.0, ErrorCounter(), View(), spent=lambda: next(times))
    intervals = []
    for _ in range(4):
        source.read()
        intervals.append(round(source.interval, 3))

    assert [5.0, 12.0, 20.0, 5.0] == intervals


def test_the_series_of_a_rank_are_bounded(scene: Scene, waits: str, tmp_path: Path) -> None:
    """All tiers together stay below the bound, with everything there that a kernel can offer."""
    beside(tmp_path / "sys", "0000:3b:00.0", 0, "0-1")
    scene.devices = {0: "0000:3b:00.0"}
    scene.rank(scene.start(waits, "blocked").pid, "0", (0,))
    scene.until(lambda row: row.blocked)
    scene.source.read_once()
    counters = HostSource(PROC, 5, 60, ErrorCounter())
    counters.read_once()
    families = [sample.family for sample in host.build(counters, scene.source).collect()]
    own = [name for name in families if name.startswith("tocsin_rank_")]
    possible = [*host._RANK.values(), *host._CGROUP.values(), *host._WORKERS.values()]

    assert set(own) <= set(FAMILIES)
    # Beside those: two kinds of switches, six states, two waits, a stop, a policy, three pressures.
    assert len(set(possible)) + 2 + 6 + 2 + 1 + 1 + 3 <= MOST_HOST_SERIES
    assert 25 < len(own) <= MOST_HOST_SERIES


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        ("5", {5}),
        ("", set()),
        ("3-1", set()),
        ("0-99999999", set()),
        ("x", set()),
        ("0-65535,70000", set(range(65536)) | {70000}),
    ],
)
def test_lists_of_cpus(text: str, wanted: set[int]) -> None:
    """The kernel's lists are read, and whatever else stands there is none."""
    assert frozenset(wanted) == parse_list(text)
