"""Cases, incidents and their timeline. Every change of state is a compare-and-set with its event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError

from tocsin_remediator import __version__
from tocsin_remediator.errors import NotFound, Refused, StaleIncident
from tocsin_remediator.journal.schema import approvals, cases, events, incidents
from tocsin_remediator.model import ACTING, CloseCode, Event, Incident, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection, Row

    from tocsin_remediator.journal.database import Database

_MESSAGE: Final = 2000
# A larger number cannot be asked for: databases refuse it as an argument.
_LARGEST_ID: Final = 2**63 - 1


class Incidents:
    """Incidents and cases."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(
        self,
        *,
        family: str,
        target: str,
        subject: str,
        labels: Mapping[str, str],
        annotations: Mapping[str, str],
        now: float,
    ) -> tuple[Incident, bool]:
        """
        The one open incident of (family, target), and whether it was opened just now.

        It joins the open case of its subject (the job), which is opened when there is none.
        """
        key = f"{family}|{target}"
        with self._database.read() as connection:
            found = connection.execute(select(incidents).where(incidents.c.open_key == key)).first()
            if found is not None:
                return _incident(found), False
        try:
            with self._database.begin() as connection:
                found = connection.execute(select(incidents).where(incidents.c.open_key == key)).first()
                if found is not None:
                    return _incident(found), False
                made = connection.execute(
                    insert(incidents).values(
                        case_id=_case(connection, subject, now),
                        family=family,
                        target=target,
                        open_key=key,
                        subject=subject,
                        state=str(State.RECEIVED),
                        version=1,
                        labels=dict(labels),
                        annotations=dict(annotations),
                        level="",
                        runbook_digest="",
                        plan_digest="",
                        facts={},
                        opened_at=now,
                        state_since=now,
                        updated_at=now,
                        next_at=now,
                        close_code="",
                        reason="the alert was recorded",
                        program=__version__,
                    )
                ).inserted_primary_key
                assert made is not None  # noqa: S101  the table has a primary key
                _event(
                    connection,
                    int(made[0]),
                    now,
                    "received",
                    f"{family} on {target}",
                    {"labels": dict(labels)},
                )
                row = connection.execute(select(incidents).where(incidents.c.id == made[0])).one()
                return _incident(row), True
        except IntegrityError:
            # Another process opened it between our look and our insert.
            with self._database.begin() as connection:
                row = connection.execute(select(incidents).where(incidents.c.open_key == key)).one()
                return _incident(row), False

    def get(self, incident: int) -> Incident:
        """One incident; NotFound when there is none."""
        with self._database.read() as connection:
            return _existing(connection, incident)

    def all(self, *, only_open: bool = False, state: State | None = None, limit: int = 500) -> list[Incident]:
        """Incidents: open ones before closed ones, so that a limit hides none; the latest first."""
        closed = incidents.c.state == str(State.CLOSED)
        query = select(incidents).order_by(closed, incidents.c.id.desc()).limit(limit)
        if only_open:
            query = query.where(~closed)
        if state is not None:
            query = query.where(incidents.c.state == str(state))
        with self._database.read() as connection:
            return [_incident(row) for row in connection.execute(query)]

    def of_case(self, case: int) -> list[Incident]:
        """The incidents of one case, the oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(incidents).where(incidents.c.case_id == case).order_by(incidents.c.id)
            )
            return [_incident(row) for row in rows]

    def open_of_subject(self, subject: str) -> list[Incident]:
        """Open incidents of a job (or device)."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(incidents).where(
                    incidents.c.subject == subject, incidents.c.state != str(State.CLOSED)
                )
            )
            return [_incident(row) for row in rows]

    def due(self, now: float, limit: int = 200) -> list[Incident]:
        """Open incidents that want to be looked at, the longest waiting first."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(incidents)
                .where(incidents.c.state != str(State.CLOSED), incidents.c.next_at <= now)
                .order_by(incidents.c.next_at)
                .limit(limit)
            )
            return [_incident(row) for row in rows]

    def acting(self) -> list[Incident]:
        """Incidents with something of ours under way."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(incidents).where(incidents.c.state.in_([str(state) for state in ACTING]))
            )
            return [_incident(row) for row in rows]

    def counts(self) -> dict[tuple[str, str], int]:
        """How many incidents there are by (state, family)."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(incidents.c.state, incidents.c.family, func.count()).group_by(
                    incidents.c.state, incidents.c.family
                )
            )
            return {(str(state), str(family)): int(count) for state, family, count in rows}

    def move(
        self,
        incident: Incident,
        state: State,
        reason: str,
        now: float,
        *,
        code: CloseCode | None = None,
        **values: Any,
    ) -> Incident:
        """
        Change the state (or only `values`, when it stays the same) if nobody else has.

        StaleIncident when the row has changed since `incident` was read.
        """
        with self._database.begin() as connection:
            return move(connection, incident, state, reason, now, code=code, **values)

    def touch(self, incident: Incident, now: float, next_at: float, **values: Any) -> Incident:
        """Store progress without a line in the timeline; StaleIncident as for `move`."""
        with self._database.begin() as connection:
            _write(connection, incident, {"next_at": next_at, "updated_at": now, **values})
            row = connection.execute(select(incidents).where(incidents.c.id == incident.id)).one()
        return _incident(row)

    def wake(self, incident: int, now: float) -> None:
        """Have it looked at now; no change of state."""
        with self._database.begin() as connection:
            connection.execute(
                update(incidents)
                .where(incidents.c.id == incident, incidents.c.next_at > now)
                .values(next_at=now)
            )

    def note(
        self, incident: int, kind: str, message: str, now: float, data: Mapping[str, Any] | None = None
    ) -> None:
        """Add a line to the timeline."""
        with self._database.begin() as connection:
            _event(connection, incident, now, kind, message, data or {})

    def events(self, incident: int) -> list[Event]:
        """The timeline, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(events).where(events.c.incident_id == incident).order_by(events.c.id)
            )
            return [Event(r.id, r.incident_id, r.at, r.kind, r.message, r.data) for r in rows]

    def decide(
        self, incident: int, *, approve: bool, plan_digest: str, who: str, reason: str, now: float
    ) -> Incident:
        """
        A person's word on a plan: approve queues it, reject closes the incident.

        Refused when it does not wait for approval (any more), or when `plan_digest` is not that
        of the plan as it stands (empty: the plan as it stands is meant).
        """
        with self._database.begin() as connection:
            current = _existing(connection, incident)
            _may_decide(current, approve=approve, plan_digest=plan_digest, now=now)
            connection.execute(
                insert(approvals).values(
                    incident_id=incident,
                    plan_digest=current.plan_digest,
                    decision="approve" if approve else "reject",
                    who=who,
                    at=now,
                    reason=reason[:_MESSAGE],
                )
            )
            if approve:
                return move(
                    connection,
                    current,
                    State.QUEUED,
                    f"approved by {who}",
                    now,
                    next_at=now,
                    deadline_at=None,
                )
            code = CloseCode.REFUSED if current.state is State.AWAITING_APPROVAL else CloseCode.MANUAL
            return move(connection, current, State.CLOSED, f"rejected by {who}: {reason}", now, code=code)


