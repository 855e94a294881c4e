"""
The process that talks to the driver: ``python -m tocsin_exporter.sources.nvml.child [SETTINGS [PAGE]]``.

A driver call can hang for good, and a thread that hangs in it cannot be ended; a process can.
So this one does nothing else. SETTINGS is a JSON object with any of ``library``, ``tier``, ``sysfs``,
``procfs`` and ``cgroups``; PAGE is the descriptor of the page on which each call to the driver is told before
it is made (`progress`). It reads one-line requests from standard input, ``{"first": [index, …],
"skip": [index, …], "only": [index, …], "seconds": number}``, all optional, and answers with `frames`:

* ``{"ready": true}`` or ``{"fail": {"code", "name"}}`` once, after the initialisation;
* per request ``{"begin": index}`` before and ``{"device": {…}}`` after each device (its MIG instances
  follow as devices of the same index), then ``{"end": {…}}``, whose ``left`` are the devices for which
  the seconds did not suffice;
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
import select
import signal
import sys
import threading
import time
from typing import Any, BinaryIO

from tocsin_exporter.sources.nvml.calls import Error, Library, LibraryError
from tocsin_exporter.sources.nvml.driver_events import Watcher
from tocsin_exporter.sources.nvml.frames import encode
from tocsin_exporter.sources.nvml.progress import NO_DEVICE, Pen
from tocsin_exporter.sources.nvml.reader import Places, Reader, all_unknown
from tocsin_exporter.sources.nvml.reads import FABRIC
from tocsin_exporter.sources.nvml.results import ERRORS, LIBRARY_NOT_FOUND, UNKNOWN

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
# nvmlInitWithFlags: do not attach devices that nobody asks for yet; a sleeping one stays asleep.
_NO_ATTACH = 2
_NO_GPUS = 1
_INVALID_ARGUMENT = 2
_FOR_EVER = 1e9


class Sender:
    """Sends messages; the readings and the events come from different threads."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Send one frame."""
        frame = encode(message)
        with self._lock:
            self._out.write(frame)
            self._out.flush()

    def fail(self, code: int, name: str = "") -> None:
        """Say why nothing can be read."""
        self.send({"fail": {"code": code, "name": name or ERRORS.get(code, "unknown")}})


class Session:
    """An initialised library with all that hangs on it."""

    def __init__(self, library: Library, tier: str, places: Places, frames: Sender) -> None:
        code = library.call("nvmlInitWithFlags", ctypes.c_uint(_NO_ATTACH | _NO_GPUS))
        if code == _INVALID_ARGUMENT:
            code = library.call("nvmlInit_v2")
        if code != 0:
            raise Error(code)
        self._library = library
        self._frames = frames
        self.reader = Reader(library, tier, places)
        self._watcher = Watcher(library.aside(), self._event)
        self._changed: set[int] = set()

    def cycle(self, wanted: dict[str, Any]) -> None:
        """Read the devices that a request wants; raises `Error`."""
        reader, pen, send = self.reader, self._library.pen, self._frames.send
        end = time.monotonic() + float(wanted.get("seconds", _FOR_EVER))
        total = reader.count()
        skip, first = wanted.get("skip", []), wanted.get("first", [])
        order = [index for index in wanted.get("only", range(total)) if index < total and index not in skip]
        order.sort(key=lambda index: index not in first)
        while self._changed:
            reader.mig_changed(self._changed.pop())
        firsts: list[dict[str, Any]] = []
        for index in order:
            if firsts and time.monotonic() >= end:
                break
            send({"begin": index})
            pen.at(index)
            rows = reader.device(index)
            pen.at(NO_DEVICE)
            firsts.append(rows[0])
            for row in rows:
                send({"device": row})
        if all_unknown(firsts):
            raise Error(UNKNOWN)
        left = order[len(firsts) :]
        told = {"count": total, "left": left, "events": self._watcher.registered, **reader.system()}
        send({"end": told})
        pen.rest()
        if "only" not in wanted:
            awake = (row["index"] for row in firsts if row["up"] and not row.get("suspended"))
            self._watcher.watch(frozenset((*awake, *left)))

    def release(self) -> None:
        """Give everything back to the driver."""
        self._watcher.stop()
        self.reader.close()
        self._library.call("nvmlShutdown")

    def _event(self, event: dict[str, Any]) -> None:
        if event["type"] == "mig_config":
            self._changed.add(event["index"])
        self._frames.send({"event": event})


def _left_alone(requests: BinaryIO) -> bool:
    """Whether the parent died before its death would have been told."""
    poll = select.poll()
    poll.register(requests, 0)
    return bool(poll.poll(0))


def main(argv: list[str], requests: BinaryIO, out: BinaryIO) -> int:
    """Serve requests until the parent closes its end."""
    # The parent may be killed while this process is stuck in the driver.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if _left_alone(requests):
        return 1
    settings: dict[str, str] = json.loads(argv[0]) if argv else {}
    frames = Sender(out)
    places = Places(**{name: settings[name] for name in ("sysfs", "procfs", "cgroups") if name in settings})
    try:
        library = Library(settings.get("library", ""), Pen(int(argv[1])) if len(argv) > 1 else None)
        session = Session(library, settings.get("tier", FABRIC), places, frames)
    except LibraryError as err:
        frames.fail(LIBRARY_NOT_FOUND, str(err))
        return 1
    except Error as err:
        frames.fail(err.code)
        return 1
    library.pen.rest()
    frames.send({"ready": True})
    for line in requests:
        wanted = json.loads(line)
        if wanted.get("release"):
            session.release()
            frames.send({"released": True})
            return 0
        try:
            session.cycle(wanted)
        except Error as err:
            frames.fail(err.code)
            return 1
    return 0


if __name__ == "__main__":
    # A stray print of a library must not end up between frames.
    frames_out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    raise SystemExit(main(sys.argv[1:], sys.stdin.buffer, frames_out))
