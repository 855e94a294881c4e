"""Alerts as they came, each dealt with once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import bindparam, delete, func, insert, select, update

from tocsin_remediator.journal.schema import inbox
from tocsin_remediator.model import Alert, InboxItem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Row

    from tocsin_remediator.journal.database import Database
    from tocsin_remediator.model import Notification


class Inbox:
    """The inbox. Skipped and duplicate alerts are marked too, so a restart replays nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(
        self,
        notification: Notification,
        now: float,
        settled: Callable[[Alert], str | None] = lambda alert: None,
    ) -> int:
        """
        Write every alert of a delivery in one transaction; how many there were.

        `settled` may name the result of an alert that nothing needs to be done for.
        """
        rows = [
            {
                "received_at": now,
                "external_url": notification.external_url,
                "status": alert.status,
                "labels": dict(alert.labels),
                "annotations": dict(alert.annotations),
                "starts_at": alert.starts_at,
                "fingerprint": alert.fingerprint,
                "result": (result := settled(alert)),
                "handled_at": None if result is None else now,
            }
            for alert in notification.alerts
        ]
        with self._database.begin() as connection:
            if rows:
                connection.execute(insert(inbox), rows)
        return len(rows)

    def waiting(self, limit: int = 1000) -> list[InboxItem]:
        """Alerts not yet dealt with, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(inbox).where(inbox.c.result.is_(None)).order_by(inbox.c.id).limit(limit)
            )
            return [_item(row) for row in rows]

    def finish(self, results: Mapping[int, str], now: float) -> None:
        """Mark alerts as dealt with, by id; the text says how."""
        if not results:
            return
        statement = (
            update(inbox)
            .where(inbox.c.id == bindparam("item"))
            .values(result=bindparam("text"), handled_at=bindparam("at"))
        )
        with self._database.begin() as connection:
            connection.execute(
                statement, [{"item": item, "text": text, "at": now} for item, text in results.items()]
            )

    def prune(self, before: float) -> int:
        """Forget alerts that were dealt with before then; how many. Incidents keep what they need."""
        with self._database.begin() as connection:
            done = connection.execute(
                delete(inbox).where(inbox.c.result.is_not(None), inbox.c.handled_at < before)
            )
        return int(done.rowcount)

    def refused(self, limit: int = 20) -> list[tuple[InboxItem, str]]:
        """The latest alerts that were refused, with the reason."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(inbox).where(inbox.c.result.like("refused%")).order_by(inbox.c.id.desc()).limit(limit)
            )
            return [(_item(row), str(row.result)) for row in rows]

    def lag(self, now: float) -> tuple[int, float]:
        """How many alerts wait, and the age of the oldest in seconds."""
        with self._database.read() as connection:
            count, oldest = connection.execute(
                select(func.count(), func.min(inbox.c.received_at)).where(inbox.c.result.is_(None))
            ).one()
        return int(count), max(now - oldest, 0.0) if oldest is not None else 0.0


def _item(row: Row[tuple[object, ...]]) -> InboxItem:
    return InboxItem(
        id=row.id,
        received_at=row.received_at,
        external_url=row.external_url,
        alert=Alert(
            status=row.status,
            labels=row.labels,
            annotations=row.annotations,
            starts_at=row.starts_at,
            fingerprint=row.fingerprint,
        ),
    )
