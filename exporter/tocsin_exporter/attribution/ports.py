"""Which job holds which fabric port: the one on the GPUs nearest to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tocsin_exporter.attribution.holding import Holding, Key, Meter, number, text
from tocsin_exporter.attribution.holdings import Holdings
from tocsin_exporter.attribution.table import PORT_FOLLOWED
from tocsin_exporter.sources.sysfs import Port, distance, locate

__all__ = ["Ports"]

_MOST_PORTS = 64
_Place = tuple[tuple[str, ...], int]


class Ports:
    """The holders of ports, and what the ports' counters last showed."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self.held = Holdings()
        self._meters: dict[str, Meter] = {}
        self._places: dict[str, _Place] = {}
        # Ports that nobody looked at since a restart.
        self._unread: set[str] = set()
        self._read: dict[str, float] = {}
        self.unattributed = 0

    def read(self, ports: tuple[Port, ...], users: Mapping[str, tuple[set[str], float]], now: float) -> bool:
        """
        Take a reading in; return whether something must be kept.

        *users* has, per job that is on devices now, their PCI addresses and since when.
        """
        dirty = self._assign(ports, users, now)
        for port in ports[:_MOST_PORTS]:
            raw = {_key(key): value for key, value in port.counters.items()}
            events, amounts = self._meters.setdefault(port.name, Meter()).gains(raw, PORT_FOLLOWED)
            grown = sum(events.values())
            taken = False
            for holding in self.held.of(port.name):
                if holding.accountable(now):
                    taken |= not holding.fresh
                    holding.add(events.items())
                    if holding.there_after(self._read.get(port.name)):
                        holding.add(amounts.items())
                    holding.fresh = False
            if grown and port.name in self._unread and not taken:
                self.unattributed += int(grown)
            self._unread.discard(port.name)
            self._read[port.name] = now
            dirty |= grown > 0
        return dirty

    def _assign(
        self, ports: tuple[Port, ...], users: Mapping[str, tuple[set[str], float]], now: float
    ) -> bool:
        wanted: set[tuple[str, str]] = set()
        for job, (addresses, _) in users.items():
            for address in addresses:
                wanted |= {(name, job) for name in self._nearest(address, ports)}
        for holding in self.held:
            # A port that went down stays the job's: that it went down is the finding.
            if holding.active and holding.job_id in users:
                wanted.add((holding.subject, holding.job_id))
        dirty = False
        for name, job in wanted:
            since = users[job][1]
            known = self.held.get(name, job)
            if known is not None:
                dirty |= known.hold(since, now, frozenset())
            else:
                dirty |= self.held.add(Holding(name, job, frozenset(), [(since, None)]))
        for holding in self.held:
            if holding.active and (holding.subject, holding.job_id) not in wanted:
                holding.release(now)
                dirty = True
        expired, _ = self.held.expire(now)
        return dirty or expired

    def _nearest(self, address: str, ports: tuple[Port, ...]) -> list[str]:
        place = self._places.get(address)
        if place is None:
            place = locate(self._sysfs, address) if address else ((), -1)
            # A device that is not in sysfs yet is looked for again.
            if len(self._places) < 1024 and (self._sysfs / "bus/pci/devices" / address).exists():
                self._places[address] = place
        far = {port.name: distance(place, (port.pci_path, port.numa_node)) for port in ports}
        known = [steps for steps in far.values() if steps is not None]
        if not known:
            return [port.name for port in ports if port.active]
        return [name for name, steps in far.items() if steps == min(known)]

    def to_json(self) -> dict[str, Any]:
        """Return what must survive a restart."""
        return {
            "held": self.held.to_json(PORT_FOLLOWED),
            "unattributed": self.unattributed,
            "raw": {name: meter.to_json(PORT_FOLLOWED) for name, meter in self._meters.items()},
        }

    def restore(self, raw: Mapping[str, Any], *, same_boot: bool) -> None:
        """Take in what `to_json` gave; KeyError, TypeError or ValueError for anything else."""
        self.held.restore(raw["held"])
        self.unattributed = int(number(raw["unattributed"]))
        if same_boot:
            for name, rows in list(raw["raw"].items())[:_MOST_PORTS]:
                self._meters[text(name)] = Meter.from_json(rows)
                self._unread.add(name)


def _key(key: Key) -> Key:
    return ("errors_total", ("link_downed",)) if key[0] == "link_downed_total" else key
