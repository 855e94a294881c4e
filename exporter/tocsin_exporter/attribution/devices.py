"""The devices of the node by UUID, what the kernel log said of them, and what their counters last showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tocsin_exporter.attribution.holding import LINGER_SECONDS, Key, Meter, counts, number, text, times
from tocsin_exporter.attribution.table import FOLLOWED
from tocsin_exporter.kmsg.xid_classes import CLASSES
from tocsin_exporter.sources.nvml.model import Device

__all__ = ["DeviceLog", "Devices", "Entry", "subject_of"]

_MOST_CODES = 256
_MOST_DEVICES = 512
# Addresses that the log names and the driver does not list.
_MOST_STRANGERS = 64
# A MIG instance that was taken apart, or a board that was taken out.
_FORGET_SECONDS = 3600.0
# How often a device is read is not known before its second reading.
_LONGEST_PACE = 60.0


@dataclass(slots=True)
class DeviceLog:
    """Kernel events of one GPU: Xids by class and by exact code, the last time (Unix) of each class."""

    xid: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0))
    codes: dict[int, int] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)

    def note(self, kind: str, when: float) -> None:
        """Keep the time of an event of class *kind*."""
        self.times[kind] = max(self.times.get(kind, 0.0), when)

    def count(self, kind: str, code: int, number_of: int) -> None:
        """Count Xids."""
        self.xid[kind] = self.xid.get(kind, 0) + number_of
        if code in self.codes or len(self.codes) < _MOST_CODES:
            self.codes[code] = self.codes.get(code, 0) + number_of

    def merge(self, other: DeviceLog) -> None:
        """Add what was counted before the device was known."""
        for kind, count in other.xid.items():
            self.xid[kind] = self.xid.get(kind, 0) + count
        for code, count in other.codes.items():
            self.codes[code] = self.codes.get(code, 0) + count
        for kind, when in other.times.items():
            self.note(kind, when)

    def to_json(self) -> dict[str, Any]:
        """Return what must survive a restart."""
        return {
            "xid": {kind: count for kind, count in self.xid.items() if count},
            "codes": {str(code): count for code, count in self.codes.items()},
            "times": dict(self.times),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> DeviceLog:
        """Rebuild what `to_json` gave."""
        codes = {int(code): int(number(count)) for code, count in list(raw["codes"].items())[:_MOST_CODES]}
        return cls(counts(raw["xid"]), codes, times(raw["times"]))


@dataclass(slots=True)
class Entry:
    """
    One GPU, or one MIG instance of one (``mig`` is then not empty).

    ``read`` is the steady time of the last reading, None where nobody looked since a restart, ``before`` that
    of the one before; ``listed`` that of the last one in which the driver told the processes. ``blind``:
    nobody looked for long before the last reading.
    """

    gpu: str
    uuid: str
    mig: str
    pci: str
    log: DeviceLog = field(default_factory=DeviceLog)
    meter: Meter = field(default_factory=Meter)
    read: float | None = None
    listed: float | None = None
    seen: float = 0.0
    pace: float = _LONGEST_PACE
    before: float | None = None
    blind: bool = False

    def look(self, now: float) -> None:
        """Note that the device answers now, and whether nobody looked for much longer than usual before."""
        self.before, self.read = self.read, now
        passed = now - self.before if self.before is not None else None
        self.blind = passed is None or passed > max(LINGER_SECONDS, 2.5 * self.pace)
        if passed is not None and not self.blind:
            self.pace = passed

    @property
    def subject(self) -> str:
        """The key of its holders."""
        return f"{self.uuid}|{self.mig}" if self.mig else self.uuid


def subject_of(device: Device) -> str:
    """Return the key of a device's holders."""
    return f"{device.uuid}|{device.mig}" if device.mig else device.uuid


