"""All holders of devices, or of ports, within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tocsin_exporter.attribution.holding import Holding

__all__ = ["Holdings"]

# Jobs that are over, per device: a node that runs one-second jobs has ended hundreds within 15 minutes.
_MOST_ENDED = 48
# MPS allows 60 clients on a device.
_MOST_ACTIVE = 64


class Holdings:
    """Holders by subject (a device or a port) and job."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Holding]] = {}

    def __iter__(self) -> Iterator[Holding]:
        for jobs in self._of.values():
            yield from jobs.values()

    def get(self, subject: str, job: str) -> Holding | None:
        """Return one holder."""
        return self._of.get(subject, {}).get(job)

    def of(self, subject: str) -> tuple[Holding, ...]:
        """Return the holders of *subject*."""
        return tuple(self._of.get(subject, {}).values())

    def add(self, holding: Holding) -> bool:
        """Take a holder in; return False where there are too many."""
        jobs = self._of.setdefault(holding.subject, {})
        if len(jobs) >= _MOST_ACTIVE + _MOST_ENDED:
            return False
        jobs[holding.job_id] = holding
        return True

    def subjects(self) -> set[str]:
        """Return what has holders."""
        return set(self._of)

    def expire(self, now: float) -> tuple[bool, int]:
        """
        Drop the holders of whom nothing is served any more; return whether there were any, and how many had
        to go early because there are too many: those to whom nothing happened, and the oldest, first.
        """
        changed, early = False, 0
        for subject, jobs in list(self._of.items()):
            ended = [holding for holding in jobs.values() if not holding.active]
            gone = [holding for holding in ended if holding.expired(now)]
            rest = [holding for holding in ended if not holding.expired(now)]
            if len(rest) > _MOST_ENDED:
                rest.sort(key=lambda holding: (not holding.blank, holding.periods[-1][1] or 0.0))
                surplus = rest[: len(rest) - _MOST_ENDED]
                early += len(surplus)
                gone += surplus
            for holding in gone:
                del jobs[holding.job_id]
                changed = True
            if not jobs:
                del self._of[subject]
        return changed, early

    def to_json(self, wanted: Mapping[str, bool]) -> list[dict[str, Any]]:
        """Return what must survive a restart."""
        return [holding.to_json(wanted) for holding in self]

    def restore(self, rows: list[Any]) -> None:
        """Take in what `to_json` gave; KeyError, TypeError or ValueError for anything else."""
        for row in rows:
            self.add(Holding.from_json(row))
