"""
Processes on a device: who they are, what memory they hold, and what their cgroups may hold.

Memory limits belong to cgroups (driver 615 and newer), so they are asked for by the cgroup of
each process. Never run on a driver that has them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from tocsin_exporter.sources.nvml.calls import Error, Library
from tocsin_exporter.sources.nvml.quantities import LIMITS
from tocsin_exporter.sources.nvml.results import GONE, INSUFFICIENT_SIZE, SESSION, SUCCESS, UNSUPPORTED
from tocsin_exporter.sources.nvml.structures import MemoryLimits, Process, ProcessSample
from tocsin_exporter.sources.nvml.values import Value

__all__ = ["MOST_PROCESSES", "Processes"]

# A device has a few processes; more than these are counted in the sum only.
MOST_PROCESSES = 64
_MOST_ASKED = 1024
_LIMITS_EVERY = 30.0
_NO_VALUE = 0xFFFFFFFFFFFFFFFF
# Soft limit, hard limit (None: none), in use; bytes.
Limit = tuple[int, int | None, int]
_ENGINES = (("sm", "smUtil"), ("memory", "memUtil"), ("encoder", "encUtil"), ("decoder", "decUtil"))
_KINDS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses_v3"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
)


class Processes:
    """The processes of one device or MIG instance."""

    def __init__(self, library: Library, handle: Any, procfs: str, cgroups: str) -> None:
        self._library = library
        self._handle = handle
        self._procfs = procfs
        self._cgroups = cgroups
        self._room = 16
        self._samples = (ProcessSample * 64)()
        self._sampled_until = 0
        self._limits: dict[str, Limit] = {}
        self._limits_at: float | None = None
        self._limits_unsupported = False

    def read(
        self, now: float, *, deep: bool, limits: bool
    ) -> tuple[list[int] | None, list[Value], list[list[Any]]]:
        """
        Return the pids of the compute processes (None where not told), rows, and the processes.

        A process is ``[pid, kind, bytes or None, cgroup]``; the cgroup is empty where it has no limit.
        """
        found: dict[tuple[int, str], int | None] = {}
        pids: set[int] | None = None
        rows: list[Value] = []
        for kind, function in _KINDS:
            listed = self._list(function)
            if listed is None:
                continue
            # An MPS client is on the list of compute processes too.
            for pid, used in listed.items():
                if not (kind == "mps" and (pid, "compute") in found):
                    found[(pid, kind)] = used
            if kind != "graphics":
                pids = (pids or set()) | set(listed)
            if kind != "compute":
                rows.append((f"{kind}_processes", (), float(len(listed))))
        if pids is None:
            return None, rows, []
        known = [used for used in found.values() if used is not None]
        if known or not found:
            rows.append(("process_memory_bytes", (), float(sum(known))))
        if deep:
            rows += [
                ("pid_memory_bytes", (str(pid), kind), float(used))
                for (pid, kind), used in sorted(found.items())[:MOST_PROCESSES]
                if used is not None
            ]
            rows += self._utilization()
        of_pid = self._cgroups_of(pids, now) if limits else {}
        rows += limit_rows(self._limits.values())
        processes = [
            [pid, kind, used, of_pid.get(pid, "")]
            for (pid, kind), used in sorted(found.items())[:_MOST_ASKED]
        ]
        return sorted(pids), rows, processes

    def limits(self) -> dict[str, Limit]:
        """Return cgroup -> limits, for the cgroups that have one."""
        return self._limits

    def _utilization(self) -> list[Value]:
        """Return each process's use of the engines: means of the driver's samples since the last call."""
        count = ctypes.c_uint(len(self._samples))
        since = ctypes.c_ulonglong(self._sampled_until)
        code = self._library.call(
            "nvmlDeviceGetProcessUtilization", self._handle, self._samples, ctypes.byref(count), since
        )
        if code in GONE or code in SESSION:
            raise Error(code)
        if code == INSUFFICIENT_SIZE and len(self._samples) < _MOST_ASKED:
            self._samples = (ProcessSample * _MOST_ASKED)()
        if code != SUCCESS:
            return []
        of_pid: dict[int, list[Any]] = {}
        for sample in self._samples[: count.value]:
            if sample.timeStamp > since.value:
                of_pid.setdefault(sample.pid, []).append(sample)
                self._sampled_until = max(self._sampled_until, sample.timeStamp)
        rows: list[Value] = []
        for pid, samples in sorted(of_pid.items())[:MOST_PROCESSES]:
            for engine, member in _ENGINES:
                shares = [share for sample in samples if (share := getattr(sample, member)) <= 100]
                if shares:
                    rows.append(
                        ("pid_utilization_ratio", (str(pid), engine), sum(shares) / len(shares) / 100)
                    )
        return rows

    def _list(self, function: str) -> dict[int, int | None] | None:
        """Return pid -> bytes; None where the driver does not tell."""
        for _ in range(3):
            count = ctypes.c_uint(self._room)
            buffer = (Process * self._room)()
            code = self._library.call(function, self._handle, ctypes.byref(count), buffer)
            if code in GONE or code in SESSION:
                raise Error(code)
            if code == SUCCESS:
                # One process can be on several compute instances.
                held: dict[int, int | None] = {}
                for process in buffer[: count.value]:
                    used = None if process.usedGpuMemory == _NO_VALUE else process.usedGpuMemory
                    before = held.get(process.pid)
                    held[process.pid] = used if before is None else before + (used or 0)
                return held
            if code != INSUFFICIENT_SIZE or self._room >= _MOST_ASKED:
                return None
            self._room = min(max(count.value + 8, 2 * self._room), _MOST_ASKED)
        return None

    def _cgroups_of(self, pids: set[int], now: float) -> dict[int, str]:
        """Return pid -> cgroup for those with a limit, and read the limits anew when they are due."""
        if self._limits_unsupported:
            return {}
        of_pid = {pid: path for pid in sorted(pids)[:MOST_PROCESSES] if (path := self._cgroup(pid))}
        if (
            self._limits_at is None
            or now - self._limits_at >= _LIMITS_EVERY
            or set(of_pid.values()) - set(self._limits)
        ):
            self._limits_at = now
            self._limits = {}
            for path in sorted(set(of_pid.values())):
                limit = self._limit(path)
                if limit is not None:
                    self._limits[path] = limit
        else:
            self._limits = {path: limit for path, limit in self._limits.items() if path in of_pid.values()}
        return {pid: path for pid, path in of_pid.items() if path in self._limits}

    def _cgroup(self, pid: int) -> str:
        try:
            with open(f"{self._procfs}/{pid}/cgroup", errors="replace") as file:
                text = file.read(65536)
        except OSError:
            return ""
        for line in text.splitlines():
            if line.startswith("0::/") and ".." not in line:
                return f"{self._cgroups}/{line[4:]}"
        return ""

    def _limit(self, path: str) -> Limit | None:
        ask = MemoryLimits(nameSpace=path.encode())
        code = self._library.call("nvmlDeviceGetMemoryLimits_v1", self._handle, ctypes.byref(ask))
        if code in GONE or code in SESSION:
            raise Error(code)
        if code in UNSUPPORTED and code != 2:
            self._limits_unsupported = True
        soft = 0 if ask.softLimit == _NO_VALUE else ask.softLimit
        if code != SUCCESS or (soft == 0 and ask.hardLimit == _NO_VALUE):
            return None
        return soft, None if ask.hardLimit == _NO_VALUE else ask.hardLimit, ask.currentUsed


def limit_rows(limits: Iterable[Limit]) -> list[Value]:
    """Return the sums of several cgroups' limits; an unlimited one adds nothing."""
    rows: list[Value] = []
    for position, (name, labels) in enumerate(LIMITS):
        known = [value for limit in limits if (value := limit[position]) is not None]
        if known:
            rows.append((name, labels, float(sum(known))))
    return rows
