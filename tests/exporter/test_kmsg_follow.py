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


def test_a_truncated_log_is_read_from_its_start(tmp_path: Path) -> None:
    """A log that is emptied in place begins its numbers anew, and none of them is skipped."""
    log = tmp_path / "kmsg"
    log.write_text(xid(90, 48) + xid(91, 48))
    with following(log) as (_, sink, _):
        log.write_text(xid(1, 79))

        assert until(lambda: sink.codes() == [48, 48, 79])


@pytest.mark.parametrize("content", ["", "short"])
def test_a_log_shorter_than_the_cursor_is_another_log(tmp_path: Path, content: str) -> None:
    """A log that was truncated while the exporter was down hides nothing behind the old cursor."""
    log = tmp_path / "kmsg"
    log.write_text(xid(1, 79) if content else "")
    with following(log, cursor=5000) as (_, sink, _):
        with log.open("a") as out:
            out.write(xid(2, 48))

        assert until(lambda: sink.codes() == ([79, 48] if content else [48]))
        assert 2 == sink.cursor


def test_what_is_written_until_the_rotation_is_read(tmp_path: Path) -> None:
    """The end of the old file comes before the new one, a last line without an end included."""
    log = tmp_path / "kmsg"
    log.write_text(xid(1, 48))
    with following(log) as (_, sink, _):
        with log.open("a") as out:
            log.rename(tmp_path / "kmsg.1")
            log.write_text(xid(1, 79))
            out.write(xid(2, 31) + xid(3, 13).rstrip("\n"))

        assert until(lambda: sink.codes() == [48, 31, 13, 79])


def test_records_that_were_overwritten_are_counted(tmp_path: Path) -> None:
    """A hole in the kernel's numbers is so many records lost, also over a restart."""
    log = tmp_path / "kmsg"
    log.write_text(xid(12, 48) + xid(13, 48) + xid(20, 48))
    with following(log, cursor=9) as (source, sink, _):
        assert 3 == len(sink.events)
        assert 2 + 6 == source.lost()


def test_the_first_run_has_lost_nothing(tmp_path: Path) -> None:
    """What the kernel threw away before anybody asked is no loss of ours."""
    log = tmp_path / "kmsg"
    log.write_text(xid(500, 48))
    with following(log) as (source, _, _):
        assert 0 == source.lost()


def test_lines_without_numbers_are_counted_once_too(tmp_path: Path) -> None:
    """A log in the form of dmesg has its places in the file for numbers."""
    log = tmp_path / "kmsg"
    line = "[   12.345678] NVRM: Xid (PCI:0000:3b:00): 48, x\n"
    log.write_text(line * 3)
    with following(log) as (_, sink, _):
        assert 3 == len(sink.events)
    with log.open("a") as out:
        out.write(line)
    with following(log, cursor=sink.cursor) as (_, again, _):
        assert 1 == len(again.events)


def test_a_line_without_end_is_bounded_and_its_rest_is_no_line(tmp_path: Path) -> None:
    """Megabytes without a line break cost a bound of memory and one error, and bring no event."""
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;" + "x" * (3 << 20) + xid(2, 79) + xid(3, 48))
    with following(log) as (source, sink, errors):
        assert [48] == sink.codes()
        assert errors.counts()[("kmsg", "bad_data")] >= 1
        assert len(source._parser._said) < 2


def test_a_storm_is_read_in_few_batches(tmp_path: Path) -> None:
    """Eighty thousand records come in few batches: a storm does not write the state per line."""
    log = tmp_path / "kmsg"
    log.write_text("".join(xid(seq, 95) for seq in range(80_000)))
    batches: list[int] = []
    source = KmsgSource(log, ErrorCounter(), lambda events, _: batches.append(len(events)), 60.0)
    source.start()
    assert source.wait_first(60)
    source.stop()

    assert 80_000 == sum(batches)
    assert len(batches) < 80


def test_old_records_move_no_clock(tmp_path: Path) -> None:
    """A backlog that is read late keeps its times: only a record just written tells the drift."""
    log = tmp_path / "kmsg"
    log.write_text(xid(1, 48))
    with following(log) as (source, sink, _):
        base = int(time.monotonic() * 1e6)
        records = "".join(
            f"3,{2 + at},{base - (60 - at) * 1_000_000},-;NVRM: Xid (PCI:0000:3b:00): 31, x\n"
            for at in range(50)
        )
        source._live = False
        with log.open("a") as out:
            out.write(f"6,1,{base},-;nothing\n" + records)

        assert until(lambda: len(sink.events) == 51)
    times = [each.time for each in sink.events[1:]]
    assert pytest.approx(49, abs=0.5) == times[-1] - times[0]


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


def _may_write() -> bool:
    try:
        os.close(os.open("/dev/kmsg", os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return _kernel_log_opens()


@pytest.mark.skipif(not _may_write(), reason="no right to write /dev/kmsg")
def test_what_root_writes_into_the_real_log_accuses_nobody() -> None:
    """The kernel marks what user space writes, whatever facility it claims: counted, never an event."""
    with following(Path("/dev/kmsg")) as (source, sink, _):
        before, events = source.records()["user"], len(sink.events)
        descriptor = os.open("/dev/kmsg", os.O_WRONLY | os.O_CLOEXEC)
        try:
            # A text that would be an event, and that alarms nobody else who reads this log.
            os.write(descriptor, b"<3>nfs: server tocsin-test OK\n")
        finally:
            os.close(descriptor)

        assert until(lambda: source.records()["user"] > before)
        assert events == len(sink.events)
