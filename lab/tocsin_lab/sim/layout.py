"""The shared structures of ``lab/native/sim.h`` for ctypes, and the files that hold them."""

from __future__ import annotations

import ctypes as c
import mmap
import os
import struct
from pathlib import Path
from typing import Any, TypeVar

from tocsin_lab.errors import LayoutError

__all__ = [
    "ANY",
    "JOB_MAGIC",
    "LAYOUT_VERSION",
    "LINK_COUNTS",
    "MAX_COMMS",
    "MAX_DEVICES",
    "MAX_EVENTS",
    "MAX_INSTANCES",
    "MAX_LINKS",
    "MAX_PROCESSES",
    "MAX_RANKS",
    "MAX_RULES",
    "NODE_MAGIC",
    "Job",
    "Node",
    "SimComm",
    "SimDevice",
    "SimEvent",
    "SimInstance",
    "SimJob",
    "SimLink",
    "SimNode",
    "SimProcess",
    "SimProfile",
    "SimRank",
    "SimRecipe",
    "SimRendezvous",
    "SimRule",
]

LAYOUT_VERSION = 2
NODE_MAGIC = 0x31454E4353435430
JOB_MAGIC = 0x31424F4A53435430
MAX_DEVICES, MAX_PROCESSES, MAX_RANKS, MAX_COMMS, REASONS, ID_BYTES, ARRIVALS = 16, 32, 64, 8, 9, 128, 4
MAX_LINKS, MAX_INSTANCES, MAX_RULES, MAX_EVENTS, PCIE_ERRORS = 18, 7, 32, 256, 11
ANY = 0xFFFFFFFF

# What an NVLink port counts, in the order of `enum sim_link_count`.
LINK_COUNTS = (
    "replay",
    "recovery",
    "crc_flit",
    "crc_data",
    "ecc_data",
    "malformed",
    "overrun",
    "receive",
    "remote",
    "general",
    "integrity",
    "discards",
    "recovered",
    "unrecovered",
    "effective",
    "symbol",
    "raw_lane0",
    "raw_lane1",
    "retries",
)

_u32, _u64, _i32, _double = c.c_uint32, c.c_uint64, c.c_int32, c.c_double


class SimProcess(c.Structure):
    _fields_ = (
        ("pid", _i32),
        ("kind", _u32),
        ("start_ticks", _u64),
        ("memory_bytes", _u64),
        ("instance", _u32),
        ("reserved", _u32),
    )


class SimLink(c.Structure):
    _fields_ = (
        ("down", _u32),
        ("remote_link", _u32),
        ("down_tx_bytes", _u64),
        ("down_rx_bytes", _u64),
        ("counts", _u64 * len(LINK_COUNTS)),
        ("rate", _double),
        ("rate_mask", _u64),
        ("rate_since_ns", _u64),
    )


class SimInstance(c.Structure):
    _fields_ = (
        ("uuid", c.c_char * 48),
        ("profile", c.c_char * 16),
        *(
            (name, _u32)
            for name in (
                "gpu_instance",
                "compute_instance",
                "slices",
                "memory_slices",
                "multiprocessors",
                "engines",
            )
        ),
        *(
            (name, _u64)
            for name in (
                "memory_bytes",
                "sram_uncorrected",
                "busy_ns",
                "sm_ns",
                "occupancy_ns",
                "tensor_ns",
                "fp32_ns",
                "dram_ns",
                "pcie_tx_bytes",
                "pcie_rx_bytes",
            )
        ),
    )


