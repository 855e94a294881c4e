"""Case files, approvals and shadow records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select

from tocsin_remediator.journal.schema import approvals, casefiles, shadow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tocsin_remediator.journal.database import Database


@dataclass(frozen=True)
class Decided:
    """A person's word on a plan."""

    decision: str
    who: str
    at: float
    reason: str
    plan_digest: str


@dataclass(frozen=True)
class Shadow:
    """What would have been done for an incident, had the runbook been allowed to."""

    incident_id: int
    runbook: str
    digest: str
    at: float
    plan: Mapping[str, Any]
    why: str


class Records:
    """What is kept for people."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save_casefile(
        self, *, case: int, incident: int, moment: str, body: Mapping[str, Any], now: float
    ) -> None:
        """Keep a case file; earlier ones of the incident stay."""
        with self._database.begin() as connection:
            connection.execute(
                insert(casefiles).values(
                    case_id=case, incident_id=incident, at=now, moment=moment, body=dict(body)
                )
            )

    def casefile(self, incident: int) -> dict[str, Any] | None:
        """
        The case file of an incident as it was first seen with evidence.

        The first one counts: later ones describe a job that has been acted on.
        """
        with self._database.read() as connection:
            found = connection.execute(
                select(casefiles.c.body)
                .where(casefiles.c.incident_id == incident)
                .order_by(casefiles.c.id)
                .limit(1)
            ).scalar()
        return dict(found) if found is not None else None

    def casefiles(self, incident: int) -> list[tuple[str, float, dict[str, Any]]]:
        """All case files of an incident: (moment, time, body), oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(casefiles).where(casefiles.c.incident_id == incident).order_by(casefiles.c.id)
            )
            return [(row.moment, row.at, row.body) for row in rows]

    def approvals(self, incident: int) -> list[Decided]:
        """What people decided, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(approvals).where(approvals.c.incident_id == incident).order_by(approvals.c.id)
            )
            return [Decided(r.decision, r.who, r.at, r.reason, r.plan_digest) for r in rows]

    def save_shadow(self, record: Shadow) -> None:
        """Keep what would have been done."""
        with self._database.begin() as connection:
            connection.execute(
                insert(shadow).values(
                    incident_id=record.incident_id,
                    runbook=record.runbook,
                    digest=record.digest,
                    at=record.at,
                    plan=dict(record.plan),
                    why=record.why,
                )
            )

    def shadows(self, runbook: str | None = None, limit: int = 500) -> list[Shadow]:
        """Shadow records, the latest first."""
        query = select(shadow).order_by(shadow.c.id.desc()).limit(limit)
        if runbook is not None:
            query = query.where(shadow.c.runbook == runbook)
        with self._database.read() as connection:
            return [
                Shadow(r.incident_id, r.runbook, r.digest, r.at, r.plan, r.why)
                for r in connection.execute(query)
            ]
