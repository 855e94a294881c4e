"""Device series (stable through all owners) and job series (what happened while a job held the device)."""

from __future__ import annotations

from tocsin_exporter.metrics.family import DEVICE, JOB_DEVICE, Family, Kind, Tier

__all__ = ["FAMILIES"]

# (what, kind, further labels, unit, help, also as a job series)
_ROWS: tuple[tuple[str, Kind, tuple[str, ...], str, str, bool], ...] = (
    ("utilization_ratio", Kind.GAUGE, (), "ratio", "Share of the last sample period in which a kernel ran (NVML utilization).", True),
    ("sm_active_ratio", Kind.GAUGE, (), "ratio", "Share of SM cycles with a resident warp since the previous collection (GPM, Hopper and newer).", True),
    ("sm_occupancy_ratio", Kind.GAUGE, (), "ratio", "Resident warps over the maximum since the previous collection (GPM).", False),
    ("tensor_active_ratio", Kind.GAUGE, (), "ratio", "Share of cycles with a busy tensor pipe since the previous collection (GPM).", True),
    ("dram_active_ratio", Kind.GAUGE, (), "ratio", "Share of the device memory bandwidth used since the previous collection (GPM).", True),
    ("memory_total_bytes", Kind.GAUGE, (), "bytes", "Device memory.", False),
    ("memory_used_bytes", Kind.GAUGE, (), "bytes", "Device memory in use.", True),
    ("sm_clock_hertz", Kind.GAUGE, (), "hertz", "Current SM clock.", True),
    ("sm_clock_max_hertz", Kind.GAUGE, (), "hertz", "Highest SM clock of this device.", True),
    ("memory_clock_hertz", Kind.GAUGE, (), "hertz", "Current memory clock.", False),
    ("power_watts", Kind.GAUGE, (), "watts", "Board power draw.", True),
    ("power_limit_watts", Kind.GAUGE, (), "watts", "Enforced power limit.", False),
    ("energy_joules_total", Kind.COUNTER, (), "joules", "Energy since the driver was loaded; on job series since the job holds the device.", True),
    ("temperature_celsius", Kind.GAUGE, (), "celsius", "Core temperature.", True),
    ("memory_temperature_celsius", Kind.GAUGE, (), "celsius", "Memory temperature.", False),
    ("throttle_active", Kind.GAUGE, ("reason",), "", "1 while the clock is held down for this reason.", True),
    ("throttle_seconds_total", Kind.COUNTER, ("reason",), "seconds", "Time for which the clock was held down for this reason, seen at collection.", True),
    ("ecc_errors_total", Kind.COUNTER, ("severity", "memory"), "", "ECC errors by severity (corrected, uncorrected) and memory (dram, sram); lifetime counts of the board.", True),
    ("row_remaps_total", Kind.COUNTER, ("severity",), "", "Memory rows remapped, by severity of the cause; lifetime counts of the board.", True),
    ("row_remap_pending", Kind.GAUGE, (), "", "1 when a remap waits for a reset.", True),
    ("row_remap_failed", Kind.GAUGE, (), "", "1 when a remap failed.", True),
    ("xid_errors_total", Kind.COUNTER, ("class",), "", "Xid events of the kernel log, by class.", True),
    ("event_timestamp_seconds", Kind.GAUGE, ("class",), "seconds", "Kernel time of the last event of this class.", True),
    ("pcie_link_generation", Kind.GAUGE, (), "", "Current PCIe generation.", True),
    ("pcie_link_generation_max", Kind.GAUGE, (), "", "Highest PCIe generation of device and slot.", True),
    ("pcie_link_width", Kind.GAUGE, (), "", "Current PCIe lanes.", True),
    ("pcie_link_width_max", Kind.GAUGE, (), "", "Most PCIe lanes of device and slot.", True),
    ("pcie_replays_total", Kind.COUNTER, (), "", "PCIe replays.", True),
)

_DEVICE_ONLY = (
    Family(
        "tocsin_gpu_info",
        Kind.GAUGE,
        (*DEVICE, "model", "pci", "driver_version", "cuda_version", "vbios"),
        "",
        "Always 1: what the device is.",
    ),
    Family(
        "tocsin_gpu_up",
        Kind.GAUGE,
        (*DEVICE, "reason"),
        "",
        "1 when the driver answers for this device; 0 with the reason otherwise.",
    ),
    Family(
        "tocsin_gpu_owner",
        Kind.GAUGE,
        JOB_DEVICE,
        "",
        "Always 1, one row per holder: this job (and rank, where one rank holds it) has the device.",
    ),
    Family("tocsin_gpu_processes", Kind.GAUGE, DEVICE, "", "Compute processes the driver lists on the device."),
    Family(
        "tocsin_gpu_xid_code_errors_total",
        Kind.COUNTER,
        (*DEVICE, "code"),
        "",
        "Xid events of the kernel log, by exact code; present from a code's first event.",
    ),
)


def _families() -> tuple[Family, ...]:
    rows: list[Family] = list(_DEVICE_ONLY)
    for what, kind, more, unit, text, held in _ROWS:
        rows.append(Family(f"tocsin_gpu_{what}", kind, (*DEVICE, *more), unit, text, Tier.CORE))
        if held:
            rows.append(
                Family(f"tocsin_job_gpu_{what}", kind, (*JOB_DEVICE, *more), unit, f"While the job holds the device. {text}")
            )
    return tuple(rows)


FAMILIES = _families()
