"""
Kernel log and driver events to one stream in which each event of a device stands once.

The log line and the driver's event of one Xid come within moments of each other, in either order, and
either may never come: Xid 62 is not among the driver's events, and not everybody may read the log. A log
line therefore counts at once, and a driver's event waits until the log has been read past it. They match one
by one, so that three equal Xids in a second stay three.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tocsin_exporter.kmsg import xid_classes
from tocsin_exporter.kmsg.event import Event
from tocsin_exporter.sources.kmsg import KernelEvent
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.model import DriverEvent

__all__ = ["SOURCES", "EventHub", "LogState", "Merge", "Switch", "gather"]

log = logging.getLogger(__name__)

# By whom an event was told.
SOURCES = ("both", "log", "driver")
# Log line and driver's event of one Xid, by the wall clock.
_WINDOW = 5.0
# The driver's event is given out this long after it came, once the log has been read that far.
_SETTLE = 1.5
# A log that neither fails nor comes to its end, as in a long storm.
_LONGEST_WAIT = 30.0
# A driver's event may come late: its child can be held up by another device.
_KEEP = 60.0
_MOST = 4096
_MOST_SWITCHES, _MOST_CODES, _MOST_FOLLOWUPS = 64, 64, 256
_BUCKETS_PER_SECOND = 4
# After these the devices are read at once: what they tell is a state, not a count.
_CHANGES = frozenset({"recovery_action", "gpu_unavailable", "dram_retirement", "dram_retirement_failure"})

Key = tuple[str, int]


@dataclass(slots=True)
class _Entry:
    """Equal events: ``when`` by the wall clock, ``came`` by the steady one, ``left`` not yet matched."""

    when: float
    came: float
    left: int
    mig: str = ""


class Merge:
    """The decision what is one event, by device and code; the clocks are arguments."""

    def __init__(self) -> None:
        # Log lines that a driver's event may still follow, driver's events that wait, and those given out.
        self._logged: dict[Key, deque[_Entry]] = {}
        self._waiting: dict[Key, deque[_Entry]] = {}
        self._given: dict[Key, deque[_Entry]] = {}
        self.counts = dict.fromkeys(SOURCES, 0)

    def log(self, key: Key, when: float, count: int, now: float) -> int:
        """Take log lines in; return how many of *count* have not been given out before."""
        known = _match(self._given, key, when, count)
        fresh = count - known
        both = _match(self._waiting, key, when, fresh)
        self.counts["both"] += both
        self._add(self._logged, key, _Entry(when, now, fresh - both))
        return fresh

    def driver(self, key: Key, when: float, mig: str, now: float) -> None:
        """Take one event of the driver in."""
        if _match(self._logged, key, when, 1):
            self.counts["both"] += 1
        else:
            self._add(self._waiting, key, _Entry(when, now, 1, mig))

    def waiting(self) -> bool:
        """Say whether `due` may give something later."""
        return bool(self._waiting)

    def due(
        self, now: float, *, log_end: float, log_failed: bool, all_of_them: bool = False
    ) -> list[tuple[Key, _Entry]]:
        """
        Return the driver's events of which the log does not tell.

        *log_end* is when, by the same clock as *now*, the log had last been read to its end.
        """
        out: list[tuple[Key, _Entry]] = []
        for key in list(self._waiting):
            queue = self._waiting[key]
            while queue and (
                all_of_them
                or (log_failed and now - queue[0].came >= _SETTLE)
                or log_end - queue[0].came >= _SETTLE
                or now - queue[0].came >= _LONGEST_WAIT
            ):
                entry = queue.popleft()
                self.counts["driver"] += entry.left
                out.append((key, entry))
                self._add(self._given, key, replace(entry))
            if not queue:
                del self._waiting[key]
        self.forget(now, log_end)
        return out

    def forget(self, now: float, log_end: float) -> None:
        """Drop what can match nothing any more."""
        for key in list(self._logged):
            queue = self._logged[key]
            while queue and now - queue[0].came > _KEEP:
                self.counts["log"] += queue.popleft().left
            if not queue:
                del self._logged[key]
        for key in list(self._given):
            queue = self._given[key]
            # A log that could not be read tells all of it once it can.
            while queue and log_end - queue[0].came > _KEEP:
                queue.popleft()
            if not queue:
                del self._given[key]

    def _add(self, where: dict[Key, deque[_Entry]], key: Key, entry: _Entry) -> None:
        if not entry.left:
            return
        queue = where.setdefault(key, deque())
        last = queue[-1] if queue else None
        if (
            last is not None
            and last.mig == entry.mig
            and int(last.when * _BUCKETS_PER_SECOND) == int(entry.when * _BUCKETS_PER_SECOND)
        ):
            last.left += entry.left
            return
        queue.append(entry)
        if len(queue) > _MOST:
            old = queue.popleft()
            if where is self._logged:
                self.counts["log"] += old.left

    def given(self) -> list[list[Any]]:
        """Return what was given out on the driver's word alone, for a restart."""
        rows = [[*key, entry.when, entry.left] for key, queue in self._given.items() for entry in queue]
        return rows[-512:]

    def restore(self, rows: Iterable[Any], now: float) -> None:
        """Take in what `given` returned; TypeError or ValueError for anything else."""
        for address, code, when, left in list(rows)[:512]:
            self._add(self._given, (str(address), int(code)), _Entry(float(when), now, max(0, int(left))))


