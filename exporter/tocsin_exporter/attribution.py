"""
Which job holds which device and port, and what happened meanwhile.

Readings, kernel events and identity changes come in from the sources' threads; collectors read
what was last published. Event counts are in the state file before they are published.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tocsin_exporter.errors import SourceError
from tocsin_exporter.holding import Holding, Key
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.identity.resolver import Holder
from tocsin_exporter.kmsg.xid_classes import CLASSES
from tocsin_exporter.sources.kmsg import KernelEvent
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.model import Device, NvmlReading
from tocsin_exporter.sources.sysfs import Port, distance, locate
from tocsin_exporter.state import StateFile

__all__ = ["EVENT_COUNTERS", "Attribution", "DeviceEvents", "HeldDevice", "HeldPort", "Published"]

log = logging.getLogger(__name__)

# Counters of events: kept over restarts. The others count time and amounts and simply start anew.
EVENT_COUNTERS = frozenset({"ecc_errors_total", "row_remaps_total", "pcie_replays_total", "errors_total"})
# After a restart the first scan and the first reading must both be in before holders are compared.
_SETTLE_SECONDS = 3.0
_SAVE_SECONDS = 60.0
_MOST_UNPLACED = 10_000
_MOST_CODES = 256


class Who(Protocol):
    """What attribution asks of the identity view."""

    def living(self) -> tuple[ProcessIdentity, ...]:
        """Return the processes of jobs."""

    def holder_of(self, pid: int) -> Holder | None:
        """Return the job of any process."""


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """Events of one device since the log began: by Xid class, by exact code, and the last times."""

    gpu: str
    uuid: str
    mig: str
    xid: Mapping[str, int]
    codes: Mapping[int, int]
    times: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """What a job has of a device: ``active`` while a process is there, ``owner`` 30 s longer."""

    gpu: str
    uuid: str
    mig: str
    job_id: str
    rank: str
    active: bool
    owner: bool
    counters: Mapping[Key, float]
    xid: Mapping[str, int]
    times: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HeldPort:
    """What a job has of a port."""

    port: str
    job_id: str
    active: bool
    owner: bool
    counters: Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class Published:
    """What the collectors serve."""

    events: tuple[DeviceEvents, ...] = ()
    devices: tuple[HeldDevice, ...] = ()
    ports: tuple[HeldPort, ...] = ()
    unattributed: int = 0


class _DeviceLog:
    def __init__(self, gpu: str = "", uuid: str = "", mig: str = "") -> None:
        self.gpu, self.uuid, self.mig = gpu, uuid, mig
        self.xid: dict[str, int] = dict.fromkeys(CLASSES, 0)
        self.codes: dict[int, int] = {}
        self.times: dict[str, float] = {}


class Attribution:
    """The ledger; see the module's text."""

    def __init__(
        self,
        identity: Who,
        state: StateFile,
        errors: ErrorCounter,
        *,
        boot_id: str,
        log_identity: Callable[[], str] = str,
        sysfs: Path = Path("/sys"),
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._state = state
        self._errors = errors
        self._boot_id = boot_id
        self._log_identity = log_identity
        self._sysfs = sysfs
        self._wall = wall
        self._clock = clock
        self._lock = threading.RLock()
        self._published = Published()
        # Keyed by PCI address, which is what the kernel log knows.
        self._logs: dict[str, _DeviceLog] = {}
        self._held: dict[tuple[str, str], Holding] = {}
        self._ports: dict[tuple[str, str], Holding] = {}
        self._device_raw: dict[str, dict[Key, float]] = {}
        self._unplaced: list[KernelEvent] = []
        self._unattributed = 0
        self._near: dict[str, tuple[tuple[str, ...], int]] = {}
        self._last_ports: tuple[Port, ...] = ()
        self._restored_at: float | None = None
        self._saved_wall = 0.0
        self._last_save = float("-inf")
        self._settle_from: float | None = None
        # Devices whose holders of before the restart are all gone.
        self._orphaned: set[str] = set()
        self.cursor = -1
        self._restore()

    def published(self) -> Published:
        """Return what was last made durable."""
        return self._published

    def known_devices(self) -> tuple[Device, ...]:
        """Return the devices that were there before a restart in this boot, with their identity only."""
        with self._lock:
            if self._restored_at is None:
                return ()
            return tuple(
                Device(gpu=entry.gpu, uuid=entry.uuid, mig=entry.mig, pci=address)
                for address, entry in self._logs.items()
                if entry.uuid
            )

    # what comes in

    def on_reading(self, reading: NvmlReading) -> None:
        """Take a reading of the devices in."""
        with self._lock:
            now = self._wall()
            for device in reading.devices:
                self._place(device)
            if not self._settled():
                self._publish(now)
                return
            dirty = self._assign(reading, now)
            for device in reading.devices:
                dirty |= self._count(device, now)
            dirty |= self._drain(now)
            self._commit(now, dirty=dirty)

    def on_events(self, events: list[KernelEvent], cursor: int) -> None:
        """Take kernel events in; *cursor* is the last record read."""
        with self._lock:
            self.cursor = cursor
            if not events:
                return
            now = self._wall()
            for event in events:
                self._log_event(event)
            self._unplaced.extend(event for event in events if event.event.kind in ("xid", "gpu_lost"))
            if len(self._unplaced) > _MOST_UNPLACED:
                self._unattributed += len(self._unplaced) - _MOST_UNPLACED
                del self._unplaced[:-_MOST_UNPLACED]
            if self._settled():
                self._drain(now)
            self._commit(now, dirty=True)

    def on_ports(self, ports: tuple[Port, ...]) -> None:
        """Take a reading of the ports in."""
        with self._lock:
            self._last_ports = ports
            if not self._settled():
                return
            now = self._wall()
            dirty = self._assign_ports(ports, now)
            by_name = {port.name: port for port in ports}
            for (name, _), holding in self._ports.items():
                port = by_name.get(name)
                if port is not None and holding.accountable(now):
                    raw = {_port_key(key): value for key, value in port.counters.items() if _port_held(key)}
                    grew = holding.tally.update(raw)
                    dirty |= grew and any(key[0] in EVENT_COUNTERS for key in raw)
            self._commit(now, dirty=dirty)

    # devices

    def _place(self, device: Device) -> None:
        if not device.pci or not device.uuid:
            return
        entry = self._logs.get(device.pci)
        if entry is None:
            self._logs[device.pci] = _DeviceLog(device.gpu, device.uuid, device.mig)
            return
        entry.gpu, entry.uuid, entry.mig = device.gpu, device.uuid, device.mig
        if device.pci not in self._near:
            self._near[device.pci] = locate(self._sysfs, device.pci)

    def _holders(self, reading: NvmlReading) -> dict[tuple[str, str], tuple[set[str], float]]:
        """Return (UUID, job) → ranks and earliest start of the processes that hold it."""
        found: dict[tuple[str, str], tuple[set[str], float]] = {}
        by_index = {device.gpu: device for device in reading.devices if not device.mig}
        living = {who.pid: who for who in self._identity.living()}
        told = {pid for device in reading.devices for pid in device.pids or ()}

        def add(uuid: str, job: str, rank: str, start: float) -> None:
            ranks, since = found.get((uuid, job), (set(), start))
            found[(uuid, job)] = (ranks | ({rank} if rank else set()), min(since, start))

        now = self._wall()
        for device in reading.devices:
            for pid in device.pids or ():
                holder = self._identity.holder_of(pid)
                if holder is not None:
                    start = living[pid].start_time if pid in living else now
                    add(device.uuid, holder.job_id, holder.rank, start)
        for who in living.values():
            # The driver's list beats the environment, but it names no process in some containers.
            if who.pid not in told:
                for index in who.gpu_indices:
                    if str(index) in by_index:
                        add(by_index[str(index)].uuid, who.job_id, who.rank, who.start_time)
        return found

    def _assign(self, reading: NvmlReading, now: float) -> bool:
        holders = self._holders(reading)
        dirty = False
        seen = {device.uuid for device in reading.devices}
        for (uuid, job), (ranks, since) in holders.items():
            rank = next(iter(ranks)) if len(ranks) == 1 else ""
            holding = self._held.get((uuid, job))
            if holding is None:
                self._held[(uuid, job)] = Holding(uuid, job, rank, [(since, None)])
                dirty = True
            else:
                dirty |= not holding.active
                holding.hold(since, now)
                holding.rank = rank
        for (uuid, job), holding in list(self._held.items()):
            # A device that did not answer tells nothing about who left it.
            if holding.active and (uuid, job) not in holders and (uuid in seen or not self._lives(job)):
                holding.release(now)
                dirty = True
            if holding.expired(now):
                del self._held[(uuid, job)]
                dirty = True
        return dirty

    def _lives(self, job: str) -> bool:
        return any(who.job_id == job for who in self._identity.living())

    def _count(self, device: Device, now: float) -> bool:
        """Give the device's counters to its holders; return whether an event count grew."""
        before = self._device_raw.get(device.uuid, {})
        grown = {
            key
            for key, value in device.counters.items()
            if key[0] in EVENT_COUNTERS and value > before.get(key, value)
        }
        if device.uuid in self._orphaned:
            self._orphaned.discard(device.uuid)
            self._unattributed += int(sum(device.counters[key] - before[key] for key in grown))
        self._device_raw[device.uuid] = {
            **before,
            **{k: v for k, v in device.counters.items() if k[0] in EVENT_COUNTERS},
        }
        for (uuid, _), holding in self._held.items():
            if uuid == device.uuid and holding.accountable(now):
                holding.tally.update(device.counters)
                for kind in _event_kinds(grown):
                    holding.note(kind, now)
        entry = self._logs.get(device.pci)
        if entry is not None:
            for kind in _event_kinds(grown):
                entry.times[kind] = now
        return bool(grown)

    # events

    def _log_event(self, event: KernelEvent) -> None:
        fields = event.event.fields
        address = fields.get("pci")
        if not isinstance(address, str) or event.event.kind not in ("xid", "gpu_lost", "recovery_action"):
            return
        entry = self._logs.get(address)
        if entry is None:
            if len(self._logs) >= 1024:
                self._errors.add("kmsg", "too_many_devices")
                return
            entry = self._logs[address] = _DeviceLog()
        kind = _class_of(event)
        if event.event.kind == "xid":
            entry.xid[kind] += event.event.count
            code = int(fields["code"])
            if code in entry.codes or len(entry.codes) < _MOST_CODES:
                entry.codes[code] = entry.codes.get(code, 0) + event.event.count
        entry.times[kind] = max(entry.times.get(kind, 0.0), event.time)

    def _drain(self, now: float) -> bool:
        """Give waiting events to the holders at their time; those of devices not yet known wait on."""
        waiting: list[KernelEvent] = []
        for event in self._unplaced:
            entry = self._logs.get(str(event.event.fields.get("pci", "")))
            if entry is None or not entry.uuid:
                if now - event.time < 600:
                    waiting.append(event)
                continue
            holders = [
                h for (uuid, _), h in self._held.items() if uuid == entry.uuid and h.covers(event.time)
            ]
            if not holders and self._in_gap(event.time, entry.uuid):
                self._unattributed += event.event.count
            kind = _class_of(event)
            for holding in holders:
                if event.event.kind == "xid":
                    holding.xid[kind] += event.event.count
                holding.note(kind, event.time)
        changed = len(waiting) != len(self._unplaced)
        self._unplaced = waiting
        return changed

    def _in_gap(self, when: float, uuid: str) -> bool:
        """Whether *when* lies in the exporter's last downtime on a device that had a holder before it."""
        return (
            self._restored_at is not None
            and self._saved_wall < when < self._restored_at
            and any(held == uuid for held, _ in self._held)
        )

    # ports

    def _assign_ports(self, ports: tuple[Port, ...], now: float) -> bool:
        active_devices: dict[str, list[str]] = {}
        addresses = {entry.uuid: address for address, entry in self._logs.items() if entry.uuid}
        since: dict[str, float] = {}
        for (uuid, job), holding in self._held.items():
            if holding.active:
                active_devices.setdefault(job, []).append(addresses.get(uuid, ""))
                since[job] = min(since.get(job, now), holding.periods[-1][0])
        wanted: set[tuple[str, str]] = set()
        for job, held in active_devices.items():
            for address in held:
                wanted |= {(name, job) for name in self._nearest(address, ports)}
            # A port that went down stays the job's: that it went down is the finding.
            wanted |= {key for key, holding in self._ports.items() if key[1] == job and holding.active}
        dirty = False
        for key in wanted:
            if key not in self._ports:
                self._ports[key] = Holding(key[0], key[1], "", [(since[key[1]], None)])
                dirty = True
            else:
                self._ports[key].hold(since[key[1]], now)
        for key, holding in list(self._ports.items()):
            if key not in wanted:
                holding.release(now)
            if holding.expired(now):
                del self._ports[key]
        return dirty

    def _nearest(self, address: str, ports: tuple[Port, ...]) -> list[str]:
        place = self._near.get(address)
        if place is None:
            place = self._near[address] = locate(self._sysfs, address) if address else ((), -1)
        far = {port.name: distance(place, (port.pci_path, port.numa_node)) for port in ports}
        known = [steps for steps in far.values() if steps is not None]
        if not known:
            return [port.name for port in ports if port.active]
        return [name for name, steps in far.items() if steps == min(known)]

    # publishing

    def _commit(self, now: float, *, dirty: bool) -> None:
        """Make event counts durable, then publish them."""
        if dirty or self._clock() - self._last_save >= _SAVE_SECONDS:
            try:
                self._state.save(self._to_json(now))
            except SourceError as err:
                self._errors.add("state", err.reason)
                log.error("state not saved: %s", err.detail)
            self._last_save = self._clock()
        self._publish(now)

    def _publish(self, now: float) -> None:
        logs = {entry.uuid: entry for entry in self._logs.values() if entry.uuid}
        self._published = Published(
            events=tuple(
                DeviceEvents(e.gpu, e.uuid, e.mig, dict(e.xid), dict(e.codes), dict(e.times))
                for e in logs.values()
            ),
            devices=tuple(
                HeldDevice(
                    gpu=logs[uuid].gpu,
                    uuid=uuid,
                    mig=logs[uuid].mig,
                    job_id=job,
                    rank=h.rank,
                    active=h.active,
                    owner=h.accountable(now),
                    counters=_kept(h, now),
                    xid=dict(h.xid),
                    times=dict(h.times),
                )
                for (uuid, job), h in self._held.items()
                if uuid in logs
            ),
            ports=tuple(
                HeldPort(name, job, h.active, h.accountable(now), _kept(h, now))
                for (name, job), h in self._ports.items()
            ),
            unattributed=self._unattributed,
        )

    # the state file

    def _to_json(self, now: float) -> dict[str, Any]:
        return {
            "boot_id": self._boot_id,
            "log": self._log_identity(),
            "cursor": self.cursor,
            "saved": now,
            "unattributed": self._unattributed,
            "devices": {
                address: {
                    "gpu": e.gpu, "uuid": e.uuid, "mig": e.mig, "xid": e.xid, "times": e.times,
                    "codes": {str(code): count for code, count in e.codes.items()},
                }
                for address, e in self._logs.items()
            },
            "raw": {
                uuid: [[key[0], list(key[1]), value] for key, value in raw.items()]
                for uuid, raw in self._device_raw.items()
            },
            "held": [h.to_json(_is_event) for h in self._held.values()],
            "ports": [h.to_json(_is_event) for h in self._ports.values()],
        }  # fmt: skip

    def _restore(self) -> None:
        try:
            state = self._state.load()
            if state:
                self._from_json(state)
        except SourceError as err:
            self._errors.add("state", err.reason)
            log.error("state not used: %s", err.detail)
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            self._errors.add("state", "bad_data")
            log.exception("state not used: %s: %s", self._state.path, err)
            self._logs, self._held, self._ports, self._device_raw = {}, {}, {}, {}
            self.cursor, self._settle_from = -1, None
        else:
            self._publish(self._wall())

    def _from_json(self, state: Mapping[str, Any]) -> None:
        for address, raw in state["devices"].items():
            entry = _DeviceLog(str(raw["gpu"]), str(raw["uuid"]), str(raw["mig"]))
            entry.xid.update({str(k): int(v) for k, v in raw["xid"].items()})
            entry.codes = {int(code): int(count) for code, count in raw["codes"].items()}
            entry.times = {str(k): float(v) for k, v in raw["times"].items()}
            self._logs[str(address)] = entry
        self._unattributed = int(state["unattributed"])
        if state["boot_id"] != self._boot_id:
            # Another boot: its processes and its log are gone.
            return
        if state["log"] == self._log_identity():
            self.cursor = int(state["cursor"])
        self._saved_wall = float(state["saved"])
        self._restored_at = self._wall()
        self._held = {(h.subject, h.job_id): h for h in map(Holding.from_json, state["held"])}
        self._ports = {(h.subject, h.job_id): h for h in map(Holding.from_json, state["ports"])}
        self._device_raw = {
            str(uuid): {(str(name), tuple(map(str, labels))): float(value) for name, labels, value in rows}
            for uuid, rows in state["raw"].items()
        }
        self._settle_from = self._clock()

    def _settled(self) -> bool:
        """After a restart: compare holders of before and now once, and give the gap's increments out."""
        if self._settle_from is None:
            return True
        if self._clock() - self._settle_from < _SETTLE_SECONDS:
            return False
        self._settle_from = None
        living = {who.job_id for who in self._identity.living()}
        for holding in (*self._held.values(), *self._ports.values()):
            if holding.active and holding.job_id not in living:
                # It ended in the gap; nobody saw when.
                holding.release(self._saved_wall)
                holding.tally.rebase()
                self._orphaned.add(holding.subject)
        self._orphaned -= {holding.subject for holding in self._held.values() if holding.active}
        return True


def _kept(holding: Holding, now: float) -> dict[Key, float]:
    """Return the counters that are served: all while accountable, event counts afterwards."""
    values = holding.tally.values()
    return (
        values
        if holding.accountable(now)
        else {key: value for key, value in values.items() if _is_event(key)}
    )


def _is_event(key: Key) -> bool:
    return key[0] in EVENT_COUNTERS


def _event_kinds(grown: Iterable[Key]) -> set[str]:
    kinds = {
        "ecc_uncorrected" for key in grown if key[0] == "ecc_errors_total" and key[1][0] == "uncorrected"
    }
    return kinds | {"row_remap" for key in grown if key[0] == "row_remaps_total"}


def _class_of(event: KernelEvent) -> str:
    if event.event.kind == "xid":
        return str(event.event.fields["class"])
    return event.event.kind


def _port_held(key: Key) -> bool:
    return key[0] in ("receive_bytes_total", "transmit_bytes_total", "errors_total", "link_downed_total")


def _port_key(key: Key) -> Key:
    return ("errors_total", ("link_downed",)) if key[0] == "link_downed_total" else key
