"""The loop over inbox and open incidents. All state is in the journal; killing it anywhere is safe."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Final

from tocsin_remediator import alertmanager
from tocsin_remediator.engine import intake, steps
from tocsin_remediator.errors import JournalError, PrometheusError, StaleIncident

if TYPE_CHECKING:
    from tocsin_remediator.engine.context import Context

log = logging.getLogger(__name__)

_THREADS: Final = 8
_ROUND: Final = 0.25
_GATHER: Final = 0.05
_AFTER_ERROR: Final = 10.0
# Long enough to look back at what was refused last week; a repeat interval of minutes fills disks.
_KEEP_ALERTS: Final = 14 * 86400.0
_PRUNE_EVERY: Final = 3600.0


class Worker:
    """
    Drives incidents. One incident is in at most one thread; a slow one delays only itself.

    `start` returns at once. `stop` returns when no thread is at work any more or after `timeout`; actions
    that still run then outlive the process and are settled after the next start.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._busy: set[int] = set()
        self._lock = threading.Lock()
        self._refetch_at = 0.0
        self._prune_at = 0.0
        self._due: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        # Daemons: a program that was asked to end must not wait for the minutes of an action.
        self._hands = [
            threading.Thread(target=self._work, name=f"incident-{place}", daemon=True)
            for place in range(_THREADS)
        ]

    def start(self) -> None:
        """Begin."""
        for hand in self._hands:
            hand.start()
        self._thread.start()

    def wake(self) -> None:
        """There is something new; do not wait for the next round."""
        self._wake.set()

    def alive(self) -> bool:
        """Whether the loop runs."""
        return self._thread.is_alive()

    def stop(self, timeout: float = 2.0) -> None:
        """End the loop."""
        end = time.monotonic() + timeout
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout)
        while self._busy and time.monotonic() < end:
            time.sleep(0.02)

    def _work(self) -> None:
        while True:
            self._advance(self._due.get())

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                self.round()
                pause = _ROUND
            except JournalError as err:
                log.error("the journal cannot be used, trying again: %s", err)
                pause = 2.0
            except Exception:
                # Whatever it is, the next round may work; the error is counted and in the log.
                log.exception("unexpected error in the worker")
                self._context.metrics.errors.inc()
                pause = 2.0
            self._wake.wait(pause)
            # Alerts come in bursts; taking them together costs one transaction instead of many.
            self._stop.wait(_GATHER)

    def round(self) -> None:
        """Deal with the inbox, then hand every due incident to a thread."""
        context = self._context
        wish = context.journal.settings.get("refetch")
        if wish:
            self._refetch(wish)
        self._inbox()
        for incident in context.journal.incidents.due(context.now()):
            with self._lock:
                if incident.id in self._busy or self._stop.is_set():
                    continue
                self._busy.add(incident.id)
            self._due.put(incident.id)
        if context.now() >= self._prune_at:
            self._prune_at = context.now() + _PRUNE_EVERY
            context.journal.inbox.prune(context.now() - _KEEP_ALERTS)
        context.metrics.tick.set(context.now())

    def _inbox(self) -> None:
        context = self._context
        results: dict[int, str] = {}
        # The same alert many times (repeats, both members of a pair, a flood) is one question.
        seen: dict[tuple[str, frozenset[tuple[str, str]]], str] = {}
        for item in context.journal.inbox.waiting():
            key = (item.alert.status, frozenset(item.alert.labels.items()))
            result = seen.get(key)
            if result is not None:
                results[item.id] = f"repeated: {result}"
                context.metrics.inbox.labels("merged").inc()
                continue
            try:
                result = intake.handle(context, item)
            except JournalError:
                raise
            except Exception as err:
                # It stays in the inbox's books with its reason, and does not hold up the others.
                log.exception("unexpected error at alert %d", item.id)
                context.metrics.errors.inc()
                result = f"refused: unexpected {type(err).__name__}: {err}"
            seen[key] = results[item.id] = result
            log.info("alert %d: %s", item.id, result)
        context.journal.inbox.finish(results, context.now())

    def _refetch(self, wish: str) -> None:
        context = self._context
        if context.now() < self._refetch_at:
            return
        try:
            found = alertmanager.verdicts(context.alertmanager_url)
        except PrometheusError as err:
            log.warning("a notice was truncated and the rest cannot be fetched yet: %s", err)
            self._refetch_at = context.now() + _AFTER_ERROR
            return
        # Recorded first: killed in between, it is fetched twice instead of never.
        context.journal.inbox.record(found, context.now())
        context.journal.settings.drop("refetch", wish)

    def _advance(self, number: int) -> None:
        context = self._context
        try:
            incident = context.journal.incidents.get(number)
            if not self._stop.is_set() and incident.is_open and incident.next_at <= context.now():
                steps.advance(context, incident)
        except StaleIncident:
            # A person or a notice was faster; the next round reads it again.
            pass
        except JournalError as err:
            log.error("incident %d waits for the journal: %s", number, err)
        except Exception as err:
            log.exception("unexpected error at incident %d", number)
            context.metrics.errors.inc()
            self._postpone(number, err)
        finally:
            with self._lock:
                self._busy.discard(number)
            self._wake.set()

    def _postpone(self, number: int, err: Exception) -> None:
        # One broken incident must not fill the log nor keep the others waiting.
        context = self._context
        try:
            incident = context.journal.incidents.get(number)
            now = context.now()
            context.journal.incidents.touch(incident, now, now + _AFTER_ERROR)
            context.journal.incidents.note(number, "error", f"{type(err).__name__}: {err}", now)
        except (JournalError, StaleIncident):
            log.warning("incident %d could not be postponed", number)
