"""Limits and use of control groups: trees of both versions, and real groups of the first."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.exporter.rank_host_support import Scene, beside

from tocsin_exporter.sources.rank_host import checks
from tocsin_exporter.sources.rank_host.cgroups import CgroupReading, Cgroups, parse_paths

REAL = Path("/sys/fs/cgroup")


def write(folder: Path, **files: str) -> None:
    """Write files of one group; two underscores stand for the dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def read(root: Path, paths: str) -> CgroupReading:
    groups = Cgroups(root)
    return groups.read(groups.place(parse_paths(paths)))


def test_the_second_version(tmp_path: Path) -> None:
    """The job's limit is above the task's group, where the controller ends; throttling adds up."""
    write(tmp_path, cgroup__controllers="cpu memory")
    job = tmp_path / "system.slice/slurmstepd.scope/job_7"
    write(
        job,
        memory__max="1000", memory__current="900", memory__events="low 0\nhigh 0\nmax 5\noom 1\noom_kill 1",
        cpu__max="150000 100000",
        cpu__stat="usage_usec 9\nnr_periods 10\nnr_throttled 4\nthrottled_usec 2500000",
    )  # fmt: skip
    write(
        job / "step_0",
        memory__max="max", memory__current="800", memory__events="max 0\noom_kill 1",
        cpu__max="max 100000", cpu__stat="usage_usec 8\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0",
    )  # fmt: skip
    write(
        job / "step_0/task_0",
        cpu__stat="usage_usec 8", cpu__pressure="garbage",
        memory__pressure="some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=7",
    )  # fmt: skip

    found = read(tmp_path, "0::/system.slice/slurmstepd.scope/job_7/step_0/task_0\n")

    assert CgroupReading(1.5, 10, 4, 2.5, 900, 1000, 5, 1, 1, {"memory": 2.5}) == found


def test_the_first_version(tmp_path: Path) -> None:
    """Each controller has a tree of its own, some share one; times are nanoseconds there."""
    memory, cpu = tmp_path / "memory/slurm/job_7", tmp_path / "cpu,cpuacct/slurm/job_7"
    nothing = "9223372036854771712"
    write(
        memory, memory__limit_in_bytes="5000", memory__usage_in_bytes="4000", memory__failcnt="3",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 0",
    )  # fmt: skip
    write(
        memory / "task_0", memory__limit_in_bytes=nothing, memory__usage_in_bytes="3000", memory__failcnt="0",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2",
    )  # fmt: skip
    write(
        cpu, cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000",
        cpu__stat="nr_periods 8\nnr_throttled 2\nthrottled_time 1500000000",
    )  # fmt: skip
    write(
        cpu / "task_0",
        cpu__cfs_quota_us="-1",
        cpu__cfs_period_us="100000",
        cpu__stat="nr_periods 0\nnr_throttled 0",
    )

    found = read(tmp_path, "4:memory:/slurm/job_7/task_0\n2:cpu,cpuacct:/slurm/job_7/task_0\n")

    assert CgroupReading(0.5, 8, 2, 1.5, 4000, 5000, 3, None, 2) == found


def test_without_limits_the_group_itself_counts(tmp_path: Path) -> None:
    """No limit and no quota: use and throttling of the innermost group, as the kernel counts them."""
    write(tmp_path, cgroup__controllers="cpu memory")
    write(
        tmp_path / "a/b", memory__max="max", memory__current="7", memory__events="max 0\noom_kill 0",
        cpu__max="max 100000", cpu__stat="nr_periods 0\nnr_throttled 0\nthrottled_usec 0",
    )  # fmt: skip
    write(
        tmp_path / "a",
        memory__max="max",
        memory__current="9",
        cpu__max="max 100000",
        cpu__stat="nr_periods 0",
    )

    assert CgroupReading(None, 0, 0, 0.0, 7, None, 0, None, 0) == read(tmp_path, "0::/a/b\n")


@pytest.mark.parametrize(
    "paths",
    [
        pytest.param("0::/\n4:memory:/\n1:cpu:/\n", id="the root has no limits"),
        pytest.param("0::/../other/pod\n", id="above the namespace of the exporter"),
        pytest.param("0::/not/there\n", id="a group of another view"),
        pytest.param("garbage\n\x00\n0:\n", id="no paths at all"),
        pytest.param("", id="nothing"),
    ],
)
def test_what_is_in_no_group_has_no_series(paths: str, tmp_path: Path) -> None:
    """Outside of any group that can be read there is nothing, in particular no zero."""
    write(
        tmp_path,
        cgroup__controllers="cpu memory",
        memory__max="1",
        memory__current="1",
        cpu__stat="nr_periods 1",
    )
    write(tmp_path / "other/pod", memory__max="1", memory__current="1")

    assert CgroupReading() == read(tmp_path, paths)