def _match(where: Mapping[Key, deque[_Entry]], key: Key, when: float, count: int) -> int:
    """Take up to *count* out of what is near *when*; return how many."""
    matched = 0
    queue = where.get(key)
    if queue is None:
        return 0
    for entry in queue:
        if matched == count:
            break
        if abs(entry.when - when) <= _WINDOW:
            taken = min(entry.left, count - matched)
            entry.left -= taken
            matched += taken
    if isinstance(where, dict):
        left = deque(entry for entry in queue if entry.left)
        if left:
            where[key] = left
        else:
            del where[key]
    return matched


def gather(events: Iterable[KernelEvent]) -> list[KernelEvent]:
    """
    Return equal events of a quarter of a second as one with their number.

    Processes are not told apart: nothing that is counted says which process it was.
    """
    rows: dict[tuple[Any, ...], KernelEvent] = {}
    for each in events:
        fields = each.event.fields
        key = (
            each.event.kind,
            fields.get("pci"),
            fields.get("gpu_instance"),
            fields.get("compute_instance"),
            fields.get("code"),
            fields.get("class"),
            fields.get("caused_by"),
            fields.get("to"),
            int(each.time * _BUCKETS_PER_SECOND),
        )
        same = rows.get(key)
        if same is None:
            rows[key] = each
        else:
            event = replace(same.event, count=same.event.count + each.event.count)
            rows[key] = KernelEvent(event, max(same.time, each.time))
    return list(rows.values())


@dataclass(frozen=True, slots=True)
class Switch:
    """What the log told of one NVSwitch: errors by class and by code, and the last time of each class."""

    pci: str
    classes: Mapping[str, int]
    codes: Mapping[int, int]
    times: Mapping[str, float]


class LogState(Protocol):
    """What the stage asks of the log's reader; times by the steady clock."""

    def failed(self) -> bool:
        """Say whether the log cannot be read."""

    def end_seen(self) -> float:
        """Return when the log had last been read to its end."""


