"""
What happens next: pure functions of the incident's state and of facts already established.

Nothing here reads a clock, a file or Prometheus; each decision carries its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tocsin_remediator.durations import words
from tocsin_remediator.model import CloseCode, Judgement, Level, State, Stop, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tocsin_remediator.runbook.model import Limits, Verify


@dataclass(frozen=True)
class Decision:
    """The next state (None: stay), why, and how long to wait before looking again (seconds)."""

    state: State | None
    reason: str
    code: CloseCode | None = None
    wait: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)


class Standing(StrEnum):
    """How Prometheus sees the verdict of an incident."""

    CONFIRMED = "confirmed"
    ABSENT = "absent"
    OUTRANKED = "outranked"
    SUPERSEDED = "superseded"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Confirmation:
    """The answer to: does Prometheus still say what the alert said? `labels` are those of the row."""

    standing: Standing
    reason: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Waits:
    """The waits of the state machine that a site can set (seconds)."""

    poll: float
    confirm_quiet: float
    confirm_deadline: float
    clear_quiet: float


def level(
    *, ceiling: Level, configured: Level, promoted: Level | None, promotion_current: bool, dry_run: bool
) -> tuple[Level, str]:
    """
    How far this runbook may go.

    A promotion counts for exactly the content it was given to; an edited runbook has none and
    falls to recommend.
    """
    if dry_run:
        return Level.RECOMMEND, "this is a dry run"
    if promoted is not None and not promotion_current:
        return Level.RECOMMEND, "the runbook has changed since it was promoted"
    wanted, why = (promoted, "promoted") if promoted is not None else (configured, "configured")
    if wanted > ceiling:
        return ceiling, f"{why} to {wanted.word}, but the runbook allows no more than {ceiling.word}"
    return wanted, f"{why} to {wanted.word}"


def before_acting(
    state: State, seen: Confirmation, facts: Mapping[str, Any], now: float, waits: Waits
) -> Decision | None:
    """
    What the verdict's standing means for an incident nothing was done for yet.

    None: it is confirmed, go on. Absence must last before it counts, since a rule evaluation or a
    scrape may be missed; an inconclusive answer never closes and never acts.
    """
    if seen.standing is Standing.CONFIRMED:
        return None
    if seen.standing is Standing.OUTRANKED:
        return Decision(
            None, seen.reason, wait=waits.poll, facts={"absent_since": None, "unclear_since": None}
        )
    if seen.standing is Standing.SUPERSEDED:
        return Decision(State.CLOSED, seen.reason, code=CloseCode.SUPERSEDED)
    if seen.standing is Standing.INCONCLUSIVE:
        since = facts.get("unclear_since") or now
        if now - since >= waits.confirm_deadline and state is not State.RECOMMENDED:
            return Decision(
                State.NEEDS_HUMAN,
                f"could not be confirmed for {words(waits.confirm_deadline)}: {seen.reason}",
            )
        return Decision(
            None, seen.reason, wait=waits.poll, facts={"unclear_since": since, "absent_since": None}
        )
    since = facts.get("absent_since") or now
    quiet = waits.confirm_quiet if state in (State.RECEIVED, State.CORRELATED) else waits.clear_quiet
    if now - since >= quiet:
        first = state in (State.RECEIVED, State.CORRELATED)
        code = CloseCode.STALE if first else CloseCode.SELF
        text = "Prometheus does not know this verdict" if first else "the fault went away by itself"
        return Decision(State.CLOSED, f"{text} (quiet for {words(quiet)}): {seen.reason}", code=code)
    return Decision(
        None, seen.reason, wait=min(waits.poll, quiet), facts={"absent_since": since, "unclear_since": None}
    )


def ruled_out(judgement: Judgement, waits: Waits, since: float, now: float) -> Decision | None:
    """What the rule-out checks mean: None when every other explanation is ruled out."""
    if judgement.verdict is Verdict.PASS:
        return None
    if judgement.verdict is Verdict.FAIL:
        return Decision(State.NEEDS_HUMAN, f"another explanation is not ruled out: {judgement.reason}")
    if now - since >= waits.confirm_deadline:
        return Decision(State.NEEDS_HUMAN, f"ruling out stayed inconclusive: {judgement.reason}")
    return Decision(None, f"ruling out is inconclusive: {judgement.reason}", wait=waits.poll)


def planned(allowed: Level, why: str, verdict: str) -> Decision:
    """Where a confirmed incident with a plan goes."""
    if verdict == "inconclusive":
        return Decision(State.RECOMMENDED, "the verdict is inconclusive, so nothing is done without a person")
    if allowed is Level.AUTO:
        return Decision(State.QUEUED, f"automatic: {why}")
    if allowed is Level.APPROVE:
        return Decision(State.AWAITING_APPROVAL, f"waits for approval: {why}")
    return Decision(State.RECOMMENDED, f"recorded as a recommendation: {why}")


@dataclass(frozen=True)
class Gate:
    """What must be open before an attempt is counted. Times are Unix seconds."""

    stop: Stop
    # The switch in words.
    why: str
    busy: str
    running: int
    attempts: int
    last_attempt: float | None
    preconditions: Judgement
    queued_since: float


def gate(facts: Gate, limits: Limits, max_concurrent: int, now: float, waits: Waits) -> Decision | None:
    """None when the run may begin; it waits in the queue, or goes to a person, otherwise."""
    if facts.stop is not Stop.NONE:
        return Decision(None, facts.why, wait=waits.poll)
    if facts.attempts >= limits.attempts.per_target:
        return Decision(
            State.ESCALATED,
            f"all {limits.attempts.per_target} attempts within {words(limits.attempts.window)} are used",
        )
    if now - facts.queued_since >= limits.deadline:
        return Decision(State.NEEDS_HUMAN, f"could not start within {words(limits.deadline)}")
    if facts.last_attempt is not None and now - facts.last_attempt < limits.attempts.cooldown:
        return Decision(None, f"cooling down for {words(limits.attempts.cooldown)}", wait=waits.poll)
    if facts.busy:
        return Decision(None, facts.busy, wait=waits.poll)
    if facts.running >= max_concurrent:
        return Decision(None, f"{facts.running} jobs are being acted on already", wait=waits.poll)
    if facts.preconditions.verdict is Verdict.FAIL:
        return Decision(State.NEEDS_HUMAN, f"a precondition fails: {facts.preconditions.reason}")
    if facts.preconditions.verdict is Verdict.INCONCLUSIVE:
        return Decision(
            None, f"a precondition is inconclusive: {facts.preconditions.reason}", wait=waits.poll
        )
    return None


@dataclass(frozen=True)
class Progress:
    """How far a verification is. Stored with the incident, so that it survives a restart."""

    since: float
    pass_since: float | None = None
    samples: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the journal."""
        return {
            "since": self.since,
            "pass_since": self.pass_since,
            "samples": self.samples,
            "failures": dict(self.failures),
        }

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None, now: float) -> Progress:
        """From the journal; a new one when nothing is stored."""
        if stored is None:
            return cls(since=now)
        return cls(
            since=float(stored["since"]),
            pass_since=stored["pass_since"],
            samples=int(stored["samples"]),
            failures=dict(stored["failures"]),
        )


