"""What survives a restart of the exporter, a kill at any moment, a reboot, and a disk that does not write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.exporter.ledger_node import ECC, ENERGY, REMAPS, Node, Who, gpu

from tocsin_exporter.attribution.holding import KEEP_SECONDS, LINGER_SECONDS
from tocsin_exporter.sources.nvml.model import Device, NvmlReading


def on_disk(tmp_path: Path) -> Node:
    node = Node(tmp_path / "state.json")
    node.who.start(1, "slurm/a")
    node.add(gpu(0, "GPU-a", 1))
    node.read()
    return node


def another_job(at: float) -> Who:
    who = Who()
    who.start(2, "slurm/b", at=at)
    return who


def used_by(*pids: int) -> object:
    def change(device: Device) -> Device:
        return replace(device, pids=pids)

    return change


# the gap


def test_the_same_holder_gets_what_happened_in_the_gap(tmp_path: Path) -> None:
    """Polled counters and kernel events, once each."""
    node = on_disk(tmp_path)
    node.event(seq=5)
    node.grow("GPU-a", REMAPS, 2)
    again = node.again()
    again.event(seq=6, ago=10)
    again.read()

    assert (2.0, 2, 0) == (again.counter("slurm/a", REMAPS), again.xids("slurm/a"), again.unattributed)


def test_a_changed_holder_gets_nothing_of_the_gap(tmp_path: Path) -> None:
    """A before, B after, wherever in the gap it was: nobody's, and counted."""
    node = on_disk(tmp_path)
    node.event(seq=5)
    node.grow("GPU-a", REMAPS, 2)
    again = node.again(passed=120, who=another_job(node.clock + 60))
    again.use("GPU-a", 2)
    again.event(seq=6, ago=110)
    again.event(seq=7, ago=20)
    again.read()
    again.event(seq=8)

    assert (0.0, 1) == (again.counter("slurm/a", REMAPS), again.xids("slurm/a"))
    assert (0.0, 1) == (again.counter("slurm/b", REMAPS), again.xids("slurm/b"))
    assert 4 == again.unattributed


def test_a_start_known_to_a_second_puts_nobody_on_both_sides_of_a_short_gap(tmp_path: Path) -> None:
    """A kill, an Xid and another job within a second: nobody's all the same."""
    node = on_disk(tmp_path)
    again = node.again(passed=1.0, who=another_job(node.clock - 0.5))
    again.use("GPU-a", 2)
    again.event(seq=3, ago=0.6)
    again.read()

    assert (0, 0, 1) == (again.xids("slurm/a"), again.xids("slurm/b"), again.unattributed)


def test_a_job_that_lives_but_left_the_device_gets_nothing_of_the_gap(tmp_path: Path) -> None:
    """The holder of a device is compared, not the list of jobs."""
    node = on_disk(tmp_path)
    node.grow("GPU-a", REMAPS, 2)
    again = node.again(passed=120)
    again.use("GPU-a")
    again.read()

    assert (0.0, 2) == (again.counter("slurm/a", REMAPS), again.unattributed)


def test_of_two_holders_the_one_that_stayed_gets_the_gap(tmp_path: Path) -> None:
    """A shared device: one of its jobs ended in the gap."""
    node = on_disk(tmp_path)
    node.who.start(2, "slurm/b", at=node.clock)
    node.use("GPU-a", 1, 2)
    node.read()
    node.grow("GPU-a", REMAPS, 1)
    node.who.end(1)
    again = node.again(passed=60)
    again.use("GPU-a", 2)
    again.event(seq=3, ago=30)
    again.read()

    assert (0.0, 0) == (again.counter("slurm/a", REMAPS), again.xids("slurm/a"))
    assert (1.0, 1) == (again.counter("slurm/b", REMAPS), again.xids("slurm/b"))
    assert 0 == again.unattributed