def _existing(connection: Connection, incident: int) -> Incident:
    """One incident; NotFound when there is none."""
    if abs(incident) <= _LARGEST_ID:
        row = connection.execute(select(incidents).where(incidents.c.id == incident)).first()
        if row is not None:
            return _incident(row)
    raise NotFound(f"there is no incident {incident}")


def _may_decide(current: Incident, *, approve: bool, plan_digest: str, now: float) -> None:
    if approve:
        if current.state is not State.AWAITING_APPROVAL:
            raise Refused(f"incident {current.id} is {current.state} and does not wait for approval")
        if current.deadline_at is not None and now > current.deadline_at:
            raise Refused(
                f"the time for approving incident {current.id} is over; it will ask again or escalate"
            )
        if plan_digest and plan_digest != current.plan_digest:
            raise Refused(
                f"the plan of incident {current.id} has changed since it was shown; look at it again"
            )
    elif current.state in ACTING or current.state is State.CLOSED:
        raise Refused(
            f"incident {current.id} is {current.state}; to stop what is under way use freeze or halt"
        )


def move(
    connection: Connection,
    incident: Incident,
    state: State,
    reason: str,
    now: float,
    *,
    code: CloseCode | None = None,
    **values: Any,
) -> Incident:
    """`Incidents.move` inside a transaction of the caller's."""
    changes: dict[str, Any] = {
        "updated_at": now,
        "reason": reason[:_MESSAGE],
        "program": __version__,
        **values,
    }
    if state is not incident.state:
        changes |= {"state": str(state), "state_since": now}
        changes.setdefault("next_at", now)
    if state is State.CLOSED:
        changes |= {"open_key": None, "close_code": str(code or ""), "deadline_at": None}
    _write(connection, incident, changes)
    kind = str(state) if state is not incident.state else "note"
    _event(connection, incident.id, now, kind, reason, {"code": str(code)} if code else {})
    if state is State.CLOSED:
        _close_case(connection, incident.case_id, now)
    return _incident(connection.execute(select(incidents).where(incidents.c.id == incident.id)).one())


def _write(connection: Connection, incident: Incident, changes: Mapping[str, Any]) -> None:
    done = connection.execute(
        update(incidents)
        .where(incidents.c.id == incident.id, incidents.c.version == incident.version)
        .values(version=incident.version + 1, **changes)
    )
    if done.rowcount != 1:
        raise StaleIncident(f"incident {incident.id} has changed since version {incident.version}")


def _case(connection: Connection, subject: str, now: float) -> int:
    found = connection.execute(select(cases.c.id).where(cases.c.open_key == subject)).scalar()
    if found is not None:
        return int(found)
    made = connection.execute(
        insert(cases).values(subject=subject, open_key=subject, opened_at=now)
    ).inserted_primary_key
    assert made is not None  # noqa: S101  the table has a primary key
    return int(made[0])


def _close_case(connection: Connection, case: int, now: float) -> None:
    still = connection.execute(
        select(func.count()).where(incidents.c.case_id == case, incidents.c.state != str(State.CLOSED))
    ).scalar_one()
    if not still:
        connection.execute(update(cases).where(cases.c.id == case).values(open_key=None, closed_at=now))


def _event(
    connection: Connection, incident: int, now: float, kind: str, message: str, data: Mapping[str, Any]
) -> None:
    connection.execute(
        insert(events).values(
            incident_id=incident, at=now, kind=kind, message=message[:_MESSAGE], data=dict(data)
        )
    )


def _incident(row: Row[Any]) -> Incident:
    return Incident(
        id=row.id,
        case_id=row.case_id,
        family=row.family,
        target=row.target,
        subject=row.subject,
        state=State(row.state),
        version=row.version,
        labels=row.labels,
        annotations=row.annotations,
        level=row.level,
        runbook_digest=row.runbook_digest,
        plan=row.plan,
        plan_digest=row.plan_digest,
        facts=row.facts,
        opened_at=row.opened_at,
        state_since=row.state_since,
        updated_at=row.updated_at,
        deadline_at=row.deadline_at,
        next_at=row.next_at,
        close_code=row.close_code,
        reason=row.reason,
    )