def settled(progress: Progress, spec: Verify, now: float) -> float:
    """Seconds until the first sample of a verification counts; 0 when it does."""
    return max(progress.since + spec.settle - now, 0.0)


def verification(
    progress: Progress, judgement: Judgement, spec: Verify, now: float
) -> tuple[Progress, Decision]:
    """
    One more sample of a verification.

    It holds when all checks pass without a break for `for`. It fails early when a check with a
    failureLimit fails more often in a row, and at the deadline when the last sample fails; an
    inconclusive sample breaks the streak and is never a failure of the fix.
    """
    failures = _failures(progress, judgement)
    limits = {check.id: check.failure_limit for check in spec.checks if check.failure_limit is not None}
    passing = judgement.verdict is Verdict.PASS
    pass_since = (progress.pass_since if progress.pass_since is not None else now) if passing else None
    updated = Progress(progress.since, pass_since, progress.samples + 1, failures)
    for check, limit in limits.items():
        if failures.get(check, 0) > limit:
            return updated, Decision(
                State.ROLLING_BACK, f"verification failed: {check} failed {failures[check]} times in a row"
            )
    if pass_since is not None and now - pass_since >= spec.for_:
        return updated, Decision(State.HELD, f"verified: {judgement.reason} for {words(now - pass_since)}")
    if now - progress.since >= spec.deadline:
        if judgement.verdict is Verdict.FAIL:
            return updated, Decision(
                State.ROLLING_BACK, f"verification failed within {words(spec.deadline)}: {judgement.reason}"
            )
        if passing:
            # The streak began late; it gets its full length, no more.
            return updated, Decision(None, judgement.reason, wait=spec.interval)
        to = State.NEEDS_HUMAN if spec.on_inconclusive == "needs_human" else State.ROLLING_BACK
        return updated, Decision(to, f"cannot be verified: {judgement.reason}")
    return updated, Decision(None, judgement.reason, wait=spec.interval)


def _failures(progress: Progress, judgement: Judgement) -> dict[str, int]:
    guard_dead = any(r.role == "guard" and r.verdict is not Verdict.PASS for r in judgement.results)
    counts: dict[str, int] = {}
    for result in judgement.results:
        before = progress.failures.get(result.id, 0)
        if result.verdict is Verdict.PASS:
            continue
        if result.verdict is Verdict.FAIL and not guard_dead:
            counts[result.id] = before + 1
        elif before:
            counts[result.id] = before
    return counts


def holding(
    state_since: float, hold: float, fault: Verdict, reason: str, now: float, poll: float
) -> Decision:
    """
    A verified fix on probation: the fault must stay away for `hold`.

    An unanswerable question stretches the probation; it never ends it.
    """
    if fault is Verdict.FAIL:
        return Decision(State.ROLLING_BACK, f"the fault came back while the fix was held: {reason}")
    if fault is Verdict.INCONCLUSIVE:
        if now - state_since >= 10 * hold + 600:
            return Decision(State.NEEDS_HUMAN, f"the hold could not be observed: {reason}")
        return Decision(None, f"held, but not observable now: {reason}", wait=poll)
    if now - state_since >= hold:
        return Decision(State.CLOSED, f"the fix held for {words(hold)}", code=CloseCode.FIXED)
    return Decision(None, "held", wait=min(poll, max(state_since + hold - now, 0.1)))


class Recovery(StrEnum):
    """What to do about an intent without an outcome after a restart."""

    WAIT = "wait"
    RESEND = "resend"
    ASK = "ask"


def recover(*, idempotent: bool, still_running: bool) -> tuple[Recovery, str]:
    """
    An intent whose outcome is not known.

    Only an action whose other side knows request ids may be sent again, under the same id; anything
    else is a person's decision.
    """
    if still_running:
        return Recovery.WAIT, "the process of before the restart is still at it"
    if idempotent:
        return Recovery.RESEND, "asked again under the same request id, which the other side does once"
    return (
        Recovery.ASK,
        "the remediator ended between sending and hearing the outcome, and cannot ask what happened",
    )
