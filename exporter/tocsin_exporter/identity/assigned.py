"""Which devices the allocator gave to a process or its job, used or not; no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin_exporter.identity.gres import GpuFiles
from tocsin_exporter.identity.rules import Facts, Verdict

__all__ = ["Assignment", "DeviceMap", "assigned_devices", "own_devices"]

_INDEX = re.compile(r"^\d{1,4}$")
_UUID = re.compile(r"^GPU-[0-9a-fA-F-]{4,40}$")
_MIG = re.compile(r"^MIG-(?:GPU-[0-9a-fA-F-]{4,40}/\d{1,3}/\d{1,3}|[0-9a-fA-F-]{4,40})$")
_MOST = 64


@dataclass(frozen=True, slots=True)
class Assignment:
    """
    Devices that a job's process was given.

    ``rank`` is "" unless they were given to that rank alone. ``devices`` are NVML indices as text, UUIDs
    (also their beginnings, as CUDA takes them), MIG UUIDs in either of their forms, or ``minor:<n>`` for the
    number of a device file.
    """

    pid: int
    start_ticks: int
    start_time: float
    job_id: str
    rank: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """
    What the names of devices stand for on this machine.

    ``by_uuid`` and ``by_minor`` give NVML indices, both empty before the driver answered. ``files`` are the
    GPU device files of each Slurm node here (see `gres.gpu_minors`); ``daemons`` is how many of Slurm's run
    on this machine.
    """

    by_uuid: Mapping[str, int] = field(default_factory=dict)
    by_minor: Mapping[int, int] = field(default_factory=dict)
    files: Mapping[str, GpuFiles | None] = field(default_factory=dict)
    daemons: int = 0

    def slurm_files(self, node: str) -> GpuFiles | None:
        """Return the minors behind Slurm's indices on *node*, None where they are open."""
        files = self.files.get(node)
        if files != ():
            return files
        # Detected devices are counted by minor or as the driver counts them: certain where that is the same.
        everyone = tuple(range(len(self.by_minor)))
        alone = self.daemons == 1 and all(self.by_minor.get(number) == number for number in everyone)
        return everyone if alone and everyone else None

    def indices(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the NVML indices of whole devices by the *names* of `Assignment`, less unknown ones."""
        found: list[int] = []
        for name in names:
            if name.isdigit():
                found.append(int(name))
            elif name.startswith("minor:"):
                found += [self.by_minor[minor]] if (minor := int(name[6:])) in self.by_minor else []
            elif name.startswith("GPU-"):
                hits = [index for uuid, index in self.by_uuid.items() if uuid.startswith(name)]
                found += hits if len(hits) == 1 else []
        return tuple(dict.fromkeys(found))


def assigned_devices(facts: Facts, verdict: Verdict, gres: GpuFiles | None) -> tuple[str, ...]:
    """
    Return the devices in the environment of a process of a job, or none when they cannot be known.

    What CUDA was told is nearest to the truth, then Slurm's list, then the container runtime's. *gres* are
    the device files behind Slurm's indices on the process's node, None where that is open. Where a number
    may count only the devices inside a container or a cgroup it names none: a wrong device is worse than
    none.
    """
    if "CUDA_VISIBLE_DEVICES" in facts.environ:
        # Set to nothing, or shared among ranks in a way that only the driver knows: then it is empty.
        return own_devices(facts, verdict, gres)
    if verdict.allocator == "slurm" and (listed := _slurm_list(facts.environ, verdict.step)):
        return _files(listed, gres)
    entries = _entries(facts.environ.get("NVIDIA_VISIBLE_DEVICES", ""))
    # Numbers and "all" stand in images and templates too; a UUID is written by who allocates.
    return entries if entries and all(_named(entry) for entry in entries) else ()


def own_devices(facts: Facts, verdict: Verdict, gres: GpuFiles | None) -> tuple[str, ...]:
    """Return the devices that CUDA shows to this very process, named as in `Assignment`."""
    visible, env = verdict.visible, facts.environ
    if not visible or all(_named(entry) for entry in visible):
        return visible
    if not all(_INDEX.match(entry) for entry in visible):
        return ()
    numbers = tuple(int(entry) for entry in visible)
    if verdict.allocator == "k8s":
        given = _entries(env.get("NVIDIA_VISIBLE_DEVICES", ""))
        if given == ("all",):
            return tuple(str(number) for number in numbers)
        known = given and all(_named(entry) for entry in given) and max(numbers) < len(given)
        return tuple(given[number] for number in numbers) if known else ()
    if verdict.allocator != "slurm" or not any(name in env for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")):
        return tuple(str(number) for number in numbers)
    return _files(_within(numbers, _slurm_list(env, verdict.step)), gres)


def _within(numbers: tuple[int, ...], listed: tuple[int, ...]) -> tuple[int, ...]:
    """Return Slurm's indices for CUDA's: places in Slurm's list under a device cgroup, else its entries."""
    local = tuple(listed[number] for number in numbers) if max(numbers) < len(listed) else ()
    plain = numbers if set(numbers) <= set(listed) else ()
    if local and plain:
        return local if local == plain else ()
    return local or plain


def _slurm_list(env: Mapping[str, str], step: str) -> tuple[int, ...]:
    """
    Return the node's GPUs, by Slurm's index, that the job or the step has here; empty when that is open.

    SLURM_JOB_GPUS of a batch script comes along into its steps on *other* nodes. A task that is bound to
    GPUs of its own has SLURM_STEP_GPUS counted anew from 0 where a device cgroup stands around it.
    """
    job, own = _indices(env.get("SLURM_JOB_GPUS", "")), _indices(env.get("SLURM_STEP_GPUS", ""))
    alone = env.get("SLURM_JOB_NUM_NODES", env.get("SLURM_NNODES", "")) == "1" and "SLURM_HET_SIZE" not in env
    if not (step in ("batch", "extern", "interactive") or (not step and not own) or alone):
        job = ()
    if not own:
        return job
    if "gpu:" not in env.get("SLURMD_TRES_BIND", "") or own != tuple(range(len(own))):
        return own
    return job if len(job) == len(own) else ()


def _files(indices: tuple[int, ...], gres: GpuFiles | None) -> tuple[str, ...]:
    if gres is None or not indices or max(indices) >= len(gres):
        return ()
    return tuple(f"minor:{gres[index]}" for index in indices)


def _indices(value: str) -> tuple[int, ...]:
    entries = _entries(value)
    return tuple(int(entry) for entry in entries) if all(_INDEX.match(entry) for entry in entries) else ()


def _entries(value: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in value[:4096].split(",")[:_MOST] if entry.strip())


def _named(entry: str) -> bool:
    return bool(_UUID.match(entry) or _MIG.match(entry))
