"""Stop switch, secret and promotions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select

from tocsin_remediator.journal.schema import promotions, settings
from tocsin_remediator.model import Level, Stop

if TYPE_CHECKING:
    from tocsin_remediator.journal.database import Database


@dataclass(frozen=True)
class Promotion:
    """The level a person gave a runbook with exactly this digest."""

    runbook: str
    level: Level
    digest: str
    who: str
    at: float


class Settings:
    """What people have set."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, key: str) -> str:
        """A setting; empty when it was never set."""
        with self._database.read() as connection:
            return connection.execute(select(settings.c.value).where(settings.c.key == key)).scalar() or ""

    def set(self, key: str, value: str) -> None:
        """Set it."""
        with self._database.begin() as connection:
            connection.execute(delete(settings).where(settings.c.key == key))
            connection.execute(insert(settings).values(key=key, value=value))

    def drop(self, key: str, value: str) -> None:
        """Unset it, unless somebody has set another value since."""
        with self._database.begin() as connection:
            connection.execute(delete(settings).where(settings.c.key == key, settings.c.value == value))

    def stop(self) -> Stop:
        """
        The stop switch. Besides the journal a file HALT or FREEZE in the journal's folder sets
        it, so that a journal that cannot be written can still be stopped.
        """
        stored = Stop(self.get("stop") or "none")
        file = self._database.file
        if stored is Stop.HALT or (file is not None and (file.parent / "HALT").exists()):
            return Stop.HALT
        if file is not None and (file.parent / "FREEZE").exists():
            return Stop.FREEZE
        return stored

    def set_stop(self, stop: Stop) -> None:
        """Turn the switch in the journal."""
        self.set("stop", str(stop))

    def promote(self, promotion: Promotion) -> None:
        """Record a promotion; the latest of a runbook counts."""
        with self._database.begin() as connection:
            connection.execute(
                insert(promotions).values(
                    runbook=promotion.runbook,
                    level=promotion.level.word,
                    digest=promotion.digest,
                    who=promotion.who,
                    at=promotion.at,
                )
            )

    def promotion(self, runbook: str) -> Promotion | None:
        """The latest promotion of a runbook."""
        with self._database.read() as connection:
            row = connection.execute(
                select(promotions)
                .where(promotions.c.runbook == runbook)
                .order_by(promotions.c.id.desc())
                .limit(1)
            ).first()
        if row is None:
            return None
        return Promotion(row.runbook, Level.of(row.level), row.digest, row.who, row.at)
