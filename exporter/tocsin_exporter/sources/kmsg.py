"""Follows the kernel log, a character device or a regular file with the same record lines."""

from __future__ import annotations

import errno
import logging
import os
import select
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.kmsg.parse import Event, Parser, split
from tocsin_exporter.sources.latest import ErrorCounter, Latest

__all__ = ["KernelEvent", "KmsgSource", "Sink"]

log = logging.getLogger(__name__)

# The kernel gives one record per read and refuses buffers that are too small for it.
_RECORD = 8192
# A report whose further records have not come by then stands as it is.
_QUIET_SECONDS = 2.0
# What is taken at once, so that a storm costs few writes of the state and yet is served while it lasts.
_BATCH, _BATCH_SECONDS = 16384, 0.5
_CHUNK = 1 << 18
_LONGEST = 1 << 16
_MAX_SKEW = 5.0


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """An event with its kernel time as a Unix time."""

    event: Event
    time: float


# Takes the events of a batch and the sequence number of its last record, and keeps both.
Sink = Callable[[list[KernelEvent], int], None]


class KmsgSource:
    """
    Reads the log from its start, or after *cursor*, and hands every event to the sink once.

    ``latest`` is fresh while the log is readable. ``identity`` tells one log from another: a
    cursor is only good for the log it came from.
    """

    def __init__(
        self,
        path: Path,
        errors: ErrorCounter,
        sink: Sink,
        max_age: float,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.latest: Latest[int] = Latest(max_age)
        self._errors = errors
        self._sink = sink
        self._wall = wall
        self._monotonic = monotonic
        self._parser = Parser()
        self._cursor = -1
        self._lock = threading.Lock()
        self._skew = 0.0
        self._live = False
        self._quiet_since = 0.0
        self._lost = 0
        # The highest number since the log was opened, which tells a log that is shorter than the cursor.
        self._highest = -1
        self._failed = False
        self._end_seen = float("-inf")
        self._stopping = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="source-kmsg", daemon=True)

    def identity(self) -> str:
        """Return what tells this log from another one; empty when it cannot be looked at."""
        try:
            found = self.path.stat()
        except OSError:
            return ""
        return "device" if stat.S_ISCHR(found.st_mode) else f"file:{found.st_dev}:{found.st_ino}"

    def resume(self, cursor: int) -> None:
        """Skip records up to *cursor*; to be called before the start."""
        self._cursor = cursor

    def records(self) -> dict[str, int]:
        """Return how many records were read, by facility (`kernel`, `user`)."""
        return {"kernel": self._parser.kernel_records, "user": self._parser.user_records}

    def lost(self) -> int:
        """Return how many records the kernel overwrote before they were read."""
        return self._lost

    def failed(self) -> bool:
        """Say whether the log cannot be read."""
        return self._failed

    def end_seen(self) -> float:
        """Return when, by the monotonic clock, everything in the log had been read."""
        return self._end_seen

    def start(self) -> None:
        """Start following."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def wait_first(self, timeout: float) -> bool:
        """Wait until what the log held at the start was read, or could not be."""
        return self._first.wait(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause = 5.0
            try:
                self._follow()
                pause = 0.0
            except SourceError as err:
                self._errors.add("kmsg", err.reason)
                self.latest.fail(err.reason, err.detail)
            except Exception as err:
                log.exception("following the kernel log failed path=%s", self.path)
                self._errors.add("kmsg", "bad_data")
                self.latest.fail("bad_data", str(err))
            self._failed = pause > 0
            self._first.set()
            self._live = False
            self._stopping.wait(pause)

    def _follow(self) -> None:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError as err:
            hint = "run as root, or with CAP_SYSLOG and kernel.dmesg_restrict=0"
            raise SourceError("no_permission", f"{self.path}: {err.strerror}; {hint}") from err
        except OSError as err:
            raise SourceError("unsupported", f"{self.path}: {err.strerror}; is --path.kmsg right?") from err
        try:
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                self._follow_device(descriptor)
            else:
                self._follow_file(descriptor)
        finally:
            os.close(descriptor)

    def _follow_device(self, descriptor: int) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not self._stopping.is_set():
            lines: list[bytes] = []
            until = self._monotonic() + _BATCH_SECONDS
            end = False
            while len(lines) < _BATCH and self._monotonic() < until:
                try:
                    lines.append(os.read(descriptor, _RECORD))
                except BlockingIOError:
                    end = True
                    break
                except OSError as err:
                    if err.errno == errno.EPIPE:
                        # Overwritten before they were read; the next read goes on behind the gap.
                        self._errors.add("kmsg", "overrun")
                        continue
                    raise SourceError("bad_data", f"{self.path}: {err.strerror}") from err
            # A record is one line; what follows it are dictionary lines.
            self._take([line.split(b"\n", 1)[0] for line in lines])
            if end:
                self._idle()
                poll.poll(500)

    def _follow_file(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        lines = _Lines(descriptor)
        self._highest = -1
        last = False
        while not self._stopping.is_set():
            if os.fstat(descriptor).st_size < lines.offset:
                # Truncated: its numbers begin anew.
                self._begin_anew(lines)
            taken, ends = lines.read()
            if lines.cut:
                self._errors.add("kmsg", "bad_data")
            self._take(taken, ends)
            if taken or lines.more:
                continue
            if self._cursor > -1 and self._highest < self._cursor:
                # Shorter than the cursor: it was truncated and written anew while nobody looked.
                self._begin_anew(lines)
                if lines.size():
                    continue
            if last:
                self._take(*lines.rest())
                self._cursor = -1
                return
            self._idle()
            try:
                # Replaced, as by rotation: read to its end, and then from the start of the new one.
                last = self.path.stat().st_ino != inode
            except OSError as err:
                raise SourceError("unsupported", f"{self.path}: {err.strerror}") from err
            if not last:
                self._stopping.wait(0.25)

    def _begin_anew(self, lines: _Lines) -> None:
        self._cursor = self._highest = -1
        lines.rewind()

    def _idle(self) -> None:
        """The log's end is reached: reports that wait are given out, the source is fresh."""
        if self._parser.waiting() and self._monotonic() - self._quiet_since >= _QUIET_SECONDS:
            self._deliver(self._parser.finish())
        self.latest.put(self._cursor)
        self._failed = False
        self._live = True
        self._end_seen = self._monotonic()
        self._first.set()

    def _take(self, lines: list[bytes], ends: list[int] | None = None) -> None:
        """Read *lines*; those without a number of the kernel's have their end in the file for one."""
        if not lines:
            return
        self._quiet_since = self._monotonic()
        found: list[Event] = []
        # Only what comes after the end was seen has just been written.
        fresh, self._live = self._live, False
        for at, line in enumerate(lines):
            record = split(line.decode("utf-8", "replace"))
            if record is None:
                continue
            number = record.seq if record.seq is not None else ends[at] if ends else None
            if number is not None:
                self._highest = max(self._highest, number)
                if number <= self._cursor:
                    continue
                if record.seq is not None and self._cursor >= 0:
                    self._lost += number - self._cursor - 1
                self._cursor = number
            if fresh and record.usec is not None:
                self._calibrate(record.usec)
                fresh = False
            found.extend(self._parser.feed_record(record))
        self._deliver(found)
        self.latest.put(self._cursor)

    def _deliver(self, found: list[Event]) -> None:
        self._sink([KernelEvent(event, self._time_of(event)) for event in found], self._cursor)

    def _calibrate(self, usec: int) -> None:
        """The log's clock drifts from ours over months: a record that was just written is of now."""
        off = self._monotonic() + self._skew - usec / 1e6
        if abs(off) > _MAX_SKEW:
            self._skew -= off

    def _time_of(self, event: Event) -> float:
        if event.usec is None:
            return self._wall()
        return min(self._wall(), self._wall() - (self._monotonic() + self._skew - event.usec / 1e6))


