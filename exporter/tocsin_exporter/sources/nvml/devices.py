"""Every device that the driver ever told of, as last read, and why it is not up."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tocsin_exporter.sources.nvml.model import UP_REASONS, Device, DriverEvent, Key, pci_address
from tocsin_exporter.sources.nvml.quantities import QUANTITIES

__all__ = ["Devices", "driver_event", "mapping", "parse", "up_reason"]

_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,90}")
# More than any node has; a child that invents devices does not fill the memory.
_MOST = 512
_MOST_INDEX = 255


def up_reason(text: str) -> str:
    """Return *text*, a name of the driver's, as one of `UP_REASONS`."""
    return text if text in UP_REASONS else "unknown"


def mapping(raw: Any) -> Mapping[str, Any]:
    """Return *raw* if it is an object; raises ValueError."""
    if not isinstance(raw, dict):
        raise ValueError(f"{type(raw).__name__} in place of an object")
    return raw


def driver_event(raw: Any) -> DriverEvent:
    """Return a frame's event; raises ValueError for one that cannot be."""
    row = mapping(raw)
    try:
        index, uuid = int(row["index"]), str(row["uuid"])
        return DriverEvent(
            gpu=str(index) if 0 <= index <= _MOST_INDEX else "",
            uuid=uuid if _UUID.fullmatch(uuid) else "",
            mig=str(row.get("mig", ""))[:16],
            type=str(row["type"])[:32],
            code=int(row["code"]),
            wall=float(row["wall"]),
        )
    except (KeyError, TypeError) as err:
        raise ValueError(f"{type(err).__name__}: {err}") from err


def parse(raw: Mapping[str, Any]) -> Device:
    """
    Return a row of the child as a device; raises ValueError for a row that cannot be.

    The UUID is empty where the device was lost before this child saw it.
    """
    try:
        return _parse(raw)
    except (KeyError, TypeError, AttributeError, IndexError) as err:
        raise ValueError(f"{type(err).__name__}: {err}") from err


def _parse(raw: Mapping[str, Any]) -> Device:
    index, uuid = int(raw["index"]), str(raw.get("uuid") or "")
    if not 0 <= index <= _MOST_INDEX:
        raise ValueError(f"device {index}")
    if uuid and not _UUID.fullmatch(uuid):
        raise ValueError(f"UUID {uuid[:40]!r}")
    gauges: dict[Key, float] = {}
    counters: dict[Key, float] = {}
    for name, labels, value in raw.get("values") or ():
        quantity = QUANTITIES.get(name)
        if not isinstance(value, (int, float)):
            raise ValueError(f"{name} is {str(value)[:40]!r}")
        if quantity is not None:
            (counters if quantity.counter else gauges)[(name, tuple(labels))] = value
    up, reason = bool(raw["up"]), str(raw["reason"])
    if up and raw.get("rejected") and not gauges and not counters:
        up, reason = False, "bad_data"
    pids = raw.get("pids")
    return Device(
        gpu=str(index),
        uuid=uuid,
        model=str(raw.get("model", "")),
        pci=pci_address(str(raw.get("pci", ""))),
        vbios=str(raw.get("vbios", "")),
        mig=str(raw.get("mig", "")),
        info={str(name): str(value) for name, value in raw.get("info", {}).items()},
        up=up,
        reason="" if up else up_reason(reason),
        gauges=gauges,
        counters=counters,
        denied=tuple(str(name) for name in raw.get("denied", ())),
        pids=None if pids is None else tuple(int(pid) for pid in pids),
        processes=tuple((int(p[0]), str(p[1]), p[2], str(p[3])) for p in raw.get("processes", ())),
        limits={
            str(path): (int(soft), None if hard is None else int(hard), int(used))
            for path, (soft, hard, used) in raw.get("limits", {}).items()
        },
    )


def _downed(device: Device, reason: str) -> Device:
    """Return the identity of *device*: numbers of a device that does not answer are not served."""
    return replace(
        device, up=False, reason=reason, gauges={}, counters={}, pids=None, processes=(), limits={}
    )


