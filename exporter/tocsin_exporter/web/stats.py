"""What the web surface shows of itself as series; written by its threads, read by a scrape."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from tocsin_exporter.collectors.base import Sample

__all__ = ["CUT_REASONS", "WebStats"]

# Why a connection was ended before its time:
#   late         it had not sent its request, or taken its answer, by the deadline
#   crowded      it was the oldest unfinished one when room was needed for another
#   handshake    TLS failed, or the client's certificate was refused
#   unread       answers that others did not take filled the memory set aside for them
#   descriptors  the process had no file descriptor left
CUT_REASONS = ("late", "crowded", "handshake", "unread", "descriptors")


class WebStats:
    """Thread-safe totals."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[int] = Counter()
        self._cut: Counter[str] = Counter(dict.fromkeys(CUT_REASONS, 0))
        self._connections = 0
        self._config: tuple[bool, float] | None = None

    def answered(self, status: int) -> None:
        """Count an answer."""
        with self._lock:
            self._requests[status] += 1

    def cut(self, reason: str) -> int:
        """Count a connection that was ended early; returns how many were for this reason so far."""
        with self._lock:
            self._cut[reason] += 1
            return self._cut[reason]

    def open_connections(self, number: int) -> None:
        """Note how many there are now."""
        with self._lock:
            self._connections = number

    def configured(self, good: bool, when: float) -> None:
        """Note the outcome of a change of the configuration file; *when*: of the last good one."""
        with self._lock:
            self._config = (good, when)

    def samples(self) -> Iterator[Sample]:
        """Yield all of it."""
        with self._lock:
            requests, cut = dict(self._requests), dict(self._cut)
            connections, config = self._connections, self._config
        yield Sample("tocsin_exporter_http_connections", (), connections)
        for code, count in sorted(requests.items()):
            yield Sample("tocsin_exporter_http_requests_total", (str(code),), count)
        for reason, count in cut.items():
            yield Sample("tocsin_exporter_http_cut_connections_total", (reason,), count)
        if config is not None:
            yield Sample("tocsin_exporter_web_config_success", (), config[0])
            yield Sample("tocsin_exporter_web_config_last_success_timestamp_seconds", (), config[1])