class Devices:
    """
    Devices by UUID: neither an index nor a PCI address is one for good. A lost GPU renumbers the others, a
    replaced board sits at the address of the one before it.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        # The whole GPU at each address now, which is what the kernel log knows.
        self._at: dict[str, str] = {}
        self._strangers: dict[str, DeviceLog] = {}

    def place(self, device: Device, now: float) -> Entry | None:
        """Take a device's identity in; None where it has none or there are too many."""
        if not device.uuid:
            return None
        subject = subject_of(device)
        entry = self.entries.get(subject)
        pci = device.pci or self._address_of(device)
        if entry is None:
            if len(self.entries) >= _MOST_DEVICES:
                return None
            entry = self.entries[subject] = Entry(device.gpu, device.uuid, device.mig, pci)
        entry.gpu, entry.seen = device.gpu, now
        entry.pci = pci or entry.pci
        if not device.mig and pci:
            # Counts of the board that sat here before stay with that board.
            self._at[pci] = subject
            if (before := self._strangers.pop(pci, None)) is not None:
                entry.log.merge(before)
        return entry

    def _address_of(self, instance: Device) -> str:
        whole = (self.entries[subject] for subject in self._at.values())
        return next((entry.pci for entry in whole if entry.gpu == instance.gpu), "") if instance.mig else ""

    def whole_at(self, address: str) -> Entry | None:
        """Return the GPU at *address*."""
        subject = self._at.get(address)
        return self.entries[subject] if subject is not None else None

    def parts_at(self, address: str, instance: str) -> tuple[Entry, ...]:
        """
        Return what an event at *address* concerns: everything on the GPU, or with *instance* (``gi`` or
        ``gi/ci``) that MIG instance; the GPU itself where the instance is not known.
        """
        whole = self.whole_at(address)
        if whole is None:
            return ()
        parts = [entry for entry in self.entries.values() if entry.mig and entry.pci == address]
        if not instance:
            return (whole, *parts)
        named = tuple(
            entry for entry in parts if entry.mig == instance or entry.mig.split("/")[0] == instance
        )
        return named or (whole,)

    def instances_of(self, whole: Entry) -> tuple[Entry, ...]:
        """Return the MIG instances of a GPU."""
        if whole.mig or not whole.pci:
            return ()
        return tuple(entry for entry in self.entries.values() if entry.mig and entry.pci == whole.pci)

    def log_at(self, address: str) -> DeviceLog | None:
        """Return the log of the GPU at *address*, known or not; None where too many are unknown."""
        whole = self.whole_at(address)
        if whole is not None:
            return whole.log
        if address not in self._strangers and len(self._strangers) >= _MOST_STRANGERS:
            return None
        return self._strangers.setdefault(address, DeviceLog())

    def gains(self, entry: Entry, counters: Mapping[Key, float]) -> tuple[dict[Key, float], dict[Key, float]]:
        """Return what a device's counters of events and its amounts grew by since the reading before."""
        return entry.meter.gains(counters, FOLLOWED)

    def whole(self) -> list[Entry]:
        """Return the GPUs, lost ones included, but none whose place another board has taken."""
        return [
            entry
            for subject, entry in self.entries.items()
            if not entry.mig and self._at.get(entry.pci, subject) == subject
        ]

    def forget(self, now: float, held: set[str]) -> bool:
        """Drop what is no longer there, has no holder, and has made place for another."""
        here = set(self._at.values())
        gone = [
            subject
            for subject, entry in self.entries.items()
            if subject not in here and subject not in held and now - entry.seen > _FORGET_SECONDS
        ]
        for subject in gone:
            del self.entries[subject]
        return bool(gone)

    def to_json(self) -> dict[str, Any]:
        """Return what must survive a restart."""
        return {
            "known": [
                {
                    "gpu": entry.gpu, "uuid": entry.uuid, "mig": entry.mig, "pci": entry.pci,
                    "here": self._at.get(entry.pci) == subject,
                    "log": entry.log.to_json(), "raw": entry.meter.to_json(FOLLOWED),
                }
                for subject, entry in self.entries.items()
            ],
            "strangers": {address: log.to_json() for address, log in self._strangers.items()},
        }  # fmt: skip

    def restore(self, raw: Mapping[str, Any], now: float, *, same_boot: bool) -> None:
        """
        Take in what `to_json` gave; KeyError, TypeError or ValueError for anything else.

        Over a reboot boards may have changed places: the addresses count when the driver has told them.
        """
        for row in raw["known"][:_MOST_DEVICES]:
            entry = Entry(
                gpu=text(row["gpu"]),
                uuid=text(row["uuid"]),
                mig=text(row["mig"]),
                pci=text(row["pci"]),
                log=DeviceLog.from_json(row["log"]),
                meter=Meter.from_json(row["raw"]),
                seen=now,
            )
            self.entries[entry.subject] = entry
            if row["here"] and entry.pci and same_boot:
                self._at[entry.pci] = entry.subject
        for address, log in list(raw["strangers"].items())[:_MOST_STRANGERS]:
            self._strangers[text(address)] = DeviceLog.from_json(log)
