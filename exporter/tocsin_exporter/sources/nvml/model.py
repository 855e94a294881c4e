"""What the driver says of the devices at one reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Device", "Key", "NvmlReading", "pci_address"]

# A quantity of the table and the values of its further labels.
Key = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Device:
    """
    One device at one reading.

    ``gauges`` and ``counters`` are keyed by (quantity, label values) in base units; what the
    device does not offer is absent. ``pids`` is None where the driver does not tell.
    """

    gpu: str
    uuid: str
    model: str = ""
    pci: str = ""
    vbios: str = ""
    mig: str = ""
    up: bool = True
    reason: str = ""
    gauges: Mapping[Key, float] = field(default_factory=dict)
    counters: Mapping[Key, float] = field(default_factory=dict)
    pids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """All devices of one cycle; ``wall`` is when it ended, as a Unix time."""

    wall: float
    devices: tuple[Device, ...]
    driver_version: str = ""
    cuda_version: str = ""


def pci_address(text: str) -> str:
    """Return *text* as ``dddd:bb:dd.f`` in lower case with a domain of four digits, or as it is."""
    parts = text.strip().lower().split(":")
    if len(parts) == 2:
        parts.insert(0, "0000")
    if len(parts) != 3:
        return text.strip().lower()
    domain = parts[0].lstrip("0").rjust(4, "0")
    return f"{domain}:{parts[1]}:{parts[2]}" + ("" if "." in parts[2] else ".0")