def test_a_job_in_its_grace_before_the_gap_stays_accountable_in_it(tmp_path: Path) -> None:
    """When it left was seen, so that its thirty seconds reach into the gap."""
    node = on_disk(tmp_path)
    node.who.end(1)
    node.use("GPU-a")
    node.read()
    again = node.again(passed=LINGER_SECONDS - 10)
    again.event(seq=3, ago=1)
    again.read()

    assert (1, 0) == (again.xids("slurm/a"), again.unattributed)


def test_a_clock_that_is_set_in_the_gap_changes_no_tenure(tmp_path: Path) -> None:
    """Spans go on in the time of before; a kernel event of the gap finds its holder."""
    node = on_disk(tmp_path)
    node.wall_ahead = 7200.0
    again = node.again()
    again.event(seq=3, ago=10)
    again.read()
    again.who.end(1)
    again.use("GPU-a")
    again.read()
    again.read(passed=KEEP_SECONDS)

    assert 1 == again.xids("slurm/a")


def test_an_event_that_waits_for_its_device_survives(tmp_path: Path) -> None:
    """The log is not read again behind the cursor, so what waits is kept with it."""
    node = Node(tmp_path / "state.json")
    node.who.start(1, "slurm/a")
    node.event(seq=9)
    again = node.again()
    again.add(gpu(0, "GPU-a", 1))
    again.read()

    assert 9 == again.ledger.cursor
    assert 1 == again.xids("slurm/a")
    assert 1 == again.ledger.published().events[0].codes[48]


def test_an_old_terminal_fact_survives_and_ends_in_time(tmp_path: Path) -> None:
    """A restart prolongs nobody's fifteen minutes."""
    node = on_disk(tmp_path)
    node.event()
    node.who.end(1)
    node.use("GPU-a")
    node.read()
    again = node.again(passed=600)
    again.read()
    kept = again.xids("slurm/a")
    again.read(passed=LINGER_SECONDS + KEEP_SECONDS - 600)

    assert 1 == kept
    assert again.held("slurm/a") is None


def test_without_an_answer_of_the_driver_the_living_jobs_decide(tmp_path: Path) -> None:
    """The driver hangs since the restart: events of the log reach the job that still lives."""
    node = on_disk(tmp_path)
    again = node.again()
    again.clock += 70
    again.event(seq=3)

    assert 1 == again.xids("slurm/a")


def test_without_an_answer_of_the_driver_a_job_that_ends_leaves_its_devices(tmp_path: Path) -> None:
    """The driver hangs since the restart and the log is silent: the end of the job is heard all the same."""
    node = on_disk(tmp_path)
    again = node.again()
    again.clock += 70
    ended = next(who for who in again.who.living() if who.job_id == "slurm/a")
    again.who.end(ended.pid)
    again.ledger.on_left(ended)
    again.ledger.flush()

    held = again.held("slurm/a")
    assert held is not None
    assert not held.active
    assert held.owner


def test_without_an_answer_of_the_driver_ports_tell_who_is_gone(tmp_path: Path) -> None:
    """The job ended while the exporter was down; neither driver nor log says anything since."""
    node = on_disk(tmp_path)
    again = node.again()
    again.who.members.clear()
    again.clock += 70
    again.ledger.on_ports(())
    again.ledger.flush()

    held = again.held("slurm/a")
    assert held is not None
    assert not held.active


# a reboot


def test_after_a_reboot_old_counts_stand_and_new_ones_are_nobody_s(tmp_path: Path) -> None:
    """Lifetime counters went on, volatile ones restart; the job's causes are served for their time."""
    node = on_disk(tmp_path)
    node.event(seq=900)
    node.grow("GPU-a", REMAPS, 1)
    node.read()
    again = node.again(passed=300, boot="boot-2", who=Who())
    again.set_counters("GPU-a", {REMAPS: 10.0, ECC: 0.0, ENERGY: 5.0})
    again.use("GPU-a")
    again.read()
    held = again.held("slurm/a")

    assert -1 == again.ledger.cursor
    assert held is not None
    assert (False, 1, 1.0) == (held.active, held.xid["reset"], held.counters[REMAPS])
    # Remaps stood at 8 when last read.
    assert 2 == again.unattributed
    assert 1 == again.ledger.published().events[0].xid["reset"]


