"""
The process that talks to the driver: ``python -m tocsin_exporter.sources.nvml.child [LIBRARY]``.

A driver call can hang for good, and a thread that hangs in it cannot be ended; a process can.
So this one does nothing else. It reads one-line requests ``{"last": [index, …], "skip": [index, …]}``
from standard input and answers on standard output with frames (four bytes of length, big endian,
then JSON):

* ``{"ready": true}`` or ``{"fail": {"code", "name"}}`` once, after the initialisation;
* per request ``{"begin": index}`` before and ``{"device": {…}}`` after each device, then ``{"end": {…}}``.

A device's ``values`` are rows of quantity, further label values and number, in base units; what the
device does not offer has no row. It imports nothing heavy of the package: each megabyte here is one more
on every node.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

import pynvml as nv

__all__ = ["THROTTLE_REASONS", "Reader", "main"]

# Values the driver hands out for "no value"; NVML_VALUE_NOT_AVAILABLE is -1 in each width.
_SENTINELS = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFF2})
# GPM averages between two samples; closer ones are noise.
_GPM_LEAST_SECONDS = 0.1
_GPM = (
    ("sm_active_ratio", 2),
    ("sm_occupancy_ratio", 3),
    ("tensor_active_ratio", 5),
    ("dram_active_ratio", 10),
)
# nvml.h, nvmlClocksEventReason*: the bits of the current clock event reasons.
THROTTLE_REASONS = {
    "idle": 0x1,
    "app_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display": 0x100,
}
# A longer pause than this was no pause between two readings.
_LONGEST_HOLD_SECONDS = 120.0
# Errors that condemn the device or the session, not the one call.
_FATAL = {
    nv.NVML_ERROR_GPU_IS_LOST: "gpu_lost",
    nv.NVML_ERROR_RESET_REQUIRED: "reset_required",
    nv.NVML_ERROR_GPU_NOT_FOUND: "gpu_lost",
}
_PR_SET_PDEATHSIG = 1

# Quantity, values of its further labels, number in base units.
Value = tuple[str, tuple[str, ...], float]


class _DeviceGoneError(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _number(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or value in _SENTINELS or value != value or value < 0:
        return None
    return value


class Reader:
    """Reads devices through pynvml; keeps the GPM sample of the cycle before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._handles: dict[int, Any] = {}
        self._static: dict[int, dict[str, str]] = {}
        self._gpm: dict[int, tuple[float, Any]] = {}
        self._gpm_last: dict[int, dict[str, float]] = {}
        self._gpm_unsupported: set[int] = set()
        self._throttled: dict[tuple[int, str], float] = {}
        self._throttled_at: dict[int, float] = {}

    def count(self) -> int:
        """Return how many devices the driver lists."""
        return int(nv.nvmlDeviceGetCount())

    def system(self) -> dict[str, str]:
        """Return versions of driver and CUDA; empty where not told."""
        cuda = self._try(nv.nvmlSystemGetCudaDriverVersion_v2)
        return {
            "driver_version": str(self._try(nv.nvmlSystemGetDriverVersion) or ""),
            "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else "",
        }

    def device(self, index: int) -> dict[str, Any]:
        """Return what the driver says of device *index*; a lost one has ``up`` false and a reason."""
        row: dict[str, Any] = {"index": index, "up": True, "reason": "", **self._static.get(index, {})}
        try:
            handle = self._handle(index)
            row.update(self._static[index])
            row["values"] = [
                *((name, (), value) for name, value in self._gauges(index, handle).items()),
                *self._throttle(index, handle),
                *self._memory_errors(handle),
            ]
            row["pids"] = self._pids(handle)
        except _DeviceGoneError as err:
            self._forget(index)
            row.update(up=False, reason=err.reason)
        except nv.NVMLError as err:
            # No handle: the device is listed and cannot be opened.
            self._forget(index)
            row.update(up=False, reason=_error_name(err))
        return row

    def _forget(self, index: int) -> None:
        self._handles.pop(index, None)
        self._gpm.pop(index, None)
        self._gpm_last.pop(index, None)

    def _handle(self, index: int) -> Any:
        if index not in self._handles:
            try:
                handle = nv.nvmlDeviceGetHandleByIndex(index)
            except nv.NVMLError as err:
                if err.value in _FATAL:
                    raise _DeviceGoneError(_FATAL[err.value]) from err
                raise
            self._handles[index] = handle
            pci = self._try(nv.nvmlDeviceGetPciInfo, handle)
            bus = getattr(pci, "busId", b"")
            fresh = {
                "uuid": str(self._try(nv.nvmlDeviceGetUUID, handle) or ""),
                "model": str(self._try(nv.nvmlDeviceGetName, handle) or ""),
                "pci": bus.decode("ascii", "replace") if isinstance(bus, bytes) else str(bus),
                "vbios": str(self._try(nv.nvmlDeviceGetVbiosVersion, handle) or ""),
            }
            self._static[index] = fresh
        return self._handles[index]

    def _try(self, call: Callable[..., Any], *args: Any) -> Any:
        """Return the call's value, or None where this device or driver does not offer it."""
        try:
            return call(*args)
        except nv.NVMLError as err:
            if err.value in _FATAL:
                raise _DeviceGoneError(_FATAL[err.value]) from err
            return None
        except (UnicodeDecodeError, ValueError):
            return None

    def _gauges(self, index: int, handle: Any) -> dict[str, float]:
        found: dict[str, float] = {}

        def put(name: str, value: Any, scale: float = 1.0) -> None:
            number = _number(value)
            if number is not None:
                found[name] = number * scale

        use = self._try(nv.nvmlDeviceGetUtilizationRates, handle)
        put("utilization_ratio", getattr(use, "gpu", None), 0.01)
        memory = self._try(nv.nvmlDeviceGetMemoryInfo, handle)
        put("memory_total_bytes", getattr(memory, "total", None))
        put("memory_used_bytes", getattr(memory, "used", None))
        put("sm_clock_hertz", self._try(nv.nvmlDeviceGetClockInfo, handle, nv.NVML_CLOCK_SM), 1e6)
        put("sm_clock_max_hertz", self._try(nv.nvmlDeviceGetMaxClockInfo, handle, nv.NVML_CLOCK_SM), 1e6)
        put("memory_clock_hertz", self._try(nv.nvmlDeviceGetClockInfo, handle, nv.NVML_CLOCK_MEM), 1e6)
        put("power_watts", self._try(nv.nvmlDeviceGetPowerUsage, handle), 1e-3)
        put("power_limit_watts", self._try(nv.nvmlDeviceGetEnforcedPowerLimit, handle), 1e-3)
        put("energy_joules_total", self._try(nv.nvmlDeviceGetTotalEnergyConsumption, handle), 1e-3)
        put("temperature_celsius", self._try(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU))
        put("memory_temperature_celsius", self._field(handle, nv.NVML_FI_DEV_MEMORY_TEMP))
        put("pcie_link_generation", self._try(nv.nvmlDeviceGetCurrPcieLinkGeneration, handle))
        put("pcie_link_generation_max", self._try(nv.nvmlDeviceGetMaxPcieLinkGeneration, handle))
        put("pcie_link_width", self._try(nv.nvmlDeviceGetCurrPcieLinkWidth, handle))
        put("pcie_link_width_max", self._try(nv.nvmlDeviceGetMaxPcieLinkWidth, handle))
        put("pcie_replays_total", self._try(nv.nvmlDeviceGetPcieReplayCounter, handle))
        found.update(self._gpm_ratios(index, handle))
        return found

    def _field(self, handle: Any, field: int) -> Any:
        values = self._try(nv.nvmlDeviceGetFieldValues, handle, [field])
        if values is None or values[0].nvmlReturn != nv.NVML_SUCCESS:
            return None
        value = values[0]
        kinds = {
            nv.NVML_VALUE_TYPE_DOUBLE: "dVal",
            nv.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            nv.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            nv.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
            nv.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        }
        return getattr(value.value, kinds.get(value.valueType, "uiVal"))

    def _gpm_ratios(self, index: int, handle: Any) -> dict[str, float]:
        if index in self._gpm_unsupported:
            return {}
        before = self._gpm.get(index)
        now = self._clock()
        if before is not None and now - before[0] < _GPM_LEAST_SECONDS:
            return self._gpm_last.get(index, {})
        if before is None:
            support = self._try(nv.nvmlGpmQueryDeviceSupport, handle)
            if support is None or not support.isSupportedDevice:
                self._gpm_unsupported.add(index)
                return {}
        sample = self._try(nv.nvmlGpmSampleAlloc)
        if sample is None:
            return {}
        if self._try(nv.nvmlGpmSampleGet, handle, sample) is None:
            self._try(nv.nvmlGpmSampleFree, sample)
            return {}
        self._gpm[index] = (now, sample)
        if before is None:
            return {}
        found = self._gpm_between(before[1], sample)
        self._try(nv.nvmlGpmSampleFree, before[1])
        self._gpm_last[index] = found
        return found

    def _gpm_between(self, first: Any, second: Any) -> dict[str, float]:
        ask = nv.c_nvmlGpmMetricsGet_t()
        ask.version = nv.NVML_GPM_METRICS_GET_VERSION
        ask.numMetrics = len(_GPM)
        ask.sample1, ask.sample2 = first, second
        for slot, (_, metric) in enumerate(_GPM):
            ask.metrics[slot].metricId = metric
        answer = self._try(nv.nvmlGpmMetricsGet, ask)
        found: dict[str, float] = {}
        if answer is None:
            return found
        for slot, (name, _) in enumerate(_GPM):
            got = answer.metrics[slot]
            number = _number(got.value)
            if got.nvmlReturn == nv.NVML_SUCCESS and number is not None:
                found[name] = min(number / 100, 1.0)
        return found

    def _throttle(self, index: int, handle: Any) -> list[Value]:
        """Return the reason bits as states, and as seconds by holding each since the reading before."""
        mask = self._try(nv.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if mask is None:
            mask = self._try(nv.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        now = self._clock()
        before = self._throttled_at.get(index)
        self._throttled_at[index] = now
        if mask is None or mask in _SENTINELS:
            return []
        # After a hang nobody knows what held the clock down meanwhile.
        passed = now - before if before is not None and now - before <= _LONGEST_HOLD_SECONDS else 0.0
        values: list[Value] = []
        for reason, bit in THROTTLE_REASONS.items():
            active = bool(mask & bit)
            values.append(("throttle_active", (reason,), float(active)))
            total = self._throttled.get((index, reason), 0.0) + (passed if active else 0.0)
            self._throttled[(index, reason)] = total
            values.append(("throttle_seconds_total", (reason,), total))
        return values

    def _memory_errors(self, handle: Any) -> list[Value]:
        values: list[Value] = []
        for severity, kind in (
            ("corrected", nv.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ("uncorrected", nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        ):
            for memory, where in (
                ("dram", nv.NVML_MEMORY_LOCATION_DRAM),
                ("sram", nv.NVML_MEMORY_LOCATION_SRAM),
            ):
                count = _number(
                    self._try(nv.nvmlDeviceGetMemoryErrorCounter, handle, kind, nv.NVML_AGGREGATE_ECC, where)
                )
                if count is not None:
                    values.append(("ecc_errors_total", (severity, memory), count))
        rows = self._try(nv.nvmlDeviceGetRemappedRows, handle)
        if rows is not None:
            corrected, uncorrected, pending, failed = rows
            values += [
                ("row_remaps_total", ("corrected",), corrected),
                ("row_remaps_total", ("uncorrected",), uncorrected),
                ("row_remap_pending", (), float(bool(pending))),
                ("row_remap_failed", (), float(bool(failed))),
            ]
        return values

    def _pids(self, handle: Any) -> list[int] | None:
        processes = self._try(nv.nvmlDeviceGetComputeRunningProcesses, handle)
        return None if processes is None else [int(process.pid) for process in processes]


def _error_name(err: Any) -> str:
    for name, value in vars(nv).items():
        if name.startswith("NVML_ERROR_") and value == err.value:
            return str(name).removeprefix("NVML_ERROR_").lower()
    return "unknown"


def _send(out: BinaryIO, message: dict[str, Any]) -> None:
    body = json.dumps(message, separators=(",", ":")).encode()
    out.write(struct.pack(">I", len(body)) + body)
    out.flush()


def _initialise(library: str) -> dict[str, Any] | None:
    """Load the library and start NVML; return the failure or None."""
    if library:
        try:
            # Loaded first, it is what pynvml's own lookup by soname finds.
            nv.nvmlLib = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        except OSError as err:
            return {"code": nv.NVML_ERROR_LIBRARY_NOT_FOUND, "name": str(err)}
    try:
        nv.nvmlInit()
    except nv.NVMLError as err:
        return {"code": int(err.value), "name": _error_name(err)}
    return None


def main(argv: list[str], requests: BinaryIO, out: BinaryIO) -> int:
    """Serve requests until the parent closes its end."""
    # The parent may be killed while this process is stuck in the driver.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    failure = _initialise(argv[0] if argv else "")
    if failure is not None:
        _send(out, {"fail": failure})
        return 1
    _send(out, {"ready": True})
    reader = Reader()
    for line in requests:
        wanted = json.loads(line)
        last, skip = wanted.get("last", []), wanted.get("skip", [])
        try:
            total = reader.count()
            system = reader.system()
        except (nv.NVMLError, _DeviceGoneError) as err:
            code = int(err.value) if isinstance(err, nv.NVMLError) else nv.NVML_ERROR_GPU_IS_LOST
            _send(out, {"fail": {"code": code, "name": str(err)}})
            return 1
        order = [index for index in range(total) if index not in last and index not in skip]
        order += [index for index in last if index < total]
        for index in order:
            _send(out, {"begin": index})
            _send(out, {"device": reader.device(index)})
        _send(out, {"end": {"count": total, **system}})
    return 0


if __name__ == "__main__":
    # A stray print of a library must not end up between frames.
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    raise SystemExit(main(sys.argv[1:], sys.stdin.buffer, frames))
