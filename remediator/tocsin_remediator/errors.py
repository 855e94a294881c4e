"""
What can go wrong in the remediator.

* RemediatorError
  + InputFileError      a configuration or runbook file cannot be used; names file, line and reason
  + BadNotification     a webhook body that can never be read (HTTP 400)
  + JournalError        the journal cannot be read or written now (HTTP 503)
    - JournalTooNew     a newer program wrote it; this one must not touch it
  + StaleIncident       somebody else moved the incident first; read it again
  + NotFound            no such incident, case or runbook
  + Refused             a request or a value that must not be acted on; the reason says why
  + PrometheusError     a query without a usable answer; never evidence for or against a fix
  + ActionError         an action that did not succeed; `applied` says what is known of its effect
"""

# Names say what happened; "Error" would say it twice.
# ruff: noqa: N818

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class RemediatorError(Exception):
    """Base of everything this package raises on purpose."""


class InputFileError(RemediatorError):
    """A file that a person wrote cannot be used."""

    def __init__(self, file: Path | str, line: int, reason: str) -> None:
        super().__init__(f"{file}:{line}: {reason}")
        self.file = str(file)
        self.line = line
        self.reason = reason


class BadNotification(RemediatorError):
    """The body can never be read, however often it is sent."""


class JournalError(RemediatorError):
    """The journal cannot be read or written at the moment."""


class JournalTooNew(JournalError):
    """The journal has a schema from a newer program."""


class StaleIncident(RemediatorError):
    """The incident changed between reading and writing it."""


class NotFound(RemediatorError):
    """Nothing has this name."""


class Refused(RemediatorError):
    """A value or a request that must not be acted on."""


class QueryFailure(StrEnum):
    """Why a query has no usable answer."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    BAD_QUERY = "bad_query"
    EXECUTION = "execution"
    BAD_ANSWER = "bad_answer"


class PrometheusError(RemediatorError):
    """A query without a usable answer."""

    def __init__(self, kind: QueryFailure, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Applied(StrEnum):
    """What is known about the effect of an action that did not report success."""

    NO = "no"
    UNKNOWN = "unknown"


class ActionError(RemediatorError):
    """An action that did not succeed."""

    def __init__(self, applied: Applied, reason: str) -> None:
        super().__init__(reason)
        self.applied = applied
