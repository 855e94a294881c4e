"""Events that the driver reports by itself, over the simulated library."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.driver import Driver

from tocsin_exporter.sources.nvml.driver_events import Watcher
from tocsin_lab.sim import trouble

PATIENCE = 20.0


class Listener:
    """A watcher and the events that it told of."""

    def __init__(self, driver: Driver) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.watcher = Watcher(driver.library, self.events.put, wall=lambda: 1700000000.0)

    def next(self) -> dict[str, Any]:
        return self.events.get(timeout=PATIENCE)

    def until(self, emit: Callable[[], None]) -> dict[str, Any]:
        """Emit until it is heard: an event of before the registration is nobody's."""
        for _ in range(int(PATIENCE / 0.2)):
            emit()
            try:
                return self.events.get(timeout=0.2)
            except queue.Empty:
                continue
        raise AssertionError("no event was heard")


@pytest.fixture
def driver(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(tmp_path, nvml_library, monkeypatch, gpus=2)


@pytest.fixture
def listener(driver: Driver) -> Iterator[Listener]:
    made = Listener(driver)
    made.watcher.watch(frozenset({0, 1}))
    yield made
    assert made.watcher.stop()


def test_an_event_says_what_where_and_when(driver: Driver, listener: Listener) -> None:
    """Device, kind, code and instance of an event are those of the driver."""
    listener.until(lambda: trouble.emit(driver.devices, 0, trouble.EVENT_XID, 31))
    trouble.emit(driver.devices, 1, trouble.EVENT_XID, 48, instance=(2, 0))
    event = listener.next()
    while event["code"] != 48:
        event = listener.next()
    uuid = driver.read(driver.reader(), 1)[0]["uuid"]

    assert {
        "index": 1, "uuid": uuid, "type": "xid", "code": 48, "mig": "2/0", "wall": 1700000000.0,
    } == event  # fmt: skip


def test_every_event_is_told_once_and_in_order(driver: Driver, listener: Listener) -> None:
    """A burst of events arrives whole."""
    listener.until(lambda: trouble.emit(driver.devices, 0, trouble.EVENT_XID, 1))
    for code in range(100, 120):
        trouble.emit(driver.devices, code % 2, trouble.EVENT_XID, code)
    codes: list[int] = []
    while len(codes) < 20:
        event = listener.next()
        if event["code"] >= 100:
            codes.append(event["code"])

    assert list(range(100, 120)) == codes


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (trouble.EVENT_SINGLE_BIT_STORM, "ecc_single_bit_storm"),
        (trouble.EVENT_DOUBLE_BIT, "ecc_double_bit"),
        (trouble.EVENT_RECOVERY_ACTION, "recovery_action"),
    ],
)
def test_other_kinds_have_their_name(driver: Driver, listener: Listener, kind: int, name: str) -> None:
    """What else the driver reports is told by name."""
    assert name == listener.until(lambda: trouble.emit(driver.devices, 0, kind))["type"]


def test_a_device_that_is_lost_does_not_silence_the_others(driver: Driver, listener: Listener) -> None:
    """The wait fails with the lost device; the others are watched anew."""
    listener.until(lambda: trouble.emit(driver.devices, 1, trouble.EVENT_XID, 1))
    trouble.lose(driver.devices, 1)
    listener.watcher.watch(frozenset({0}))

    assert 0 == listener.until(lambda: trouble.emit(driver.devices, 0, trouble.EVENT_XID, 79))["index"]


def test_an_error_of_the_wait_is_a_pause_not_the_end(driver: Driver, listener: Listener) -> None:
    """After any error the set of events is made anew."""
    listener.until(lambda: trouble.emit(driver.devices, 0, trouble.EVENT_XID, 1))
    trouble.fail_call(driver.devices, 999, call="nvmlEventSetWait_v2")
    listener.watcher.join(2.5)
    trouble.take_away_rules(driver.devices)

    assert listener.watcher.is_alive()
    assert "xid" == listener.until(lambda: trouble.emit(driver.devices, 0, trouble.EVENT_XID, 2))["type"]


def test_a_driver_without_events_ends_the_thread(driver: Driver) -> None:
    """Where the driver has no events nobody waits for any."""
    trouble.fail_call(driver.devices, 3, call="nvmlEventSetCreate")
    listener = Listener(driver)
    listener.watcher.watch(frozenset({0}))
    listener.watcher.join(PATIENCE)
    listener.watcher.watch(frozenset({0, 1}))

    assert not listener.watcher.is_alive()
    assert listener.watcher.stop()


def test_the_watcher_ends_when_it_is_told(driver: Driver, listener: Listener) -> None:
    """A release does not wait for an event to arrive."""
    listener.until(lambda: trouble.emit(driver.devices, 0, trouble.EVENT_XID, 1))

    assert listener.watcher.stop(PATIENCE)
