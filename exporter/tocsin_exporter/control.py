"""
The control socket: how root asks the exporter to let go of the devices, for a reset or a MIG change.

One request per connection, a JSON object on one line, answered by one:
``{"command": "quiesce", "seconds": 300}``, ``{"command": "status"}`` or ``{"command": "end"}`` →
``{"ok", "until", "detail"}`` or ``{"error"}``. ``until`` is a Unix time or null. The socket lies in a folder
that only its user may enter, and the kernel names who asks. A quiesce is written down beside the socket, so
that an exporter that is started anew in the middle of a reset stays away.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tocsin_exporter.errors import ExporterError

__all__ = ["LONGEST_SECONDS", "ControlError", "ControlServer", "Quiesces", "ask", "usable_folder"]

log = logging.getLogger(__name__)

# Forgotten, a quiesce must not blind the node for good.
LONGEST_SECONDS = 3600.0
_MOST_BYTES = 4096
_PATIENCE_SECONDS = 2.0
_PAUSE_SECONDS = 0.5
# Giving handles back takes the driver's time, and a child that hangs is waited for before it is killed.
_ANSWER_SECONDS = 30.0
_CREDENTIALS = struct.Struct("3i")


class ControlError(ExporterError):
    """The exporter cannot be asked, or it refused."""


class Released(Protocol):
    """What became of the handles."""

    ok: bool
    detail: str


class Quiesces(Protocol):
    """What can let go of the devices."""

    def quiesce(self, seconds: float) -> Released:
        """Give all handles back and stay away for *seconds*."""

    def resume(self) -> None:
        """Read again."""

    def quiet_until(self) -> float | None:
        """Return until when it stays away, as a Unix time, or None."""


def _peer(connection: socket.socket) -> int:
    """Return the user at the other end, as the kernel knows it."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def _trusted(uid: int) -> bool:
    return uid in (0, os.geteuid())


