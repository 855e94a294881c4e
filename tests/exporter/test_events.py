"""Kernel log and driver events become one stream."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin_exporter.attribution import Attribution
from tocsin_exporter.events import EventHub, Merge, gather
from tocsin_exporter.identity.assigned import Assignment
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.identity.resolver import Holder
from tocsin_exporter.kmsg.parse import Parser
from tocsin_exporter.sources.kmsg import KernelEvent
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.model import DriverEvent
from tocsin_exporter.state import StateFile

KEY = ("0000:3b:00.0", 31)
WALL = 1_700_000_000.0
NEVER = float("-inf")


class Stage:
    """The decision under a clock that the test turns; what came out is counted."""

    def __init__(self) -> None:
        self.merge = Merge()
        self.now = 0.0
        self.out = 0
        self.log_end = NEVER
        self.failed = False

    def log(self, after: float = 0.0, count: int = 1, code: int = 31) -> None:
        self.out += self.merge.log((KEY[0], code), WALL + self.now + after, count, self.now)

    def driver(self, after: float = 0.0, code: int = 31) -> None:
        self.merge.driver((KEY[0], code), WALL + self.now + after, "", self.now)

    def turn(self, seconds: float, *, read: bool = True) -> None:
        self.now += seconds
        if read:
            self.log_end = self.now
        due = self.merge.due(self.now, log_end=self.log_end, log_failed=self.failed)
        self.out += sum(entry.left for _, entry in due)


@pytest.mark.parametrize("order", ["log first", "driver first", "driver a second late", "log a second late"])
def test_an_event_that_both_tell_is_one(order: str) -> None:
    """Whichever comes first, the two halves of one event count once."""
    stage = Stage()
    first, second = (
        (stage.log, stage.driver)
        if order.startswith(("log first", "driver a"))
        else (stage.driver, stage.log)
    )
    first()
    if "late" in order:
        stage.turn(1.0)
    second()
    stage.turn(100.0)

    assert 1 == stage.out
    assert {"both": 1, "log": 0, "driver": 0} == stage.merge.counts


@pytest.mark.parametrize(("logged", "driven"), [(3, 3), (3, 1), (1, 3), (0, 3), (3, 0)])
def test_repeats_are_matched_one_by_one(logged: int, driven: int) -> None:
    """Three equal Xids in one second stay three, even where one source told fewer of them."""
    stage = Stage()
    for at in range(max(logged, driven)):
        if at < logged:
            stage.log(at * 0.2)
        if at < driven:
            stage.driver(at * 0.2)
    stage.turn(100.0)

    assert max(logged, driven) == stage.out
    assert max(logged, driven) == sum(stage.merge.counts.values())
    assert min(logged, driven) == stage.merge.counts["both"]


def test_a_line_that_speaks_for_many_matches_as_many() -> None:
    """A repeated message of five takes up the driver's five events."""
    stage = Stage()
    for _ in range(5):
        stage.driver()
    stage.log(count=5)
    stage.turn(100.0)

    assert 5 == stage.out


def test_what_only_one_source_tells_counts_alone() -> None:
    """Xid 62 comes through the log alone; without rights on the log the driver's word is all there is."""
    stage = Stage()
    stage.log(code=62)
    stage.failed = True
    stage.driver(code=48)
    stage.turn(2.0, read=False)

    assert 2 == stage.out
    stage.turn(100.0)
    assert {"both": 0, "log": 1, "driver": 1} == stage.merge.counts


def test_the_drivers_word_waits_for_the_log_to_be_read_past_it() -> None:
    """In a storm the log's reader is behind: the driver's event is not given out before its line was reached."""
    stage = Stage()
    stage.driver()
    for _ in range(20):
        stage.turn(1.0, read=False)
    assert 0 == stage.out
    stage.log(-20.0)
    stage.turn(100.0)

    assert 1 == stage.out


def test_a_log_that_never_ends_holds_an_event_up_for_half_a_minute_only() -> None:
    """And its line, when it comes, is not a second event."""
    stage = Stage()
    stage.driver()
    stage.turn(31.0, read=False)
    assert 1 == stage.out
    stage.log(-31.0)

    assert 1 == stage.out


