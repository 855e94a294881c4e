"""Who gets what when devices change hands, are shared, come, go and change their names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.exporter.ledger_node import ECC, ENERGY, REMAPS, THROTTLE, Node, gpu, pci

from tocsin_exporter.attribution.holding import KEEP_SECONDS, LINGER_SECONDS
from tocsin_exporter.identity.assigned import Assignment


def held_by_a() -> Node:
    node = Node()
    node.who.start(1, "slurm/a")
    node.add(gpu(0, "GPU-a", 1))
    node.read()
    return node


def b_follows(node: Node, *, at: float) -> None:
    """A ends and B starts, both between two readings."""
    node.who.end(1)
    node.who.start(2, "slurm/b", at=at)
    node.use("GPU-a", 2)


# ownership


def test_what_grew_between_two_readings_belongs_to_the_job_that_left() -> None:
    """A leaves and B arrives within one interval: the growth is A's, B is born at 0."""
    node = held_by_a()
    b_follows(node, at=node.clock + 3)
    node.grow("GPU-a", REMAPS, 2)
    node.grow("GPU-a", ENERGY, 100)
    node.read()

    assert (2.0, 100.0) == (node.counter("slurm/a", REMAPS), node.counter("slurm/a", ENERGY))
    assert (0.0, 0.0) == (node.counter("slurm/b", REMAPS), node.counter("slurm/b", ENERGY))


def test_in_the_grace_events_count_for_both_and_amounts_for_who_is_there() -> None:
    """A remap just after the change may be A's or B's and both are told; the energy is B's alone."""
    node = held_by_a()
    b_follows(node, at=node.clock + 3)
    node.read()
    node.grow("GPU-a", REMAPS, 1)
    node.grow("GPU-a", ENERGY, 100)
    node.read()

    assert (1.0, 0.0) == (node.counter("slurm/a", REMAPS), node.counter("slurm/a", ENERGY))
    assert (1.0, 100.0) == (node.counter("slurm/b", REMAPS), node.counter("slurm/b", ENERGY))


def test_an_event_in_the_tenure_of_a_that_is_read_when_b_holds_is_a_s() -> None:
    """The kernel's time decides, not when the record was read."""
    node = held_by_a()
    b_follows(node, at=node.clock + 3)
    node.read(passed=5.0)
    node.event(ago=4.0)

    assert (1, 0) == (node.xids("slurm/a"), node.xids("slurm/b"))


def test_an_event_before_the_first_reading_of_its_holder_is_given_to_it() -> None:
    """The job started, broke the device, and only then is it seen on it for the first time."""
    node = Node()
    node.add(gpu(0, "GPU-a"))
    node.read()
    node.clock += 2
    node.who.start(1, "slurm/a", at=node.clock)
    node.clock += 2
    node.event()
    assert set() == node.jobs()
    node.use("GPU-a", 1)
    node.read(passed=1.0)

    assert 1 == node.xids("slurm/a")


def test_an_event_before_a_process_used_the_device_is_not_its_holder_s() -> None:
    """A process that had started elsewhere first is accountable from the last reading without it."""
    node = held_by_a()
    node.who.start(2, "slurm/b", at=node.clock - 50)
    node.event(ago=1.0)
    node.read()
    node.use("GPU-a", 1, 2)
    node.read()

    assert (1, 0) == (node.xids("slurm/a"), node.xids("slurm/b"))


def test_a_start_time_that_is_a_second_off_loses_no_event() -> None:
    """Process starts are known to a second; an event that nobody else covers is the job's that just began."""
    node = Node()
    node.who.start(1, "slurm/a", at=node.clock)
    node.add(gpu(0, "GPU-a", 1))
    node.read()
    node.event(ago=5.6)

    assert 1 == node.xids("slurm/a")


def test_after_the_last_process_counts_go_on_for_the_grace_stand_and_go() -> None:
    """Thirty seconds accountable, then fifteen minutes unchanged, then no series."""
    node = held_by_a()
    node.who.end(1)
    node.use("GPU-a")
    node.read()
    node.grow("GPU-a", ECC, 1)
    node.event()
    node.read(passed=LINGER_SECONDS - 1)
    at_the_end = node.held("slurm/a")
    node.grow("GPU-a", ECC, 5)
    node.clock += 2
    node.event()
    node.read(passed=KEEP_SECONDS - 5)
    kept = node.held("slurm/a")
    node.read(passed=10)

    assert at_the_end is not None
    assert kept is not None
    assert (1, 1.0) == (at_the_end.xid["reset"], at_the_end.counters[ECC])
    assert (1, 1.0) == (kept.xid["reset"], kept.counters[ECC])
    assert at_the_end.times == kept.times
    assert node.held("slurm/a") is None


