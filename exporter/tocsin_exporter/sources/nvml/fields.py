"""
Field values in batches, one per scope, each value with its own result.

The driver answers the fields of a batch one after another; each has its own return code, so that what
one device does not know costs only itself. A batch that fails as a whole is asked again in halves.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

from tocsin_exporter.sources.nvml.calls import Error, Library
from tocsin_exporter.sources.nvml.results import GONE, SESSION, SUCCESS
from tocsin_exporter.sources.nvml.values import BLANKS

__all__ = ["RECORD", "Answer", "Batch"]

# fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value
RECORD = struct.Struct("=IIqqiiQ")
# nvmlValueType_t
_FORMS = {
    0: struct.Struct("=d"),
    1: struct.Struct("=Ixxxx"),
    2: struct.Struct("=Q"),
    3: struct.Struct("=Q"),
    4: struct.Struct("=q"),
    5: struct.Struct("=ixxxx"),
    6: struct.Struct("=Hxxxxxx"),
}
_WHOLE = struct.Struct("=Q")
_BAD_TYPE = 2

# Error number and, when it is 0, the number.
Answer = tuple[int, float]


class Batch:
    """Fields of one scope of one device."""

    __slots__ = ("_buffer", "_count", "_request", "fields", "scope")

    def __init__(self, fields: Sequence[int], scope: int) -> None:
        self.fields = tuple(fields)
        self.scope = scope
        self._count = len(self.fields)
        self._request = b"".join(RECORD.pack(field, scope, 0, 0, 0, 0, 0) for field in self.fields)
        self._buffer = ctypes.create_string_buffer(len(self._request))

    def ask(self, library: Library, handle: Any) -> list[Answer]:
        """Return an answer per field; raises `Error` when device or session are lost."""
        if not self._count:
            return []
        ctypes.memmove(self._buffer, self._request, len(self._request))
        code = library.call("nvmlDeviceGetFieldValues", handle, self._count, self._buffer)
        if code in GONE or code in SESSION:
            raise Error(code)
        if code != SUCCESS:
            if self._count == 1:
                return [(code, 0.0)]
            half = self._count // 2
            parts = (Batch(self.fields[:half], self.scope), Batch(self.fields[half:], self.scope))
            return [answer for part in parts for answer in part.ask(library, handle)]
        answers: list[Answer] = []
        for *_, kind, result, value in RECORD.iter_unpack(self._buffer.raw):
            if result != SUCCESS:
                answers.append((result, 0.0))
            elif kind in (2, 3) or value in BLANKS:
                # A blank fills the whole value, whatever width the field has.
                answers.append((SUCCESS, value))
            elif kind in _FORMS:
                answers.append((SUCCESS, _FORMS[kind].unpack(_WHOLE.pack(value))[0]))
            else:
                answers.append((_BAD_TYPE, 0.0))
        return answers