def test_a_log_that_can_be_read_later_tells_nothing_twice() -> None:
    """Rights that come after an hour bring the hour's lines: those that the driver had told are known."""
    stage = Stage()
    stage.failed = True
    for _ in range(3):
        stage.driver()
        stage.turn(1200.0, read=False)
    stage.failed = False
    for ago in (3600.0, 2400.0, 1200.0):
        stage.log(-ago)
    stage.log(-600.0)

    assert 4 == stage.out


def test_other_devices_codes_and_times_are_other_events() -> None:
    """Only the same code of the same device within seconds is the same event."""
    stage = Stage()
    stage.log(code=31)
    stage.driver(code=43)
    stage.turn(20.0)
    stage.driver(code=31)
    stage.merge.driver(("0000:3c:00.0", 31), WALL, "", stage.now)
    stage.turn(100.0)

    assert 4 == stage.out


def test_memory_is_bounded_and_nothing_is_lost() -> None:
    """A hundred thousand events of one device are kept as the quarters of seconds they fell into."""
    stage = Stage()
    for number in range(100_000):
        stage.log(number * 0.0001)
    assert sum(len(queue) for queue in stage.merge._logged.values()) < 100
    stage.turn(100.0)

    assert 100_000 == stage.out == stage.merge.counts["log"]


def kernel(line: str, when: float = WALL) -> list[KernelEvent]:
    return [KernelEvent(event, when) for event in Parser().feed(line)]


def test_a_batch_is_gathered_by_device_code_and_moment() -> None:
    """A storm of 800,000 lines of 29 processes is handed on as one row per quarter of a second, in full."""
    lines = [
        each
        for pid in range(29)
        for each in kernel(
            f"NVRM: Xid (PCI:0000:3b:00): 95, pid={pid}, name=a, Uncontained: LTC TAG (0x2,0x0)"
        )
    ]
    rows = gather(lines * 1000 + kernel("NVRM: Xid (PCI:0000:3b:00): 48, x"))

    assert [(95, 29_000), (48, 1)] == [(row.event.fields["code"], row.event.count) for row in rows]


class Log:
    """A log whose reader is where the test says."""

    def __init__(self) -> None:
        self.bad = False
        self.end = NEVER

    def failed(self) -> bool:
        return self.bad

    def end_seen(self) -> float:
        return self.end


class Node:
    """A hub between a log, a driver and a ledger's door."""

    def __init__(self, saved: dict[str, object] | None = None) -> None:
        self.errors = ErrorCounter()
        self.got: list[KernelEvent] = []
        self.cursors: list[int] = []
        self.poked = 0
        self.log = Log()
        self.hub = EventHub(
            self._take,
            lambda uuid, _: {"GPU-a": KEY[0]}.get(uuid, ""),
            self.errors,
            cursor=7,
            changed=self._poke,
        )
        self.hub.restore(saved or {}, same_boot=True)
        self.hub.follow(self.log)

    def _take(self, events: list[KernelEvent], cursor: int) -> None:
        self.got.extend(events)
        self.cursors.append(cursor)

    def _poke(self) -> None:
        self.poked += 1


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    made.hub.start()
    yield made
    made.hub.stop()


def driver_event(code: int = 31, kind: str = "xid", uuid: str = "GPU-a", mig: str = "") -> DriverEvent:
    return DriverEvent("0", uuid, mig, kind, code, time.time())


def wait(node: Node, count: int) -> None:
    end = time.monotonic() + 10
    while len(node.got) < count and time.monotonic() < end:
        time.sleep(0.02)
    assert count == len(node.got)


def test_without_a_log_the_driver_is_heard_in_time(node: Node) -> None:
    """An Xid on the driver's word alone goes out within seconds, with class and instance, and moves no cursor."""
    node.log.bad = True
    node.hub.on_driver(driver_event(48, mig="5/0"))
    wait(node, 1)

    assert {
        "code": 48, "pci": KEY[0], "class": "reset", "gpu_instance": 5, "compute_instance": 0,
    } == node.got[0].event.fields  # fmt: skip
    assert {7} == set(node.cursors)


def test_what_waits_at_the_end_is_given_out(node: Node) -> None:
    """A stop loses no event."""
    node.hub.on_driver(driver_event())
    node.hub.stop()

    assert [31] == [each.event.fields["code"] for each in node.got]


