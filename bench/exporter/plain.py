"""
The exporter that one would write in an afternoon: a prometheus_client collector over pynvml.

It asks for what the product's table asks for (the same fields, calls and activity metrics of the tier
``fabric``) in the way that the examples show: on each scrape, in the process that answers, one device after
the other, formatted by the client library. It knows no jobs, no kernel log, no ports and no MIG.

    plain.py PORT LIBRARY
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pynvml as nv
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tocsin_exporter.sources.nvml.quantities import QUANTITIES
from tocsin_exporter.sources.nvml.reads import CALL, DEEP, FIELD, GPM, NVLINK, Quantity, Read

Family = GaugeMetricFamily | CounterMetricFamily
Row = tuple[Quantity, tuple[str, ...], float]

_KINDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _wanted(kind: str, architecture: int) -> list[tuple[Quantity, Read]]:
    return [
        (quantity, read)
        for quantity in QUANTITIES.values()
        if quantity.tier != DEEP
        for read in quantity.reads
        if read.kind == kind and read.since <= architecture <= read.until
    ]


class Device:
    """One device, read as a whole."""

    def __init__(self, index: int) -> None:
        self._handle = nv.nvmlDeviceGetHandleByIndex(index)
        self.labels = (str(index), str(nv.nvmlDeviceGetUUID(self._handle)))
        self._architecture = int(nv.nvmlDeviceGetArchitecture(self._handle))
        self._links = range(int(self._number(self._field(91, 0)) or 0))
        self._sample: Any = None

    def read(self) -> Iterator[Row]:
        """Yield every value that the device has."""
        yield from self._calls()
        yield from self._fields()
        yield from self._activity()

    def _places(self, read: Read) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
        if read.per == NVLINK:
            return [((str(link), *read.labels), (link, *read.argument[1:])) for link in self._links]
        return [] if read.per else [(read.labels, read.argument)]

    def _calls(self) -> Iterator[Row]:
        for quantity, read in _wanted(CALL, self._architecture):
            bare = read.name.partition("/")[0]
            function = getattr(nv, bare, None) or getattr(nv, bare.rpartition("_v")[0], None)
            if function is None:
                continue
            for labels, argument in self._places(read):
                try:
                    answer = function(self._handle, *argument)
                except (nv.NVMLError, TypeError, ValueError, AttributeError, ctypes.ArgumentError):
                    continue
                value = getattr(answer, read.attribute, answer) if read.attribute else answer
                if isinstance(value, (int, float)):
                    yield quantity, labels, float(value)

    def _fields(self) -> Iterator[Row]:
        asked = [
            (quantity, labels, (read.number, scope[0]))
            for quantity, read in _wanted(FIELD, self._architecture)
            for labels, scope in self._places(read)
        ]
        # The library takes no more at once.
        for at in range(0, len(asked), 64):
            some = asked[at : at + 64]
            answers = nv.nvmlDeviceGetFieldValues(self._handle, [place for _, _, place in some])
            for (quantity, labels, _), answer in zip(some, answers, strict=True):
                value = self._number(answer)
                if value is not None:
                    yield quantity, labels, value

    def _field(self, number: int, scope: int) -> Any:
        return nv.nvmlDeviceGetFieldValues(self._handle, [(number, scope)])[0]

    @staticmethod
    def _number(answer: Any) -> float | None:
        if answer.nvmlReturn != nv.NVML_SUCCESS:
            return None
        return float(getattr(answer.value, _KINDS[answer.valueType]))

    def _activity(self) -> Iterator[Row]:
        metrics = [(quantity, read) for quantity, read in _wanted(GPM, self._architecture) if not read.per]
        if not metrics:
            return
        before, self._sample = self._sample, nv.nvmlGpmSampleAlloc()
        nv.nvmlGpmSampleGet(self._handle, self._sample)
        if before is None:
            return
        ask = nv.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = nv.NVML_GPM_METRICS_GET_VERSION, len(metrics)
        ask.sample1, ask.sample2 = before, self._sample
        for slot, (_, read) in enumerate(metrics):
            ask.metrics[slot].metricId = read.number
        answer = nv.nvmlGpmMetricsGet(ask)
        nv.nvmlGpmSampleFree(before)
        for slot, (quantity, read) in enumerate(metrics):
            if answer.metrics[slot].nvmlReturn == nv.NVML_SUCCESS:
                yield quantity, read.labels, float(answer.metrics[slot].value)


class Devices(Collector):
    """Reads all devices when it is asked."""

    def __init__(self) -> None:
        self._devices = [Device(index) for index in range(nv.nvmlDeviceGetCount())]
        # A device keeps the activity sample of the reading before: one scrape at a time.
        self._lock = threading.Lock()

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing: otherwise the registry would read all devices at its start."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield the families of one scrape."""
        families: dict[str, Family] = {}
        seen: set[tuple[str, ...]] = set()
        with self._lock:
            for device in self._devices:
                for quantity, labels, value in device.read():
                    key = (quantity.name, *device.labels, *labels)
                    # Some quantities have a second source for devices without the first.
                    if key in seen or len(labels) != len(quantity.labels):
                        continue
                    seen.add(key)
                    if quantity.name not in families:
                        families[quantity.name] = _family(quantity)
                    families[quantity.name].add_metric([*device.labels, *labels], value)
        yield from families.values()


def _family(quantity: Quantity) -> Family:
    labels = ("gpu", "gpu_uuid", *quantity.labels)
    if quantity.counter:
        return CounterMetricFamily(f"plain_gpu_{quantity.name}", quantity.help, labels=labels)
    return GaugeMetricFamily(f"plain_gpu_{quantity.name}", quantity.help, labels=labels)


def main() -> int:
    """Serve until killed."""
    # Loaded first, it is what pynvml's own lookup finds.
    nv.nvmlLib = ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)
    nv.nvmlInit()
    registry = CollectorRegistry()
    registry.register(Devices())
    start_http_server(int(sys.argv[1]), "127.0.0.1", registry)
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
