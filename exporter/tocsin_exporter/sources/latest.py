"""The last reading of a source, shared between the thread that reads and the scrapes."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from tocsin_exporter.errors import CollectError, SourceError

__all__ = ["ErrorCounter", "Latest", "PollingSource"]

T = TypeVar("T")
Clock = Callable[[], float]

log = logging.getLogger(__name__)


class ErrorCounter:
    """Reads that failed, by source and reason; each is a gap somewhere. Thread-safe."""

    # A hostile tree cannot grow the label set without bound.
    _MOST = 200

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, source: str, reason: str, count: int = 1) -> None:
        """Count *count* failed reads."""
        key = (source, reason)
        with self._lock:
            if key not in self._counts and len(self._counts) >= self._MOST:
                key = (source, "other")
            self._counts[key] += count

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the totals so far."""
        with self._lock:
            return dict(self._counts)


class Latest(Generic[T]):
    """
    The newest value of a source and why there is none.

    A value older than *max_age* seconds is not given out: old numbers that look alive are
    worse than a gap.
    """

    def __init__(self, max_age: float, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._max_age = max_age
        self._lock = threading.Lock()
        self._value: T | None = None
        self._at = clock()
        self._why: tuple[str, str] | None = None

    def put(self, value: T) -> None:
        """Publish *value*."""
        with self._lock:
            self._value, self._at, self._why = value, self._clock(), None

    def fail(self, reason: str, detail: str) -> None:
        """Say why the newest read gave nothing; the value before it stays until it is too old."""
        with self._lock:
            self._why = (reason, detail)

    def read(self) -> tuple[T | None, CollectError | None]:
        """Return the value, or None, and the error of the newest read, or None."""
        with self._lock:
            age = self._clock() - self._at
            # A new one each time: an exception that is raised again keeps the frames of every raise.
            error = CollectError(*self._why) if self._why else None
            if self._value is None:
                return None, error or CollectError("timeout", "no reading yet")
            if age <= self._max_age:
                return self._value, error
            return None, error or CollectError("hung", f"the last reading is {age:.0f} s old")


class PollingSource(ABC, Generic[T]):
    """A thread that reads something every *interval* seconds and publishes it in ``latest``."""

    def __init__(self, name: str, interval: float, max_age: float, errors: ErrorCounter) -> None:
        self.name = name
        self.latest: Latest[T] = Latest(max_age)
        self._interval = interval
        self._errors = errors
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"source-{name}", daemon=True)
        self._listeners: list[Callable[[T], None]] = []

    def listen(self, listener: Callable[[T], None]) -> None:
        """Call *listener* with every reading, from the reading thread; add listeners before the start."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; a read that hangs is left to the end of the process."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)
        self.close()

    def poke(self) -> None:
        """Read now rather than at the next interval."""
        self._wake.set()

    def wait_first(self, timeout: float) -> bool:
        """Wait until one read ended, well or badly."""
        return self._first.wait(timeout)

    def close(self) -> None:
        """Release what the source holds; called once after the thread ended."""

    @abstractmethod
    def read(self) -> T:
        """Read once; raises SourceError or CollectError with the reason."""

    def read_once(self) -> None:
        """Read, publish, and turn every failure into a reason."""
        try:
            value = self.read()
        except (SourceError, CollectError) as err:
            self._errors.add(self.name, err.reason)
            self.latest.fail(err.reason, err.detail)
            self.failed(err.reason, err.detail)
        except Exception as err:
            log.exception("reading failed source=%s", self.name)
            self._errors.add(self.name, "bad_data")
            self.latest.fail("bad_data", f"{type(err).__name__}: {err}")
            self.failed("bad_data", str(err))
        else:
            self.publish(value)
        finally:
            self._first.set()

    def publish(self, value: T) -> None:
        """Give *value* out; a listener that breaks costs only itself."""
        self.latest.put(value)
        for listener in self._listeners:
            try:
                listener(value)
            except Exception:
                log.exception("a listener failed source=%s", self.name)
                self._errors.add(self.name, "listener")

    def failed(self, reason: str, detail: str) -> None:
        """Hear of a failed read; for sources that keep more than the last value."""

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            self.read_once()
            self._wake.wait(self._interval)
