"""
The exporter that one would write in an afternoon: a prometheus_client collector over pynvml.

It asks the same questions of the same devices as the product's own child does in its fabric tier, through
pynvml's functions, so that what differs is how: everything on each scrape, in the process that answers,
formatted by the client library. It knows no jobs, no kernel log and no ports.

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

from tocsin_exporter.sources.nvml.quantities import QUANTITIES, TIERS, Quantity
from tocsin_exporter.sources.nvml.reads import CALL, FIELD, GPM, NVLINK, Read

_LABELS = ("gpu", "gpu_uuid", "mig")
_TIER = "fabric"
# Functions of pynvml that want a structure to fill.
_FILLED = {
    "nvmlDeviceGetSramEccErrorStatus": nv.c_nvmlEccSramErrorStatus_v1_t,
    "nvmlDeviceGetGpuFabricInfoV": nv.c_nvmlGpuFabricInfo_v3_t,
    "nvmlDeviceGetBankRemapperStatus_v1": nv.c_nvmlEccBankRemapperStatus_v1_t,
}
_BLANKS = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFF0})

# Quantity, label values, number.
Row = tuple[str, tuple[str, ...], float]


def _asked() -> list[tuple[Quantity, Read]]:
    level = TIERS.index(_TIER)
    return [
        (row, read) for row in QUANTITIES.values() if TIERS.index(row.tier) <= level for read in row.reads
    ]


class Board:
    """One device: what it did not answer once is not asked again."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle = nv.nvmlDeviceGetHandleByIndex(index)
        self.uuid = str(nv.nvmlDeviceGetUUID(self.handle))
        architecture = nv.nvmlDeviceGetArchitecture(self.handle)
        links = self._links()
        self._calls: list[tuple[Quantity, Read, tuple[str, ...], tuple[int, ...]]] = []
        self._fields: list[tuple[Quantity, Read, tuple[str, ...], tuple[int, int]]] = []
        self._metrics: list[tuple[Quantity, Read]] = []
        self._before: Any = None
        for row, read in _asked():
            if not read.since <= architecture <= read.until:
                continue
            for link in range(links) if read.per == NVLINK and read.kind != GPM else (None,):
                labels = read.labels if link is None else (str(link), *read.labels)
                if read.kind == CALL:
                    argument = read.argument if link is None else (link, *read.argument)
                    self._calls.append((row, read, labels, argument))
                elif read.kind == FIELD:
                    scope = read.argument[0] if link is None else link
                    self._fields.append((row, read, labels, (read.number, scope)))
            if read.kind == GPM and not read.per:
                self._metrics.append((row, read))

    def _links(self) -> int:
        [count] = nv.nvmlDeviceGetFieldValues(self.handle, [nv.NVML_FI_DEV_NVLINK_LINK_COUNT])
        return int(count.value.uiVal) if count.nvmlReturn == nv.NVML_SUCCESS else 0

    def rows(self) -> Iterator[Row]:
        """Yield what the device says."""
        answers: dict[tuple[str, tuple[int, ...]], Any] = {}
        for one in list(self._calls):
            row, read, labels, argument = one
            try:
                key = (read.name, argument)
                if key not in answers:
                    answers[key] = self._call(read.name.partition("/")[0], argument)
                yield from _told(row, read, labels, _part(answers[key], read.attribute))
            except (nv.NVMLError, AttributeError, TypeError):
                self._calls.remove(one)
        if self._fields:
            wanted = [(number, scope) for _, _, _, (number, scope) in self._fields]
            values = nv.nvmlDeviceGetFieldValues(self.handle, wanted)
            for (row, read, labels, _), value in zip(self._fields, values, strict=True):
                if value.nvmlReturn == nv.NVML_SUCCESS:
                    yield from _told(row, read, labels, value.value.ullVal)
        yield from self._activity()

    def _call(self, name: str, argument: tuple[int, ...]) -> Any:
        if name in _FILLED:
            filled = _FILLED[name]()
            getattr(nv, name)(self.handle, ctypes.byref(filled))
            return filled
        if name == "nvmlDeviceGetMemoryInfo_v2":
            return nv.nvmlDeviceGetMemoryInfo(self.handle, version=nv.nvmlMemory_v2)
        if name == "nvmlDeviceGetTemperatureV":
            return nv.nvmlDeviceGetTemperatureV(self.handle, 0)
        return getattr(nv, name)(self.handle, *argument)

    def _activity(self) -> Iterator[Row]:
        try:
            sample = nv.nvmlGpmSampleGet(self.handle, nv.nvmlGpmSampleAlloc())
        except nv.NVMLError:
            return
        before, self._before = self._before, sample
        if before is None:
            return
        ask = nv.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = nv.NVML_GPM_METRICS_GET_VERSION, len(self._metrics)
        ask.sample1, ask.sample2 = before, sample
        for slot, (_, read) in enumerate(self._metrics):
            ask.metrics[slot].metricId = read.number
        nv.nvmlGpmMetricsGet(ask)
        nv.nvmlGpmSampleFree(before)
        for slot, (row, read) in enumerate(self._metrics):
            if ask.metrics[slot].nvmlReturn == nv.NVML_SUCCESS:
                yield from _told(row, read, read.labels, ask.metrics[slot].value)


def _part(answer: Any, attribute: str) -> Any:
    if attribute.isdigit():
        return answer[int(attribute)]
    return getattr(answer, attribute) if attribute and not isinstance(answer, int) else answer


def _told(row: Quantity, read: Read, labels: tuple[str, ...], number: Any) -> Iterator[Row]:
    if number in _BLANKS:
        return
    if read.states:
        for at, state in enumerate(read.states):
            if state is not None:
                yield row.name, (*labels, state), float(at == number)
        return
    yield row.name, labels, number * read.decode if isinstance(read.decode, float) else float(number)


class Devices(Collector):
    """Reads all devices when it is asked."""

    def __init__(self) -> None:
        self._boards = [Board(index) for index in range(nv.nvmlDeviceGetCount())]
        # A board keeps the activity sample of the reading before: one scrape at a time.
        self._lock = threading.Lock()

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing: otherwise the registry would read all devices at its start."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the families of one scrape."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        up = GaugeMetricFamily("plain_gpu_up", "1 when the driver answers for this device.", labels=_LABELS)
        with self._lock:
            read = [(board, list(board.rows())) for board in self._boards]
        for board, rows in read:
            device = (str(board.index), board.uuid, "")
            up.add_metric(device, 1.0)
            told: set[tuple[str, tuple[str, ...]]] = set()
            for name, more, value in rows:
                if name not in families:
                    families[name] = _family(QUANTITIES[name])
                if (name, more) not in told:
                    told.add((name, more))
                    families[name].add_metric([*device, *more], value)
        yield up
        yield from families.values()


def _family(quantity: Quantity) -> GaugeMetricFamily | CounterMetricFamily:
    labels = (*_LABELS, *quantity.labels)
    if quantity.counter:
        return CounterMetricFamily(f"plain_gpu_{quantity.name}", quantity.help, labels=labels)
    return GaugeMetricFamily(f"plain_gpu_{quantity.name}", quantity.help, labels=labels)


def main() -> int:
    """Serve until killed."""
    # Loaded first, it is what pynvml's own lookup by soname finds.
    nv.nvmlLib = ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)
    nv.nvmlInit()
    registry = CollectorRegistry()
    registry.register(Devices())
    start_http_server(int(sys.argv[1]), "127.0.0.1", registry)
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
