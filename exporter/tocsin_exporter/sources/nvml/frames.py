"""
Frames between the child and the exporter: four bytes of length, big endian, then a JSON object.

Imported in the child, so it needs nothing but the standard library.
"""

from __future__ import annotations

import json
import struct
from typing import Any

__all__ = ["MOST_BYTES", "FrameError", "Frames", "encode"]

# A deep reading of a full board is below a tenth of this.
MOST_BYTES = 8 << 20
_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """What came is no frame."""


def encode(message: dict[str, Any]) -> bytes:
    """Return *message* as a frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts what arrives into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take in what was read."""
        self._buffer += data

    def next(self) -> dict[str, Any] | None:
        """Return the next complete frame or None; raises `FrameError`."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MOST_BYTES:
            raise FrameError(f"a frame of {length} bytes")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as err:
            raise FrameError(f"not JSON: {err}") from err
        if not isinstance(message, dict):
            raise FrameError("not an object")
        return message
