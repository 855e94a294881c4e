"""The child process as the exporter handles it: start, ask, read, look at, end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from tocsin_exporter.sources.nvml.frames import FrameError, Frames
from tocsin_exporter.sources.nvml.progress import Call, Page

__all__ = ["Child", "EndedError"]

_KILL_SECONDS = 0.5
_READ_BYTES = 1 << 16


class EndedError(Exception):
    """The child ended, was stopped or sent something that is no frame; *why* is ``ended`` or ``stopped``."""

    def __init__(self, text: str, why: str = "ended") -> None:
        super().__init__(text)
        self.why = why


class Child:
    """
    One child process, its frames and its progress page; raises OSError where it cannot be started.

    Nothing here blocks but `end`, `release` and `wait`, each for a bounded time.
    """

    def __init__(self, command: Sequence[str]) -> None:
        # The device in whose call it hangs, of a child that does not die.
        self.held_by: int | None = None
        self.ready = False
        # Whether it has finished a reading: only then is its end news.
        self.proven = False
        self.started = time.monotonic()
        self._page = Page()
        try:
            # One arena: the child allocates little, and the default of eight per core costs memory.
            self.process = subprocess.Popen(
                [*command, str(self._page.descriptor)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "MALLOC_ARENA_MAX": "1"},
                bufsize=0,
                close_fds=True,
                pass_fds=(self._page.descriptor,),
            )
        except OSError:
            self._page.close()
            raise
        self._page.handed_over()
        if self.process.stdin is None or self.process.stdout is None:
            raise OSError("no pipes to the NVML child")
        self._requests, self._output = self.process.stdin, self.process.stdout
        self._frames = Frames()

    def fileno(self) -> int:
        """Return what to wait on for frames."""
        return self._output.fileno()

    def ask(self, request: dict[str, Any]) -> None:
        """Send one request; raises `EndedError`."""
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
        except OSError as err:
            raise EndedError(str(err)) from err

    def pump(self) -> None:
        """Take in what has arrived, once `fileno` is readable; raises `EndedError`."""
        data = os.read(self.fileno(), _READ_BYTES)
        if not data:
            raise EndedError(self._how())
        self._frames.feed(data)

    def frame(self) -> dict[str, Any] | None:
        """Return the next frame that has arrived in whole, or None; raises `EndedError`."""
        try:
            return self._frames.next()
        except FrameError as err:
            raise EndedError(f"it sent {err}") from err

    def call(self) -> Call | None:
        """Return the driver call that it is in, or None."""
        return self._page.read()

    def stopped(self) -> bool:
        """Whether someone has stopped the process: then it hangs in no call."""
        return self._stat()[:1] in ("T", "t")

    def memory(self) -> int:
        """Return the bytes of memory it has resident, 0 when it has ended."""
        try:
            with open(f"/proc/{self.process.pid}/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return 0

    def end(self) -> bool:
        """Kill the child; return False when it does not die."""
        self.process.kill()
        self._close()
        return self.wait(_KILL_SECONDS)

    def wait(self, seconds: float) -> bool:
        """Return whether it ended within *seconds*."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def release(self, seconds: float) -> bool:
        """Ask it to give all handles back and to end; return whether it did so by itself within *seconds*."""
        end = time.monotonic() + seconds
        try:
            self.ask({"release": True})
            while (left := end - time.monotonic()) > 0:
                if select.select([self.fileno()], [], [], left)[0]:
                    self.pump()
                    while (frame := self.frame()) is not None:
                        if "released" in frame:
                            return self.wait(max(0.0, end - time.monotonic()))
        except EndedError:
            pass
        return False

    def ended(self) -> bool:
        """Whether it is gone, reaped if so."""
        return self.process.poll() is not None

    def _close(self) -> None:
        for pipe in (self._requests, self._output):
            with contextlib.suppress(OSError):
                pipe.close()
        self._page.close()

    def _stat(self) -> str:
        try:
            with open(f"/proc/{self.process.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].decode("ascii", "replace").strip()
        except OSError:
            return ""

    def _how(self) -> str:
        # Its output closes a moment before it can be waited for.
        if not self.wait(_KILL_SECONDS):
            return "it closed its output"
        code = self.process.returncode
        return f"it ended with status {code}" if code >= 0 else f"it was ended by signal {-code}"
