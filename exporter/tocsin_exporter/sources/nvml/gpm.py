"""
Activity between two collections (GPM, Hopper and newer).

The sample of the collection before is kept, so nothing ever waits for a second one. MIG instances have
samples of their own. Never run on hardware: that all metrics are 0 while kernels run is how the public
reports describe profiling that was lost after an Xid 31 or taken by another tool.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from tocsin_exporter.sources.nvml.calls import Error, Library
from tocsin_exporter.sources.nvml.results import GONE, SESSION, SUCCESS

__all__ = ["LEAST_SECONDS", "METRIC", "Activity", "supported"]

# Closer samples are noise.
LEAST_SECONDS = 0.1
_VERSION = 1
# version, numMetrics, sample1, sample2
_HEAD = struct.Struct("=IIQQ")
# metricId, nvmlReturn, value, shortName, longName, unit
METRIC = struct.Struct("=IidQQQ")

# Error number, number, unit as the metric states it.
Metric = tuple[int, float, str]


def supported(library: Library, handle: Any) -> bool:
    """Whether the device has GPM at all."""
    answer = library.ask("nvmlGpmQueryDeviceSupport", handle)
    return answer is not None and bool(answer.isSupportedDevice)


class Activity:
    """
    Two samples of one device, or of one GPU instance of it, that take turns.

    *take* fills a sample and returns the driver's error number.
    """

    def __init__(self, library: Library, take: Callable[[Any], int]) -> None:
        self._library = library
        self._take = take
        self._older: Any = None
        self._newer: Any = None
        self._at: float | None = None

    def sample(self, now: float) -> bool:
        """Take a sample at *now* (monotonic); return whether there are two to compare."""
        if self._at is not None and now - self._at < LEAST_SECONDS:
            return False
        fresh = self._older if self._older is not None else self._allocate()
        self._older = fresh
        if fresh is None:
            return False
        code = self._take(fresh)
        if code in GONE or code in SESSION:
            raise Error(code)
        if code != SUCCESS:
            # Whatever comes next must not be compared over the gap.
            self._at = None
            return False
        comparable = self._at is not None and self._newer is not None
        self._older, self._newer = self._newer, fresh
        self._at = now
        return comparable

    def idle(self, now: float) -> bool:
        """Whether nothing was measured lately: no sample, or none to compare it with."""
        return self._at is None or now - self._at >= LEAST_SECONDS or self._older is None

    def metrics(self, wanted: Sequence[int]) -> list[Metric]:
        """Return an answer per metric between the last two samples."""
        if not wanted:
            return []
        request = _HEAD.pack(_VERSION, len(wanted), self._older.value, self._newer.value)
        request += b"".join(METRIC.pack(metric, 0, 0.0, 0, 0, 0) for metric in wanted)
        buffer = ctypes.create_string_buffer(request, len(request))
        code = self._library.call("nvmlGpmMetricsGet", buffer)
        if code in GONE or code in SESSION:
            raise Error(code)
        if code != SUCCESS:
            if len(wanted) == 1:
                return [(code, 0.0, "")]
            half = len(wanted) // 2
            return [*self.metrics(wanted[:half]), *self.metrics(wanted[half:])]
        return [
            (result, value, _text(unit))
            for _, result, value, _, _, unit in METRIC.iter_unpack(buffer.raw[_HEAD.size :])
        ]

    def close(self) -> None:
        """Give the samples back."""
        for sample in (self._older, self._newer):
            if sample is not None:
                self._library.call("nvmlGpmSampleFree", sample)
        self._older = self._newer = self._at = None

    def _allocate(self) -> Any:
        sample = ctypes.c_void_p()
        code = self._library.call("nvmlGpmSampleAlloc", ctypes.byref(sample))
        return sample if code == SUCCESS and sample.value else None


def _text(address: int) -> str:
    return ctypes.string_at(address)[:16].decode("ascii", "replace") if address else ""
