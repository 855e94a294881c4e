"""The configuration file: optional, closed (an unknown key is refused with its line)."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from tocsin_remediator import yamlmarks
from tocsin_remediator.adapters.catalogue import ACTIONS
from tocsin_remediator.durations import Duration
from tocsin_remediator.errors import InputFileError

FamilyName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9]{1,62}$")]
LevelName = Literal["recommend", "approve", "auto"]
Argument = Annotated[str, StringConstraints(min_length=1, max_length=4096)]

_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")

# Programs whose arguments are programs: with one of these an allow-list lists nothing.
_LAUNCHERS: Final = re.compile(
    r"(?:ba|da|z|k|c|tc|fi)?sh|env|xargs|find|perl|ruby|node|lua|awk|gawk|ssh|sudo|su|doas|timeout|nohup|nice"
    r"|setsid|chroot|unshare|nsenter|busybox|python[0-9.]*|pypy[0-9.]*|eval|exec|watch|parallel|script|socat"
)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Command(_Part):
    """An argument vector. A placeholder is a whole argument: `{job_id}`, never inside another."""

    argv: list[Argument] = Field(min_length=1, max_length=64)
    timeout: Duration | None = None

    @field_validator("argv")
    @classmethod
    def _program(cls, argv: list[str]) -> list[str]:
        program = argv[0]
        if _PLACEHOLDER.search(program):
            raise ValueError("the program itself cannot be a placeholder")
        if _LAUNCHERS.fullmatch(Path(program).name):
            raise ValueError(f"{program} starts other programs; name the program itself")
        for text in argv[1:]:
            if _PLACEHOLDER.search(text) and not _PLACEHOLDER.fullmatch(text):
                raise ValueError(f"{text!r}: a placeholder must be a whole argument of its own")
        if "/" in program:
            if not Path(program).is_absolute():
                raise ValueError(f"{program}: give an absolute path or a bare name")
            return argv
        # Looked up once, here: what a later PATH finds is not what was allowed. Beside the
        # interpreter too, where a virtual environment keeps its commands.
        found = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
        if found is None:
            raise ValueError(f"program {program!r} is not installed (looked in PATH)")
        return [os.path.abspath(found), *argv[1:]]

    @property
    def placeholders(self) -> set[str]:
        """Names of the placeholders."""
        return {found[1] for text in self.argv if (found := _PLACEHOLDER.fullmatch(text))}

    def fill(self, values: dict[str, str]) -> list[str]:
        """The argument vector for these (checked) values."""
        return [values[found[1]] if (found := _PLACEHOLDER.fullmatch(text)) else text for text in self.argv]


class Scheduler(_Part):
    """Who can restart and move jobs whose job_id starts with `job_prefix`, by allow-listed commands."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,40}$")]
    kind: Literal["command"]
    job_prefix: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+/[A-Za-z0-9._:@-]*$")]
    describe: Command
    actions: dict[str, Command] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known(self) -> Scheduler:
        if self.describe.placeholders - {"job_id"}:
            raise ValueError("describe may only use {job_id}")
        for verb, command in self.actions.items():
            action = ACTIONS.get(f"scheduler.{verb}")
            if action is None:
                known = ", ".join(a.verb for a in ACTIONS.values() if a.adapter == "scheduler")
                raise ValueError(f"action {verb!r} is none of {known}")
            unknown = command.placeholders - {*action.params, "request_id"}
            if unknown:
                raise ValueError(f"action {verb}: {{{sorted(unknown)[0]}}} is no argument of it")
            missing = set(action.params) - command.placeholders
            if missing:
                raise ValueError(f"action {verb}: the command leaves {{{sorted(missing)[0]}}} out")
        return self


class Auth(_Part):
    """Who may send and who may decide. Files hold one token a line, the operators' as `name token`."""

    webhook_token_file: Path | None = None
    operator_token_file: Path | None = None
    allowed_hosts: list[str] = Field(default_factory=list)


class Escalation(_Part):
    """Where evidence packs go. Without a directory: `packs` beside the journal."""

    directory: Path | None = None
    webhook_url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s@]+$")] | None = None


class Timing(_Part):
    """Waits and limits of the state machine."""

    poll: Duration = 5.0
    # Prometheus must deny a verdict for this long before its incident counts as stale.
    confirm_quiet: Duration = 30.0
    # How long an unanswerable confirmation is retried before a person is asked.
    confirm_deadline: Duration = 900.0
    # How long a cleared fault must stay away before an incident closes by itself.
    clear_quiet: Duration = 120.0
    recommend_expiry: Duration = 7 * 86400.0
    query_timeout: Duration = 5.0
    evidence_budget: Duration = 30.0
    describe_timeout: Duration = 15.0


class Config(_Part):
    """Everything a site decides."""

    auth: Auth = Auth()
    levels: dict[FamilyName, LevelName] = Field(default_factory=dict)
    schedulers: list[Scheduler] = Field(default_factory=list, max_length=32)
    escalation: Escalation = Escalation()
    timing: Timing = Timing()
    # Fleet-wide: so many jobs may be acted on at once.
    max_concurrent: int = Field(default=4, ge=1, le=64)
    # Where people reach these pages, for links in packs and notices.
    external_url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s@]+$")] | None = None

    @model_validator(mode="after")
    def _prefixes(self) -> Config:
        seen: set[str] = set()
        for scheduler in self.schedulers:
            if scheduler.job_prefix in seen:
                raise ValueError(f"two schedulers for the job prefix {scheduler.job_prefix}")
            seen.add(scheduler.job_prefix)
        return self

    def scheduler_for(self, job_id: str) -> Scheduler | None:
        """The scheduler with the longest prefix of this job."""
        fitting = [s for s in self.schedulers if job_id.startswith(s.job_prefix)]
        return max(fitting, key=lambda s: len(s.job_prefix), default=None)


def load(file: Path | None) -> Config:
    """The configuration in `file`; all defaults for None or an empty file. InputFileError when broken."""
    if file is None:
        return Config()
    document = yamlmarks.load(file)
    if document.value is None:
        return Config()
    return yamlmarks.validated(document, Config)


def webhook_tokens(auth: Auth) -> tuple[bytes, ...]:
    """The tokens a sender may use; two are valid during a rotation."""
    return tuple(line.encode() for line in _lines(auth.webhook_token_file))


def operator_tokens(auth: Auth) -> tuple[tuple[str, bytes], ...]:
    """(name, token) of the people who may decide."""
    found = []
    for place, line in enumerate(_lines(auth.operator_token_file), start=1):
        name, _, token = line.partition(" ")
        if not token.strip():
            raise InputFileError(str(auth.operator_token_file), place, "a line is `name token`")
        found.append((name, token.strip().encode()))
    return tuple(found)


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise InputFileError(file, 1, f"cannot be read: {err}") from err
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputFileError(file, 1, "holds no token; remove the key to run without one")
    return lines
