"""
The process that talks to the driver: ``python -m tocsin_exporter.sources.nvml.child [SETTINGS]``.

A driver call can hang for good, and a thread that hangs in it cannot be ended; a process can.
So this one does nothing else. SETTINGS is a JSON object with any of ``library``, ``tier``, ``sysfs``,
``procfs`` and ``cgroups``. It reads one-line requests ``{"last": [index, …], "skip": [index, …]}`` from
standard input and answers on standard output with frames (four bytes of length, big endian, then JSON):

* ``{"ready": true}`` or ``{"fail": {"code", "name"}}`` once, after the initialisation;
* per request ``{"begin": index}`` before and ``{"device": {…}}`` after each device (its MIG instances
  follow as devices of the same index), then ``{"end": {…}}``;
* ``{"event": {…}}`` at any time: what the driver reported by itself (`driver_events`);
* ``{"released": true}`` after the request ``{"release": true}``, which gives all handles back and
  ends the process.

A device's ``values`` are rows of quantity, further label values and number, in base units; what the device
does not offer has no row. ``rejected`` counts numbers that cannot be and were dropped.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
import threading
from typing import Any, BinaryIO

from tocsin_exporter.sources.nvml.calls import (
    ERRORS,
    LIBRARY_NOT_FOUND,
    UNKNOWN,
    Error,
    Library,
    LibraryError,
)
from tocsin_exporter.sources.nvml.driver_events import Watcher
from tocsin_exporter.sources.nvml.reader import Places, Reader, all_unknown
from tocsin_exporter.sources.nvml.reads import FABRIC

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
# nvmlInitWithFlags: do not attach devices that nobody asks for yet; a sleeping one stays asleep.
_NO_ATTACH = 2
_NO_GPUS = 1
_INVALID_ARGUMENT = 2


class Frames:
    """Sends messages; the readings and the events come from different threads."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Send one frame."""
        body = json.dumps(message, separators=(",", ":")).encode()
        with self._lock:
            self._out.write(struct.pack(">I", len(body)) + body)
            self._out.flush()

    def fail(self, code: int, name: str = "") -> None:
        """Say why nothing can be read."""
        self.send({"fail": {"code": code, "name": name or ERRORS.get(code, "unknown")}})


class Session:
    """An initialised library with all that hangs on it."""

    def __init__(self, library: Library, tier: str, places: Places, frames: Frames) -> None:
        code = library.call("nvmlInitWithFlags", ctypes.c_uint(_NO_ATTACH | _NO_GPUS))
        if code == _INVALID_ARGUMENT:
            code = library.call("nvmlInit_v2")
        if code != 0:
            raise Error(code)
        self._library = library
        self._frames = frames
        self.reader = Reader(library, tier, places)
        self._watcher = Watcher(library, self._event)
        self._changed: set[int] = set()

    def cycle(self, last: list[int], skip: list[int]) -> None:
        """Read all devices but *skip*, those of *last* after the others; raises `Error`."""
        reader, send = self.reader, self._frames.send
        total = reader.count()
        order = [index for index in range(total) if index not in last and index not in skip]
        order += [index for index in last if index < total]
        while self._changed:
            reader.mig_changed(self._changed.pop())
        firsts = []
        for index in order:
            send({"begin": index})
            rows = reader.device(index)
            firsts.append(rows[0])
            for row in rows:
                send({"device": row})
        if all_unknown(firsts):
            raise Error(UNKNOWN)
        send({"end": {"count": total, **reader.system()}})
        self._watcher.watch(
            frozenset(row["index"] for row in firsts if row["up"] and not row.get("suspended"))
        )

    def release(self) -> None:
        """Give everything back to the driver."""
        self._watcher.stop()
        self.reader.close()
        self._library.call("nvmlShutdown")

    def _event(self, event: dict[str, Any]) -> None:
        if event["type"] == "mig_config":
            self._changed.add(event["index"])
        self._frames.send({"event": event})


def main(argv: list[str], requests: BinaryIO, out: BinaryIO) -> int:
    """Serve requests until the parent closes its end."""
    # The parent may be killed while this process is stuck in the driver.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    settings: dict[str, str] = json.loads(argv[0]) if argv else {}
    frames = Frames(out)
    places = Places(**{name: settings[name] for name in ("sysfs", "procfs", "cgroups") if name in settings})
    try:
        library = Library(settings.get("library", ""))
        session = Session(library, settings.get("tier", FABRIC), places, frames)
    except LibraryError as err:
        frames.fail(LIBRARY_NOT_FOUND, str(err))
        return 1
    except Error as err:
        frames.fail(err.code)
        return 1
    frames.send({"ready": True})
    for line in requests:
        wanted = json.loads(line)
        if wanted.get("release"):
            session.release()
            frames.send({"released": True})
            return 0
        try:
            session.cycle(wanted.get("last", []), wanted.get("skip", []))
        except Error as err:
            frames.fail(err.code)
            return 1
    return 0


if __name__ == "__main__":
    # A stray print of a library must not end up between frames.
    frames_out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    raise SystemExit(main(sys.argv[1:], sys.stdin.buffer, frames_out))