@pytest.mark.parametrize("text", ["", "max", "-5", "1e3", "9" * 40, "\xff\x00"])
def test_garbage_is_absent(text: str, tmp_path: Path) -> None:
    """A file that makes no sense is no value."""
    write(tmp_path, cgroup__controllers="cpu memory")
    write(tmp_path / "a", memory__max="max")
    for name in ("memory.current", "memory.events", "cpu.max", "cpu.stat"):
        (tmp_path / "a" / name).write_bytes(text.encode("latin-1"))

    assert CgroupReading() == read(tmp_path, "0::/a\n")


@pytest.mark.parametrize(
    ("second", "stat", "wanted"),
    [
        (True, "anon N0=300 N1=100\nfile N0=0 N1=200\nkernel_stack N0=9 N1=9\n", 0.5),
        (False, "total=10 N0=10 N1=0\nhierarchical_total=40 N0=10 N1=30\n", 0.25),
        (False, "total=10 N0=10 N1=0\n", 1.0),
    ],
)
def test_memory_beside_the_gpu(second: bool, stat: str, wanted: float, tmp_path: Path) -> None:
    """The share of a group's memory on the GPU's node, unless several ranks share the group."""
    root = tmp_path / "sys/fs/cgroup"
    scene = Scene(tmp_path / "sys", tmp_path / "proc")
    beside(tmp_path / "sys", "0000:3b:00.0", 0, "0-1")
    scene.devices = {0: "0000:3b:00.0"}
    if second:
        write(root, cgroup__controllers="memory")
    for group, pids in (("one", (11,)), ("both", (12, 13))):
        folder = root / group if second else root / "memory" / group
        write(folder, **({"memory__max": "max"} if second else {"memory__limit_in_bytes": "1"}))
        (folder / "memory.numa_stat").write_text(stat)
        for pid in pids:
            line = f"0::/{group}\n" if second else f"4:memory:/{group}\n"
            process(tmp_path / "proc", pid, cgroup=line)
            scene.rank(pid, str(pid), (0,))

    rows = {row.rank: row.memory_local for row in scene.reading().ranks}

    assert {"11": wanted, "12": None, "13": None} == rows


def test_waits_for_io_are_told_where_the_kernel_keeps_them(tmp_path: Path) -> None:
    """Field 42 of /proc/PID/stat with delay accounting; without it nothing, and no zero."""
    scene = Scene(tmp_path / "sys", tmp_path / "proc")
    process(tmp_path / "proc", 11, io_ticks=250)
    scene.rank(11)
    assert scene.read().io_wait_seconds is None

    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/task_delayacct").write_text("1\n")

    assert 250 / os.sysconf("SC_CLK_TCK") == scene.read().io_wait_seconds


def test_a_kernel_that_keeps_no_waits_has_none(tmp_path: Path) -> None:
    """Zeros of everybody are no measurement: a process with CPU time has been put on a CPU."""
    scene = Scene(tmp_path / "sys", tmp_path / "proc")
    process(tmp_path / "proc", 11, schedule="0 0 0")
    process(tmp_path / "proc", 12, schedule="")
    scene.rank(11, "0")
    scene.rank(12, "1")
    rows = scene.reading().ranks

    assert {(None, None, None)} == {
        (row.run_wait_seconds, row.first_run_wait_seconds, row.timeslices) for row in rows
    }
    assert {1} == {row.threads for row in rows}
    assert [None, None] == [row.workers for row in rows]


def test_garbage_costs_only_itself(tmp_path: Path) -> None:
    """Files that were cut, hold anything at all, are pipes or folders: a reading still comes."""
    chance = random.Random(7)
    scene = Scene(tmp_path / "sys", tmp_path / "proc")
    for pid in (11, 12):
        process(tmp_path / "proc", pid)
        scene.rank(pid, str(pid))
    folder = tmp_path / "proc/11"
    paths = [*folder.rglob("*"), folder / "limits", folder / "numa_maps", folder / "task/11/children"]
    good = {path: path.read_bytes() if path.exists() else b"x" for path in paths if not path.is_dir()}
    for _ in range(150):
        path = chance.choice(list(good))
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        match chance.randrange(6):
            case 0:
                path.write_bytes(chance.randbytes(chance.randrange(3000)))
            case 1:
                path.write_bytes(good[path][: chance.randrange(60)])
            case 2:
                path.write_bytes(good[path].replace(b"1", b"-" + b"9" * chance.randrange(40)))
            case 3:
                os.mkfifo(path)
            case 4:
                path.mkdir()
            case _:
                path.write_bytes(good[path])
        ranks = {row.rank for row in scene.reading().ranks}
        assert "12" in ranks


def test_doctor_says_what_a_kernel_lacks(tmp_path: Path) -> None:
    """Each lack has its cost and what to do; nothing is in order where nothing is there."""
    assert [False] == [ok for _, ok, _, _ in checks(tmp_path, tmp_path)]
    process(tmp_path / "proc", 1, cgroup="0::/pod\n", schedule="")
    found = {
        name: (ok, detail, cost) for name, ok, detail, cost in checks(tmp_path / "proc", tmp_path / "sys")
    }

    for name in ("run-queue waits", "I/O waits", "children of ranks", "limits of ranks"):
        ok, detail, cost = found[name]
        assert not ok, name
        assert detail, name
        assert cost, name


