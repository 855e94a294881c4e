"""
The page on which the child says which driver call it is in: shared memory, so that one that hangs has told.

One record, written before each call and never afterwards: device, start of the call and name of the function.
Writing costs well under a microsecond. Imported in the child, so it needs nothing but the standard library.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import time
from typing import NamedTuple

__all__ = ["NO_DEVICE", "OTHER_CALL", "Call", "Page", "Pen"]

# Calls that belong to no device: the initialisation, the count.
NO_DEVICE = -1
# What is told of a call whose name cannot be one of NVML's.
OTHER_CALL = "other"
# Index of the device, start as CLOCK_MONOTONIC nanoseconds (0: in no call), name padded with zeros.
_RECORD = struct.Struct("=qQ64s")
_SIZE = mmap.PAGESIZE
# Looked up once: they run before every call to the driver.
_write, _monotonic = _RECORD.pack_into, time.monotonic_ns
_NAME = re.compile(rb"nvml[A-Za-z0-9_]{1,59}")


class Call(NamedTuple):
    """A call that began at *began* (monotonic nanoseconds) and may still run."""

    device: int
    name: str
    began: int


class Page:
    """The parent's side; ``descriptor`` is handed to the child."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("tocsin-nvml-progress", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, _SIZE)
            self._map = mmap.mmap(self.descriptor, _SIZE, prot=mmap.PROT_READ)
        except OSError:
            os.close(self.descriptor)
            raise

    def handed_over(self) -> None:
        """Close the descriptor; the mapping stays."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def read(self) -> Call | None:
        """Return the call that the child is in, or None between readings."""
        # A record that is being overwritten belongs to a child that moves on: it differs the next moment.
        index, began, name = _RECORD.unpack_from(self._map, 0)
        if not began:
            return None
        text = bytes(name).rstrip(b"\0")
        return Call(index, text.decode() if _NAME.fullmatch(text) else OTHER_CALL, began)

    def close(self) -> None:
        """Give the page back."""
        self.handed_over()
        self._map.close()


class Pen:
    """The child's side. Without a page it writes into memory of its own, so that nobody has to ask."""

    __slots__ = ("_map", "index")

    def __init__(self, descriptor: int = -1) -> None:
        self.index = NO_DEVICE
        if descriptor < 0:
            self._map = mmap.mmap(-1, _SIZE)
        else:
            self._map = mmap.mmap(descriptor, _SIZE)
            os.close(descriptor)

    def enter(self, name: bytes) -> None:
        """Say that the call *name* begins, on the device ``index``."""
        _write(self._map, 0, self.index, _monotonic(), name)

    def at(self, index: int) -> None:
        """Say that the device *index* (or `NO_DEVICE`) is next, in no call yet."""
        self.index = index
        self.enter(b"")

    def rest(self) -> None:
        """Say that no call runs."""
        self.index = NO_DEVICE
        _write(self._map, 0, NO_DEVICE, 0, b"")
