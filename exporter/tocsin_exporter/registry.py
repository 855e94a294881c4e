"""The error boundary around collectors: one failing collector is a gap plus a signal, never an outage."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from tocsin_exporter.collectors.base import Collector, Sample
from tocsin_exporter.errors import CollectError
from tocsin_exporter.exposition import AnySample, Exposition, check

__all__ = ["CollectorSet"]

log = logging.getLogger(__name__)


class CollectorSet:
    """
    Runs all collectors for a scrape and tells how each fared.

    ``disabled`` names are reported as such, so that a missing layer is never a silent one.
    ``own`` gives the exporter's samples about itself.
    """

    def __init__(
        self,
        collectors: Iterable[Collector],
        exposition: Exposition,
        *,
        own: Callable[[], Iterable[AnySample]] = tuple,
        disabled: Iterable[str] = (),
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._collectors = tuple(collectors)
        names = [collector.name for collector in self._collectors]
        if len(set(names)) != len(names):
            raise ValueError(f"two collectors have one name: {sorted(names)}")
        self._exposition = exposition
        self._own = own
        self._disabled = tuple(sorted(set(disabled) - set(names)))
        self._wall = wall
        self._clock = clock
        self._lock = threading.Lock()
        self._last_success: dict[str, float] = {}
        self._reported: dict[str, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the collectors that run."""
        return tuple(collector.name for collector in self._collectors)

    def status(self) -> list[tuple[str, str]]:
        """Return name and state of each collector at the last scrape, without running one."""
        with self._lock:
            seen = dict(self._reported)
        states = [(name, seen.get(name, "not scraped yet") or "ok") for name in self.names]
        return sorted([*states, *((name, "disabled") for name in self._disabled)])

    def scrape(self, *, openmetrics: bool = False) -> str:
        """Return the text of one scrape; one at a time, which the renderer of the web surface sees to."""
        return self._exposition.render(self.collect(), openmetrics=openmetrics)

    def collect(self) -> list[AnySample]:
        """Return the samples of one scrape."""
        samples: list[AnySample] = list(self._own())
        for collector in self._collectors:
            samples.extend(self._run(collector))
        for name in self._disabled:
            samples.append(Sample("tocsin_collector_success", (name,), 0))
            samples.append(Sample("tocsin_collector_error_info", (name, "disabled"), 1))
        return samples

    def _run(self, collector: Collector) -> list[AnySample]:
        """Return the samples of one collector and the samples about it."""
        name = collector.name
        started = self._clock()
        samples: list[AnySample] = []
        error: CollectError | None = None
        try:
            for sample in collector.collect():
                check(sample)
                samples.append(sample)
        except CollectError as err:
            # What came before is still good: a hung driver's last reading, the devices that answer.
            # Not the exception itself: its traceback holds this frame, and each scrape of a failing
            # collector would leave all its samples to the garbage collector's slowest pass.
            error = CollectError(err.reason, err.detail)
        except Exception as err:
            log.exception("collector failed collector=%s", name)
            samples = []
            error = CollectError("bad_data", f"{type(err).__name__}: {err}")
        seconds = self._clock() - started
        samples.append(Sample("tocsin_collector_duration_seconds", (name,), seconds))
        samples.append(Sample("tocsin_collector_success", (name,), 0 if error else 1))
        if error is not None:
            samples.append(Sample("tocsin_collector_error_info", (name, error.reason), 1))
        with self._lock:
            if error is None:
                self._last_success[name] = self._wall()
            last = self._last_success.get(name)
            self._say(name, error)
        if last is not None:
            samples.append(Sample("tocsin_collector_last_success_timestamp_seconds", (name,), last))
        return samples

    def _say(self, name: str, error: CollectError | None) -> None:
        """Log a change of state once, not on every scrape."""
        reason = error.reason if error else ""
        before, self._reported[name] = self._reported.get(name, ""), reason
        if before == reason:
            return
        if error is not None:
            log.warning(
                "collector has nothing to serve collector=%s reason=%s: %s", name, reason, error.detail
            )
        else:
            log.info("collector recovered collector=%s", name)
