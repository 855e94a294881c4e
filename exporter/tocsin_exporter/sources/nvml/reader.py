"""
Reads devices, by the table of quantities, through the library's own calls.

Everything here runs in the child process. It imports nothing heavy: each megabyte is one more on every node.
Proven with the simulated library only; what real boards answer differently shows in what is absent.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

from tocsin_exporter.sources.nvml import gpm, nvlink
from tocsin_exporter.sources.nvml.calls import Error, Library
from tocsin_exporter.sources.nvml.mig import Instances
from tocsin_exporter.sources.nvml.plan import Plan, wanted
from tocsin_exporter.sources.nvml.processes import Processes
from tocsin_exporter.sources.nvml.quantities import QUANTITIES
from tocsin_exporter.sources.nvml.reads import DEEP, FABRIC, NEWEST, START, TIERS, Scope
from tocsin_exporter.sources.nvml.results import ERRORS, GONE, SESSION, SUCCESS, UNKNOWN
from tocsin_exporter.sources.nvml.throttle import Throttle
from tocsin_exporter.sources.nvml.values import Value

__all__ = ["Places", "Reader"]

_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
_NVIDIA = "0x10de"
_MODES_EVERY = 60.0
_TABLE = tuple(QUANTITIES.values())


class Places:
    """Where the kernel's trees are."""

    __slots__ = ("cgroups", "procfs", "sysfs")

    def __init__(self, sysfs: str = "/sys", procfs: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> None:
        self.sysfs, self.procfs, self.cgroups = sysfs, procfs, cgroups


class _Device:
    """One opened device."""

    def __init__(self, library: Library, handle: Any, tier: str, places: Places) -> None:
        self.library = library
        self.handle = handle
        # A driver that does not know the chip says so with all bits set: it is newer than all that are known.
        architecture = min(library.ask("nvmlDeviceGetArchitecture", handle) or 0, NEWEST)
        self.scope = Scope(architecture, nvlink.count_links(library, handle, architecture), tier)
        self.identity = _identity(library, handle, architecture)

        def take(sample: Any) -> int:
            return library.call("nvmlGpmSampleGet", handle, sample)

        activity = gpm.Activity(library, take) if gpm.supported(library, handle) else None
        self.plan = Plan(library, handle, _TABLE, self.scope, activity)
        self.throttle = Throttle(library, handle)
        self.places = places
        self.processes = self._make_processes(handle)
        self.mig: Instances | None = None
        self._mig_at: float | None = None
        self._info_rows: list[Value] = []
        self._info_at: float | None = None

    def _make_processes(self, handle: Any) -> Processes:
        return Processes(self.library, handle, self.places.procfs, self.places.cgroups)

    def read(self, now: float) -> list[dict[str, Any]]:
        """Return the device's row and those of its MIG instances."""
        rows = self.plan.read(now)
        counted = frozenset(labels[0] for name, labels, _ in rows if name == "throttle_seconds_total")
        level = self.scope.tier
        pids, more, processes = self.processes.read(
            now, deep=level >= TIERS.index(DEEP), limits=level >= TIERS.index(FABRIC)
        )
        own = [
            *self.throttle.rows(counted, now),
            *more,
            *nvlink.link_rows(self.scope, rows),
            *self._information(now),
        ]
        rows += [row for row in own if wanted(QUANTITIES[row[0]], self.scope)]
        row = {
            **self.identity,
            "values": rows,
            "pids": pids,
            "processes": processes,
            "limits": self.processes.limits(),
            "rejected": self.plan.rejected,
            "denied": sorted(self.plan.denied),
        }
        return [row, *self._instances(now, rows)]

    def _information(self, now: float) -> list[Value]:
        if self._info_at is None or now - self._info_at >= START:
            self._info_at = now
            self._info_rows = [] if self.scope.tier < 1 else nvlink.fabric_rows(self.library, self.handle)
            if self.scope.tier >= TIERS.index(DEEP):
                self._info_rows += nvlink.remote_rows(self.library, self.handle, self.scope)
        return self._info_rows

    def _instances(self, now: float, rows: list[Value]) -> list[dict[str, Any]]:
        if self._mig_at is None or now - self._mig_at >= _MODES_EVERY:
            self._mig_at = now
            modes = self.library.ask("nvmlDeviceGetMigMode", self.handle)
            if modes is not None and modes[0] == 1:
                self.mig = self.mig or Instances(
                    self.library, self.handle, _TABLE, self.scope, self._make_processes
                )
            elif self.mig is not None:
                self.mig.close()
                self.mig = None
        if self.mig is None:
            return []
        memory = next((int(value) for name, _, value in rows if name == "memory_total_bytes"), 0)
        return self.mig.read(now, self.identity, memory)

    def mig_changed(self) -> None:
        """Look at MIG again at the next reading."""
        self._mig_at = None
        if self.mig is not None:
            self.mig.changed()

    def close(self) -> None:
        """Give samples back; not after the device is lost."""
        self.plan.close()
        if self.mig is not None:
            self.mig.close()


class Reader:
    """Reads devices by index; keeps of each what must outlive a cycle."""

    def __init__(
        self,
        library: Library,
        tier: str = FABRIC,
        places: Places | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._library = library
        self._tier = tier
        self._places = places or Places()
        self._clock = clock
        self._devices: dict[int, _Device] = {}
        self._known: dict[int, dict[str, Any]] = {}
        self._addresses: tuple[str, ...] | None = None
        self._system: dict[str, str] = {}

    def count(self) -> int:
        """Return how many devices the driver lists; raises `Error`."""
        out = ctypes.c_uint()
        self._library.check("nvmlDeviceGetCount_v2", ctypes.byref(out))
        return out.value

    def system(self) -> dict[str, str]:
        """Return versions of driver, CUDA and NVML; empty where not told."""
        if not self._system:
            library = self._library
            cuda = library.number("nvmlSystemGetCudaDriverVersion_v2")
            self._system = {
                "driver_version": library.text("nvmlSystemGetDriverVersion"),
                "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda is not None else "",
                "nvml_version": library.text("nvmlSystemGetNVMLVersion"),
            }
        return self._system

    def device(self, index: int) -> list[dict[str, Any]]:
        """
        Return what the driver says of device *index* and of its MIG instances, the device first.

        A lost one has ``up`` false and a reason. Raises `Error` when the session is lost.
        """
        head = {"index": index, "up": True, "reason": ""}
        try:
            if self._asleep(index):
                return [{**head, **self._known.get(index, {}), "values": [], "pids": None, "suspended": True}]
            device = self._open(index)
            return [{**head, **row} for row in device.read(self._clock())]
        except Error as err:
            if err.code in SESSION:
                raise
            self.forget(index)
            reason = GONE.get(err.code) or ERRORS.get(err.code, str(err.code))
            return [{**head, **self._known.get(index, {}), "up": False, "reason": reason, "code": err.code}]

    def mig_changed(self, index: int) -> None:
        """Take in that instances of device *index* came or went."""
        device = self._devices.get(index)
        if device is not None:
            device.mig_changed()

    def forget(self, index: int) -> None:
        """Drop what belongs to the open device; a device that is lost takes its samples with it."""
        self._devices.pop(index, None)

    def close(self) -> None:
        """Give everything back."""
        for device in self._devices.values():
            device.close()
        self._devices.clear()

    def _open(self, index: int) -> _Device:
        device = self._devices.get(index)
        if device is None:
            handle = ctypes.c_void_p()
            code = self._library.call(
                "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)
            )
            if code != SUCCESS:
                raise Error(code)
            device = _Device(self._library, handle, self._tier, self._places)
            if not device.identity["uuid"]:
                # It is told under its identity or not at all; the next cycle tries again.
                raise Error(UNKNOWN)
            self._devices[index] = device
            device.identity["info"]["nvml"] = self.system()["nvml_version"]
            self._known[index] = device.identity
        return device

    def _asleep(self, index: int) -> bool:
        """Whether the kernel has suspended the device; any call would wake it."""
        address = str(self._known.get(index, {}).get("pci", "")) or self._expected(index)
        if not address:
            return False
        domain, _, rest = address.lower().partition(":")
        function = f"{domain.lstrip('0').rjust(4, '0')}:{rest}"
        return _line(f"{self._places.sysfs}/bus/pci/devices/{function}/power/runtime_status") == "suspended"

    def _expected(self, index: int) -> str:
        """Return the address of a device not opened yet: the driver numbers devices by address."""
        if self._addresses is None:
            root = f"{self._places.sysfs}/bus/pci/devices"
            try:
                names = sorted(os.listdir(root))
            except OSError:
                names = []
            self._addresses = tuple(
                name
                for name in names
                if _line(f"{root}/{name}/vendor") == _NVIDIA
                and _line(f"{root}/{name}/class").startswith("0x03")
            )
        try:
            return self._addresses[index] if self.count() == len(self._addresses) else ""
        except IndexError:
            return ""


def all_unknown(rows: list[dict[str, Any]]) -> bool:
    """Whether every device answers "unknown error": access was taken away, and no device is at fault."""
    return bool(rows) and all(row.get("code") == UNKNOWN for row in rows)


def _line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline(64).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _identity(library: Library, handle: Any, architecture: int) -> dict[str, Any]:
    pci = library.ask("nvmlDeviceGetPciInfo_v3", handle)
    capability = library.ask("nvmlDeviceGetCudaComputeCapability", handle)
    minor = library.ask("nvmlDeviceGetMinorNumber", handle)
    module = library.ask("nvmlDeviceGetModuleId", handle)
    info = {
        "serial": library.text("nvmlDeviceGetSerial", handle),
        "part_number": library.text("nvmlDeviceGetBoardPartNumber", handle),
        "architecture": _ARCHITECTURES.get(architecture, ""),
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability is not None else "",
        "inforom": library.text("nvmlDeviceGetInforomImageVersion", handle),
        "gsp": _gsp(library, handle),
        "minor": "" if minor is None else str(minor),
        "module": "" if module is None else str(module),
        **_platform(library, handle),
    }
    return {
        "uuid": library.text("nvmlDeviceGetUUID", handle),
        "model": library.text("nvmlDeviceGetName", handle),
        "pci": pci.busId.decode("ascii", "replace") if pci is not None else "",
        "vbios": library.text("nvmlDeviceGetVbiosVersion", handle),
        "info": info,
    }


def _gsp(library: Library, handle: Any) -> str:
    # Takes no length: the buffer is as long as nvml.h says.
    buffer = ctypes.create_string_buffer(64)
    code = library.call("nvmlDeviceGetGspFirmwareVersion", handle, buffer)
    return buffer.value.decode("utf-8", "replace") if code == SUCCESS else ""


def _platform(library: Library, handle: Any) -> dict[str, str]:
    """Return where the device sits in a rack-scale system; empty elsewhere."""
    platform = library.ask("nvmlDeviceGetPlatformInfo", handle)
    if platform is None:
        return {}
    return {
        "chassis": platform.chassisSerialNumber.decode("ascii", "replace"),
        "slot": str(platform.slotNumber),
        "tray": str(platform.trayIndex),
        "host": str(platform.hostId),
    }
