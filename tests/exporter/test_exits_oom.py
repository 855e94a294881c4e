"""A real kill for lack of memory in a control group, from the kernel's log to the rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.exporter.rank_host_support import PROC, Scene

from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.life import Life
from tocsin_exporter.sources import procfs
from tocsin_exporter.sources.kmsg import KmsgSource
from tocsin_exporter.sources.latest import ErrorCounter

REAL = Path("/sys/fs/cgroup/memory")
# Waits for a line, then takes more than it may, in the process itself or in a child.
EATER = f"""
import os, sys
open("{REAL}/" + sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
print(flush=True)
sys.stdin.readline()
if sys.argv[2] == "child":
    pid = os.fork()
    if pid != 0:
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)
        sys.stdin.read()
        os._exit(0)
    open("/proc/self/oom_score_adj", "w").write("1000")
    sys.stdin.readline()
kept = bytearray(b"x" * (96 << 20))
"""


@pytest.fixture
def group() -> Iterator[str]:
    """A memory group of 32 MiB."""
    name = f"tocsin-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        if not (REAL / "tasks").exists():
            pytest.skip("no memory groups of the first version here")
        (REAL / name).mkdir()
        (REAL / name / "memory.limit_in_bytes").write_text(str(32 << 20))
    except OSError as err:
        pytest.skip(f"no memory group can be made here: {err}")
    yield name
    for _ in range(100):
        try:
            (REAL / name).rmdir()
            return
        except OSError:
            time.sleep(0.02)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    sysfs = tmp_path / "sys"
    (sysfs / "fs").mkdir(parents=True)
    (sysfs / "fs/cgroup").symlink_to(REAL.parent)
    made = Scene(sysfs)
    yield made
    made.close()


@pytest.fixture
def life(scene: Scene) -> Iterator[Life]:
    """The life of ranks that follows the kernel's own log from here on."""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as err:
        pytest.skip(f"the kernel log cannot be read: {err}")
    os.close(descriptor)
    made = Life(scene.view, time.time, child_of=lambda pid: scene.source.rank_of_child(pid))
    source = KmsgSource(Path("/dev/kmsg"), ErrorCounter(), lambda events, _: made.on_log(events), 60.0)
    source.start()
    source.wait_first(10)
    yield made
    source.stop()


def until(life: Life, kills: int) -> dict[str, int]:
    """Wait until as many kills are known of the one rank."""
    found: dict[str, int] = {}
    for _ in range(500):
        found = next(iter(life.ranks().values())).kills
        if sum(found.values()) >= kills:
            break
        time.sleep(0.02)
    return found


def rank(scene: Scene, life: Life, process: subprocess.Popen[str]) -> ProcessIdentity:
    """Make a process the rank, with the start that identity would give it."""
    found = procfs.process_stat(PROC, process.pid)
    assert found is not None
    start = procfs.boot_time(PROC) + found.start_ticks / procfs.CLOCK_TICKS
    who = ProcessIdentity(process.pid, found.start_ticks, start, "slurm/7", "0", "slurm")
    scene.view.here.append(who)
    life.arrived(who)
    return who


def test_a_rank_above_its_limit(group: str, scene: Scene, life: Life) -> None:
    """The group's limit kills the rank: one kill of scope cgroup at the kernel's time, and limit hits."""
    process = scene.start(sys.executable, "-c", EATER, group, "self")
    rank(scene, life, process)
    before = scene.read().cgroup
    began = time.time()
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()

    assert -signal.SIGKILL == process.wait(30)
    assert {"cgroup": 1, "global": 0} == until(life, 1)
    (row,) = life.ranks().values()
    assert began - 1 <= row.killed["cgroup"] <= time.time()
    assert (32 << 20, 0) == (before.memory_limit_bytes, before.oom_kills)
    control = (REAL / group / "memory.oom_control").read_text()
    assert "oom_kill 1" in control


def test_a_data_loader_above_the_limit(group: str, scene: Scene, life: Life) -> None:
    """The kernel kills a child: it is counted for the rank, which lives on and shows it in its group."""
    scene.now = time.time()
    process = scene.start(sys.executable, "-c", EATER, group, "child")
    rank(scene, life, process)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    child = int(process.stdout.readline())
    scene.read(0)
    assert ("slurm/7", "0") == scene.source.rank_of_child(child)
    process.stdin.write("\n")
    process.stdin.flush()
    assert signal.SIGKILL == int(process.stdout.readline())

    assert {"cgroup": 1, "global": 0} == until(life, 1)
    after = scene.read(0).cgroup
    assert 1 == after.oom_kills
    assert after.memory_limit_hits
