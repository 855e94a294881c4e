"""Following a kernel log that is a regular file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tocsin_exporter.sources.kmsg import KernelEvent, KmsgSource
from tocsin_exporter.sources.latest import ErrorCounter


class Sink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[KernelEvent] = []
        self.cursor = -1

    def __call__(self, events: list[KernelEvent], cursor: int) -> None:
        self.events.extend(events)
        self.cursor = cursor

    def codes(self) -> list[int]:
        """Return the Xid codes seen."""
        return [int(each.event.fields["code"]) for each in self.events]


def xid(seq: int, code: int, priority: int = 3) -> str:
    usec = int(time.monotonic() * 1e6)
    return f"{priority},{seq},{usec},-;NVRM: Xid (PCI:0000:3b:00): {code}, x\n"


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


@contextmanager
def following(path: Path, cursor: int = -1) -> Iterator[tuple[KmsgSource, Sink, ErrorCounter]]:
    sink, errors = Sink(), ErrorCounter()
    source = KmsgSource(path, errors, sink, 60.0)
    source.resume(cursor)
    source.start()
    try:
        assert source.wait_first(5)
        yield source, sink, errors
    finally:
        source.stop()


def test_records_are_read_from_the_start_and_followed(tmp_path: Path) -> None:
    """What was there before and what comes later arrives once, a line in two writes included."""
    log = tmp_path / "kmsg"
    log.write_text(xid(1, 48))
    with following(log) as (_, sink, _), log.open("a") as out:
        first, second = xid(2, 79)[:20], xid(2, 79)[20:]
        out.write(first)
        out.flush()
        time.sleep(0.3)
        out.write(second)
        out.flush()

        assert until(lambda: len(sink.events) == 2)
        assert [48, 79] == sink.codes()
        assert 2 == sink.cursor


def test_a_cursor_skips_what_was_counted(tmp_path: Path) -> None:
    """After a restart only records behind the cursor are events."""
    log = tmp_path / "kmsg"
    log.write_text(xid(1, 48) + xid(2, 79) + xid(3, 31))
    with following(log, cursor=2) as (_, sink, _):
        assert [31] == sink.codes()


def test_user_records_are_counted_and_are_no_events(tmp_path: Path) -> None:
    """A record that user space wrote is counted as such."""
    log = tmp_path / "kmsg"
    log.write_text(xid(1, 79, priority=14) + xid(2, 48))
    with following(log) as (source, sink, _):
        assert [48] == sink.codes()
        assert {"kernel": 1, "user": 1} == source.records()


def test_a_replaced_log_is_read_from_its_start(tmp_path: Path) -> None:
    """Another file under the same name has sequence numbers of its own."""
    log = tmp_path / "kmsg"
    log.write_text(xid(90, 48))
    with following(log) as (_, sink, _):
        fresh = tmp_path / "fresh"
        fresh.write_text(xid(1, 79))
        fresh.replace(log)

        assert until(lambda: sink.codes() == [48, 79])


def test_times_are_those_of_the_kernel(tmp_path: Path) -> None:
    """An event ten seconds old is dated ten seconds ago."""
    log = tmp_path / "kmsg"
    then = int((time.monotonic() - 10) * 1e6)
    log.write_text(f"3,1,{then},-;NVRM: Xid (PCI:0000:3b:00): 79, x\n")
    with following(log) as (_, sink, _):
        assert pytest.approx(time.time() - 10, abs=2) == sink.events[0].time


def test_a_missing_log_is_a_reason(tmp_path: Path) -> None:
    """Without the log the source says so and goes on trying."""
    with following(tmp_path / "none") as (source, _, errors):
        _, error = source.latest.read()

        assert error is not None
        assert error.reason == "unsupported"
        assert {("kmsg", "unsupported"): 1} == errors.counts()


def _kernel_log_opens() -> bool:
    """Whether this user may read the device; its mode does not tell, opening it needs CAP_SYSLOG."""
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _kernel_log_opens(), reason="no right to read /dev/kmsg")
def test_the_real_device_is_read(tmp_path: Path) -> None:
    """The kernel's own device gives records and stays fresh."""
    with following(Path("/dev/kmsg")) as (source, _, _):
        _, error = source.latest.read()

        assert error is None
        assert source.records()["kernel"] > 0