def test_a_change_of_what_the_driver_wants_reads_the_devices_again(node: Node) -> None:
    """Recovery action by either source, and a GPU that became unavailable: states are read, not guessed."""
    node.hub.on_driver(driver_event(kind="recovery_action"))
    node.hub.on_driver(driver_event(kind="gpu_unavailable"))
    node.hub.on_driver(driver_event(kind="mig_config"))
    node.hub.on_log(
        kernel(
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
        ),
        8,
    )

    assert 3 == node.poked


def test_an_event_of_no_device_is_counted(node: Node) -> None:
    """What the driver cannot place is an error with a name, not a guess."""
    node.hub.on_driver(driver_event(uuid=""))

    assert {("events", "unknown_device"): 1} == node.errors.counts()


def test_switch_errors_are_the_nodes(node: Node) -> None:
    """SXids are counted per switch by severity and code, and go to no job."""
    node.hub.on_log(
        kernel("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up")
        + kernel("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 28006, Non-fatal, Link 46 MC TS", WALL + 1),
        8,
    )
    (switch,) = node.hub.switches()

    assert ("0000:c2:00.0", {"fatal": 1, "nonfatal": 1, "unknown": 0}) == (switch.pci, switch.classes)
    assert {20034: 1, 28006: 1} == switch.codes
    assert {"fatal": WALL, "nonfatal": WALL + 1} == switch.times
    assert [] == node.got


def test_a_restart_keeps_switches_causes_and_what_the_driver_alone_told() -> None:
    """The state has what the log's cursor no longer brings, and what a first look at the log must not repeat."""
    before = Node()
    parser = Parser()
    lines = [
        "3,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 13, x",
        "3,2,2000000,-;NVRM: Xid (PCI:0000:3b:00): 45, x",
    ]
    before.hub.on_log([KernelEvent(each, WALL) for line in lines for each in parser.feed(line)], 8)
    before.hub.on_log(kernel("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, x"), 9)
    event = driver_event(48)
    before.hub.on_driver(event)
    before.hub.stop()
    after = Node(before.hub.saved())

    assert before.hub.switches() == after.hub.switches()
    assert {(KEY[0], 45, 13): 1} == after.hub.followups()
    after.hub.on_log(kernel("NVRM: Xid (PCI:0000:3b:00): 48, x", event.wall + 0.1), 10)
    assert [] == after.got


class Nobody:
    """No jobs."""

    def living(self) -> tuple[ProcessIdentity, ...]:
        return ()

    def holder_of(self, pid: int) -> Holder | None:
        return None

    def assigned(self) -> tuple[Assignment, ...]:
        return ()


@pytest.mark.parametrize(("boot", "same"), [("b", True), ("c", False)])
def test_the_ledger_keeps_the_stage_under_its_cursor(tmp_path: Path, boot: str, same: bool) -> None:
    """One file holds the cursor and what was made of the log up to it, over a reboot too."""
    state = StateFile(tmp_path / "state.json")
    ledger = Attribution(Nobody(), state, ErrorCounter(), boot_id="b", extra=lambda: hub.saved())
    hub = EventHub(ledger.on_events, lambda _uuid, _index: "", ErrorCounter())
    hub.on_log(
        kernel("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, x")
        + kernel("NVRM: Xid (PCI:0000:3b:00): 48, x"),
        9,
    )
    assert ledger.flush()
    ledger.stop()

    again = Attribution(Nobody(), state, ErrorCounter(), boot_id=boot)
    assert (same, 9 if same else -1) == (again.same_boot, again.cursor)
    after = EventHub(again.on_events, lambda _uuid, _index: "", ErrorCounter(), cursor=again.cursor)
    after.restore(again.restored, same_boot=again.same_boot)
    assert hub.switches() == after.switches()


@pytest.mark.parametrize("bad", [{"given": [1]}, {"switches": {"a": 1}}, {"followups": "x"}, {"given": None}])
def test_a_state_that_cannot_be_read_is_an_error_and_no_end(bad: dict[str, object]) -> None:
    """Foreign content in the file costs its part only."""
    assert {("state", "bad_data"): 1} == Node(bad).errors.counts()
