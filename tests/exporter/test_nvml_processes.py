"""Processes on a device, their memory and the limits of their cgroups, over the simulated library."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.driver import Driver, values

from tocsin_lab.sim import trouble

GIB = 1 << 30
Make = Callable[..., Driver]


@pytest.fixture
def make(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def driver(**shape: Any) -> Driver:
        return Driver(tmp_path, nvml_library, monkeypatch, **shape)

    return driver


@pytest.fixture
def others() -> Iterator[list[int]]:
    """Two processes that sleep."""
    running = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    yield [one.pid for one in running]
    for one in running:
        one.kill()
        one.communicate()


def test_memory_of_processes_is_summed_and_told_by_pid_in_the_deep_tier(
    make: Make, others: list[int]
) -> None:
    """An MPS client counts once, graphics processes count, and holders are compute and MPS processes."""
    driver = make()
    trouble.place_process(driver.devices, 0, os.getpid(), 3 * GIB)
    trouble.place_process(driver.devices, 0, others[0], 2 * GIB, kind="mps")
    trouble.place_process(driver.devices, 0, others[1], 1 * GIB, kind="graphics")
    row = driver.read(driver.reader("deep"))[0]
    found = values(row)

    assert 6 * GIB == found[("process_memory_bytes", ())]
    assert (1.0, 1.0) == (found[("mps_processes", ())], found[("graphics_processes", ())])
    assert {os.getpid(), others[0]} == set(row["pids"])
    by_pid = {labels[0]: value for (name, labels), value in found.items() if name == "pid_memory_bytes"}
    assert {str(os.getpid()): 3 * GIB, str(others[0]): 2 * GIB, str(others[1]): 1 * GIB} == by_pid
    assert "pid_memory_bytes" not in {name for name, _ in values(driver.read(driver.reader())[0])}


def test_what_processes_use_is_a_mean_since_the_last_reading(make: Make, others: list[int]) -> None:
    """Each process has its share of the engines in the deep tier; samples count once."""
    driver = make()
    trouble.place_process(driver.devices, 0, others[0], GIB)
    reader = driver.reader("deep")
    driver.read(reader)
    with driver.state() as state:
        state.devices[0].utilization_permille, state.devices[0].memory_permille = 600, 300
        state.devices[0].heartbeat_ns = time.monotonic_ns()
    found = values(driver.read(reader)[0])
    at_once = values(driver.read(reader)[0])
    shares = {labels: value for (name, labels), value in found.items() if name == "pid_utilization_ratio"}

    assert {(str(others[0]), engine) for engine in ("sm", "memory", "encoder", "decoder")} == set(shares)
    assert (0.6, 0.3) == (shares[(str(others[0]), "sm")], shares[(str(others[0]), "memory")])
    assert not [labels for name, labels in at_once if name == "pid_utilization_ratio"]


def test_a_process_takes_its_series_with_it(make: Make, others: list[int]) -> None:
    """In the cycle after its end nothing is told of it."""
    driver = make()
    reader = driver.reader("deep")
    trouble.place_process(driver.devices, 0, others[0], GIB)
    before = driver.read(reader)[0]
    trouble.end_process(driver.devices, 0, others[0])
    after = driver.read(reader)[0]

    assert [others[0]] == before["pids"]
    assert [] == after["pids"]
    assert not [labels for name, labels in values(after) if name == "pid_memory_bytes"]
    assert 0.0 == values(after)[("process_memory_bytes", ())]


def test_a_driver_that_does_not_tell_is_no_device_without_processes(make: Make) -> None:
    """Unknown is not none."""
    driver = make()
    for kind in ("Compute", "MPSCompute", "Graphics"):
        trouble.fail_call(driver.devices, 3, call=f"nvmlDeviceGet{kind}RunningProcesses_v3")
    row = driver.read(driver.reader())[0]

    assert row["pids"] is None
    assert ("process_memory_bytes", ()) not in values(row)


def test_instances_have_their_own_processes(make: Make, others: list[int]) -> None:
    """The board lists everybody, an instance those on it."""
    driver = make(mig_profiles=("3g.40gb", "3g.40gb"))
    trouble.place_process(driver.devices, 0, others[0], GIB, instance=0)
    trouble.place_process(driver.devices, 0, others[1], 2 * GIB, instance=1)
    board, first, second = driver.read(driver.reader())

    assert set(others) == set(board["pids"])
    assert ([others[0]], [others[1]]) == (first["pids"], second["pids"])
    assert 2.0 * GIB == values(second)[("process_memory_bytes", ())]


@pytest.fixture
def cgroups(tmp_path: Path) -> Callable[[dict[int, str]], str]:
    """A /proc that places processes in cgroups."""

    def write(places: dict[int, str]) -> str:
        for pid, place in places.items():
            folder = tmp_path / "procfs" / str(pid)
            folder.mkdir(parents=True)
            (folder / "cgroup").write_text(f"0::{place}\n")
        return str(tmp_path / "procfs")

    return write


def test_limits_are_told_once_per_cgroup(
    make: Make, others: list[int], cgroups: Callable[[dict[int, str]], str]
) -> None:
    """Two processes of one cgroup share one limit; each process says which is its."""
    driver = make(driver="615.71.09")
    driver.places.procfs = cgroups(dict.fromkeys(others, "/job/a"))
    with driver.state() as state:
        state.devices[0].memory_hard_limit = 8 * GIB
    for pid in others:
        trouble.place_process(driver.devices, 0, pid, GIB)
    row = driver.read(driver.reader())[0]
    found = values(row)

    assert 8.0 * GIB == found[("memory_limit_bytes", ("hard",))]
    assert 0.0 == found[("memory_limit_bytes", ("soft",))]
    assert found[("memory_limit_used_bytes", ())] >= 2.0 * GIB
    assert ["/sys/fs/cgroup/job/a"] == list(row["limits"])
    assert {"/sys/fs/cgroup/job/a"} == {process[3] for process in row["processes"]}


def test_without_a_limit_none_is_told(
    make: Make, others: list[int], cgroups: Callable[[dict[int, str]], str]
) -> None:
    """A driver that knows limits and a cgroup that has none: no series, not an endless number."""
    driver = make(driver="615.71.09")
    driver.places.procfs = cgroups({others[0]: "/job/a"})
    trouble.place_process(driver.devices, 0, others[0], GIB)
    row = driver.read(driver.reader())[0]

    assert {} == row["limits"]
    assert not [name for name, _ in values(row) if name.startswith("memory_limit")]


def test_an_older_driver_has_no_limits(
    make: Make, others: list[int], cgroups: Callable[[dict[int, str]], str]
) -> None:
    """Before the call existed its absence is no error."""
    driver = make()
    driver.places.procfs = cgroups({others[0]: "/job/a"})
    with driver.state() as state:
        state.devices[0].memory_hard_limit = 8 * GIB
    trouble.place_process(driver.devices, 0, others[0], GIB)
    row = driver.read(driver.reader())[0]

    assert {} == row["limits"]
    assert row["up"]
