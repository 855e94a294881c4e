"""Nothing that attribution keeps grows with time, with jobs or with events."""

from __future__ import annotations

import gc
import sys
import threading
import time
from pathlib import Path

from tests.exporter.ledger_node import ECC, REMAPS, Node, gpu

from tocsin_exporter.attribution.holding import KEEP_SECONDS, LINGER_SECONDS
from tocsin_exporter.kmsg.parse import Event
from tocsin_exporter.sources.kmsg import KernelEvent
from tocsin_exporter.sources.nvml.model import NvmlReading

# Ended jobs of a device that are served at most.
MOST_ENDED = 48


def change_job(node: Node, number: int, passed: float) -> None:
    """The job on the device ends, another one comes and has an Xid."""
    node.clock += passed
    node.who.members = []
    node.who.start(number, f"slurm/{number}", at=node.clock - 1)
    node.use("GPU-a", number)
    node.grow("GPU-a", REMAPS, 1)
    node.ledger.on_reading(NvmlReading(node.clock, tuple(node.devices.values())))
    event = Event("xid", 1, {"pci": "0000:10:00.0", "code": number % 500, "class": "info"})
    node.ledger.on_events([KernelEvent(event, node.clock)], number)


def test_ten_thousand_job_changes_leave_nothing_behind(tmp_path: Path) -> None:
    """Objects and the state file are as many and as large after 10,000 changes as after 2,000."""
    state = tmp_path / "state.json"
    node = Node(state)
    node.add(gpu(0, "GPU-a"))
    node.add(gpu(1, "GPU-b"))
    seen: list[tuple[int, int]] = []
    for number in range(1, 10_001):
        change_job(node, number, 20.0)
        if number in (2_000, 10_000):
            assert node.ledger.flush(20)
            gc.collect()
            seen.append((len(gc.get_objects()), state.stat().st_size))

    (objects, size), (objects_after, size_after) = seen
    assert objects_after < objects * 1.02
    assert size_after < size * 1.05
    # Those of the last quarter of an hour, at one in twenty seconds.
    assert 40 <= len(node.jobs()) <= MOST_ENDED + 1


def test_jobs_of_a_second_are_bounded_and_those_with_events_stay_longest(tmp_path: Path) -> None:
    """More ended jobs than may be served: the ones to whom nothing happened go first, and are counted."""
    node = Node(tmp_path / "state.json")
    node.add(gpu(0, "GPU-a"))
    for number in range(1, 301):
        node.clock += 1.0
        node.who.members = []
        node.who.start(number, f"slurm/{number}", at=node.clock - 0.5)
        node.use("GPU-a", number)
        node.ledger.on_reading(NvmlReading(node.clock, tuple(node.devices.values())))
        if number == 20:
            event = Event("xid", 1, {"pci": "0000:10:00.0", "code": 48, "class": "reset"})
            node.ledger.on_events([KernelEvent(event, node.clock)], number)
    node.ledger.flush()
    jobs = node.jobs()

    assert len(jobs) <= MOST_ENDED + 1
    assert "slurm/20" in jobs
    assert node.errors.counts()[("attribution", "too_many_holders")] >= 300 - MOST_ENDED - 1


def test_expired_jobs_leave_an_idle_node_empty(tmp_path: Path) -> None:
    """After the last fifteen minutes no job series is left, on the page and in the file."""
    node = Node(tmp_path / "state.json")
    node.add(gpu(0, "GPU-a"))
    for number in range(1, 30):
        change_job(node, number, 5.0)
    node.who.members = []
    node.use("GPU-a")
    node.read()
    node.read(passed=LINGER_SECONDS + KEEP_SECONDS + 1)

    assert set() == node.jobs()
    assert "slurm/" not in (tmp_path / "state.json").read_text()


def storm(node: Node, batches: int) -> None:
    event = Event("xid", 1, {"pci": "0000:10:00.0", "code": 95, "class": "reset"})
    for batch in range(batches):
        node.clock += 0.01
        node.ledger.on_events([KernelEvent(event, node.clock) for _ in range(512)], (batch + 1) * 512)