class SimDevice(c.Structure):
    _fields_ = (
        ("uuid", c.c_char * 48),
        ("serial", c.c_char * 32),
        *((name, _u32) for name in ("minor", "pci_domain", "pci_bus", "pci_device", "numa_node", "hca")),
        ("absent", _u32),
        ("hang", _u32),
        *((name, _double) for name in ("speed_factor", "clock_fraction", "heat_celsius")),
        ("throttle_reasons", _u64),
        ("throttle_since_ns", _u64),
        ("throttle_held_ns", _u64 * REASONS),
        *((name, _u32) for name in ("lost", "recovery_action", "pcie_generation", "pcie_width")),
        ("pcie_replays", _u64),
        ("pcie_recoveries", _u64),
        ("pcie_errors", _u64 * PCIE_ERRORS),
        ("pcie_counter_bits", _u32),
        ("gpm_blank", _u32),
        ("ecc_mode", _u32 * 2),
        ("ecc_dram", _u64 * 2),
        ("ecc_sram", _u64 * 2),
        ("ecc_dram_base", _u64 * 2),
        ("ecc_sram_base", _u64 * 2),
        ("ecc_rate", _double * 2),
        ("ecc_rate_since_ns", _u64),
        ("sram_threshold_exceeded", _u32),
        ("unrepairable_memory", _u32),
        ("remapped_rows", _u32 * 2),
        ("remap_pending", _u32),
        ("remap_failed", _u32),
        ("repair_pending", _u32 * 2),
        ("power_limit_mw", _u32),
        *(
            (f"fabric_{name}", _u32)
            for name in ("state", "status", "clique", "health_mask", "health_summary")
        ),
        ("memory_soft_limit", _u64),
        ("memory_hard_limit", _u64),
        ("idle_since_ns", _u64),
        ("mig_mode", _u32 * 2),
        ("instance_count", _u32),
        ("instance_generation", _u32),
        ("instances", SimInstance * MAX_INSTANCES),
        ("links", SimLink * MAX_LINKS),
        ("heartbeat_ns", _u64),
        ("busy_ns", _u64),
        ("compute_ns", _u64),
        ("collective_ns", _u64),
        ("transfer_ns", _u64),
        ("copy_ns", _u64),
        ("idle_ns", _u64),
        ("sm_ns", _u64),
        ("occupancy_ns", _u64),
        ("tensor_ns", _u64),
        ("fp32_ns", _u64),
        ("dram_ns", _u64),
        ("energy_uj", _u64),
        ("kernels", _u64),
        ("collectives", _u64),
        ("pcie_tx_bytes", _u64),
        ("pcie_rx_bytes", _u64),
        ("nvlink_tx_bytes", _u64),
        ("nvlink_rx_bytes", _u64),
        ("fabric_tx_bytes", _u64),
        ("fabric_rx_bytes", _u64),
        ("temperature_c", _double),
        *((name, _u32) for name in ("utilization_permille", "memory_permille", "power_mw", "reserved")),
        ("processes", SimProcess * MAX_PROCESSES),
    )


class SimProfile(c.Structure):
    _fields_ = (
        ("name", c.c_char * 64),
        *((name, c.c_char * 32) for name in ("driver", "vbios", "part_number", "inforom")),
        *(
            (name, _u32)
            for name in (
                "cuda_version",
                "architecture",
                "compute_major",
                "compute_minor",
                "cores",
                "multiprocessors",
                "gpm",
                "sm_clock_max_mhz",
                "sm_clock_idle_mhz",
                "memory_clock_mhz",
                "video_clock_max_mhz",
                "memory_bus_bits",
                "power_limit_mw",
                "power_min_mw",
                "power_idle_mw",
                "power_compute_mw",
                "power_collective_mw",
                "pcie_generation_max",
                "pcie_width_max",
                "pci_device_id",
                "pci_subsystem_id",
                "nvlink_links",
                "nvlink_version",
                "nvlink_mbps",
                "temperature_shutdown",
                "temperature_slowdown",
                "temperature_max",
                "temperature_memory_max",
                "tlimit",
                "remap_banks",
                "mig_slices",
                "fabric",
                "recovery_action",
                "power_average",
                "pcie_error_counters",
                "sram_status",
                "power_smoothing",
                "event_types",
                "reserved",
            )
        ),
        ("memory_bytes", _u64),
        ("bar1_bytes", _u64),
        *(
            (name, _double)
            for name in ("nvlink_bytes_per_second", "fabric_bytes_per_second", "pcie_bytes_per_second")
        ),
    )


class SimRule(c.Structure):
    _fields_ = (
        *((name, _u32) for name in ("kind", "device", "field", "scope")),
        ("code", _i32),
        ("reserved", _u32),
        ("value", _u64),
        ("call", c.c_char * 64),
    )


class SimEvent(c.Structure):
    _fields_ = (
        ("type", _u64),
        ("data", _u64),
        *((name, _u32) for name in ("device", "gpu_instance", "compute_instance", "reserved")),
    )


