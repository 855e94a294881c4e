"""The state file: event counts that must survive a restart of the exporter."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

from tocsin_common import files
from tocsin_exporter.errors import ExporterError

__all__ = ["StateError", "StateFile"]

log = logging.getLogger(__name__)

VERSION = 2
# Far above what the bounds of the ledger allow; a file beyond it was not written by us.
_MAX_BYTES = 8 << 20

_REASONS = {
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "no_space",
    errno.EROFS: "read_only",
    errno.EACCES: "no_permission",
    errno.EPERM: "no_permission",
}


class StateError(ExporterError):
    """
    The state file could not be used.

    ``reason`` is ``no_space``, ``read_only``, ``no_permission`` or ``io_error`` from the system, and
    ``bad_data``, ``other_version`` or ``too_large`` for what the file holds.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class StateFile:
    """
    One JSON object on disk, replaced atomically and synced before `save` returns.

    A path of None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def load(self) -> dict[str, Any]:
        """
        Return what was saved last, or an empty object when there is nothing.

        Raises:
            StateError: The file is there and cannot be used; one with unusable content is set aside.

        """
        if self.path is None:
            return {}
        try:
            data = _read(self.path)
        except FileNotFoundError:
            return {}
        except OSError as err:
            raise StateError(
                _REASONS.get(err.errno or 0, "io_error"),
                f"{self.path}: {err.strerror or err}; counts start anew",
            ) from err
        if len(data) > _MAX_BYTES:
            raise self.refuse("too_large", f"more than {_MAX_BYTES} bytes")
        try:
            state = json.loads(data)
        except (ValueError, RecursionError) as err:
            raise self.refuse("bad_data", str(err)) from err
        if not isinstance(state, dict) or "version" not in state:
            raise self.refuse("bad_data", "not a state")
        if state["version"] != VERSION:
            raise self.refuse(
                "other_version", f"a state of version {state['version']!r:.40}, not of version {VERSION}"
            )
        return state

    def refuse(self, reason: str, why: str) -> StateError:
        """Set the file aside as ``….bad`` and return the error that says so."""
        if self.path is None:
            return StateError(reason, why)
        aside = self.path.with_name(self.path.name + ".bad")
        try:
            self.path.replace(aside)
        except OSError as err:
            return StateError(
                reason, f"{self.path}: {why}; counts start anew ({err.strerror}: it is not set aside)"
            )
        return StateError(reason, f"{self.path}: {why}; set aside as {aside.name}, counts start anew")

    def save(self, state: dict[str, Any]) -> None:
        """Write *state*; raises StateError when it could not be made durable."""
        if self.path is None:
            return
        body = json.dumps({"version": VERSION, **state}, separators=(",", ":"), allow_nan=False).encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.replace(self.path, body)
        except OSError as err:
            raise StateError(
                _REASONS.get(err.errno or 0, "io_error"),
                f"{self.path}: {err.strerror or err}; counts would not survive a restart",
            ) from err


def _read(path: Path) -> bytes:
    """Return at most one byte more than is allowed; OSError for anything but a regular file."""
    # Opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(_MAX_BYTES + 1)
