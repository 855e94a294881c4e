"""How ends of ranks are served."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tocsin_exporter.collectors import cuda, exits, nccl
from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.errors import CollectError
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.metrics import FAMILIES
from tocsin_exporter.sources.bpf import ExitEvent

Start = Callable[..., Any]
Counts = dict[str, float]


def process(pid: int, rank: str = "3") -> ProcessIdentity:
    return ProcessIdentity(pid, pid, 0.0, "slurm/7", rank, "slurm")


class Scene:
    """An exits collector whose identity and clock the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.gone: list[tuple[ProcessIdentity, float]] = []
        self.collector = exits.ExitsCollector(None, self, None, clock=lambda: self.now)  # type: ignore[arg-type]
        self.collector.start()

    def departed(self) -> tuple[tuple[ProcessIdentity, float], ...]:
        return tuple(self.gone)

    def subscribe(self, arrived: Any, left: Any) -> None:
        self.arrived, self._left = arrived, left

    def left(self, who: ProcessIdentity, *, ended: bool = True) -> None:
        if ended:
            self.gone.append((who, self.now))
        self._left(who)

    def samples(self) -> list[Sample]:
        return list(self.collector.collect())

    def counts(self, rank: str = "3") -> Counts:
        return {
            each.labels[2]: each.value
            for each in self.samples()
            if each.family == "tocsin_rank_exits_total" and each.labels[1] == rank
        }

    def last(self) -> list[tuple[float, str, str]]:
        return [
            (each.value, each.labels[2], each.labels[3])
            for each in self.samples()
            if each.family == "tocsin_job_last_exit_timestamp_seconds"
        ]


ZEROS = {"ok": 0, "error": 0, "signal": 0, "unknown": 0}


def test_zeros_exist_from_the_first_sight() -> None:
    """
    A rank that lives has every kind at 0 and no last exit.
    """
    scene = Scene()
    scene.arrived(process(1))

    assert ZEROS == scene.counts()
    assert [] == scene.last()


@pytest.mark.parametrize(
    ("status", "kind", "code", "signal"),
    [
        pytest.param(0, "ok", "0", "", id="clean"),
        pytest.param(3 << 8, "error", "3", "", id="code"),
        pytest.param(9, "signal", "", "9", id="killed"),
        pytest.param(11 | 0x80, "signal", "", "11", id="crashed with a core"),
    ],
)
def test_an_end_is_counted_by_its_kind(status: int, kind: str, code: str, signal: str) -> None:
    """
    The kernel's report gives the kind, the code or the signal, and the kernel's time.
    """
    scene = Scene()
    scene.arrived(process(1))

    scene.collector.life.ended(ExitEvent(process(1), status, 990.0))
    scene.left(process(1))
    scene.now += 60

    assert {**ZEROS, kind: 1} == scene.counts()
    assert [(990.0, code, signal)] == scene.last()


def test_an_end_that_nobody_saw_is_unknown_after_a_while() -> None:
    """
    Without a report the end counts as unknown, but not before the report could have come.
    """
    scene = Scene()
    scene.arrived(process(1))
    scene.left(process(1))
    assert ZEROS == scene.counts()

    scene.now += 5

    assert {**ZEROS, "unknown": 1} == scene.counts()
    assert [(1000.0, "", "")] == scene.last()


def test_a_process_that_was_no_rank_after_all_has_not_ended() -> None:
    """
    When identity lets go of a living process nothing is counted.
    """
    scene = Scene()
    scene.arrived(process(1))
    scene.left(process(1), ended=False)
    scene.now += 5

    assert ZEROS == scene.counts()


def test_helpers_of_a_rank_come_and_go() -> None:
    """
    Only the end of a rank's first process is the rank's end.
    """
    scene = Scene()
    scene.arrived(process(1))
    scene.arrived(process(2))
    scene.collector.life.ended(ExitEvent(process(2), 0, 990.0))
    assert ZEROS == scene.counts()

    scene.collector.life.ended(ExitEvent(process(1), 9, 995.0))

    assert {**ZEROS, "signal": 1} == scene.counts()


def test_an_end_is_served_for_fifteen_minutes() -> None:
    """
    The facts of an end outlive the process by 15 minutes, and no longer.
    """
    scene = Scene()
    scene.arrived(process(1))
    scene.collector.life.ended(ExitEvent(process(1), 9, 1000.0))
    scene.now += 899
    assert [(1000.0, "", "9")] == scene.last()

    scene.now += 2

    assert [] == scene.samples()


def test_a_restarted_rank_keeps_counting() -> None:
    """
    A second attempt adds to the same counters, and the newest end is the one served.
    """
    scene = Scene()
    for pid, status in ((1, 9), (2, 1 << 8)):
        scene.arrived(process(pid))
        scene.collector.life.ended(ExitEvent(process(pid), status, 1000.0 + pid))

    assert {**ZEROS, "signal": 1, "error": 1} == scene.counts()
    assert [(1002.0, "1", "")] == scene.last()