class EventHub:
    """
    Takes both sources in, from their threads, and hands each event on once.

    *sink* gets the events and the log's cursor; *address_of* tells a device's PCI address from its UUID and
    index, or ""; *changed* is called when the devices should be read again.
    """

    def __init__(
        self,
        sink: Callable[[list[KernelEvent], int], None],
        address_of: Callable[[str, str], str],
        errors: ErrorCounter,
        *,
        cursor: int = -1,
        changed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink = sink
        self._address_of = address_of
        self._errors = errors
        self._cursor = cursor
        self._changed = changed
        self._clock = clock
        self._log: LogState | None = None
        self._merge = Merge()
        self._switches: dict[str, tuple[dict[str, int], dict[int, int], dict[str, float]]] = {}
        self._followups: dict[tuple[str, int, int], int] = {}
        # Read by the state's writer, who must not wait for a batch.
        self._saved: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._some = threading.Condition(self._lock)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def follow(self, log_state: LogState) -> None:
        """Name the log's reader, before the start."""
        self._log = log_state

    # what comes in

    def on_log(self, events: list[KernelEvent], cursor: int) -> None:
        """Take a batch of the log in; *cursor* is its last record."""
        with self._lock:
            now = self._clock()
            self._cursor = cursor
            out = [each for raw in gather(events) if (each := self._once(raw, now)) is not None]
            self._hand_on(out)
        if any(each.event.kind in ("recovery_action", "gpu_lost") for each in out):
            self._changed()

    def on_driver(self, event: DriverEvent) -> None:
        """Take one of the driver's own events in."""
        if event.type in _CHANGES:
            self._changed()
        if event.type != "xid":
            return
        address = self._address_of(event.uuid, event.gpu)
        if not address:
            self._errors.add("events", "unknown_device")
            return
        with self._lock:
            self._merge.driver((address, event.code), event.wall, event.mig, self._clock())
            self._some.notify()

    def _once(self, each: KernelEvent, now: float) -> KernelEvent | None:
        event = each.event
        address, code = event.fields.get("pci"), event.fields.get("code")
        if event.kind == "sxid":
            self._count_switch(each)
            return None
        if event.kind not in ("xid", "recovery_action") or not isinstance(address, str):
            return each if event.kind == "gpu_lost" else None
        fresh = self._merge.log((address, int(code or 0)), each.time, event.count, now)
        if not fresh:
            return None
        if (cause := event.fields.get("caused_by")) is not None:
            key = (address, int(code or 0), int(cause))
            if key in self._followups or len(self._followups) < _MOST_FOLLOWUPS:
                self._followups[key] = self._followups.get(key, 0) + fresh
        return each if fresh == event.count else KernelEvent(replace(event, count=fresh), each.time)

    def _count_switch(self, each: KernelEvent) -> None:
        fields, count = each.event.fields, each.event.count
        address, kind, code = str(fields["pci"]), str(fields["class"]), int(fields["code"])
        if address not in self._switches and len(self._switches) >= _MOST_SWITCHES:
            self._errors.add("kmsg", "too_many_devices")
            return
        classes, codes, times = self._switches.setdefault(
            address, (dict.fromkeys(("fatal", "nonfatal", "unknown"), 0), {}, {})
        )
        classes[kind] = classes.get(kind, 0) + count
        times[kind] = max(times.get(kind, 0.0), each.time)
        if code in codes or len(codes) < _MOST_CODES:
            codes[code] = codes.get(code, 0) + count

    # what goes out

    def _hand_on(self, events: list[KernelEvent]) -> None:
        self._saved = self._to_json()
        self._sink(events, self._cursor)

    def _due(self, *, all_of_them: bool = False) -> None:
        failed, end = (self._log.failed(), self._log.end_seen()) if self._log else (True, float("-inf"))
        due = self._merge.due(self._clock(), log_end=end, log_failed=failed, all_of_them=all_of_them)
        if due:
            self._hand_on([_told(key, entry) for key, entry in due])

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._merge.waiting() and not self._stopping:
                    self._some.wait()
                if self._stopping:
                    return
                try:
                    self._due()
                except Exception:
                    log.exception("merging events failed")
                    self._errors.add("events", "bad_data")
                self._some.wait(0.25)

    def start(self) -> None:
        """Start giving out what only the driver told."""
        self._thread.start()

    def stop(self) -> None:
        """Give out what still waits, and stop."""
        with self._lock:
            self._stopping = True
            self._due(all_of_them=True)
            self._some.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    # what is told

    def counts(self) -> dict[str, int]:
        """Return how many events were told by whom; those of the last minute are not settled yet."""
        with self._lock:
            end = self._log.end_seen() if self._log else float("-inf")
            self._merge.forget(self._clock(), end)
            return dict(self._merge.counts)

    def switches(self) -> tuple[Switch, ...]:
        """Return what the log told of the NVSwitches."""
        with self._lock:
            return tuple(
                Switch(address, dict(classes), dict(codes), dict(times))
                for address, (classes, codes, times) in sorted(self._switches.items())
            )

    def followups(self) -> dict[tuple[str, int, int], int]:
        """Return by (PCI address, code, code of its cause) how many Xids only followed from another."""
        with self._lock:
            return dict(self._followups)

    # a restart

    def saved(self) -> dict[str, Any]:
        """Return what must survive a restart, as of the last batch."""
        return self._saved

    def _to_json(self) -> dict[str, Any]:
        return {
            "given": self._merge.given(),
            "switches": {
                address: [dict(classes), {str(code): n for code, n in codes.items()}, dict(times)]
                for address, (classes, codes, times) in self._switches.items()
            },
            "followups": [[*key, n] for key, n in self._followups.items()],
        }

    def restore(self, raw: Mapping[str, Any], *, same_boot: bool) -> None:
        """Take in what `saved` gave; what cannot be read is left out and counted."""
        try:
            if same_boot:
                self._merge.restore(raw.get("given", ()), self._clock())
            for address, (classes, codes, times) in list(raw.get("switches", {}).items())[:_MOST_SWITCHES]:
                self._switches[str(address)] = (
                    {str(kind): int(n) for kind, n in classes.items()},
                    {int(code): int(n) for code, n in list(codes.items())[:_MOST_CODES]},
                    {str(kind): float(when) for kind, when in times.items()},
                )
            for address, code, cause, n in raw.get("followups", ())[:_MOST_FOLLOWUPS]:
                self._followups[(str(address), int(code), int(cause))] = int(n)
        except (TypeError, ValueError, AttributeError):
            self._errors.add("state", "bad_data")
        self._saved = self._to_json()


def _told(key: Key, entry: _Entry) -> KernelEvent:
    """Return a driver's event in the form of the log's; what only a message would say is not there."""
    address, code = key
    if code == 154:
        return KernelEvent(
            Event("recovery_action", 0, {"code": code, "pci": address}, entry.left), entry.when
        )
    fields: dict[str, str | int] = {"code": code, "pci": address, "class": xid_classes.classify(code, "")}
    for name, number in zip(("gpu_instance", "compute_instance"), entry.mig.split("/"), strict=False):
        if number.isdigit():
            fields[name] = int(number)
    return KernelEvent(Event("xid", 0, fields, entry.left), entry.when)
