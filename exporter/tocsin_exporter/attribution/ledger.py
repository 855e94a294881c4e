"""
The ledger of who held what and what happened meanwhile.

Readings, kernel events and identity changes come in from the sources' threads; collectors read what was last
published. What goes to whom:

* An event of the kernel log belongs to every holder of the device at the kernel's time of it. A job holds a
  device from its process's start, or from the last reading without it if that is later, until 30 s after its
  last process; also when it is first seen after the event.
* What a polled counter grew by between two readings belongs to those who held the device at the first one and
  are accountable at the second: to the job that left in between, not to the one that came. Readings follow at
  once when a process comes or goes. Amounts (energy, time) end with the last process, events 30 s later.
* While the exporter was down, only who held the device on both sides of the gap counts what happened.

Event counts are on the disk before they are served. Where they cannot be written within a few seconds they
are served all the same, and `durable` is false: evidence that a later restart may take back is worth more
than none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tocsin_exporter.attribution.devices import Devices, Entry
from tocsin_exporter.attribution.events import Events, Gap, record_of
from tocsin_exporter.attribution.holders import Claims, Finder
from tocsin_exporter.attribution.holding import Holding, number
from tocsin_exporter.attribution.holdings import Holdings
from tocsin_exporter.attribution.model import Published, Who
from tocsin_exporter.attribution.ports import Ports
from tocsin_exporter.attribution.publish import publish
from tocsin_exporter.attribution.steady import Steady
from tocsin_exporter.attribution.table import FOLLOWED, HELD, WHOLE, event_class
from tocsin_exporter.attribution.writer import Writer
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.sources.kmsg import KernelEvent
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.model import Device, NvmlReading
from tocsin_exporter.sources.sysfs import Port
from tocsin_exporter.state import StateError, StateFile

__all__ = ["Attribution"]

log = logging.getLogger(__name__)

# After a restart the first scan and the first reading must both be in before holders are compared.
_SETTLE_SECONDS = 3.0
# A driver that does not answer by then says nothing of who is gone; the living jobs do.
_SETTLE_WITHOUT_SECONDS = 60.0
_SAVE_SECONDS = 60.0
# A write that takes longer is hung, and what is counted is served without it.
_PATIENCE = 5.0


class Attribution:
    """The ledger; see the module's text. Its lock is held for no I/O and no call that waits."""

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
        patience: float = _PATIENCE,
        extra: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._errors = errors
        self._boot_id = boot_id
        self._log_identity = log_identity
        self._wall = wall
        self._clock = clock
        self._steady = Steady(wall, clock)
        self._finder = Finder(identity, self._steady)
        # What others keep in the same file, under the same cursor: asked for with the lock held.
        self._extra = extra
        self.restored: dict[str, Any] = {}
        self.same_boot = False
        self._identity = identity
        self._lock = threading.RLock()
        self._published = self._pending = Published()
        self._unmatched = 0
        self._last_mark = float("-inf")
        self.cursor = -1
        self._sysfs = sysfs
        self._clear()
        self._writer = Writer(state, self._state, self._written, errors, patience)
        self._restore(state)

    def _clear(self) -> None:
        self._devices, self._held, self._ports = Devices(), Holdings(), Ports(self._sysfs)
        self._events = Events(self._devices, self._held)
        self._settle_from: float | None = None
        self._nameless = False
        self.cursor = -1

    def published(self) -> Published:
        """Return what is served: durable, unless nothing can be written."""
        if self._writer.late():
            with self._lock:
                self._published = self._snapshot()
        return self._published

    def durable(self) -> bool:
        """Say whether a restart would find everything that is served now."""
        return self._writer.keeps and not self._writer.late()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until what was counted is on the disk and published; return whether it is."""
        return self._writer.flush(timeout)

    def keep(self) -> None:
        """Hear that what others keep in the same file has changed."""
        self._writer.mark()

    def start(self) -> None:
        """Nothing to start: the ledger lives by what comes in."""

    def stop(self) -> None:
        """Write what is left."""
        self._writer.stop(2.0)

    def known_devices(self) -> tuple[Device, ...]:
        """Return the devices that were there before a restart in this boot, with their identity only."""
        with self._lock:
            if self._events.gap is None or not self._events.gap.same_boot:
                return ()
            return tuple(
                Device(gpu=entry.gpu, uuid=entry.uuid, pci=entry.pci) for entry in self._devices.whole()
            )

    # what comes in

    def on_reading(self, reading: NvmlReading) -> None:
        """Take a reading of the devices in."""
        with self._lock:
            now = self._steady.now()
            here = self._place(reading, now)
            dirty = False
            if self._may_settle():
                for entry, device in here:
                    if device.up:
                        entry.look(now)
                claims = self._finder.find(here, now)
                self._settle(here, claims)
                self._unmatched = claims.unmatched
                dirty = self._assign(here, claims, now)
                for entry, device in here:
                    dirty |= self._count(entry, device, now)
                dirty |= self._events.place(now)
                dirty |= self._devices.forget(now, self._held.subjects())
            self._commit(dirty=dirty)

    def on_events(self, events: list[KernelEvent], cursor: int) -> None:
        """Take kernel events in; *cursor* is the last record read."""
        with self._lock:
            self.cursor = cursor
            if not events:
                return
            for event in events:
                self._log_event(event)
            records = (record_of(event, self._steady.of(event.time)) for event in events)
            self._events.take(record for record in records if record is not None)
            if self._settled():
                self._events.place(self._steady.now())
            self._commit(dirty=True)

    def on_left(self, who: ProcessIdentity) -> None:
        """
        Hear that a process ended, from the identity's thread.

        The next reading tells the same, but there is none while the driver hangs or is left alone.
        """
        with self._lock:
            if not self._settled(who.job_id):
                return
            if who.job_id in self._alive():
                return
            now = self._steady.now()
            left = [each for each in self._held if each.active and each.job_id == who.job_id]
            for holding in left:
                holding.release(now)
            if left:
                self._commit(dirty=True)

    def on_ports(self, ports: tuple[Port, ...]) -> None:
        """Take a reading of the ports in."""
        with self._lock:
            if not self._settled():
                return
            users: dict[str, tuple[set[str], float]] = {}
            for holding in self._held:
                entry = self._devices.entries.get(holding.subject)
                if holding.active and entry is not None:
                    since = holding.periods[-1][0]
                    addresses, before = users.get(holding.job_id, (set(), since))
                    users[holding.job_id] = (addresses | {entry.pci}, min(before, since))
            self._commit(dirty=self._ports.read(ports, users, self._steady.now()))

    # devices

    def _place(self, reading: NvmlReading, now: float) -> list[tuple[Entry, Device]]:
        """Return the devices of a reading that have an identity; whole GPUs first."""
        here: list[tuple[Entry, Device]] = []
        for device in sorted(reading.devices, key=lambda device: device.mig != ""):
            entry = self._devices.place(device, now)
            if entry is not None:
                here.append((entry, device))
            elif not self._nameless:
                self._nameless = True
                self._errors.add("attribution", "no_uuid" if not device.uuid else "too_many_devices")
                log.error("device %s has no UUID or is one too many: no job gets its counts", device.gpu)
        return here

    def _assign(self, here: list[tuple[Entry, Device]], claims: Claims, now: float) -> bool:
        dirty = False
        for (subject, job), claim in claims.held.items():
            holding = self._held.get(subject, job)
            ranks = frozenset(claim.ranks)
            if holding is None:
                holding = Holding(subject, job, ranks, [(min(claim.since, now), None)])
                if not self._held.add(holding):
                    self._errors.add("attribution", "too_many_holders")
                    continue
                came = True
            else:
                came = holding.hold(self._events.not_in_gap(claim.since), now, ranks)
            if came:
                self._events.late(holding)
                dirty = True
        told = _telling(here) | self._taken_apart(here)
        for holding in self._held:
            if not holding.active or (holding.subject, holding.job_id) in claims.held:
                continue
            entry = self._devices.entries.get(holding.subject)
            if holding.job_id in claims.alive and holding.subject not in told:
                # A device that did not answer tells nothing about who left it.
                continue
            if entry is not None and holding.subject in told and entry.blind and entry.before is not None:
                holding.cut(entry.before)
            else:
                holding.release(now)
            dirty = True
        for entry, device in here:
            if device.up and device.pids is not None:
                entry.listed = now
        expired, early = self._held.expire(now)
        if early:
            self._errors.add("attribution", "too_many_holders", early)
        return dirty or expired

    def _taken_apart(self, here: list[tuple[Entry, Device]]) -> set[str]:
        """Return the MIG instances that are not there although their GPU answers."""
        seen = {entry.subject for entry, _ in here}
        return {
            part.subject
            for entry, device in here
            if device.up
            for part in self._devices.instances_of(entry)
            if part.subject not in seen
        }

    def _count(self, entry: Entry, device: Device, now: float) -> bool:
        """Give the growth of the device's counters to its holders; return whether events were among it."""
        if not device.up:
            return False
        events, amounts = self._devices.gains(entry, device.counters)
        grown = {key: gain for key, gain in events.items() if gain}
        kinds = {kind for key in grown if (kind := event_class(key))}
        wall = self._wall()
        told_events = [(key, gain) for key, gain in events.items() if key[0] in HELD]
        told_whole = [
            (key, gain) for part in (events, amounts) for key, gain in part.items() if key[0] in WHOLE
        ]
        taken = False
        for holding in self._held.of(entry.subject):
            if not holding.accountable(now):
                continue
            taken |= not holding.fresh
            self._note(holding, kinds, wall)
            holding.add(told_events)
            if holding.there_after(entry.before):
                holding.add(amounts.items())
            holding.fresh = False
        for part in self._devices.instances_of(entry):
            for holding in self._held.of(part.subject):
                if holding.accountable(now):
                    taken |= not holding.fresh
                    self._note(holding, kinds, wall)
                    holding.add(told_whole)
        for kind in kinds:
            entry.log.note(kind, wall)
        if grown and entry.blind and not taken:
            self._events.unattributed += int(sum(gain for key, gain in grown.items() if key[0] in HELD))
        return bool(grown)

    @staticmethod
    def _note(holding: Holding, kinds: set[str], wall: float) -> None:
        if not holding.fresh:
            for kind in kinds:
                holding.note(kind, wall)

    def _log_event(self, event: KernelEvent) -> None:
        record = record_of(event, event.time)
        address, kind = event.event.fields.get("pci"), event.event.kind
        if not isinstance(address, str) or (record is None and kind != "recovery_action"):
            return
        entry = self._devices.log_at(address)
        if entry is None:
            self._errors.add("kmsg", "too_many_devices")
            return
        if kind == "xid" and record is not None:
            entry.count(record.cls, int(event.event.fields["code"]), event.event.count)
        entry.note(record.cls if record is not None else kind, event.time)

    # a restart

    def _may_settle(self, after: float = _SETTLE_SECONDS) -> bool:
        return self._settle_from is None or self._clock() - self._settle_from >= after

    def _settled(self, *ended: str) -> bool:
        """
        Say whether holders may change; where the driver says nothing, the living jobs settle it.

        Jobs that *ended* just now were alive after the gap.
        """
        if self._settle_from is not None and self._may_settle(_SETTLE_WITHOUT_SECONDS):
            self._settle([], Claims(alive=self._alive().union(ended)))
        return self._settle_from is None

    def _alive(self) -> set[str]:
        """Return the jobs that live, those that were given devices and do not use them included."""
        living = {each.job_id for each in self._identity.living()}
        return living | {each.job_id for each in self._identity.assigned()}

    def _settle(self, here: list[tuple[Entry, Device]], claims: Claims) -> None:
        """After a restart: tell who held a device on both sides of the gap from who did not."""
        if self._settle_from is None:
            return
        self._settle_from = None
        gap = self._events.gap
        told = _telling(here)
        for holding in self._held:
            gone = holding.subject in told and (holding.subject, holding.job_id) not in claims.held
            if holding.active and gap is not None and (gone or holding.job_id not in claims.alive):
                holding.cut(gap.start)
        for holding in self._ports.held:
            if holding.active and gap is not None and holding.job_id not in claims.alive:
                holding.cut(gap.start)

    def _restore(self, state: StateFile) -> None:
        try:
            raw = state.load()
            if raw:
                self._from_json(raw)
        except StateError as err:
            self._errors.add("state", err.reason)
            log.error("state not used: %s", err.detail)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as err:
            refused = state.refuse("bad_data", f"{type(err).__name__}: {err}"[:200])
            self._errors.add("state", refused.reason)
            log.error("state not used: %s", refused.detail)
            self._clear()
        else:
            self._published = self._snapshot()

    def _from_json(self, raw: dict[str, Any]) -> None:
        same_boot = self.same_boot = raw["boot_id"] == self._boot_id
        extra = raw.get("extra")
        self.restored = extra if isinstance(extra, dict) else {}
        saved = number(raw["saved"])
        if same_boot:
            self._steady.resume(number(raw["offset"]), saved)
        now = self._steady.now()
        saved = min(saved, now)
        self._devices.restore(raw["devices"], now, same_boot=same_boot)
        self._held.restore(raw["held"])
        self._ports.restore(raw["ports"], same_boot=same_boot)
        self._events.restore(raw["events"], same_boot=same_boot)
        self._events.gap = Gap(saved, now, same_boot)
        if same_boot:
            if raw["log"] == self._log_identity():
                self.cursor = int(number(raw["cursor"]))
            self._settle_from = self._clock()
            return
        for holding in (*self._held, *self._ports.held):
            # Its processes ended with the boot; what became of it is served for its time all the same.
            if holding.active:
                holding.cut(saved)

    def _state(self) -> dict[str, Any]:
        """Return what must survive a restart."""
        log_identity = self._log_identity()
        with self._lock:
            self._last_mark = self._clock()
            self._pending = self._snapshot()
            return {
                "boot_id": self._boot_id,
                "log": log_identity,
                "cursor": self.cursor,
                "saved": self._steady.now(),
                "offset": self._steady.offset,
                "devices": self._devices.to_json(),
                "held": self._held.to_json(FOLLOWED),
                "ports": self._ports.to_json(),
                "events": self._events.to_json(),
                "extra": self._extra(),
            }

    # publishing

    def _commit(self, *, dirty: bool) -> None:
        """Publish what is counted, once it is durable."""
        if self._events.dropped:
            self._errors.add("attribution", "unplaced", self._events.dropped)
            self._events.dropped = 0
        if dirty or self._clock() - self._last_mark >= _SAVE_SECONDS:
            self._last_mark = self._clock()
            self._writer.mark()
        if not self._writer.keeps or self._writer.clean() or self._writer.late():
            self._published = self._snapshot()

    def _written(self) -> None:
        with self._lock:
            # What came in since the write began is not durable, and its own write follows.
            self._published = self._snapshot() if self._writer.clean() else self._pending

    def _snapshot(self) -> Published:
        return publish(
            self._devices,
            self._held,
            self._ports.held,
            self._steady.now(),
            unattributed=self._events.unattributed + self._ports.unattributed,
            unmatched=self._unmatched,
        )


def _telling(here: list[tuple[Entry, Device]]) -> set[str]:
    """Return the devices whose reading tells who left them: one that lists its processes at times did so."""
    return {
        entry.subject
        for entry, device in here
        if device.up and (device.pids is not None or entry.listed is None)
    }