def test_after_a_reboot_a_new_job_is_born_at_zero(tmp_path: Path) -> None:
    """Volatile counters that restart below, and lifetime ones that went on, blame nobody."""
    node = on_disk(tmp_path)
    again = node.again(passed=300, boot="boot-2", who=another_job(node.clock + 200))
    again.set_counters("GPU-a", {REMAPS: 9.0, ECC: 0.0})
    again.use("GPU-a", 2)
    again.read()
    again.grow("GPU-a", ECC, 2)
    again.read()
    again.read()
    again.grow("GPU-a", ECC, 1)
    again.read()

    assert (0.0, 3.0) == (again.counter("slurm/b", REMAPS), again.counter("slurm/b", ECC))


def test_boards_swapped_over_a_reboot_keep_their_own_counts(tmp_path: Path) -> None:
    """Addresses of another boot are not believed: the log's events wait for the driver's word."""
    node = Node(tmp_path / "state.json")
    node.add(gpu(0, "GPU-a"))
    node.add(gpu(1, "GPU-b"))
    node.read()
    node.event(0)
    again = node.again(boot="boot-2")
    again.devices = {}
    again.add(gpu(0, "GPU-b"))
    again.add(gpu(1, "GPU-a"))
    again.event(0, count=10)
    again.read()
    told = {each.uuid: each.xid["reset"] for each in again.ledger.published().events}

    assert {"GPU-a": 1, "GPU-b": 10} == told


# killed at any moment


def test_killed_at_any_moment_no_count_is_lost_doubled_or_lower(tmp_path: Path) -> None:
    """``kill -9`` eight times in a storm: the log's count is exact, and nothing served ever falls."""
    (tmp_path / "began").write_text(str(time.time()))
    state = tmp_path / "state.json"
    script = Path(__file__).with_name("ledger_crash.py")
    before, caught_up = (0, 0, 0), False
    for attempt in range(8):
        with subprocess.Popen(
            [sys.executable, str(script), str(state)], stdout=subprocess.PIPE, text=True, bufsize=1
        ) as child:
            assert child.stdout is not None
            # The moment of the kill wanders through reading, writing and publishing.
            lines = [child.stdout.readline() for _ in range(3 + 10 * attempt)]
            child.kill()
            lines += [line for line in child.stdout if line.endswith("\n") and line.count(" ") == 3]
        rows = [tuple(map(int, line.split())) for line in lines]
        for sequence, on_device, on_job, polled in rows:
            assert on_device <= sequence + 1
            assert on_job <= on_device
            caught_up |= on_job == on_device > 1000
            now = (on_device, on_job, polled)
            assert all(new >= old for new, old in zip(now, before, strict=True)), (attempt, before, now)
            before = now
        saved = json.loads(state.read_text())
        (device,) = saved["devices"]["known"]
        # Event by event: the count of the file is that of its cursor.
        assert saved["cursor"] + 1 == device["log"]["xid"].get("reset", 0)
        assert before[0] <= device["log"]["xid"]["reset"]
    # The job held the device all the while: every event is its own.
    assert caught_up


# a disk that does not write


def test_a_full_disk_is_named_and_counts_are_served(tmp_path: Path) -> None:
    """No space is told as that, once in the log; when there is space again everything is durable."""
    node = on_disk(tmp_path)
    fresh = tmp_path / ".state.json.new"
    fresh.symlink_to("/dev/full")
    node.event()
    node.read()

    assert 1 == node.xids("slurm/a")
    assert not node.ledger.durable()
    assert node.errors.counts()[("state", "no_space")] > 0
    # The old state is whole: a restart finds it and reads the log behind its cursor again.
    assert -1 == json.loads((tmp_path / "state.json").read_text())["cursor"]

    fresh.unlink()
    node.read()
    assert node.ledger.durable()
    assert 1 == json.loads((tmp_path / "state.json").read_text())["cursor"]