@pytest.mark.parametrize("step", [3600.0, -3600.0], ids=["forward", "back"])
def test_a_clock_that_is_set_changes_no_tenure(step: float) -> None:
    """An hour's step ends no grace early and prolongs none, and later events find their holder."""
    node = held_by_a()
    node.wall_ahead += step
    node.event()
    node.who.end(1)
    node.use("GPU-a")
    node.read()
    node.event()
    node.read(passed=LINGER_SECONDS - 2)
    node.event()
    held = node.held("slurm/a")
    node.clock += 10
    node.event()
    node.read()

    assert held is not None
    assert (3, True) == (held.xid["reset"], held.owner)
    assert 3 == node.xids("slurm/a")
    node.read(passed=KEEP_SECONDS)
    assert node.held("slurm/a") is None


def test_event_times_are_the_kernel_s_own() -> None:
    """What is served is the record's time, whatever was done to the clock since."""
    node = held_by_a()
    node.event(ago=2.0)
    told = node.clock + node.wall_ahead - 2.0
    node.wall_ahead += 100
    node.read()
    held = node.held("slurm/a")

    assert held is not None
    assert {"reset": told} == held.times


# sharing


def test_every_holder_of_a_shared_device_counts_everything() -> None:
    """Two jobs at once, as with MPS: each counts events and polled counters in full."""
    node = held_by_a()
    node.who.start(2, "slurm/b", at=node.clock)
    node.use("GPU-a", 1, 2)
    node.read()
    node.grow("GPU-a", REMAPS, 1)
    node.grow("GPU-a", THROTTLE, 5)
    node.event()
    node.read()

    for job in ("slurm/a", "slurm/b"):
        assert (1.0, 5.0, 1) == (node.counter(job, REMAPS), node.counter(job, THROTTLE), node.xids(job))


def test_a_job_with_several_ranks_on_a_device_counts_once_and_names_none() -> None:
    """One holder per job; its name does not change back as its ranks leave one by one."""
    node = held_by_a()
    node.who.start(2, "slurm/a", "1", at=node.clock)
    node.use("GPU-a", 1, 2)
    node.read()
    node.event()
    both = node.held("slurm/a")
    node.who.end(1)
    node.use("GPU-a", 2)
    node.read()
    last = node.held("slurm/a")

    assert both is not None
    assert last is not None
    assert [("", 1)] * 2 == [(each.rank, each.xid["reset"]) for each in (both, last)]
    assert 1 == len(node.ledger.published().devices)


def test_a_process_that_nobody_knows_is_counted() -> None:
    """A pid of another namespace holds nothing, and that there is one is told."""
    node = held_by_a()
    node.use("GPU-a", 1, 4711)
    node.read()

    assert 1 == node.ledger.published().unmatched
    assert {"slurm/a"} == node.jobs()


# what the allocator gave


def given(*devices: str, pid: int = 9, at: float = 950.0, rank: str = "") -> Assignment:
    return Assignment(pid, int(at * 100), at, "slurm/idle", rank, devices)


@pytest.mark.parametrize("name", ["1", "GPU-b", "GPU-bb", "minor:7"])
def test_a_device_that_is_allocated_and_idle_has_a_holder(name: str) -> None:
    """By index, by UUID or its beginning, by the number of its device file; events there are the job's."""
    node = Node()
    node.add(gpu(0, "GPU-aaaa", info={"minor": "1"}))
    node.add(gpu(1, "GPU-bbbb", info={"minor": "7"}))
    node.who.given = [given(name)]
    node.read()
    node.event(1)

    assert 1 == node.xids("slurm/idle", uuid="GPU-bbbb")
    assert set() == node.jobs("GPU-aaaa")


def test_where_the_driver_shows_somebody_the_allocation_is_not_believed() -> None:
    """The driver's list beats the environment."""
    node = held_by_a()
    node.who.given = [given("0")]
    node.read()

    assert {"slurm/a"} == node.jobs()


