"""Words of the state machine and the values that travel between its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(StrEnum):
    """States of an incident."""

    RECEIVED = "received"
    CORRELATED = "correlated"
    RECOMMENDED = "recommended"
    AWAITING_APPROVAL = "awaiting_approval"
    QUEUED = "queued"
    EVIDENCE = "evidence"
    EXECUTING = "executing"
    VERIFYING = "verifying"
    HELD = "held"
    CLOSED = "closed"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    NEEDS_HUMAN = "needs_human"
    ESCALATED = "escalated"


# While an incident is in one of these, something of ours may be under way on the job.
ACTING = frozenset({State.EVIDENCE, State.EXECUTING, State.VERIFYING, State.ROLLING_BACK})

# Nothing has been changed yet: the fault may clear, or another family may take the lead.
BEFORE_ACTING = frozenset(
    {State.RECEIVED, State.CORRELATED, State.RECOMMENDED, State.AWAITING_APPROVAL, State.QUEUED}
)


class CloseCode(StrEnum):
    """Why an incident was closed."""

    FIXED = "fixed"
    SELF = "self"
    MANUAL = "manual"
    STALE = "stale"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    REFUSED = "refused"


class Level(IntEnum):
    """How far a runbook may go without a person. Ordered: the lowest of several limits wins."""

    RECOMMEND = 0
    APPROVE = 1
    AUTO = 2

    @property
    def word(self) -> str:
        """The level as written in files and on pages."""
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Level:
        """The level of this word; ValueError when there is none."""
        try:
            return cls[word.upper()]
        except KeyError:
            raise ValueError(f"level {word!r} is none of recommend, approve, auto") from None


class Verdict(StrEnum):
    """Answer of a check. Inconclusive is not a failure and never a success."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Stop(StrEnum):
    """Stop switches: freeze allows only undoing, halt allows nothing."""

    NONE = "none"
    FREEZE = "freeze"
    HALT = "halt"


@dataclass(frozen=True)
class Alert:
    """One alert of a notification. Times are the sender's text: display only."""

    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: str
    fingerprint: str

    @property
    def firing(self) -> bool:
        """Whether the sender calls this alert firing (the group's status is ignored)."""
        return self.status == "firing"


@dataclass(frozen=True)
class Notification:
    """One webhook delivery."""

    receiver: str
    group_key: str
    external_url: str
    truncated: int
    alerts: tuple[Alert, ...]


@dataclass(frozen=True)
class InboxItem:
    """An alert as the journal holds it; `id` orders arrival."""

    id: int
    received_at: float
    external_url: str
    alert: Alert


@dataclass(frozen=True)
class Incident:
    """
    One fault of one target.

    `labels` are those of the verdict row, `facts` what later steps need again after a
    restart (reference values, progress of the verification). Times are Unix seconds.
    """

    id: int
    case_id: int
    family: str
    target: str
    subject: str
    state: State
    version: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    level: str
    runbook_digest: str
    plan: Mapping[str, Any] | None
    plan_digest: str
    facts: Mapping[str, Any]
    opened_at: float
    state_since: float
    updated_at: float
    deadline_at: float | None
    next_at: float
    close_code: str
    reason: str

    @property
    def is_open(self) -> bool:
        """Whether anything can still happen to it."""
        return self.state is not State.CLOSED


@dataclass(frozen=True)
class Event:
    """One line of an incident's timeline."""

    id: int
    incident_id: int
    at: float
    kind: str
    message: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class StepRecord:
    """
    One action: `intent` is written before it is sent, an outcome after.

    `status` is intent, applied, not_applied or unknown. `pid` and `pid_start` name the process
    that carries it out, so that a restarted remediator can see whether it still runs.
    """

    id: int
    run_id: int
    incident_id: int
    position: int
    step: str
    action: str
    args: Mapping[str, str]
    request_id: str
    status: str
    intent_at: float
    outcome_at: float | None
    output: str
    pid: int
    pid_start: str
    rollback: bool


@dataclass(frozen=True)
class CheckResult:
    """What one check said, with all that is needed to ask again."""

    id: str
    role: str
    verdict: Verdict
    query: str
    expected: str
    values: tuple[tuple[str, float], ...]
    reason: str
    at: float

    def as_json(self) -> dict[str, Any]:
        """Plain values for the journal and the case file; non-finite numbers become text."""
        return {
            "id": self.id,
            "role": self.role,
            "verdict": str(self.verdict),
            "query": self.query,
            "expected": self.expected,
            "values": [{"labels": name, "value": number(value)} for name, value in self.values],
            "reason": self.reason,
            "at": self.at,
        }


@dataclass(frozen=True)
class Judgement:
    """Several checks taken together."""

    verdict: Verdict
    reason: str
    results: tuple[CheckResult, ...] = field(default=())


def number(value: float) -> float | str:
    """A float as strict JSON can carry it."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value
