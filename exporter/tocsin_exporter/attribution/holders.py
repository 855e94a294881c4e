"""Who holds what at one reading: the driver's process lists first, then what processes were given."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tocsin_exporter.attribution.devices import Entry
from tocsin_exporter.attribution.model import Who
from tocsin_exporter.attribution.steady import Steady
from tocsin_exporter.sources.nvml.model import Device

__all__ = ["Claim", "Claims", "Finder"]

_MOST_RESOLVED = 4096


@dataclass(slots=True)
class Claim:
    """One job on one device: its ranks there, since when at the earliest, and whether the driver says so."""

    ranks: set[str] = field(default_factory=set)
    since: float = float("inf")
    listed: bool = False


@dataclass(slots=True)
class Claims:
    """All claims of a reading by (device, job); the jobs that live; processes whose job nobody knows."""

    held: dict[tuple[str, str], Claim] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    unmatched: int = 0

    def add(self, subject: str, job: str, rank: str, since: float, *, listed: bool) -> None:
        """Note one process."""
        claim = self.held.setdefault((subject, job), Claim())
        if rank:
            claim.ranks.add(rank)
        claim.since = min(claim.since, since)
        claim.listed |= listed


class Finder:
    """Finds claims; remembers which board an index meant when a process was first seen with it."""

    def __init__(self, who: Who, steady: Steady) -> None:
        self._who = who
        self._steady = steady
        # (pid, start, name) to the device: after a GPU was lost the indices behind it name other boards.
        self._meant: dict[tuple[int, int, str], str] = {}

    def find(self, devices: list[tuple[Entry, Device]], now: float) -> Claims:
        """Return who holds the *devices* of a reading."""
        claims = Claims()
        living = self._who.living()
        assigned = self._who.assigned()
        claims.alive = {who.job_id for who in living} | {each.job_id for each in assigned}
        started: dict[tuple[str, str], float] = {}
        for who in living:
            key = (who.job_id, who.rank)
            started[key] = min(started.get(key, now), self._steady.started(who.start_time))
        told = self._listed(devices, claims, started, now)
        meant = _Names(devices)
        current: set[tuple[int, int, str]] = set()

        def resolve(pid: int, ticks: int, name: str) -> str | None:
            key = (pid, ticks, name)
            current.add(key)
            subject = self._meant.get(key)
            if subject is None:
                subject = meant.find(name)
                if subject is not None and len(self._meant) < _MOST_RESOLVED:
                    self._meant[key] = subject
            return subject

        for who in living:
            # The driver's list beats the environment, but it names no process in some containers.
            if who.pid not in told:
                for index in who.gpu_indices:
                    subject = resolve(who.pid, who.start_ticks, str(index))
                    if subject is not None:
                        since = self._steady.started(who.start_time)
                        claims.add(subject, who.job_id, who.rank, since, listed=False)
        # Given and idle: the job's, unless the driver shows somebody at work there.
        free = {entry.subject for entry, device in devices if not device.pids} - {
            subject for subject, _ in claims.held
        }
        at_work = {job for (_, job), claim in claims.held.items() if claim.listed}
        for each in assigned:
            for name in each.devices:
                # An index may count the devices of the job alone; where the driver shows the job, it knows.
                if name.isdigit() and each.job_id in at_work:
                    continue
                subject = resolve(each.pid, each.start_ticks, name)
                if subject in free:
                    since = min(now, self._steady.started(each.start_time))
                    claims.add(subject, each.job_id, each.rank, since, listed=False)
        for gone in self._meant.keys() - current:
            del self._meant[gone]
        return claims

    def _listed(
        self,
        devices: list[tuple[Entry, Device]],
        claims: Claims,
        started: dict[tuple[str, str], float],
        now: float,
    ) -> set[int]:
        """Note the processes that the driver lists; return all their pids."""
        told: set[int] = set()
        unknown: set[int] = set()
        # With MIG the GPU lists the processes of its instances once more.
        in_instances = defaultdict[str, set[int]](set)
        for entry, device in devices:
            if entry.mig:
                in_instances[entry.pci].update(device.pids or ())
        for entry, device in devices:
            for pid in device.pids or ():
                if not entry.mig and pid in in_instances[entry.pci]:
                    continue
                told.add(pid)
                holder = self._who.holder_of(pid)
                if holder is None:
                    unknown.add(pid)
                    continue
                since = started.get((holder.job_id, holder.rank), now)
                # It was not on the device yet when the driver last listed the processes without it.
                if entry.listed is not None:
                    since = max(since, entry.listed)
                claims.add(entry.subject, holder.job_id, holder.rank, min(since, now), listed=True)
        claims.unmatched = len(unknown)
        return told


class _Names:
    """The devices of a reading by index, device file, UUID or its beginning, and MIG's two kinds of name."""

    def __init__(self, devices: list[tuple[Entry, Device]]) -> None:
        self._whole = [entry for entry, _ in devices if not entry.mig]
        self._parts = [entry for entry, _ in devices if entry.mig]
        # Where the driver does not tell the device files, they are numbered as it numbers the devices.
        self._minors = {
            entry.subject: device.info.get("minor") or entry.gpu for entry, device in devices if not entry.mig
        }

    def find(self, name: str) -> str | None:
        if name.startswith("MIG-GPU-"):
            uuid, _, mig = name.removeprefix("MIG-").partition("/")
            address = next((entry.pci for entry in self._whole if entry.uuid == uuid), None)
            hits = [entry for entry in self._parts if entry.pci == address and entry.mig == mig]
        elif name.startswith("MIG-"):
            hits = [entry for entry in self._parts if entry.uuid.startswith(name)]
        elif name.startswith("GPU-"):
            hits = [entry for entry in self._whole if entry.uuid.startswith(name)]
        elif name.startswith("minor:"):
            number = name.removeprefix("minor:")
            hits = [entry for entry in self._whole if self._minors[entry.subject] == number]
        else:
            hits = [entry for entry in self._whole if entry.gpu == name]
        return hits[0].subject if len(hits) == 1 else None