def test_a_core_dump_is_told(watch: Start, new_rank: Start, view: Any, tmp_path: Path) -> None:
    """
    A crash that left a core dump counts as one, a crash without is only a crash.
    """
    watched = watch(view)
    collector = exits.build(watched.source, view, None)
    collector.start()
    for number, limit in enumerate(("unlimited", "0")):
        within = f'ulimit -c {limit} && cd {tmp_path} && exec "$0" "$@"'
        rank = new_rank(before=("sh", "-c", within))
        view.add(rank.pid, rank=str(number))
        rank.say("signal 11")
        rank.wait()
    if not list(tmp_path.iterdir()):
        pytest.skip("no core dump is written here (ulimit -c, kernel.core_pattern)")
    watched.until(lambda: len(watched.exits) == 2)
    samples = {(each.family, each.labels[1]): each.value for each in collector.collect()}

    assert [1, 0] == [samples["tocsin_rank_core_dumps_total", rank] for rank in "01"]


def test_an_end_in_a_container_is_told(watch: Start, view: Any) -> None:
    """
    The end of a rank in a pid namespace of its own, where it is process 1, has its code and its pid out here.
    """
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("namespaces need root and unshare")
    watched = watch(view)
    outside = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", "echo; read line; exit 3"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert outside.stdout is not None
    outside.stdout.readline()
    children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
    rank = view.add(int(children[0]))
    outside.communicate(b"\n")
    watched.until(lambda: bool(watched.exits))

    assert [(rank, 3)] == [(event.process, event.code) for event in watched.exits]


# As many ranks as there are places, each a process that waits.
MANY = """
import os, signal, sys
pids = []
for _ in range(512):
    pid = os.fork()
    if pid == 0:
        signal.pause()
    pids.append(pid)
print(*pids, flush=True)
while pids:
    pids.remove(os.wait()[0])
"""


@pytest.fixture
def many() -> Iterator[tuple[list[int], Path]]:
    """512 processes in one control group, and that group."""
    base = next(
        (
            each
            for each in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"))
            if (each / "cgroup.procs").exists()
        ),
        None,
    )
    group = (base or Path("/sys/fs/cgroup")) / f"tocsin-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
    except OSError as err:
        pytest.skip(f"no control group can be made here: {err}")
    parent = subprocess.Popen([sys.executable, "-c", MANY], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        if not (group / "cgroup.kill").exists():
            pytest.skip("this kernel kills no control groups (Linux 5.14)")
        yield pids, group
    finally:
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        parent.communicate(timeout=20)
        for _ in range(100):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.02)


def test_the_end_of_a_whole_group_loses_nobody(many: tuple[list[int], Path], watch: Start, view: Any) -> None:
    """
    512 ranks that are killed at once are 512 ends by signal 9, none unknown.
    """
    pids, group = many
    watched = watch(view)
    collector = exits.build(watched.source, view, None)
    collector.start()
    for number, pid in enumerate(pids):
        view.add(pid, rank=str(number))
    (group / "cgroup.kill").write_text("1")
    watched.until(lambda: len(watched.exits) == len(pids))
    for pid in pids:
        view.remove(pid)
    samples = list(collector.collect())

    ends = [each for each in samples if each.family == "tocsin_rank_exits_total" and each.value]
    last = [each for each in samples if each.family == "tocsin_job_last_exit_timestamp_seconds"]
    assert {(str(number), "signal") for number in range(512)} == {each.labels[1:] for each in ends}
    assert {("", "9")} == {each.labels[2:] for each in last}
    assert 512 == len(last)


def test_turned_off_probes_say_so() -> None:
    """
    Without eBPF the collectors give the reason instead of zeros.
    """
    for collector in (cuda.build(None), nccl.build(None)):
        with pytest.raises(CollectError) as caught:
            list(collector.collect())
        assert "disabled" == caught.value.reason


def test_every_sample_fits_the_table(watch: Start, new_rank: Start, view: Any) -> None:
    """
    Families and labels of the CUDA and NCCL collectors are those of the metric table, zeros included.
    """
    rank = new_rank()
    view.add(rank.pid)
    watched = watch(view)
    watched.probed("cuda", "nccl")
    rank.do("launch 2", "sync 1 0", "init", "use 0 1 1 7")

    samples = [*cuda.build(watched.source).collect(), *nccl.build(watched.source).collect()]

    assert {"tocsin_cuda_sync_seconds", "tocsin_nccl_communicator_calls_total"} <= {
        each.family for each in samples
    }
    for each in samples:
        family = FAMILIES[each.family]
        assert len(family.labels) == 1 + len(each.labels)
        if family.buckets:
            assert len(family.buckets) + 1 == len(each.counts)  # type: ignore[union-attr]
    assert 0 in [each.value for each in samples if isinstance(each, Sample) and "errors" in each.family]
