"""Gives kernel events to the holders at their time, those that come late or early included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tocsin_exporter.attribution.devices import Devices, Entry
from tocsin_exporter.attribution.holding import KEEP_SECONDS, Holding, number, text
from tocsin_exporter.attribution.holdings import Holdings
from tocsin_exporter.sources.kmsg import KernelEvent

__all__ = ["Events", "Gap", "Record", "record_of"]

# A driver that answers only after a long start is waited for.
_WAIT_SECONDS = 600.0
# Storms are kept as one record per quarter of a second.
_BUCKETS_PER_SECOND = 4
_MOST_RECENT = 10_000
_MOST_WAITING = 10_000
_MOST_SAVED = 512
# A process's start is known to a second: the kernel tells the time of boot no finer.
_SLACK_SECONDS = 1.0
_KINDS = ("xid", "gpu_lost", "recovery_action")


@dataclass(frozen=True, slots=True)
class Gap:
    """The exporter's last downtime, in steady time; ``same_boot``: processes can have outlived it."""

    start: float
    end: float
    same_boot: bool

    def contains(self, when: float) -> bool:
        """Say whether nobody looked at *when*."""
        return self.start < when <= self.end


@dataclass(slots=True)
class Record:
    """
    Equal events of one moment. ``time`` is steady, ``wall`` the kernel time as a Unix time.

    ``instance`` is the MIG instance that the record names (``gi`` or ``gi/ci``), or "". ``given`` are the
    holders that have counted it, ``board`` is the GPU that was at the address then.
    """

    address: str
    instance: str
    kind: str
    cls: str
    time: float
    wall: float
    count: int
    given: set[tuple[str, str]] = field(default_factory=set)
    board: str = ""

    def moment(self) -> tuple[str, str, str, str, int]:
        """Return what equal events share."""
        return (self.address, self.instance, self.kind, self.cls, int(self.time * _BUCKETS_PER_SECOND))


def record_of(event: KernelEvent, time: float) -> Record | None:
    """Return what a kernel event means for a device, None when it is not about one."""
    fields = event.event.fields
    address, kind = fields.get("pci"), event.event.kind
    if not isinstance(address, str) or kind not in _KINDS:
        return None
    if kind == "recovery_action" and not fields.get("to"):
        # Back to "none": the trouble is over.
        return None
    instance = "/".join(
        str(fields[name]) for name in ("gpu_instance", "compute_instance") if fields.get(name) is not None
    )
    cls = str(fields.get("class", "unknown")) if kind == "xid" else kind
    return Record(address, instance, kind, cls, time, event.time, event.event.count)


class Events:
    """Events that wait for their device, and those of the last while, for holders who are seen late."""

    def __init__(self, devices: Devices, held: Holdings) -> None:
        self._devices = devices
        self._held = held
        self._waiting: dict[tuple[str, str, str, str, int], Record] = {}
        self._recent: dict[tuple[Any, ...], Record] = {}
        self.gap: Gap | None = None
        self.unattributed = 0
        self.dropped = 0

    def not_in_gap(self, since: float) -> float:
        """Return from when on a holder that returned at *since* counts: not from in the gap or before."""
        # A process's start, known to a second, must not put it on both sides.
        return max(since, self.gap.end) if self.gap is not None and self.gap.same_boot else since

    def take(self, records: Iterable[Record]) -> None:
        """Take new events in; they are given out by `place`."""
        for record in records:
            same = self._waiting.get(record.moment())
            if same is not None:
                same.count += record.count
                same.wall = max(same.wall, record.wall)
            elif len(self._waiting) < _MOST_WAITING:
                self._waiting[record.moment()] = record
            else:
                self.dropped += record.count

    def place(self, now: float) -> bool:
        """Give what waits to the holders; what is about devices not yet known waits on."""
        self._prune(now)
        waiting, self._waiting = self._waiting, {}
        changed = False
        for moment, record in waiting.items():
            whole = self._devices.whole_at(record.address)
            if whole is not None:
                record.board = whole.subject
                self._give(record)
                changed = True
            elif now - record.time < _WAIT_SECONDS:
                self._waiting[moment] = record
            else:
                self.dropped += record.count
        return changed

    def late(self, holding: Holding) -> None:
        """Give a holder that has just been seen the events since it came."""
        for record in self._recent.values():
            if (
                (holding.subject, holding.job_id) not in record.given
                and holding.covers(record.time)
                and not self._in_gap(record)
                and any(part.subject == holding.subject for part in self._parts(record))
            ):
                _count(record, holding)

    def _parts(self, record: Record) -> Iterable[Entry]:
        whole = self._devices.whole_at(record.address)
        if whole is None or whole.subject != record.board:
            return ()
        return self._devices.parts_at(record.address, record.instance)

    def _in_gap(self, record: Record) -> bool:
        return self.gap is not None and self.gap.same_boot and self.gap.contains(record.time)

    def _give(self, record: Record) -> None:
        candidates = [holding for part in self._parts(record) for holding in self._held.of(part.subject)]
        if self.gap is not None and self._in_gap(record):
            # Only who was there when the gap began is known to have been there in it.
            chosen = [
                each
                for each in candidates
                if each.restored and each.covers(record.time, since=self.gap.start)
            ]
        else:
            chosen = [each for each in candidates if each.covers(record.time)] or [
                each for each in candidates if each.covers(record.time, slack=_SLACK_SECONDS)
            ]
        if not chosen and self.gap is not None and self.gap.contains(record.time):
            self.unattributed += record.count
        for holding in chosen:
            _count(record, holding)
        key = (*record.moment(), frozenset(record.given))
        same = self._recent.get(key)
        if same is None:
            self._recent[key] = record
        else:
            same.count += record.count
            same.wall = max(same.wall, record.wall)

    def _prune(self, now: float) -> None:
        # In the order in which they came, which is nearly that of their times.
        while self._recent:
            oldest = next(iter(self._recent))
            if len(self._recent) <= _MOST_RECENT and now - self._recent[oldest].time <= KEEP_SECONDS:
                return
            del self._recent[oldest]

    def to_json(self) -> dict[str, Any]:
        """Return what must survive a restart: the kernel log is not read again behind the cursor."""
        return {
            "unattributed": self.unattributed,
            "waiting": [_row(record) for record in list(self._waiting.values())[-_MOST_SAVED:]],
        }

    def restore(self, raw: Mapping[str, Any], *, same_boot: bool) -> None:
        """Take in what `to_json` gave; KeyError, TypeError or ValueError for anything else."""
        self.unattributed = int(number(raw["unattributed"]))
        if not same_boot:
            return
        for row in raw["waiting"][:_MOST_SAVED]:
            self.take([_record(row)])


def _count(record: Record, holding: Holding) -> None:
    if record.kind == "xid":
        holding.xid[record.cls] = holding.xid.get(record.cls, 0) + record.count
    holding.note(record.cls, record.wall)
    record.given.add((holding.subject, holding.job_id))


def _row(record: Record) -> list[Any]:
    return [
        record.address, record.instance, record.kind, record.cls, record.time, record.wall, record.count
    ]  # fmt: skip


def _record(row: Any) -> Record:
    address, instance, kind, cls, time, wall, count = row
    return Record(
        text(address),
        text(instance),
        text(kind),
        text(cls),
        number(time),
        number(wall),
        int(number(count)),
    )
