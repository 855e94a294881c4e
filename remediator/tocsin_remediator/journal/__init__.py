"""
The journal: what was heard, decided and done, written before it is acted on.

`Journal` bundles its books: `inbox`, `incidents`, `runs`, `records`, `settings`.
"""

from __future__ import annotations

from tocsin_remediator.journal.database import Database
from tocsin_remediator.journal.inbox import Inbox
from tocsin_remediator.journal.incidents import Incidents
from tocsin_remediator.journal.records import Records
from tocsin_remediator.journal.runs import Runs
from tocsin_remediator.journal.settings import Settings

__all__ = ["Journal"]


class Journal:
    """All books over one database. Every method is one transaction."""

    def __init__(self, url: str) -> None:
        """Open or create the journal at `url`; JournalError when that cannot be done."""
        self.database = Database(url)
        self.inbox = Inbox(self.database)
        self.incidents = Incidents(self.database)
        self.runs = Runs(self.database)
        self.records = Records(self.database)
        self.settings = Settings(self.database)

    def close(self) -> None:
        """Give the connections back."""
        self.database.close()
