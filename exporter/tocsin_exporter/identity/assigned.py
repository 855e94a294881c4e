"""Which devices the allocator gave to a job, used or not; no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tocsin_exporter.identity.rules import Facts, Verdict, device_indices

__all__ = ["Assignment", "assigned_devices"]

_INDEX = re.compile(r"^\d{1,4}$")
_UUID = re.compile(r"^GPU-[0-9a-fA-F-]{4,40}$")
_MIG = re.compile(r"^MIG-(?:GPU-[0-9a-fA-F-]{4,40}/\d{1,3}/\d{1,3}|[0-9a-fA-F-]{4,40})$")
_MOST = 64
_SLURM_LISTS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


@dataclass(frozen=True, slots=True)
class Assignment:
    """
    Devices that a job's process was given.

    ``rank`` is "" unless they were given to that rank alone. ``devices`` are NVML indices as text, UUIDs
    (also their beginnings, as CUDA takes them), MIG UUIDs in either of their forms, or ``minor:<n>`` for the
    number of a device file, which is what Slurm counts by.
    """

    pid: int
    start_ticks: int
    start_time: float
    job_id: str
    rank: str
    devices: tuple[str, ...]


def assigned_devices(facts: Facts, verdict: Verdict, by_uuid: Mapping[str, int]) -> tuple[str, ...]:
    """
    Return the devices in the environment of a process of a job, or none when they cannot be known.

    What CUDA was told is nearest to the truth, then Slurm's list, then the container runtime's. Where a
    number may count only the devices inside a container or a cgroup it names none: a wrong device is worse
    than none.
    """
    visible = verdict.visible
    if visible and all(_named(entry) for entry in visible):
        return visible
    if visible:
        found = device_indices(visible, facts.environ, verdict.allocator, by_uuid)
        slurm = verdict.allocator == "slurm" and any(name in facts.environ for name in _SLURM_LISTS)
        return tuple(f"minor:{index}" if slurm else str(index) for index in found)
    if "CUDA_VISIBLE_DEVICES" in facts.environ:
        # Set to nothing, or shared among ranks in a way that only the driver knows.
        return ()
    if verdict.allocator == "slurm":
        for name in _SLURM_LISTS:
            entries = _entries(facts.environ.get(name, ""))
            if entries:
                numbered = all(_INDEX.match(entry) for entry in entries)
                return tuple(f"minor:{int(entry)}" for entry in entries) if numbered else ()
    entries = _entries(facts.environ.get("NVIDIA_VISIBLE_DEVICES", ""))
    # Numbers and "all" stand in images and templates too; a UUID is written by who allocates.
    return entries if entries and all(_named(entry) for entry in entries) else ()


def _entries(value: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in value[:4096].split(",")[:_MOST] if entry.strip())


def _named(entry: str) -> bool:
    return bool(_UUID.match(entry) or _MIG.match(entry))
