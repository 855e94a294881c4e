"""Devices at which the driver hung are tried again by a child of their own; children that do not die."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from tocsin_exporter.sources.nvml.process import Child, EndedError
from tocsin_exporter.sources.nvml.progress import OTHER_CALL
from tocsin_exporter.sources.nvml.suspects import Suspects
from tocsin_exporter.sources.nvml.watch import HangError, HangWatch

__all__ = ["MOST_STUCK", "Crew", "Probe"]

log = logging.getLogger(__name__)

# Children that SIGKILL does not end sit in the driver; more of them would only pile up there.
MOST_STUCK = 3
# Why a child ends before its time.
ENDS = ("hung", "ended", "stopped", "failed", "memory", "quiesced")


class Crew:
    """Ends children and keeps account of them. Those that do not die are reaped when they do."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter(dict.fromkeys(ENDS, 0))
        self.stuck: list[Child] = []

    def full(self) -> bool:
        """Whether so many do not die that no more may be started."""
        return len(self.stuck) >= MOST_STUCK

    def reap(self) -> None:
        """Let go of those that have died after all."""
        self.stuck = [child for child in self.stuck if not child.ended()]

    def end(self, child: Child | None, why: str, held_by: int | None = None) -> None:
        """End *child*, counted under *why* unless that is empty; *held_by* is the device that holds it."""
        if child is None:
            return
        if why:
            self.ends[why] += 1
        log.debug("NVML child ends why=%s pid=%d", why or "done", child.process.pid)
        if not child.end():
            child.held_by = held_by
            self.stuck.append(child)
            log.error("NVML child does not die, it is left in the driver pid=%d", child.process.pid)


class Probe:
    """At most one child at a time, which reads one suspect."""

    def __init__(
        self,
        command: Sequence[str],
        crew: Crew,
        suspects: Suspects,
        watch: Callable[[], HangWatch],
        start_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._command, self._crew, self._suspects = command, crew, suspects
        self._new_watch, self._start_seconds, self._clock = watch, start_seconds, clock
        self._watch = watch()
        self.child: Child | None = None
        self._index = 0

    def start(self, now: float) -> None:
        """Try the suspect whose pause is over, if there is one."""
        if self.child is not None:
            return
        for index in self._suspects.due(now):
            # What one child cannot leave, another would only join.
            if not self._crew.full() and all(child.held_by != index for child in self._crew.stuck):
                try:
                    self.child = Child(self._command)
                except OSError:
                    self._suspects.later(index, now)
                self._index, self._watch = index, self._new_watch()
                return
            self._suspects.later(index, now)

    def tend(self, *, readable: bool) -> bool:
        """Take in what it says, or that it hangs; return whether the device answers again."""
        child, index = self.child, self._index
        if child is None:
            return False
        try:
            if readable:
                child.pump()
            if self._heard(child):
                self._answered()
                return True
        except EndedError:
            self.stop("ended")
            self._suspects.later(index, self._clock())
            return False
        hang = self._watch.look(child.call(), index) if child.ready else None
        if not child.ready and (since := self._clock() - child.started) >= self._start_seconds:
            call = child.call()
            hang = HangError(index, call.name if call else OTHER_CALL, since)
        if hang is not None:
            self.stop("hung", index)
            now = self._clock()
            self._suspects.hung(index, hang.name, now - hang.seconds, now)
        return False

    def stop(self, why: str, held_by: int | None = None) -> None:
        """End it."""
        child, self.child = self.child, None
        self._crew.end(child, why, held_by)

    def _heard(self, child: Child) -> bool:
        while (frame := child.frame()) is not None:
            self._watch.heard()
            if "ready" in frame:
                child.ready = True
                child.ask({"only": [self._index]})
            elif "end" in frame or ("fail" in frame and child.ready):
                # It answers, if only to say what is wrong with it.
                return True
            elif "fail" in frame:
                raise EndedError("NVML did not start")
        return False

    def _answered(self) -> None:
        now = self._clock()
        suspect = self._suspects.answered(self._index, now)
        self.stop("")
        if suspect is not None:
            log.info("device %d answers again, it hung for %.0f s", self._index, now - suspect.since)