def test_after_a_full_disk_a_restart_counts_the_log_s_events_again_not_twice(tmp_path: Path) -> None:
    """What was served without being durable comes back from the log."""
    node = on_disk(tmp_path)
    (tmp_path / ".state.json.new").symlink_to("/dev/full")
    node.event(seq=4)
    served = node.xids("slurm/a")
    (tmp_path / ".state.json.new").unlink()
    again = node.again()
    assert -1 == again.ledger.cursor
    again.event(seq=4, ago=20)
    again.read()

    assert (1, 1) == (served, again.xids("slurm/a"))


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that is mounted read-only, for root who may mount."""
    place = tmp_path / "mounted"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=4k", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True)
    if done.returncode != 0:
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_read_only_disk_is_named_and_counts_are_served(read_only: Path) -> None:
    """Its reason is not that of a missing right."""
    node = on_disk(read_only)
    node.event()

    assert 1 == node.xids("slurm/a")
    assert not node.ledger.durable()
    assert node.errors.counts()[("state", "read_only")] > 0


def test_a_disk_that_hangs_stops_no_reading(tmp_path: Path) -> None:
    """A write that never returns: readings go on at once, and what is counted is served after a patience."""
    node = Node(tmp_path / "state.json", patience=0.3)
    node.who.start(1, "slurm/a")
    node.add(gpu(0, "GPU-a", 1))
    # Opening a pipe for writing waits for a reader.
    os.mkfifo(tmp_path / ".state.json.new")
    node.ledger.on_reading(NvmlReading(node.clock, tuple(node.devices.values())))
    held_back = node.held("slurm/a")
    deadline = time.monotonic() + 10
    while node.held("slurm/a") is None and time.monotonic() < deadline:
        time.sleep(0.02)

    assert held_back is None
    assert node.held("slurm/a") is not None
    assert not node.ledger.durable()
    # Lets the writer end.
    os.close(os.open(tmp_path / ".state.json.new", os.O_RDONLY | os.O_NONBLOCK))


def test_nothing_is_served_before_it_is_durable(tmp_path: Path) -> None:
    """While the write is under way the count is not there; as soon as it is on the disk it is."""
    node = on_disk(tmp_path)
    os.mkfifo(tmp_path / ".state.json.new")
    node.grow("GPU-a", REMAPS, 1)
    node.ledger.on_reading(NvmlReading(node.clock, tuple(node.devices.values())))
    before = node.counter("slurm/a", REMAPS)
    (tmp_path / ".state.json.new").rename(tmp_path / "pipe")
    os.close(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK))
    node.ledger.flush(10)

    assert (0.0, 1.0) == (before, node.counter("slurm/a", REMAPS))


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    """The first start on a fresh node."""
    node = Node(tmp_path / "deep/er/state.json")
    node.read()

    assert (tmp_path / "deep/er/state.json").exists()


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_something_else_at_the_state_s_path_costs_no_start(tmp_path: Path, kind: str) -> None:
    """A folder or a pipe there is refused at once with a reason."""
    path = tmp_path / "state.json"
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    node = Node(path)
    node.who.start(1, "slurm/a")
    node.add(gpu(0, "GPU-a", 1))
    node.read()

    assert 0.0 == node.counter("slurm/a", REMAPS)
    assert node.errors.counts()[("state", "io_error")] >= 1


def test_without_a_state_file_counts_are_served_and_told_to_be_unsafe() -> None:
    """Nothing is durable where nothing is kept."""
    node = Node()
    node.event()

    assert not node.ledger.durable()
