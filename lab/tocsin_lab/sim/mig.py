"""MIG: cuts a simulated GPU into instances, as ``nvidia-smi mig -cgi … -C`` does."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from tocsin_lab.errors import TargetError
from tocsin_lab.sim.profiles import MIG_PROFILES, PROFILES, MigProfile

__all__ = ["configure", "fitting"]

_NAMESPACE = uuid.UUID("b7d0a5c4-2f5e-5d0b-8a30-6d2f4c1b9e11")
_SLICES, _MEMORY_SLICES = 7, 8
# The driver numbers GPU instances by the place of their profile in its tree.
_FIRST_ID = {7: 0, 4: 1, 3: 1, 2: 3, 1: 7}


def fitting(gpu_model: str, profiles: Sequence[str]) -> tuple[MigProfile, ...]:
    """The profiles by name.

    Raises:
        TargetError: the model has no such profile, or they do not fit on one GPU together.
    """
    known = MIG_PROFILES[gpu_model]
    for name in profiles:
        if name not in known:
            offered = ", ".join(known) or "none: it has no MIG"
            raise TargetError(f"MIG profile {name!r}: {gpu_model} has {offered}")
    found = tuple(known[name] for name in profiles)
    if sum(one.slices for one in found) > _SLICES or sum(one.memory_slices for one in found) > _MEMORY_SLICES:
        raise TargetError(
            f"MIG profiles {', '.join(profiles)}: a GPU has {_SLICES} slices and {_MEMORY_SLICES} of memory"
        )
    return found


def configure(device: Any, gpu_model: str, profiles: Sequence[str]) -> None:
    """Give the device these instances; none turns MIG mode off. Handles and UUIDs of the old ones are void.

    Raises:
        TargetError: they do not fit.
    """
    found = fitting(gpu_model, profiles)
    device.instance_count = 0
    device.instance_generation += 1
    total = PROFILES[gpu_model].memory_bytes
    taken: set[int] = set()
    for at, (name, profile) in enumerate(zip(profiles, found, strict=True)):
        number = _FIRST_ID[profile.slices]
        while number in taken:
            number += 1
        taken.add(number)
        seed = f"{device.uuid.decode()}/{device.instance_generation}/{at}"
        instance = device.instances[at]
        instance.uuid = f"MIG-{uuid.uuid5(_NAMESPACE, seed)}".encode()
        instance.profile = name.encode()
        instance.gpu_instance, instance.compute_instance = number, 0
        instance.slices, instance.memory_slices = profile.slices, profile.memory_slices
        instance.multiprocessors, instance.engines = profile.multiprocessors, profile.engines
        # About 1 % less than its share, as the driver keeps a part: what the profile's name rounds to.
        instance.memory_bytes = (total * profile.memory_slices // 8 * 99 // 100) >> 20 << 20
        for account in (
            "sram_uncorrected",
            "busy_ns",
            "sm_ns",
            "occupancy_ns",
            "tensor_ns",
            "fp32_ns",
            "dram_ns",
            "pcie_tx_bytes",
            "pcie_rx_bytes",
        ):
            setattr(instance, account, 0)
        del instance
    device.instance_count = len(found)
    device.mig_mode[0] = device.mig_mode[1] = int(bool(found))