def usable_folder(folder: Path) -> str:
    """Return what keeps *folder* from holding the socket, or an empty text."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        parent = folder.parent
        return "" if os.access(parent, os.W_OK | os.X_OK) else f"{folder} cannot be made by this user"
    except OSError as err:
        return f"{folder}: {err.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is not a folder"
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to another user (uid {found.st_uid})"
    if found.st_mode & 0o077:
        return f"{folder} is open to others (mode {found.st_mode & 0o777:o}); chmod 700"
    return ""


def _line(connection: socket.socket, seconds: float) -> bytes:
    """Return one line, without its end; raises ControlError for one that is too long, too slow or cut off."""
    end = time.monotonic() + seconds
    data = b""
    while b"\n" not in data:
        left = end - time.monotonic()
        if left <= 0:
            raise ControlError(f"no line within {seconds:g} s")
        connection.settimeout(left)
        try:
            part = connection.recv(_MOST_BYTES)
        except TimeoutError:
            continue
        if not part:
            raise ControlError("the connection ended before its line did")
        data += part
        if len(data) > _MOST_BYTES:
            raise ControlError(f"more than {_MOST_BYTES} bytes")
    return data.partition(b"\n")[0]


class ControlServer:
    """
    Listens at *path* and passes on what root asks.

    Where it cannot listen, ``problem`` says why and the exporter runs without it.
    """

    def __init__(self, path: Path, devices: Quiesces, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._memo = path.with_name(f"{path.name}.quiesced")
        self._devices = devices
        self._wall = wall
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self.problem = ""

    def start(self) -> None:
        """Take up what was asked before a restart, then listen; call before the devices are read."""
        # Also where nobody can ask any more: the reset that was announced may be going on.
        self._recall()
        try:
            self.problem = self._listen()
        except OSError as err:
            self.problem = f"{self._path}: {err.strerror}"
        if self.problem:
            log.warning("no control socket, quiesce is not available: %s", self.problem)
            return
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; a quiesce outlives the exporter."""
        listening, self._socket = self._socket, None
        if listening is None:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        # Wakes the thread that waits in accept.
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        if self._thread is not None:
            self._thread.join(timeout=_PATIENCE_SECONDS)

    def _listen(self) -> str:
        folder = self._path.parent
        # Made first and looked at then: what somebody else made in between is not taken for ours.
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if problem := usable_folder(folder):
            return problem
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            if self._path.exists():
                # One that is too busy to answer is there all the same.
                listening.settimeout(_PATIENCE_SECONDS)
                with contextlib.suppress(ConnectionRefusedError):
                    with contextlib.suppress(TimeoutError):
                        listening.connect(os.fspath(self._path))
                    listening.close()
                    return f"another exporter answers at {self._path}"
                # Left behind by one that was killed.
                self._path.unlink()
                listening.settimeout(None)
            listening.bind(os.fspath(self._path))
            self._path.chmod(0o600)
            listening.listen(8)
        except OSError:
            listening.close()
            raise
        self._socket = listening
        return ""

    def _serve(self) -> None:
        while (listening := self._socket) is not None:
            try:
                connection, _ = listening.accept()
            except OSError as err:
                if self._socket is None:
                    return
                # A client that left, or no descriptors for now: the next one may have more luck.
                if self.problem != (problem := f"{self._path}: {err.strerror}"):
                    self.problem = problem
                    log.error("control socket failed, trying again: %s", err.strerror)
                time.sleep(_PAUSE_SECONDS)
                continue
            self.problem = ""
            with connection:
                try:
                    self._converse(connection)
                except Exception:
                    log.exception("a control request failed")

    def _converse(self, connection: socket.socket) -> None:
        uid = _peer(connection)
        if not _trusted(uid):
            # Only by a descriptor handed on: the folder lets nobody else in.
            log.warning("control request refused uid=%d", uid)
            answer: dict[str, Any] = {"error": f"user {uid} may not ask; root may"}
        else:
            try:
                answer = self._answer(_line(connection, _PATIENCE_SECONDS))
            except ControlError as err:
                answer = {"error": str(err)}
        with contextlib.suppress(OSError):
            connection.settimeout(_PATIENCE_SECONDS)
            connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            raise ControlError("not a JSON object") from None
        if not isinstance(request, dict):
            raise ControlError("not a JSON object")
        command = request.get("command")
        if command == "quiesce":
            return self._quiesce(request.get("seconds"))
        if command == "end":
            with contextlib.suppress(FileNotFoundError):
                self._memo.unlink()
            self._devices.resume()
            log.info("quiesce ended on request")
            return {"ok": True, "until": None, "detail": "the devices are read again"}
        if command == "status":
            until = self._devices.quiet_until()
            detail = "the devices are read" if until is None else "the devices are left alone"
            return {"ok": True, "until": until, "detail": detail}
        raise ControlError(f"unknown command {str(command)[:40]!r}; known are quiesce, status, end")

    def _quiesce(self, seconds: Any) -> dict[str, Any]:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise ControlError("seconds must be a number")
        if not 1 <= seconds <= LONGEST_SECONDS:
            raise ControlError(f"seconds must lie between 1 and {LONGEST_SECONDS:g}")
        before = self._devices.quiet_until()
        until = max(self._wall() + seconds, before or 0.0)
        # First on disk: an exporter killed in the next moment must not come back into a reset.
        try:
            self._remember(until)
        except OSError as err:
            log.warning("quiesce is not kept over a restart: %s: %s", self._memo, err.strerror)
        released = self._devices.quiesce(float(seconds))
        log.info("quiesced seconds=%g released=%s: %s", seconds, released.ok, released.detail)
        return {"ok": released.ok, "until": self._devices.quiet_until(), "detail": released.detail}

    def _remember(self, until: float) -> None:
        fresh = self._memo.with_name(f"{self._memo.name}.new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"until": until}, file)
        fresh.replace(self._memo)

    def _recall(self) -> None:
        try:
            descriptor = os.open(self._memo, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(descriptor, "rb") as file:
                if not _trusted(os.fstat(descriptor).st_uid):
                    log.warning("what was asked before the restart is not root's, ignored: %s", self._memo)
                    return
                until = float(json.loads(file.read(_MOST_BYTES))["until"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as err:
            log.warning("what was asked before the restart cannot be read: %s: %s", self._memo, err)
            return
        left = min(until - self._wall(), LONGEST_SECONDS)
        # What has expired is history; a clock that was set back must not prolong it beyond what can be asked.
        if left > 0:
            self._devices.quiesce(left)
            log.warning("still quiesced for %.0f s, as asked before the restart", left)


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Return the exporter's answer; raises ControlError with what to do."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with connection:
        try:
            connection.settimeout(_PATIENCE_SECONDS)
            connection.connect(os.fspath(path))
            if not _trusted(uid := _peer(connection)):
                raise ControlError(f"{path} belongs to user {uid}, not to root; nothing was asked")
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(_line(connection, _ANSWER_SECONDS))
        except (FileNotFoundError, ConnectionRefusedError):
            raise ControlError(
                f"no exporter listens at {path}; name the socket that it was given by --control.socket"
            ) from None
        except PermissionError:
            raise ControlError(f"{path}: no permission; ask as root") from None
        except OSError as err:
            raise ControlError(f"{path}: {err.strerror or err}") from err
        except ValueError as err:
            raise ControlError(f"{path}: the answer cannot be read: {err}") from err
    if not isinstance(answer, dict):
        raise ControlError(f"{path}: the answer is no object")
    if "error" in answer:
        raise ControlError(f"the exporter refused: {answer['error']}")
    return answer
