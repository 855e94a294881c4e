"""The thread that names targets to the kernel, probes their libraries and reads what comes back."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tocsin_exporter.bpf.build import OBJECT
from tocsin_exporter.errors import SourceError
from tocsin_exporter.identity.model import IdentityView, ProcessIdentity
from tocsin_exporter.sources.bpf import layout
from tocsin_exporter.sources.bpf.attach import Attacher
from tocsin_exporter.sources.bpf.libbpf import Libbpf, Ring
from tocsin_exporter.sources.bpf.loader import Limits, Programs, Rung, load
from tocsin_exporter.sources.bpf.records import (
    ExitEvent,
    ExitListener,
    OutputChunk,
    OutputListener,
    RankCounts,
    wall_offset,
)
from tocsin_exporter.sources.bpf.tracefs import tracepoint_ids
from tocsin_exporter.sources.latest import ErrorCounter

__all__ = ["WANTED", "BpfSource"]

log = logging.getLogger(__name__)

WANTED = frozenset({"cuda", "nccl", "output", "exits"})

_NAME = "ebpf"
_POLL_SECONDS = 0.25
# The exit record usually precedes the notice of the identity scan; after this it never comes.
_EXIT_GRACE_SECONDS = 2.0
# A program may still hold a slot that it looked up before its target was removed.
_SLOT_REST_SECONDS = 1.0
_TRACEPOINTS = {"on_write": "syscalls/sys_enter_write", "on_writev": "syscalls/sys_enter_writev"}


@dataclass(slots=True)
class _Target:
    process: ProcessIdentity
    slot: int
    token: int
    arrived: float
    layers: frozenset[str] = frozenset()
    next_scan: float = 0.0
    left: float | None = None
    lost: int = 0
    ended: ExitEvent | None = field(default=None)

    @property
    def key(self) -> tuple[str, str]:
        return self.process.job_id, self.process.rank


class BpfSource:
    """
    Counts of CUDA and NCCL calls, output and exits of the processes that *identity* knows.

    ``wanted`` are the collectors to serve (`WANTED` at most); nothing is attached for others.
    `start` never raises: what does not work here is in ``failures`` by part (``probes``,
    ``output``, ``exits``), and the rest works. Listeners are called from the source's thread.
    """

    def __init__(
        self,
        identity: IdentityView,
        errors: ErrorCounter,
        *,
        proc: Path = Path("/proc"),
        object_path: Path = OBJECT,
        wanted: Collection[str] = WANTED,
        limits: Limits | None = None,
        rungs: Iterable[Rung] = tuple(Rung),
        without: Collection[str] = (),
        poll: float = _POLL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures: dict[str, SourceError] = {}
        # Set once it is known what works.
        self.settled = threading.Event()
        self._identity = identity
        self._errors = errors
        self._proc = proc
        self._wanted = frozenset(wanted)
        self.without = frozenset(without)
        self._object = object_path
        self._limits = limits or Limits()
        self._rungs = tuple(rungs)
        self._poll = poll
        self._clock = clock
        self._output: list[OutputListener] = []
        self._exits: list[ExitListener] = []
        self._lock = threading.RLock()
        self._targets: dict[int, _Target] = {}
        self._tokens: dict[int, _Target] = {}
        self._retired: dict[tuple[str, str], layout.RankStat] = {}
        self._free: deque[int] = deque(range(layout.SLOTS))
        self._resting: deque[tuple[float, int]] = deque()
        self._next_token = 1
        self._lib: Libbpf | None = None
        self._programs: Programs | None = None
        self._attacher: Attacher | None = None
        self._ring: Ring | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # life

    def listen_output(self, listener: OutputListener) -> None:
        """Call *listener* with every piece of output; add listeners before the start."""
        self._output.append(listener)

    def listen_exits(self, listener: ExitListener) -> None:
        """Call *listener* with every end of a target."""
        self._exits.append(listener)

    def start(self) -> None:
        """Load, attach what can be attached, and begin to read."""
        try:
            self._start()
        finally:
            self.settled.set()

    def _start(self) -> None:
        try:
            self._lib = Libbpf()
            self._programs = load(self._lib, self._object, self._limits, self._rungs)
            self._ring = self._programs.ring(self._record)
        except SourceError as err:
            self.failures = dict.fromkeys(("probes", "output", "exits"), err)
            self._errors.add(_NAME, err.reason)
            log.warning("ebpf is off: %s", err.detail)
            self._close()
            return
        self._attacher = Attacher(self._proc, self._programs, self._wanted, self._clock, self.without)
        try:
            # Also without the collector: an end is when a target's place becomes free.
            self._programs.attach_exit()
        except SourceError as err:
            self._failed("exits", err)
        if "output" in self._wanted:
            try:
                numbers = tracepoint_ids(_TRACEPOINTS.values())
                self._programs.attach_output({key: numbers[name] for key, name in _TRACEPOINTS.items()})
            except SourceError as err:
                self._failed("output", err)
        log.info("ebpf started rung=%s", self._programs.rung.value)
        self._identity.subscribe(self._arrived, self._departed)
        self._thread = threading.Thread(target=self._run, name="source-ebpf", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Detach everything; nothing stays in the kernel."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10.0)
        self._close()

    def _close(self) -> None:
        with self._lock:
            self._targets.clear()
            self._tokens.clear()
            if self._programs is not None:
                self._programs.close()
            if self._lib is not None:
                self._lib.close()
            self._programs = self._attacher = self._ring = self._lib = None

    def _failed(self, part: str, err: SourceError) -> None:
        self.failures[part] = err
        self._errors.add(_NAME, err.reason)
        log.warning("ebpf part=%s is off: %s", part, err.detail)

    # what others read

    @property
    def rung(self) -> str:
        """The way of attaching in use, or ``off``."""
        programs = self._programs
        return programs.rung.value if programs is not None else "off"

    def works(self, part: str) -> bool:
        """Whether ``probes``, ``output`` or ``exits`` is being seen."""
        return self._programs is not None and part not in self.failures

    def counts(self) -> tuple[RankCounts, ...]:
        """Return the counts of all living ranks, read from shared memory."""
        offset = wall_offset()
        with self._lock:
            if self._programs is None:
                return ()
            layers: dict[tuple[str, str], frozenset[str]] = {}
            stats: dict[tuple[str, str], layout.RankStat] = {}
            for target in self._targets.values():
                stat = self._programs.read(target.slot)
                known = stats.get(target.key) or self._retired.get(target.key)
                stats[target.key] = known.plus(stat) if known else stat
                layers[target.key] = layers.get(target.key, frozenset()) | target.layers
        return tuple(RankCounts(*key, layers[key], stat, offset, self.without) for key, stat in stats.items())

    def attached(self) -> dict[str, str]:
        """Return what was found in each library looked at, by path: layers, or why nothing is probed."""
        attacher = self._attacher
        return attacher.report() if attacher is not None else {}

    # targets

    def _arrived(self, process: ProcessIdentity) -> None:
        with self._lock:
            if self._programs is None:
                return
            known = self._targets.get(process.pid)
            if known is not None:
                if known.process.start_ticks == process.start_ticks:
                    known.process = process
                    return
                self._finish(known)
            if not self._free:
                self._errors.add(_NAME, "unsupported")
                log.warning("ebpf pid=%d is not counted: all %d places are taken", process.pid, layout.SLOTS)
                return
            target = _Target(process, self._free.popleft(), self._next_token, self._clock())
            self._next_token = self._next_token % 0xFFFFFFFF + 1
            try:
                self._programs.add_target(process.pid, target.slot, target.token)
            except SourceError as err:
                self._free.append(target.slot)
                self._errors.add(_NAME, err.reason)
                log.warning("ebpf pid=%d is not counted: %s", process.pid, err.detail)
                return
            self._targets[process.pid] = target
            self._tokens[target.token] = target
        self._wake.set()

    def _departed(self, process: ProcessIdentity) -> None:
        with self._lock:
            target = self._targets.get(process.pid)
            if target is not None and target.process.start_ticks == process.start_ticks:
                target.left = self._clock()

    def _finish(self, target: _Target) -> None:
        if self._programs is None or self._targets.get(target.process.pid) is not target:
            return
        self._programs.remove_target(target.process.pid)
        del self._targets[target.process.pid]
        del self._tokens[target.token]
        stat = self._programs.read(target.slot)
        if any(other.key == target.key for other in self._targets.values()):
            # The rank goes on in other processes: its counters must not fall.
            self._retired[target.key] = self._retired.get(target.key, layout.RankStat.zero()).plus(stat)
        else:
            self._retired.pop(target.key, None)
        self._resting.append((self._clock() + _SLOT_REST_SECONDS, target.slot))

    # the thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._poll)
            self._wake.clear()
            try:
                self.poll_once()
            except SourceError as err:
                self._errors.add(_NAME, err.reason)
                log.warning("ebpf: %s", err.detail)
            except Exception:
                self._errors.add(_NAME, "bad_data")
                log.exception("ebpf: reading failed")

    def poll_once(self) -> None:
        """Read waiting records, forget the dead, look for libraries to probe."""
        ring, attacher = self._ring, self._attacher
        if ring is None or attacher is None:
            return
        ring.consume()
        now = self._clock()
        with self._lock:
            for target in list(self._targets.values()):
                if target.left is not None and now - target.left > _EXIT_GRACE_SECONDS:
                    self._finish(target)
            while self._resting and self._resting[0][0] <= now:
                self._free.append(self._resting.popleft()[1])
            due = [
                target for target in self._targets.values() if target.next_scan <= now and target.left is None
            ]
        for target in due:
            try:
                target.layers = attacher.probe(target.process.pid)
            except SourceError as err:
                # Processes end while they are looked at; anything else is worth a count.
                if (self._proc / str(target.process.pid)).exists():
                    self._errors.add(_NAME, err.reason)
                    log.warning("ebpf pid=%d: %s", target.process.pid, err.detail)
            target.next_scan = now + _scan_interval(now - target.arrived, target.layers)
        attacher.release(self._pids())

    def _pids(self) -> set[int]:
        with self._lock:
            return set(self._targets)

    def _record(self, data: bytes) -> None:
        kind, _, token, value, time_ns, length, dropped = layout.RECORD.unpack_from(data)
        with self._lock:
            target = self._tokens.get(token)
        if target is None:
            return
        when = time_ns / 1e9 + wall_offset()
        if kind == layout.RECORD_OUTPUT:
            body = data[layout.RECORD.size : layout.RECORD.size + length]
            chunk = OutputChunk(target.process, token, value, body, when, gap=dropped != target.lost)
            target.lost = dropped
            for hear in self._output:
                hear(chunk)
        elif kind == layout.RECORD_EXIT:
            event = ExitEvent(target.process, value, when)
            with self._lock:
                self._finish(target)
            for listener in self._exits:
                listener(event)


def _scan_interval(age: float, layers: frozenset[str]) -> float:
    # Frameworks load the driver late; once both layers are there little can follow.
    if {"cuda", "nccl"} <= layers or age > 120:
        return 60.0
    return 1.0 if age < 30 else 5.0
