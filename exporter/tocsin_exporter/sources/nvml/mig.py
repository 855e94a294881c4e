"""
MIG instances: each is a device of its own, with memory, activity and processes.

What belongs to the whole board (power, energy, temperature, links, ECC) is told of the board only.
Never run on hardware; the profile's name is built from attributes, as NVIDIA's tools do it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

from tocsin_exporter.sources.nvml import gpm
from tocsin_exporter.sources.nvml.calls import Error, Library
from tocsin_exporter.sources.nvml.plan import Plan, wanted
from tocsin_exporter.sources.nvml.processes import Processes
from tocsin_exporter.sources.nvml.quantities import QUANTITIES
from tocsin_exporter.sources.nvml.reads import GPM, Quantity, Scope
from tocsin_exporter.sources.nvml.results import SESSION

__all__ = ["Instances", "profile_name"]

# What an instance answers for itself besides its activity.
_OWN = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")
_OF_THE_BOARD = ("nvlink", "c2c", "pcie")
_AGAIN_SECONDS = 60.0
_GIB = 1 << 30


def profile_name(slices: int, compute_slices: int, memory: int, board_memory: int, media: bool) -> str:
    """
    Return the profile as NVIDIA names it, ``1g.10gb`` or ``1c.3g.40gb``; *memory* in bytes.

    Memory is named by the eighths of the board that the instance has, not by what is left of them.
    """
    eighths = math.ceil(memory / board_memory * 8) / 8 if board_memory else 0.0
    size = round(eighths * math.ceil(board_memory / _GIB))
    name = f"{slices}g.{size}gb" + ("+me" if media and slices == 1 else "")
    return name if slices == compute_slices else f"{compute_slices}c.{name}"


def _is_activity(row: Quantity) -> bool:
    return any(read.kind == GPM for read in row.reads)


class _Instance:
    def __init__(self, row: dict[str, Any], plan: Plan, processes: Processes, sms: int) -> None:
        self.row, self.plan, self.processes, self.sms = row, plan, processes, sms


class Instances:
    """The MIG instances of one board."""

    def __init__(
        self,
        library: Library,
        handle: Any,
        quantities: tuple[Quantity, ...],
        scope: Scope,
        make_processes: Callable[[Any], Processes],
    ) -> None:
        self._library = library
        self._handle = handle
        self._scope = scope
        self._make_processes = make_processes
        # Activity of the board's links is not an instance's.
        self._quantities = tuple(
            row
            for row in quantities
            if row.name in _OWN or (_is_activity(row) and not row.name.startswith(_OF_THE_BOARD))
        )
        self._instances: list[_Instance] = []
        self._listed_at: float | None = None

    def changed(self) -> None:
        """Instances came or went: list them anew."""
        self._listed_at = None

    def read(self, now: float, common: dict[str, Any], board_memory: int) -> list[dict[str, Any]]:
        """Return a device row per instance; *common* is what they share with the board."""
        if self._listed_at is None or now - self._listed_at >= _AGAIN_SECONDS:
            self._list(common, board_memory)
            self._listed_at = now
        devices = []
        for instance in self._instances:
            try:
                rows = instance.plan.read(now)
                pids, more, processes = instance.processes.read(now, deep=self._scope.tier == 2, limits=False)
            except Error as err:
                if err.code in SESSION:
                    raise
                # It was destroyed, or the board is lost, which its own row says.
                self._listed_at = None
                continue
            own = [*more, ("mig_sms", (), float(instance.sms))]
            rows += [row for row in own if wanted(QUANTITIES[row[0]], self._scope)]
            devices.append(
                {
                    **instance.row,
                    "values": rows,
                    "pids": pids,
                    "processes": processes,
                    "rejected": instance.plan.rejected,
                }
            )
        return devices

    def close(self) -> None:
        """Give samples back."""
        for instance in self._instances:
            instance.plan.close()
        self._instances = []
        self._listed_at = None

    def _list(self, common: dict[str, Any], board_memory: int) -> None:
        library = self._library
        found: dict[str, tuple[Any, int, int]] = {}
        for index in range(library.ask("nvmlDeviceGetMaxMigDeviceCount", self._handle) or 0):
            address = library.ask("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, index)
            if not address:
                continue
            handle = ctypes.c_void_p(address)
            uuid = library.text("nvmlDeviceGetUUID", handle)
            instance = library.ask("nvmlDeviceGetGpuInstanceId", handle)
            compute = library.ask("nvmlDeviceGetComputeInstanceId", handle)
            if uuid and instance is not None and compute is not None:
                found[uuid] = (handle, instance, compute)
        kept = [one for one in self._instances if one.row["uuid"] in found]
        for one in self._instances:
            if one not in kept:
                one.plan.close()
        known = {one.row["uuid"] for one in kept}
        for uuid, (handle, instance, compute) in found.items():
            if uuid not in known:
                kept.append(self._open(common, uuid, handle, instance, compute, board_memory))
        self._instances = sorted(kept, key=lambda one: str(one.row["mig"]))

    def _open(
        self, common: dict[str, Any], uuid: str, handle: Any, instance: int, compute: int, board_memory: int
    ) -> _Instance:
        library, board = self._library, self._handle
        attributes = library.ask("nvmlDeviceGetAttributes_v2", handle)
        row = {**common, "uuid": uuid, "mig": f"{instance}/{compute}", "info": {**common.get("info", {})}}
        sms = 0
        if attributes is not None:
            sms = int(attributes.multiprocessorCount)
            row["info"]["profile"] = profile_name(
                attributes.gpuInstanceSliceCount,
                attributes.computeInstanceSliceCount,
                attributes.memorySizeMB << 20,
                board_memory,
                attributes.sharedOfaCount > 0,
            )

        def take(sample: Any) -> int:
            return library.call("nvmlGpmMigSampleGet", board, ctypes.c_uint(instance), sample)

        activity = gpm.Activity(library, take) if gpm.supported(library, board) else None
        plan = Plan(library, handle, self._quantities, self._scope, activity)
        return _Instance(row, plan, self._make_processes(handle), sms)
