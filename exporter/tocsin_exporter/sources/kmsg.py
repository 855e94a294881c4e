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
# Between a batch of records the sink is called, so that one fsync covers a storm.
_BATCH = 512
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
        self._rest = b""
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
            while len(lines) < _BATCH:
                try:
                    lines.append(os.read(descriptor, _RECORD))
                except BlockingIOError:
                    break
                except OSError as err:
                    if err.errno == errno.EPIPE:
                        # Overwritten before they were read; the next read goes on behind the gap.
                        self._errors.add("kmsg", "overrun")
                        continue
                    raise SourceError("bad_data", f"{self.path}: {err.strerror}") from err
            # A record is one line; what follows it are dictionary lines.
            self._take([line.split(b"\n", 1)[0] for line in lines])
            if len(lines) < _BATCH:
                self._idle()
                poll.poll(500)

    def _follow_file(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        offset, self._rest = 0, b""
        while not self._stopping.is_set():
            if os.fstat(descriptor).st_size < offset:
                offset, self._rest = 0, b""
                os.lseek(descriptor, 0, os.SEEK_SET)
            data = os.read(descriptor, 1 << 16)
            offset += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > _RECORD * 8:
                self._errors.add("kmsg", "bad_data")
                self._rest = b""
            self._take(lines)
            if not data:
                self._idle()
                try:
                    if self.path.stat().st_ino != inode:
                        # Replaced, as by rotation: its sequence numbers are another log's.
                        self._cursor = -1
                        return
                except OSError as err:
                    raise SourceError("unsupported", f"{self.path}: {err.strerror}") from err
                self._stopping.wait(0.25)

    def _idle(self) -> None:
        """The log's end is reached: reports that wait are given out, the source is fresh."""
        if self._parser.waiting() and self._monotonic() - self._quiet_since >= _QUIET_SECONDS:
            self._deliver(self._parser.finish())
        self.latest.put(self._cursor)
        self._live = True
        self._first.set()

    def _take(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._quiet_since = self._monotonic()
        found: list[Event] = []
        for line in lines:
            record = split(line.decode("utf-8", "replace"))
            if record is None:
                continue
            if record.seq is not None:
                if record.seq <= self._cursor:
                    continue
                self._cursor = record.seq
            if self._live and record.usec is not None:
                self._calibrate(record.usec)
            found.extend(self._parser.feed_record(record))
        self._deliver(found)

    def _deliver(self, found: list[Event]) -> None:
        events = [KernelEvent(event, self._time_of(event)) for event in found]
        self._sink(events, self._cursor)

    def _calibrate(self, usec: int) -> None:
        """The log's clock drifts from ours over months: a record that was just written is of now."""
        off = self._monotonic() + self._skew - usec / 1e6
        if abs(off) > _MAX_SKEW:
            self._skew -= off

    def _time_of(self, event: Event) -> float:
        if event.usec is None:
            return self._wall()
        return min(self._wall(), self._wall() - (self._monotonic() + self._skew - event.usec / 1e6))
