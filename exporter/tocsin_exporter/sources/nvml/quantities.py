"""
The quantities of a device: what each is called, what it is, and where it is told again per holder.

The one table of the driver's side: the child reads by it, the source tells counters from gauges by it,
and the metric table is built from it. It is imported in the child, so it needs nothing but the standard library.
"""

from __future__ import annotations

from collections import namedtuple

__all__ = ["CORE", "DEEP", "FABRIC", "QUANTITIES", "Quantity"]

CORE, FABRIC, DEEP = "core", "fabric", "deep"


class Quantity(namedtuple("Quantity", "name counter labels unit help tier held event timed", defaults=(False, ""))):
    """
    One quantity, exposed as ``tocsin_gpu_<name>``; ``held`` ones also as ``tocsin_job_gpu_<name>``.

    ``labels`` are those after the device's own. ``unit`` is a base unit or empty. ``event`` counters count
    things that happened: a holder's count of them outlives restarts of the exporter and, for a while, the
    holder. The other counters are amounts and times, which may start anew. ``timed`` is the class under which
    the time of the last event is told, with a label's name in braces where the label's value is part of it.
    """

    __slots__ = ()


_ROWS = (
    Quantity("utilization_ratio", False, (), "ratio", "Share of the last sample period in which a kernel ran (NVML utilization).", CORE, True),
    Quantity("sm_active_ratio", False, (), "ratio", "Share of SM cycles with a resident warp since the previous collection (GPM, Hopper and newer).", CORE, True),
    Quantity("sm_occupancy_ratio", False, (), "ratio", "Resident warps over the maximum since the previous collection (GPM).", CORE, False),
    Quantity("tensor_active_ratio", False, (), "ratio", "Share of cycles with a busy tensor pipe since the previous collection (GPM).", CORE, True),
    Quantity("dram_active_ratio", False, (), "ratio", "Share of the device memory bandwidth used since the previous collection (GPM).", CORE, True),
    Quantity("memory_total_bytes", False, (), "bytes", "Device memory.", CORE, False),
    Quantity("memory_used_bytes", False, (), "bytes", "Device memory in use.", CORE, True),
    Quantity("sm_clock_hertz", False, (), "hertz", "Current SM clock.", CORE, True),
    Quantity("sm_clock_max_hertz", False, (), "hertz", "Highest SM clock of this device.", CORE, True),
    Quantity("memory_clock_hertz", False, (), "hertz", "Current memory clock.", CORE, False),
    Quantity("power_watts", False, (), "watts", "Board power draw.", CORE, True),
    Quantity("power_limit_watts", False, (), "watts", "Enforced power limit.", CORE, False),
    Quantity("energy_joules_total", True, (), "joules", "Energy since the driver was loaded; on job series since the job holds the device.", CORE, True),
    Quantity("temperature_celsius", False, (), "celsius", "Core temperature.", CORE, True),
    Quantity("memory_temperature_celsius", False, (), "celsius", "Memory temperature.", CORE, False),
    Quantity("throttle_active", False, ("reason",), "", "1 while the clock is held down for this reason.", CORE, True),
    Quantity("throttle_seconds_total", True, ("reason",), "seconds", "Time for which the clock was held down for this reason, seen at collection.", CORE, True),
    Quantity("ecc_errors_total", True, ("severity", "memory"), "", "ECC errors by severity (corrected, uncorrected) and memory (dram, sram); lifetime counts of the board.", CORE, True, event=True, timed="ecc_{severity}"),
    Quantity("row_remaps_total", True, ("severity",), "", "Memory rows remapped, by severity of the cause; lifetime counts of the board.", CORE, True, event=True, timed="row_remap"),
    Quantity("row_remap_pending", False, (), "", "1 when a remap waits for a reset.", CORE, True),
    Quantity("row_remap_failed", False, (), "", "1 when a remap failed.", CORE, True),
    Quantity("pcie_link_generation", False, (), "", "Current PCIe generation.", CORE, True),
    Quantity("pcie_link_generation_max", False, (), "", "Highest PCIe generation of device and slot.", CORE, True),
    Quantity("pcie_link_width", False, (), "", "Current PCIe lanes.", CORE, True),
    Quantity("pcie_link_width_max", False, (), "", "Most PCIe lanes of device and slot.", CORE, True),
    Quantity("pcie_replays_total", True, (), "", "PCIe replays.", CORE, True, event=True),
)

QUANTITIES = {row.name: row for row in _ROWS}