@pytest.mark.parametrize(("name", "holds"), [("1", False), ("GPU-b", True), ("minor:1", True)])
def test_a_job_at_work_holds_idle_devices_by_their_own_names_only(name: str, holds: bool) -> None:
    """Its index 1 may be any board; a UUID and a device file are one."""
    node = held_by_a()
    node.add(gpu(1, "GPU-b"))
    node.who.given = [Assignment(1, 90000, 900.0, "slurm/a", "0", (name,))]
    node.read()

    assert holds == ("slurm/a" in node.jobs("GPU-b"))


def test_an_allocated_job_becomes_the_holder_by_use_without_losing_counts() -> None:
    """The same holder before and after its first process on the device."""
    node = Node()
    node.add(gpu(0, "GPU-a"))
    node.who.given = [given("GPU-a")]
    node.read()
    node.event()
    node.who.start(1, "slurm/idle", "3", at=node.clock)
    node.use("GPU-a", 1)
    node.read()
    held = node.held("slurm/idle")

    assert held is not None
    assert (1, "3") == (held.xid["reset"], held.rank)


# devices that change


def test_a_lost_gpu_that_renumbers_the_others_moves_no_holder() -> None:
    """What a process was given stays the board it was, whatever index that has now."""
    node = Node()
    for index, uuid in enumerate(("GPU-a", "GPU-b", "GPU-c")):
        node.add(gpu(index, uuid, pids=None))
    node.who.start(1, "slurm/b", gpus=(1,))
    node.read()
    node.devices = {"GPU-a": node.devices["GPU-a"], "GPU-c": replace(node.devices["GPU-c"], gpu="1")}
    node.add(replace(gpu(1, "GPU-b", pids=None), gpu="2", pci=pci(1)))
    node.read()
    node.event(1)

    assert {"slurm/b"} == node.jobs("GPU-b")
    assert set() == node.jobs("GPU-c")
    held = node.held("slurm/b", "GPU-b")
    assert held is not None
    assert ("2", 1) == (held.gpu, held.xid["reset"])


def test_a_replaced_board_starts_at_zero() -> None:
    """Another UUID at the same address and index has none of its predecessor's events."""
    node = held_by_a()
    node.event()
    node.devices = {}
    node.add(gpu(0, "GPU-new", 1))
    node.read()
    events = node.ledger.published().events

    assert [("GPU-new", 0)] == [(each.uuid, each.xid["reset"]) for each in events]
    assert 0 == node.xids("slurm/a", uuid="GPU-new")
    node.event()
    assert 1 == node.xids("slurm/a", uuid="GPU-new")


def test_two_swapped_boards_keep_their_counts() -> None:
    """Events follow the UUID to its new address."""
    node = Node()
    node.add(gpu(0, "GPU-a"))
    node.add(gpu(1, "GPU-b"))
    node.read()
    node.event(0)
    node.devices = {}
    node.add(gpu(0, "GPU-b"))
    node.add(gpu(1, "GPU-a"))
    node.read()
    node.event(0, count=10)
    told = {each.uuid: (each.gpu, each.xid["reset"]) for each in node.ledger.published().events}

    assert {"GPU-a": ("1", 1), "GPU-b": ("0", 10)} == told


def test_a_gpu_that_disappears_and_returns_keeps_holder_and_counts() -> None:
    """While it does not answer nobody is known to have left; what happened meanwhile is its holder's."""
    node = held_by_a()
    node.add(gpu(1, "GPU-b"))
    node.read(without=("GPU-a",))
    node.event()
    gone = node.held("slurm/a")
    node.grow("GPU-a", REMAPS, 1)
    node.read(passed=120)

    assert gone is not None
    assert (True, 1) == (gone.active, gone.xid["reset"])
    assert (1.0, 1) == (node.counter("slurm/a", REMAPS), node.xids("slurm/a"))


def test_what_happened_unseen_while_the_holder_changed_is_nobody_s() -> None:
    """A device hung for minutes; the job on it ended and another came."""
    node = held_by_a()
    node.add(gpu(1, "GPU-b"))
    node.read(without=("GPU-a",))
    b_follows(node, at=node.clock + 100)
    node.read(without=("GPU-a",))
    node.grow("GPU-a", REMAPS, 3)
    node.read(passed=300)

    assert (0.0, 0.0) == (node.counter("slurm/a", REMAPS), node.counter("slurm/b", REMAPS))
    assert 3 == node.unattributed