class Devices:
    """
    The known devices by UUID; one that is gone keeps its identity. Thread-safe.

    A device that never told its UUID stands under its index alone. A MIG instance that is no longer listed
    was taken apart and is forgotten; so is a board whose place on the bus another one has taken.
    """

    def __init__(self, max_age: float) -> None:
        self._max_age = max_age
        self._lock = threading.Lock()
        self._known: dict[str, Device] = {}
        self._read_at: dict[str, float] = {}
        self._nameless: dict[int, str] = {}
        self._remembered: tuple[Device, ...] = ()

    def remember(self, devices: Iterable[Device]) -> None:
        """Take in devices of before a restart, to be judged with the driver's first answer or failure."""
        self._remembered = tuple(_downed(device, "missing") for device in devices if not device.mig)

    def named(self) -> tuple[Device, ...]:
        """Return all devices with a UUID."""
        with self._lock:
            return tuple(sorted(self._known.values(), key=_order))

    def all(self) -> tuple[Device, ...]:
        """Return all devices, those that never told their UUID with an empty one."""
        with self._lock:
            nameless = [Device(str(index), "", up=False, reason=why) for index, why in self._nameless.items()]
            return tuple(sorted((*self._known.values(), *nameless), key=_order))

    def at(self, index: int) -> Device | None:
        """Return the board that was last seen at *index*."""
        with self._lock:
            return self._board(index)

    def take(self, device: Device, now: float) -> Device:
        """Take in a row that was read; return it with the identity that is known of it."""
        with self._lock:
            if not device.uuid:
                board = self._board(int(device.gpu))
                if board is None:
                    self._nameless[int(device.gpu)] = device.reason or "unknown"
                    return device
                device = replace(_downed(board, device.reason), up=device.up)
            if device.uuid not in self._known and len(self._known) >= _MOST:
                raise ValueError(f"more than {_MOST} devices")
            if not device.mig:
                self._nameless.pop(int(device.gpu), None)
            self._known[device.uuid] = device if device.up else _downed(device, device.reason)
            self._read_at[device.uuid] = now
            return device

    def down(self, index: int, reason: str) -> None:
        """Take in that the board at *index* and its instances do not answer."""
        with self._lock:
            board = self._board(index)
            if board is None:
                self._nameless[index] = reason
            else:
                self._known.setdefault(board.uuid, board)
            for uuid, device in self._known.items():
                if device.gpu == str(index) and device.reason != "missing":
                    self._known[uuid] = _downed(device, reason)

    def all_down(self, reason: str) -> bool:
        """Take in that the driver as a whole does not answer; return whether any device was up before."""
        with self._lock:
            self._recall()
            before = any(device.up for device in self._known.values())
            self._known = {uuid: _downed(device, reason) for uuid, device in self._known.items()}
            self._nameless = dict.fromkeys(self._nameless, reason)
            return before

    def settle(self, read: set[str], unread: set[int], left: set[int], now: float) -> None:
        """
        Judge what a finished cycle did not tell of: *read* are the UUIDs it told of.

        The boards at *unread* were left out on purpose; for those at *left* the time did not suffice.
        """
        with self._lock:
            self._recall()
            listed = {self._known[uuid].pci for uuid in read if uuid in self._known}
            for uuid, device in list(self._known.items()):
                if uuid in read:
                    continue
                index = int(device.gpu)
                board = self._board(index)
                if index in unread:
                    continue
                if index in left:
                    if now - self._read_at.get(uuid, 0.0) > self._max_age and device.up:
                        self._known[uuid] = _downed(device, "timeout")
                elif device.mig and (board is None or board.up):
                    self._forget(uuid)
                elif device.mig and board is not None:
                    self._known[uuid] = _downed(device, board.reason)
                elif device.pci and device.pci in listed:
                    self._forget(uuid)
                else:
                    self._known[uuid] = _downed(device, "missing")

    def _forget(self, uuid: str) -> None:
        del self._known[uuid]
        self._read_at.pop(uuid, None)

    def _board(self, index: int) -> Device | None:
        known = (*self._known.values(), *self._remembered)
        boards = [device for device in known if device.gpu == str(index) and not device.mig]
        # A missing one may have left its number to another.
        return min(boards, key=lambda device: device.reason == "missing", default=None)

    def _recall(self) -> None:
        devices, self._remembered = self._remembered, ()
        for device in devices:
            self._known.setdefault(device.uuid, device)


def _order(device: Device) -> tuple[int, str, str]:
    return len(device.gpu), device.gpu, device.mig