@pytest.mark.skipif(os.geteuid() != 0, reason="dropping rights needs root")
def test_doctor_says_what_rights_are_lacking() -> None:
    """An ordinary user is not told where others wait."""
    script = (
        "import os\nfrom pathlib import Path\nfrom tocsin_exporter.sources.rank_host import checks\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "print(*(ok for name, ok, *_ in checks(Path('/proc'), Path('/sys')) if name.startswith('where')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert "False\n" == done.stdout, done.stderr


def process(
    root: Path, pid: int, *, cgroup: str = "0::/\n", io_ticks: int = 0, schedule: str = "5 6 7"
) -> None:
    """Write one process with one thread; a kernel that lists no children."""
    fields = ["S", 1, pid, pid, 0, -1, 0, 0, 0, 0, 0, 250, 50, 0, 0, 20, 0, 1, 0, 1000, 0, 100]
    fields += [0] * 14 + [1, 0, 0, io_ticks, 0, 0]
    for folder in (root / str(pid), root / str(pid) / "task" / str(pid)):
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (python) {' '.join(map(str, fields))}\n")
        if schedule:
            (folder / "schedstat").write_text(schedule + "\n")
    (root / str(pid) / "status").write_text("Name:\tpython\nCpus_allowed_list:\t0-1\n")
    (root / str(pid) / "cgroup").write_text(cgroup)


@pytest.fixture
def group() -> Iterator[Path]:
    """The name of a group of this test, made in the trees of the first version, taken away in the end."""
    name = Path(f"tocsin-test-{os.getpid()}-{time.monotonic_ns()}")
    made = [REAL / controller / name for controller in ("memory", "cpu")]
    try:
        for folder in made:
            if not (folder.parent / "tasks").exists():
                pytest.skip(f"no control groups of the first version at {folder.parent}")
            folder.mkdir()
    except OSError as err:
        pytest.skip(f"no control group can be made here: {err}")
    yield name
    for folder in made:
        for _ in range(100):
            try:
                folder.rmdir()
                break
            except OSError:
                time.sleep(0.02)


def test_the_pressure_of_a_real_group(tmp_path: Path) -> None:
    """A rank that waits for its own second thread on one CPU: its group of version two shows the pressure."""
    base = next((each for each in (REAL, REAL / "unified") if (each / "cgroup.controllers").exists()), None)
    if base is None or not (base / "cpu.pressure").exists():
        pytest.skip("no control groups of version two with pressure here")
    folder = base / f"tocsin-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
    except OSError as err:
        pytest.skip(f"no control group can be made here: {err}")
    script = f"""
import os, sys, time
open("{folder}/cgroup.procs", "w").write(str(os.getpid()))
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
if os.fork() == 0:
    print(flush=True)
end = time.monotonic() + 0.3
while time.monotonic() < end: pass
sys.stdin.read()
"""
    sysfs = tmp_path / "sys"
    (sysfs / "fs").mkdir(parents=True)
    (sysfs / "fs/cgroup").symlink_to(REAL)
    scene = Scene(sysfs)
    try:
        scene.rank(scene.script(script).pid)
        row = scene.until(lambda row: row.cgroup.pressure.get("cpu"))
        assert {"cpu", "memory", "io"} == set(row.cgroup.pressure)
    finally:
        scene.close()
        for _ in range(100):
            try:
                folder.rmdir()
                break
            except OSError:
                time.sleep(0.02)


def test_a_real_group(group: Path, tmp_path: Path) -> None:
    """A rank with half a CPU and a memory limit in real groups: throttled, with its use and its limit."""
    (REAL / "memory" / group / "memory.limit_in_bytes").write_text(str(256 << 20))
    (REAL / "cpu" / group / "cpu.cfs_quota_us").write_text("20000")
    script = f"""
import os, sys, time
for controller in ("memory", "cpu"):
    open("{REAL}/" + controller + "/{group}/cgroup.procs", "w").write(str(os.getpid()))
kept = bytearray(b"x" * (16 << 20))
print(flush=True)
end = time.monotonic() + 0.5
while time.monotonic() < end: pass
sys.stdin.read()
"""
    sysfs = tmp_path / "sys"
    (sysfs / "fs").mkdir(parents=True)
    (sysfs / "fs/cgroup").symlink_to(REAL)
    scene = Scene(sysfs)
    try:
        scene.rank(scene.script(script).pid)
        row = scene.until(lambda row: (row.cgroup.throttled_periods or 0) > 1)
    finally:
        scene.close()

    found = row.cgroup
    assert (0.2, 256 << 20) == (found.cpu_quota, found.memory_limit_bytes)
    assert found.throttled_seconds
    assert found.cpu_periods
    assert found.cpu_periods >= (found.throttled_periods or 0)
    assert found.memory_bytes
    assert 16 << 20 < found.memory_bytes < 256 << 20
    assert (0, 0) == (found.memory_limit_hits, found.oom_kills)
