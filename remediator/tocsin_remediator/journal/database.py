"""Opening the journal's database, and its one rule: a transaction is committed or it did not happen."""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import create_engine, event, insert, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from tocsin_remediator.errors import JournalError, JournalTooNew
from tocsin_remediator.journal import schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

# Longer than any transaction of ours, shorter than Alertmanager's patience.
_WAIT: Final = 2.0


class Database:
    """A connection pool on the journal. Safe to use from several threads and processes."""

    def __init__(self, url: str) -> None:
        """Open or create the journal; JournalError when that cannot be done."""
        try:
            parsed = make_url(url)
        except ArgumentError as err:
            raise JournalError(
                f"{url!r} is no database address; use sqlite:///FILE or postgresql://…"
            ) from err
        self.file: Path | None = None
        # Whether the last transaction that could write went through.
        self.writable = True
        self._writer = threading.Lock()
        if parsed.get_backend_name() == "sqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise JournalError("the journal must be a file: sqlite:///FILE")
            self.file = Path(parsed.database).absolute()
        self._engine = self._open(url)
        self.instance = self._prepare()

    def _open(self, url: str) -> Engine:
        if self.file is None:
            try:
                return create_engine(url, pool_pre_ping=True)
            except (SQLAlchemyError, ImportError) as err:
                raise JournalError(f"the journal {make_url(url)!r} cannot be opened: {err}") from err
        if not self.file.parent.is_dir():
            raise JournalError(f"the journal's folder {self.file.parent} does not exist; create it")
        # Evidence and decisions are nobody else's business.
        if not self.file.exists():
            try:
                os.close(os.open(self.file, os.O_CREAT | os.O_RDWR, 0o600))
            except OSError as err:
                raise JournalError(f"{self.file} cannot be created: {err.strerror}") from err
        engine = create_engine(f"sqlite:///{self.file}", connect_args={"timeout": _WAIT})
        event.listen(engine, "connect", _sqlite_connect)
        event.listen(engine, "begin", _sqlite_begin)
        return engine

    def _prepare(self) -> str:
        with self.begin() as connection:
            schema.metadata.create_all(connection)
            rows = connection.execute(select(schema.settings.c.key, schema.settings.c.value))
            found = {str(row.key): str(row.value) for row in rows}
            if "schema" not in found:
                made = {
                    "schema": str(schema.VERSION),
                    "instance": secrets.token_hex(6),
                    "secret": secrets.token_hex(32),
                }
                connection.execute(
                    insert(schema.settings), [{"key": key, "value": value} for key, value in made.items()]
                )
                return str(made["instance"])
            if int(found["schema"]) > schema.VERSION:
                raise JournalTooNew(
                    f"the journal has schema {found['schema']}, this program knows {schema.VERSION}; "
                    "use the newer program"
                )
            return str(found["instance"])

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction; JournalError when the database fails, nothing written on any exception."""
        # SQLite has one writer. Queueing here is fair; its own busy handler sleeps longer and longer
        # and lets whoever comes last go first.
        if self.file is not None and not self._writer.acquire(timeout=_WAIT):
            raise JournalError(f"the journal is busy: no turn to write within {_WAIT:g}s")
        try:
            with self._engine.begin() as connection:
                yield connection
            self.writable = True
        except IntegrityError:
            raise
        except (DBAPIError, SQLAlchemyError) as err:
            self.writable = False
            raise JournalError(f"the journal cannot be used: {err.__cause__ or err}") from err
        finally:
            if self.file is not None:
                self._writer.release()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view that keeps no writer waiting; JournalError when the database fails."""
        try:
            with (
                self._engine.connect().execution_options(reads_only=True) as connection,
                connection.begin(),
            ):
                yield connection
        except (DBAPIError, SQLAlchemyError) as err:
            raise JournalError(f"the journal cannot be read: {err.__cause__ or err}") from err

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()


def _sqlite_connect(connection: Any, _record: Any) -> None:
    # pysqlite's own transaction handling begins late; ours begins with BEGIN IMMEDIATE below.
    connection.isolation_level = None
    cursor = connection.cursor()
    # FULL: an acknowledged alert survives a power cut, for 0.15 ms a commit.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_begin(connection: Connection) -> None:
    # Taking the write lock first avoids the upgrade that SQLite cannot wait for.
    reads = connection.get_execution_options().get("reads_only", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
