"""Runs and their steps: the intent before an action, its outcome after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, insert, select, update

from tocsin_remediator.journal.incidents import move
from tocsin_remediator.journal.schema import runs, steps
from tocsin_remediator.model import Incident, State, StepRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Row

    from tocsin_remediator.journal.database import Database

_OUTPUT: Final = 16384


class Runs:
    """What was attempted."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def attempts(self, family: str, target: str, since: float) -> tuple[int, float | None]:
        """How many runs this target has had since then (over all its incidents), and the latest's start."""
        with self._database.read() as connection:
            count, latest = connection.execute(
                select(func.count(), func.max(runs.c.started_at)).where(
                    runs.c.family == family, runs.c.target == target, runs.c.started_at >= since
                )
            ).one()
        return int(count), latest

    def begin(self, incident: Incident, reason: str, now: float, deadline: float) -> Incident:
        """Count the attempt and leave the queue, in one transaction; StaleIncident as for `move`."""
        with self._database.begin() as connection:
            connection.execute(
                insert(runs).values(
                    incident_id=incident.id,
                    family=incident.family,
                    target=incident.target,
                    plan_digest=incident.plan_digest,
                    started_at=now,
                    outcome="",
                )
            )
            return move(connection, incident, State.EVIDENCE, reason, now, deadline_at=deadline)

    def latest(self, incident: int) -> int:
        """The id of the incident's latest run; 0 when it has none."""
        with self._database.read() as connection:
            found = connection.execute(
                select(func.max(runs.c.id)).where(runs.c.incident_id == incident)
            ).scalar()
        return int(found or 0)

    def end(self, run: int, outcome: str, now: float) -> None:
        """Close a run."""
        with self._database.begin() as connection:
            connection.execute(update(runs).where(runs.c.id == run).values(ended_at=now, outcome=outcome))

    def intend(
        self,
        *,
        run: int,
        incident: int,
        position: int,
        step: str,
        action: str,
        args: Mapping[str, str],
        request_id: str,
        rollback: bool,
        now: float,
    ) -> StepRecord:
        """Write what is about to be done. IntegrityError when this request was written before."""
        with self._database.begin() as connection:
            made = connection.execute(
                insert(steps).values(
                    run_id=run,
                    incident_id=incident,
                    position=position,
                    step=step,
                    action=action,
                    args=dict(args),
                    request_id=request_id,
                    status="intent",
                    intent_at=now,
                    output="",
                    pid=0,
                    pid_start="",
                    rollback=rollback,
                )
            ).inserted_primary_key
            assert made is not None  # noqa: S101  the table has a primary key
            return _step(connection.execute(select(steps).where(steps.c.id == made[0])).one())

    def started(self, step: int, pid: int, pid_start: str) -> None:
        """Name the process that carries a step out."""
        with self._database.begin() as connection:
            connection.execute(update(steps).where(steps.c.id == step).values(pid=pid, pid_start=pid_start))

    def outcome(self, step: int, status: str, output: str, now: float) -> None:
        """Write what came of a step: applied, not_applied or unknown."""
        with self._database.begin() as connection:
            connection.execute(
                update(steps)
                .where(steps.c.id == step)
                .values(status=status, output=output[-_OUTPUT:], outcome_at=now)
            )

    def steps(self, incident: int) -> list[StepRecord]:
        """All steps of an incident in the order of their intents."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(steps).where(steps.c.incident_id == incident).order_by(steps.c.id)
            )
            return [_step(row) for row in rows]


def _step(row: Row[Any]) -> StepRecord:
    return StepRecord(
        id=row.id,
        run_id=row.run_id,
        incident_id=row.incident_id,
        position=row.position,
        step=row.step,
        action=row.action,
        args=row.args,
        request_id=row.request_id,
        status=row.status,
        intent_at=row.intent_at,
        outcome_at=row.outcome_at,
        output=row.output,
        pid=row.pid,
        pid_start=row.pid_start,
        rollback=row.rollback,
    )
