"""Joins what ranks write into lines, has them parsed, and keeps the training state of each rank."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tocsin_exporter.errors import SourceError
from tocsin_exporter.identity.model import IdentityView, ProcessIdentity
from tocsin_exporter.parser import LogParser
from tocsin_exporter.parser.training import Training
from tocsin_exporter.sources.bpf import BpfSource, OutputChunk
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.tail import Tails

__all__ = ["OutputSource", "RankOutput"]

log = logging.getLogger(__name__)

Key = tuple[str, str]
Fact = TypeVar("Fact")

_ENDS = re.compile(rb"[\r\n\x08]+")
_MAX_PARTIAL = 64 << 10
_TAIL_SECONDS = 1.0
# A rank's last lines may arrive after its end was noticed.
_LAST_LINES_SECONDS = 2.0
# As long as the terminal facts of a rank are served.
_FACT_SECONDS = 900.0


@dataclass(slots=True)
class RankOutput:
    """What is known of one rank from its output; ``dropped`` counts bytes that were not seen."""

    training: Training = field(default_factory=Training)
    lines: int = 0
    dropped: int = 0
    processes: set[tuple[int, int]] = field(default_factory=set)


@dataclass(slots=True)
class _Stream:
    parser: LogParser = field(default_factory=LogParser)
    partial: bytes = b""
    overlong: bool = False


class OutputSource:
    """
    Training state per (job, rank), from output captured in the kernel or, without that, tailed files.

    Never both for one stream: files are tailed only while *bpf* does not see output.
    """

    def __init__(
        self,
        identity: IdentityView,
        errors: ErrorCounter,
        bpf: BpfSource | None,
        *,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._identity = identity
        self._errors = errors
        self._bpf = bpf
        self._clock = clock
        self._lock = threading.Lock()
        self._ranks: dict[Key, RankOutput] = {}
        self._last: dict[Key, tuple[Training, float]] = {}
        self._failures: dict[Key, tuple[dict[str, int], float]] = {}
        self._leaving: dict[tuple[int, int], tuple[ProcessIdentity, float]] = {}
        self._streams: dict[tuple[int, int, int], _Stream] = {}
        self._tails = Tails(proc)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if bpf is not None:
            bpf.listen_output(self.feed)

    def start(self) -> None:
        """Follow the ranks; start before the eBPF source, or its first lines find no rank."""
        self._identity.subscribe(self._arrived, self._left)
        self._thread = threading.Thread(target=self._tail, name="source-output", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop tailing."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._tails.close()

    @property
    def captures(self) -> bool:
        """Whether output is captured in the kernel rather than tailed."""
        return self._bpf is not None and self._bpf.works("output")

    @property
    def lock(self) -> threading.Lock:
        """Guards what `ranks` and `ended_failures` return."""
        return self._lock

    def ranks(self) -> dict[Key, RankOutput]:
        """Return the ranks that live; call and read under `lock`."""
        self._settle()
        return self._ranks

    def ended_failures(self) -> dict[Key, dict[str, int]]:
        """Return failure lines of ranks that ended in the last 15 minutes, by kind; call under `lock`."""
        return {key: counts for key, (counts, _) in self._failures.items() if key not in self._ranks}

    def ended_training(self) -> dict[Key, Training]:
        """Return the last state of ranks that printed steps and ended in the last 15 minutes."""
        with self._lock:
            self._settle()
            return {key: training for key, (training, _) in self._last.items()}

    # processes

    def _arrived(self, process: ProcessIdentity) -> None:
        key = (process.job_id, process.rank)
        with self._lock:
            self._settle(key)
            rank = self._ranks.get(key)
            if rank is None:
                rank = self._ranks[key] = RankOutput()
                if key in self._failures:
                    # What an attempt died of is often printed just before the next one begins.
                    rank.training.failures = dict(self._failures[key][0])
            rank.processes.add((process.pid, process.start_ticks))

    def _left(self, process: ProcessIdentity) -> None:
        with self._lock:
            self._leaving[process.pid, process.start_ticks] = (process, self._clock())

    def _settle(self, key: Key | None = None) -> None:
        """Let go of processes that ended a while ago, and at once of those of *key*."""
        now = self._clock()
        for name, (process, when) in list(self._leaving.items()):
            if now - when > _LAST_LINES_SECONDS or (process.job_id, process.rank) == key:
                del self._leaving[name]
                self._end(process, when)
        _forget(self._last, now)
        _forget(self._failures, now)

    def _end(self, process: ProcessIdentity, when: float) -> None:
        key = (process.job_id, process.rank)
        rank = self._ranks.get(key)
        for name in [name for name in self._streams if name[0] == process.pid]:
            stream = self._streams.pop(name)
            if stream.partial.strip() and not stream.overlong:
                self._line(stream, process, stream.partial, when)
            for event in stream.parser.flush():
                if rank is not None and process.rank:
                    rank.training.apply(event, when)
        if rank is None:
            return
        rank.processes.discard((process.pid, process.start_ticks))
        if not rank.processes:
            # The next process of this rank is another attempt and begins with nothing.
            del self._ranks[key]
            self._failures[key] = (rank.training.failures, when)
            if rank.training.step is not None:
                self._last[key] = (rank.training, when)

    def _owner(self, process: ProcessIdentity, named: int | None) -> RankOutput | None:
        """
        Return the rank that a line counts for, or None.

        A launcher repeats what its ranks wrote: its lines count only for ranks whose own
        output is not seen here.
        """
        if process.rank:
            return self._ranks.get((process.job_id, process.rank))
        own = {key[1] for key in self._ranks if key[0] == process.job_id and key[1]}
        if named is not None and str(named) not in own:
            return self._ranks.get((process.job_id, "")) if not own else None
        return None if own else self._ranks.get((process.job_id, ""))

    # lines

    def feed(self, chunk: OutputChunk) -> None:
        """Take in a piece of output."""
        name = (chunk.process.pid, chunk.generation, chunk.fd)
        with self._lock:
            self._feed(name, chunk.process, chunk.data, chunk.when, gap=chunk.gap)

    def _feed(
        self, name: tuple[int, int, int], process: ProcessIdentity, data: bytes, when: float, *, gap: bool
    ) -> None:
        stream = self._streams.setdefault(name, _Stream())
        if gap:
            # What stood before the gap and what comes after it are not one line.
            self._drop(process, len(stream.partial))
            stream.partial, stream.overlong = b"", True
        *whole, rest = _ENDS.split(stream.partial + data)
        for line in whole:
            if stream.overlong:
                stream.overlong = False
                self._drop(process, len(line))
            elif line.strip():
                self._line(stream, process, line, when)
        if stream.overlong or len(rest) > _MAX_PARTIAL:
            self._drop(process, len(rest))
            stream.overlong, rest = True, b""
        stream.partial = rest

    def _drop(self, process: ProcessIdentity, count: int) -> None:
        rank = self._ranks.get((process.job_id, process.rank))
        if rank is not None:
            rank.dropped += count

    def _line(self, stream: _Stream, process: ProcessIdentity, line: bytes, when: float) -> None:
        own = self._ranks.get((process.job_id, process.rank))
        if own is not None:
            own.lines += 1
        for event in stream.parser.feed(line):
            rank = self._owner(process, event.rank)
            if rank is not None:
                rank.training.apply(event, when)

    # the fallback

    def _tail(self) -> None:
        while self._bpf is not None and not self._bpf.settled.wait(_TAIL_SECONDS):
            if self._stopping.is_set():
                return
        if self.captures:
            return
        while not self._stopping.wait(_TAIL_SECONDS):
            living = self._identity.living()
            try:
                for process, fd, data, gap in self._tails.read(living):
                    with self._lock:
                        self._feed((process.pid, -1, fd), process, data, self._clock(), gap=gap)
            except SourceError as err:
                self._errors.add("output", err.reason)
                log.warning("output: %s", err.detail)
            except Exception:
                self._errors.add("output", "bad_data")
                log.exception("output: reading failed")


def _forget(facts: dict[Key, tuple[Fact, float]], now: float) -> None:
    for key in [key for key, (_, when) in facts.items() if now - when > _FACT_SECONDS]:
        del facts[key]
