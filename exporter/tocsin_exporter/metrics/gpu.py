"""Device series (stable through all owners) and job series (what happened while a job held the device)."""

from __future__ import annotations

from tocsin_exporter.metrics.family import DEVICE, JOB_DEVICE, Family, Kind, Tier
from tocsin_exporter.sources.nvml.quantities import CORE, QUANTITIES, Quantity

__all__ = ["FAMILIES", "HARDWARE"]

# Facts of a device's identity that are no labels of its other series.
HARDWARE = (
    *("serial", "part_number", "architecture", "compute_capability", "inforom", "gsp", "nvml"),
    *("minor", "module", "chassis", "slot", "tray", "host"),
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
        "tocsin_gpu_hardware_info",
        Kind.GAUGE,
        (*DEVICE, *HARDWARE),
        "",
        "Always 1: numbers and versions of the board, and where it sits in a rack-scale system.",
        Tier.FABRIC,
    ),
    Family(
        "tocsin_gpu_mig_info",
        Kind.GAUGE,
        (*DEVICE, "profile"),
        "",
        "Always 1: what the MIG instance is, as NVIDIA names it.",
        Tier.FABRIC,
    ),
    Family(
        "tocsin_gpu_up",
        Kind.GAUGE,
        (*DEVICE, "reason"),
        "",
        "1 when the driver answers for this device; 0 with the reason otherwise.",
    ),
    Family(
        "tocsin_gpu_hung_call_seconds",
        Kind.GAUGE,
        (*DEVICE, "call"),
        "seconds",
        "Age of the driver call that did not return, until its device answers again; without `gpu` for a call of no device.",
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
        "Xid events of kernel log and driver, by exact code; present from a code's first event.",
    ),
    Family(
        "tocsin_gpu_xid_followups_total",
        Kind.COUNTER,
        (*DEVICE, "code", "caused_by"),
        "",
        "Those of them that only follow from an earlier Xid of the device within 30 s, with that one's code.",
    ),
)


# Told per device and per holder, from the event stream rather than from a reading.
_EVENTS = (
    Quantity("xid_errors_total", True, ("class",), "", "Xid events of kernel log and driver, by class.", CORE, True),
    Quantity("event_timestamp_seconds", False, ("class",), "seconds", "Kernel time of the last event of this class.", CORE, True),
)


def _families() -> tuple[Family, ...]:
    rows: list[Family] = list(_DEVICE_ONLY)
    for row in (*QUANTITIES.values(), *_EVENTS):
        kind, tier = Kind.COUNTER if row.counter else Kind.GAUGE, Tier(row.tier)
        told = f"{row.help} Source: {row.source}." if row.source else row.help
        rows.append(Family(f"tocsin_gpu_{row.name}", kind, (*DEVICE, *row.labels), row.unit, told, tier))
        if row.held:
            rows.append(
                Family(
                    f"tocsin_job_gpu_{row.name}",
                    kind,
                    (*JOB_DEVICE, *row.labels),
                    row.unit,
                    f"While the job holds the device. {row.help}",
                    tier,
                )
            )
    return tuple(rows)


FAMILIES = _families()