def test_a_storm_is_counted_in_full_and_written_a_few_times(tmp_path: Path) -> None:
    """A hundred thousand Xids: all of them in the count, and no write per batch."""
    node = Node(tmp_path / "state.json")
    node.who.start(1, "slurm/a")
    node.add(gpu(0, "GPU-a", 1))
    node.read()
    before = node.ledger._writer._tries
    began = time.monotonic()
    storm(node, 200)
    took = time.monotonic() - began
    node.ledger.flush(20)

    assert 200 * 512 == node.xids("slurm/a") == node.ledger.published().events[0].codes[95]
    # Each write is followed by a pause nine times as long; the two at the ends are not in between.
    assert node.ledger._writer._tries - before <= 2 + min(200, took / 0.0005)
    assert (tmp_path / "state.json").stat().st_size < 200_000


def test_counts_are_served_while_a_storm_goes_on(tmp_path: Path) -> None:
    """New events that come faster than they are written do not hold back those that are."""
    node = Node(tmp_path / "state.json")
    node.who.start(1, "slurm/a")
    node.add(gpu(0, "GPU-a", 1))
    node.read()
    deadline = time.monotonic() + 20
    while not node.xids("slurm/a") and time.monotonic() < deadline:
        storm(node, 1)

    assert node.xids("slurm/a")


def test_nothing_is_written_when_nothing_happened(tmp_path: Path) -> None:
    """Amounts grow with every reading; the file is left alone for a minute."""
    node = Node(tmp_path / "state.json")
    node.who.start(1, "slurm/a")
    node.add(gpu(0, "GPU-a", 1))
    node.read()
    before = node.ledger._writer._tries
    for _ in range(10):
        node.grow("GPU-a", ("energy_joules_total", ()), 100)
        node.read()
    quiet = node.ledger._writer._tries - before
    node.read(passed=15)

    assert (0, 1) == (quiet, node.ledger._writer._tries - before)


def test_addresses_that_only_the_log_knows_are_bounded(tmp_path: Path) -> None:
    """A log that names a thousand devices makes no thousand entries; what is left out is counted."""
    node = Node(tmp_path / "state.json")
    events = [
        KernelEvent(Event("xid", 1, {"pci": f"{n:04x}:00:00.0", "code": 48, "class": "reset"}), node.clock)
        for n in range(1000)
    ]
    node.ledger.on_events(events, 1)
    node.ledger.flush()

    assert node.errors.counts()[("kmsg", "too_many_devices")] == 1000 - 64
    node.read(passed=700)
    assert node.errors.counts()[("attribution", "unplaced")] == 1000


def test_threads_of_all_sources_and_scrapes_at_once_end(tmp_path: Path) -> None:
    """Readings, events, flushes and scrapes from many threads come to an end, and no event is lost."""
    node = Node(tmp_path / "state.json")
    node.who.start(1, "slurm/a")
    node.add(gpu(0, "GPU-a", 1))
    node.read()
    reading = NvmlReading(node.clock, tuple(node.devices.values()))
    event = KernelEvent(Event("xid", 1, {"pci": "0000:10:00.0", "code": 48, "class": "reset"}), node.clock)
    work = [
        lambda: node.ledger.on_reading(reading),
        lambda: node.ledger.on_events([event], 7),
        lambda: node.ledger.on_ports(()),
        lambda: node.ledger.published(),
        lambda: node.ledger.flush(1.0),
    ]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [
            threading.Thread(target=lambda job=job: [job() for _ in range(200)], daemon=True)
            for job in work * 2
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)

    assert not [thread for thread in threads if thread.is_alive()]
    assert node.ledger.flush(20)
    assert 400 == node.xids("slurm/a")


def test_a_holder_has_few_series() -> None:
    """What attribution keeps of one holder of a device with everything is within sixty series."""
    node = Node()
    node.who.start(1, "slurm/a")
    node.add(gpu(0, "GPU-a", 1))
    node.read()
    node.grow("GPU-a", ECC, 1)
    node.event()
    node.read()
    held = node.held("slurm/a")

    assert held is not None
    assert len(held.counters) + len(held.xid) + len(held.times) < 40