class SimNode(c.Structure):
    _fields_ = (
        ("magic", _u64),
        ("version", _u32),
        ("device_count", _u32),
        ("size", _u64),
        ("created_ns", _u64),
        ("name", c.c_char * 64),
        ("hang", _u32),
        ("hca_count", _u32),
        ("init_hang", _u32),
        ("init_code", _i32),
        ("session", _u64),
        ("event_count", _u64),
        ("events", SimEvent * MAX_EVENTS),
        ("rule_count", _u32),
        ("reserved", _u32),
        ("rules", SimRule * MAX_RULES),
        ("profile", SimProfile),
        ("devices", SimDevice * MAX_DEVICES),
    )


class SimRecipe(c.Structure):
    _fields_ = (("loss_drift", _double), ("nan_loss", _u32), ("reserved", _u32))


class SimRendezvous(c.Structure):
    _fields_ = (("attempt", _u64), ("id", c.c_uint8 * ID_BYTES))


class SimRank(c.Structure):
    _fields_ = (("pid", _i32), ("exit_request", _i32), ("step", _u64), ("step_ns", _u64))


class SimComm(c.Structure):
    _fields_ = (
        ("id", _u64),
        ("ranks", _u32),
        ("doorbell", _u32),
        ("joined", _u64),
        ("node", _u32 * MAX_RANKS),
        ("arrived", _u64 * MAX_RANKS),
        ("arrival_ns", (_u64 * ARRIVALS) * MAX_RANKS),
        ("sends", (_u32 * MAX_RANKS) * MAX_RANKS),
        ("receives", (_u32 * MAX_RANKS) * MAX_RANKS),
    )


class SimJob(c.Structure):
    _fields_ = (
        ("magic", _u64),
        ("version", _u32),
        ("world_size", _u32),
        ("size", _u64),
        ("next_comm", _u64),
        ("recipe", SimRecipe),
        ("rendezvous", SimRendezvous),
        ("ranks", SimRank * MAX_RANKS),
        ("comms", SimComm * MAX_COMMS),
    )


_Layout = TypeVar("_Layout", SimNode, SimJob)


def _map(path: Path, kind: type[_Layout], magic: int) -> tuple[_Layout, mmap.mmap]:
    try:
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size < c.sizeof(kind):
                raise LayoutError(f"{path}: {size} bytes, the layout has {c.sizeof(kind)}: create it again")
            memory = mmap.mmap(file.fileno(), c.sizeof(kind))
    except OSError as error:
        raise LayoutError(f"{path}: {error.strerror}: create the node or job first") from error
    state = kind.from_buffer(memory)
    if (state.magic, state.version, state.size) != (magic, LAYOUT_VERSION, c.sizeof(kind)):
        del state
        memory.close()
        raise LayoutError(f"{path}: another layout (expected version {LAYOUT_VERSION}): create it again")
    return state, memory


def _create(path: Path, kind: type[_Layout], magic: int) -> None:
    """Write a new file beside the old one and rename it: nobody ever maps half a header."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.truncate(c.sizeof(kind))
        file.write(struct.pack("<QIIQ", magic, LAYOUT_VERSION, 0, c.sizeof(kind)))
    os.replace(fresh, path)


class _Mapped:
    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.path = path
        self._memory = memory

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap. Structures taken from it must not be used afterwards."""
        self.__dict__.pop("state", None)
        try:
            self._memory.close()
        except BufferError:
            # Somebody still holds a structure of it; the mapping goes with the last of them.
            return


class Node(_Mapped):
    """A mapped ``devices.shm``; ``state`` is live.

    Raises:
        LayoutError: the file is missing or has another layout.
    """

    def __init__(self, path: Path) -> None:
        self.state, memory = _map(path, SimNode, NODE_MAGIC)
        super().__init__(path, memory)

    @staticmethod
    def create(path: Path) -> None:
        """An empty node; the caller fills in profile and devices."""
        _create(path, SimNode, NODE_MAGIC)


class Job(_Mapped):
    """A mapped ``job.shm``; ``state`` is live.

    Raises:
        LayoutError: the file is missing or has another layout.
    """

    def __init__(self, path: Path) -> None:
        self.state, memory = _map(path, SimJob, JOB_MAGIC)
        super().__init__(path, memory)

    @staticmethod
    def create(path: Path, world_size: int) -> None:
        """A job of ``world_size`` ranks without communicators and with a healthy recipe."""
        _create(path, SimJob, JOB_MAGIC)
        with Job(path) as job:
            job.state.world_size = world_size
