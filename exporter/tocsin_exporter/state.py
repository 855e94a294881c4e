"""The state file: event counts that must survive a restart of the exporter."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from tocsin_common import files
from tocsin_exporter.errors import SourceError

__all__ = ["StateFile"]

log = logging.getLogger(__name__)

VERSION = 1
_MAX_BYTES = 32 << 20


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
            SourceError: The file is there and cannot be used; it is set aside as ``….bad``.

        """
        if self.path is None:
            return {}
        try:
            with self.path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as err:
            raise SourceError("no_permission", f"{self.path}: {err.strerror}; counts start anew") from err
        try:
            if len(data) > _MAX_BYTES:
                raise ValueError("too large")
            state = json.loads(data)
            if not isinstance(state, dict) or state.get("version") != VERSION:
                raise ValueError(f"not a state of version {VERSION}")
        except ValueError as err:
            aside = self.path.with_name(self.path.name + ".bad")
            try:
                self.path.replace(aside)
            except OSError:
                log.warning("unusable state file stays path=%s", self.path)
            raise SourceError(
                "bad_data", f"{self.path}: {err}; set aside as {aside.name}, counts start anew"
            ) from err
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Write *state*; raises SourceError when it could not be made durable."""
        if self.path is None:
            return
        body = json.dumps({"version": VERSION, **state}, separators=(",", ":")).encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.replace(self.path, body)
        except OSError as err:
            reason = "no_permission" if isinstance(err, PermissionError) else "bad_data"
            raise SourceError(
                reason, f"{self.path}: {err.strerror or err}; counts would not survive a restart"
            ) from err