def test_a_job_that_ends_while_the_driver_is_silent_ends_there_and_then() -> None:
    """No reading tells it, as in a hang or while the devices are let go of; the end of its process does."""
    node = held_by_a()
    (process,) = node.who.members
    node.who.end(1)
    node.ledger.on_left(process)
    left = node.held("slurm/a")
    node.clock += 100
    node.event()
    node.grow("GPU-a", REMAPS, 3)
    node.use("GPU-a")
    node.read(passed=100)

    assert left is not None
    assert not left.active
    assert (0, 0.0) == (node.xids("slurm/a"), node.counter("slurm/a", REMAPS))
    assert 3 == node.unattributed


def test_the_end_of_one_rank_of_a_job_ends_nothing() -> None:
    """As long as the job has another process the driver decides what it holds."""
    node = held_by_a()
    (process,) = node.who.members
    node.who.start(2, "slurm/a", "1")
    node.who.end(1)
    node.ledger.on_left(process)
    held = node.held("slurm/a")

    assert held is not None
    assert held.active


def test_a_job_that_left_a_silent_device_gets_nothing_of_the_silence() -> None:
    """It lives on elsewhere, and when it left nobody saw."""
    node = held_by_a()
    node.add(gpu(1, "GPU-b", 1))
    node.read()
    node.read(without=("GPU-a",))
    node.use("GPU-a")
    node.grow("GPU-a", REMAPS, 3)
    node.read(passed=300)

    assert (0.0, 3) == (node.counter("slurm/a", REMAPS), node.unattributed)


def test_devices_without_a_uuid_are_nobody_s() -> None:
    """Two of them are not taken for one; that they are left out is counted once."""
    node = Node()
    node.who.start(1, "slurm/a")
    node.who.start(2, "slurm/b")
    node.devices = {"x": gpu(0, "", 1), "y": gpu(1, "", 2)}
    node.read()
    node.read()

    assert () == node.ledger.published().devices
    assert 1 == node.errors.counts()[("attribution", "no_uuid")]


# counters


def test_a_driver_reload_restarts_the_base() -> None:
    """Raw counters fall to 0: nothing negative, and what comes after counts."""
    node = held_by_a()
    node.grow("GPU-a", ECC, 2)
    node.read()
    node.set_counters("GPU-a", {ECC: 0.0, REMAPS: 7.0, ENERGY: 1.0})
    node.read()
    node.read()
    node.grow("GPU-a", ECC, 1)
    node.grow("GPU-a", ENERGY, 50)
    node.read()

    assert (3.0, 50.0) == (node.counter("slurm/a", ECC), node.counter("slurm/a", ENERGY))


@pytest.mark.parametrize("top", [2.0**32, 2.0**64], ids=["32 bits", "64 bits"])
def test_a_counter_that_wraps_adds_nothing_negative(top: float) -> None:
    """The value served never falls, and counting goes on behind the wrap."""
    node = held_by_a()
    node.set_counters("GPU-a", {ENERGY: top - 100})
    node.read()
    before = node.counter("slurm/a", ENERGY)
    values = []
    for value in (50.0, 150.0, 400.0):
        node.set_counters("GPU-a", {ENERGY: value})
        node.read()
        values.append(node.counter("slurm/a", ENERGY))

    assert before is not None
    assert [before, before + 100, before + 350] == values


def test_a_misread_counter_blames_nobody_for_old_remaps() -> None:
    """One reading of 0 among sevens is no reset: the seven old remaps are not the job's."""
    node = held_by_a()
    node.set_counters("GPU-a", {REMAPS: 0.0})
    node.read()
    node.set_counters("GPU-a", {REMAPS: 8.0})
    node.read()

    assert 1.0 == node.counter("slurm/a", REMAPS)


def test_a_counter_that_is_blank_for_a_while_goes_on() -> None:
    """A field that the driver leaves out and gives again keeps its base."""
    node = held_by_a()
    counters = dict(node.devices["GPU-a"].counters)
    node.set_counters("GPU-a", {})
    node.read()
    node.set_counters("GPU-a", {**counters, REMAPS: counters[REMAPS] + 1})
    node.read()

    assert 1.0 == node.counter("slurm/a", REMAPS)
