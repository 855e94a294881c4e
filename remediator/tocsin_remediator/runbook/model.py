"""The form of a runbook file. `runbooks/README.md` explains it line by line."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from tocsin_remediator.durations import Duration

Text = Annotated[str, StringConstraints(min_length=1, max_length=4000, strip_whitespace=True)]
Reason = Annotated[str, StringConstraints(min_length=20, max_length=1000, strip_whitespace=True)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
FieldName = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Role(StrEnum):
    """What a check is for."""

    FAULT = "fault"
    INDICATOR = "indicator"
    GUARD = "guard"
    SAFETY = "safety"
    CONTEXT = "context"


class Series(_Part):
    """How many series an answer must have."""

    min: int = Field(default=1, ge=0, le=10000)
    max: int = Field(default=10000, ge=1, le=10000)


class Expect(_Part):
    """What the answer must be. `of` says what `value` is measured against."""

    op: Literal["==", "!=", "<", "<=", ">", ">=", "empty", "nonempty"]
    value: float = 0.0
    of: Literal["value", "baseline_ratio", "before_delta"] = "value"
    quantifier: Literal["all", "any"] = "all"
    series: Series = Series()


class Baseline(_Part):
    """Where `baseline_ratio` comes from: the median of the query over `window`, ending `before` onset."""

    window: Duration
    before: Duration = 0.0


class Check(_Part):
    """One question to Prometheus."""

    id: Name
    role: Role
    query: Annotated[str, StringConstraints(min_length=1, max_length=4000, strip_whitespace=True)]
    expect: Expect
    baseline: Baseline | None = None
    on_no_data: Literal["fail", "inconclusive", "pass"] = "inconclusive"
    on_warning: Literal["inconclusive", "ignore"] = "inconclusive"
    failure_limit: int | None = Field(default=None, ge=0, le=1000)
    says: Text


class Docs(_Part):
    """What the page for people says."""

    meaning: Text
    impact: Text
    diagnosis: Text
    mitigation: Text


class Metadata(_Part):
    """Who it is."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9]{1,62}$")]
    family: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9]{1,62}$")]
    version: int = Field(ge=1)
    owner: Text
    side: Literal["yours", "below"]
    docs: Docs


class TargetField(_Part):
    """Where a target value comes from and what type it must have."""

    from_: Annotated[str, StringConstraints(pattern=r"^label\.[a-z_]{1,40}$")] = Field(alias="from")
    type: Literal["job_id", "rank", "node", "gpu", "gpu_uuid", "port", "mount", "engine"]
    required: bool = True


class Target(_Part):
    """What the incident is about. `key` are the fields that make two alerts the same incident."""

    kind: Literal["job", "rank", "gpu", "node", "port", "mount", "engine"]
    key: list[FieldName] = Field(min_length=1, max_length=6)
    fields: dict[FieldName, TargetField] = Field(min_length=1, max_length=12)


class Approval(_Part):
    """How long an approval may be waited for."""

    ttl: Duration


class Automation(_Part):
    """The author's upper limit of automation."""

    ceiling: Literal["recommend", "approve", "auto"]
    accept_irreversible: Reason | None = None
    approval: Approval


class Attempts(_Part):
    """How often the same target may be acted on; counted before acting."""

    per_target: int = Field(ge=1, le=10)
    window: Duration
    cooldown: Duration


class Limits(_Part):
    """Attempts, and how long the whole may take from approval to verification."""

    attempts: Attempts
    deadline: Duration


class Step(_Part):
    """One action with typed arguments. It is left out when a check of `when` fails."""

    id: Name
    action: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+\.[a-z0-9_]+$")]
    with_: dict[FieldName, Text] = Field(default_factory=dict, alias="with")
    when: list[Check] = Field(default_factory=list, max_length=8)
    timeout: Duration
    on_failure: Literal["rollback", "needs_human", "escalate"]
    says: Text


class Verify(_Part):
    """When the fix counts: all checks pass for `for`, then the fault stays away for `hold`."""

    settle: Duration
    for_: Duration = Field(alias="for")
    interval: Duration
    deadline: Duration
    hold: Duration
    checks: list[Check] = Field(min_length=1, max_length=16)
    on_inconclusive: Literal["needs_human", "rollback"] = "needs_human"


class Rollback(_Part):
    """How to undo. `none` needs a reason."""

    strategy: Literal["undo", "none"]
    reason_if_none: Reason | None = None
    steps: list[Step] = Field(default_factory=list, max_length=8)
    verify: list[Check] = Field(default_factory=list, max_length=8)


class Escalate(_Part):
    """Who gets the evidence pack, and what is asked of them."""

    to: Literal["team", "provider"]
    ask: Text


class Spec(_Part):
    """What is done, in the order in which it is done."""

    target: Target
    rule_out: list[Check] = Field(default_factory=list, max_length=16)
    preconditions: list[Check] = Field(default_factory=list, max_length=16)
    automation: Automation
    limits: Limits
    steps: list[Step] = Field(default_factory=list, max_length=8)
    verify: Verify | None = None
    rollback: Rollback
    escalate: Escalate


class Runbook(_Part):
    """One file of `runbooks/`."""

    api_version: Literal["tocsin/v1"]
    kind: Literal["Runbook"]
    metadata: Metadata
    spec: Spec

    @property
    def digest(self) -> str:
        """Of the content, not of the formatting: permission and approval are bound to it."""
        plain = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(plain.encode()).hexdigest()
