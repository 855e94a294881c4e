"""How ranks ended: by code, by signal, or unseen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.identity.model import IdentityView, ProcessIdentity
from tocsin_exporter.sources.bpf import BpfSource, ExitEvent
from tocsin_exporter.sources.output import OutputSource

__all__ = ["KINDS", "NAME", "ExitsCollector", "build"]

NAME = "exits"

KINDS = ("ok", "error", "signal", "unknown")
_SERVED_SECONDS = 900.0
# The exit record may come after identity's notice; only then is the cause unknown.
_GRACE_SECONDS = 3.0

Key = tuple[str, str]


@dataclass(slots=True)
class _Rank:
    living: dict[tuple[int, int], ProcessIdentity] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    last: tuple[float, str, str] | None = None
    seen: float = 0.0


class ExitsCollector:
    """
    Counts the ends of ranks; zeros exist from the rank's first sight on.

    Only the end of the rank's first process counts: helpers that inherit its environment come
    and go.
    """

    name = NAME

    def __init__(
        self,
        bpf: BpfSource | None,
        identity: IdentityView,
        output: OutputSource | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._output = output
        self._clock = clock
        self._lock = threading.Lock()
        self._ranks: dict[Key, _Rank] = {}
        self._told: dict[tuple[int, int], float] = {}
        self._waiting: dict[tuple[int, int], tuple[ProcessIdentity, float]] = {}
        self._identity = identity
        if bpf is not None:
            bpf.listen_exits(self.ended)

    def start(self) -> None:
        """Follow the ranks."""
        self._identity.subscribe(self._arrived, self._left)

    def stop(self) -> None:
        """Nothing to release."""

    def _arrived(self, process: ProcessIdentity) -> None:
        if not process.rank:
            return
        with self._lock:
            rank = self._ranks.setdefault((process.job_id, process.rank), _Rank())
            rank.living[process.pid, process.start_ticks] = process
            rank.seen = self._clock()

    def _left(self, process: ProcessIdentity) -> None:
        with self._lock:
            name = (process.pid, process.start_ticks)
            if process.rank and name not in self._told:
                self._waiting[name] = (process, self._clock())

    def ended(self, event: ExitEvent) -> None:
        """Take in an end that the kernel reported."""
        with self._lock:
            name = (event.process.pid, event.process.start_ticks)
            self._told[name] = event.when
            self._waiting.pop(name, None)
            if event.signal:
                self._count(event.process, "signal", event.when, "", str(event.signal))
            else:
                kind = "error" if event.code else "ok"
                self._count(event.process, kind, event.when, str(event.code), "")

    def _count(self, process: ProcessIdentity, kind: str, when: float, code: str, signal: str) -> None:
        if not process.rank:
            return
        rank = self._ranks.setdefault((process.job_id, process.rank), _Rank())
        main = min(rank.living.values(), key=lambda each: (each.start_ticks, each.pid), default=process)
        rank.living.pop((process.pid, process.start_ticks), None)
        rank.seen = self._clock()
        if (main.pid, main.start_ticks) != (process.pid, process.start_ticks):
            return
        rank.counts[kind] += 1
        rank.last = (when, code, signal)

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        now = self._clock()
        samples: list[Sample] = []
        departed = {(process.pid, process.start_ticks) for process, _ in self._identity.departed()}
        with self._lock:
            for name, (process, left) in list(self._waiting.items()):
                if now - left <= _GRACE_SECONDS:
                    continue
                del self._waiting[name]
                if name in departed:
                    self._count(process, "unknown", left, "", "")
                else:
                    # Not ended: identity has learned that it is no process of the rank after all.
                    rank = self._ranks.get((process.job_id, process.rank))
                    if rank is not None:
                        rank.living.pop(name, None)
            self._told = {name: when for name, when in self._told.items() if now - when < _SERVED_SECONDS}
            for key, rank in list(self._ranks.items()):
                if rank.living:
                    rank.seen = now
                elif now - rank.seen > _SERVED_SECONDS:
                    del self._ranks[key]
                    continue
                for kind, count in rank.counts.items():
                    samples.append(Sample("tocsin_rank_exits_total", (*key, kind), count))
                if rank.last is not None and now - rank.last[0] < _SERVED_SECONDS:
                    when, code, signal = rank.last
                    samples.append(
                        Sample("tocsin_job_last_exit_timestamp_seconds", (*key, code, signal), when)
                    )
        if self._output is not None:
            for key, step in self._output.last_steps().items():
                samples.append(Sample("tocsin_job_last_step", key, step))
        yield from samples


def build(
    bpf: BpfSource | None,
    identity: IdentityView,
    output: OutputSource | None,
    clock: Callable[[], float] = time.time,
) -> ExitsCollector:
    """Return the collector; it needs `start` to follow the ranks."""
    return ExitsCollector(bpf, identity, output, clock)
