"""What the driver says of the devices at one reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = [
    "UP_REASONS", "Device", "DriverEvent", "HungCall", "Key", "NvmlReading", "address_of", "pci_address",
]  # fmt: skip

# The only values of `reason` on tocsin_gpu_up. The device: a call that does not return; the driver lost it;
# it was there and is not listed; the driver wants a reset; answers that cannot be; an error of its own.
# The way to it: rights, driver, library, versions that do not match, a container's access that was taken
# away, a reading that took too long, handles given back by `quiesce`.
UP_REASONS = (
    *("hung", "gpu_lost", "missing", "reset_required", "bad_data"),
    *("insufficient_power", "irq_issue", "corrupted_inforom", "unknown"),
    *("no_permission", "no_driver", "no_library", "unsupported", "version_mismatch", "access_lost"),
    *("timeout", "quiesced"),
)

# A quantity of the table and the values of its further labels.
Key = tuple[str, tuple[str, ...]]
Process = tuple[int, str, int | None, str]
Limit = tuple[int, int | None, int]


@dataclass(frozen=True, slots=True)
class Device:
    """
    One device at one reading.

    ``gauges`` and ``counters`` are keyed by (quantity, label values) in base units; what the
    device does not offer is absent. ``pids`` is None where the driver does not tell. ``info`` are further
    facts of its identity. ``processes`` are pid, kind, bytes of device memory (None: not told) and
    the cgroup where that has a memory limit; ``limits`` has soft limit, hard limit (None: none) and bytes in
    use of each such cgroup. ``denied`` are quantities that the driver keeps from this user. A MIG instance
    has ``mig`` and its board's ``gpu``.
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
    info: Mapping[str, str] = field(default_factory=dict)
    processes: tuple[Process, ...] = ()
    limits: Mapping[str, Limit] = field(default_factory=dict)
    denied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """All devices of one cycle; ``wall`` is when it ended, as a Unix time."""

    wall: float
    devices: tuple[Device, ...]
    driver_version: str = ""
    cuda_version: str = ""


@dataclass(frozen=True, slots=True)
class HungCall:
    """
    A driver call that did not return, *seconds* ago, and whose device has not answered since.

    ``gpu`` and ``uuid`` are empty for a call that belongs to no device.
    """

    gpu: str
    uuid: str
    call: str
    seconds: float


@dataclass(frozen=True, slots=True)
class DriverEvent:
    """
    One event that the driver reported by itself.

    ``type`` is one of `driver_events.EVENT_TYPES` (``xid``, ``mig_config``, …) or the number of another in
    hexadecimal; ``code`` is the event's data, the Xid for ``xid``; ``wall`` is when it arrived, as a
    Unix time. ``gpu`` is empty where the driver did not name a device, ``mig`` where it named no instance.
    """

    gpu: str
    uuid: str
    mig: str
    type: str
    code: int
    wall: float


def address_of(devices: Iterable[Device], uuid: str, index: str) -> str:
    """Return the PCI address of the device with *uuid*, without one of that at *index*; "" if unknown."""
    for device in devices:
        if device.pci and (device.uuid == uuid if uuid else device.gpu == index and not device.mig):
            return device.pci
    return ""


def pci_address(text: str) -> str:
    """Return *text* as ``dddd:bb:dd.f`` in lower case with a domain of four digits, or as it is."""
    parts = text.strip().lower().split(":")
    if len(parts) == 2:
        parts.insert(0, "0000")
    if len(parts) != 3:
        return text.strip().lower()
    domain = parts[0].lstrip("0").rjust(4, "0")
    return f"{domain}:{parts[1]}:{parts[2]}" + ("" if "." in parts[2] else ".0")