class _Lines:
    """The lines of a file that grows, in bounds. ``cut``: the last read dropped the end of a long line."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self._skipping = False
        self.offset = 0
        self.more = False
        self.cut = False

    def size(self) -> int:
        """Return the size of the file."""
        return os.fstat(self._descriptor).st_size

    def rewind(self) -> None:
        """Read from the start again."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._rest, self._skipping, self.offset = b"", False, 0

    def read(self) -> tuple[list[bytes], list[int]]:
        """Return the next whole lines, and where each ends."""
        data = os.read(self._descriptor, _CHUNK)
        self.more = bool(data)
        start = self.offset - len(self._rest)
        self.offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        ends: list[int] = []
        for line in lines:
            start += len(line) + 1
            ends.append(start)
        if self._skipping and lines:
            # The rest of a line that was too long is no line of its own.
            del lines[0], ends[0]
            self._skipping = False
        self.cut = len(self._rest) > _LONGEST
        if self.cut:
            if not self._skipping:
                lines.append(self._rest[:_RECORD])
                ends.append(self.offset)
            self._rest, self._skipping = b"", True
        return lines, ends

    def rest(self) -> tuple[list[bytes], list[int]]:
        """Return the last line, which has no end and will get none."""
        rest, self._rest = self._rest, b""
        return ([rest], [self.offset]) if rest and not self._skipping else ([], [])
