"""Makes the ledger durable in a thread of its own, so that a slow or hung disk stops no reading."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.state import StateError, StateFile

__all__ = ["Writer"]

log = logging.getLogger(__name__)

# Writing takes at most about a tenth of the time, however fast events come in.
_SHARE = 9.0
_LONGEST_PAUSE = 2.0
_RETRY_SECONDS = 5.0


class Writer:
    """
    Writes what *collect* returns whenever `mark` was called, and calls *written* after each success.

    One write runs at a time; marks that come meanwhile share the next one. A failed write is tried again
    until it succeeds. One that takes more than *patience* seconds counts as hung.
    """

    def __init__(
        self,
        state: StateFile,
        collect: Callable[[], dict[str, Any]],
        written: Callable[[], None],
        errors: ErrorCounter,
        patience: float,
    ) -> None:
        self._state = state
        self._patience = patience
        self._collect = collect
        self._written = written
        self._errors = errors
        self._cond = threading.Condition()
        self._wanted = 0
        self._done = 0
        self._since = 0.0
        self._failing = ""
        self._hurry = 0
        # What the ledger was told to be written, and how often writing was tried.
        self._told = 0
        self._tries = 0
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def keeps(self) -> bool:
        """Whether there is a place to write to."""
        return self._state.path is not None

    def mark(self) -> None:
        """What *collect* returns has changed and must be written."""
        if not self.keeps:
            return
        with self._cond:
            if self._wanted == self._done:
                self._since = time.monotonic()
            self._wanted += 1
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="state", daemon=True)
                self._thread.start()
            self._cond.notify_all()

    def clean(self) -> bool:
        """Whether everything is on the disk."""
        with self._cond:
            return self._wanted == self._done

    def late(self) -> bool:
        """Whether what waits cannot be written, or not soon."""
        with self._cond:
            if self._wanted == self._done:
                return False
            return bool(self._failing) or time.monotonic() - self._since > self._patience

    def flush(self, timeout: float) -> bool:
        """Write now rather than after a pause; return whether everything is on the disk and told."""
        end = time.monotonic() + timeout
        with self._cond:
            self._hurry += 1
            self._cond.notify_all()
            tries = self._tries
            try:
                while self._told != self._wanted and (left := end - time.monotonic()) > 0:
                    # The second of two tries began after this call.
                    if self._failing and self._tries > tries + 1:
                        break
                    self._cond.wait(left)
            finally:
                self._hurry -= 1
            return self._told == self._wanted

    def stop(self, timeout: float) -> None:
        """Write what is left and end."""
        self.flush(timeout)
        with self._cond:
            self._stopping = True
            self._cond.notify_all()

    def _run(self) -> None:
        pause = 0.0
        while True:
            with self._cond:
                until = time.monotonic() + pause
                while not self._stopping and not self._hurry and (left := until - time.monotonic()) > 0:
                    self._cond.wait(left)
                while self._wanted == self._done and not self._stopping:
                    self._cond.wait()
                if self._stopping:
                    return
                target = self._wanted
            started = time.monotonic()
            failure = self._write()
            took = time.monotonic() - started
            with self._cond:
                if not failure:
                    self._done = target
                    self._since = time.monotonic()
                self._failing = failure
            if not failure:
                self._written()
            with self._cond:
                self._tries += 1
                if not failure:
                    self._told = target
                self._cond.notify_all()
                if self._hurry and failure:
                    # Whoever waits is told first, or a full disk would be tried in a tight loop.
                    self._cond.wait(0.05)
            pause = _RETRY_SECONDS if failure else min(_SHARE * took, _LONGEST_PAUSE)

    def _write(self) -> str:
        """Write once; return why it failed, or ""."""
        try:
            self._state.save(self._collect())
        except StateError as err:
            self._errors.add("state", err.reason)
            if err.reason != self._failing:
                log.error("state not saved, counts are served all the same: %s", err.detail)
            return err.reason
        except Exception:
            log.exception("state not saved")
            self._errors.add("state", "bad_data")
            return "bad_data"
        if self._failing:
            log.warning("state saved again path=%s", self._state.path)
        return ""
