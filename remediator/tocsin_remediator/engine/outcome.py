"""After the action: verification, hold, rollback, escalation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tocsin_remediator import checks, decide
from tocsin_remediator.adapters.base import Request
from tocsin_remediator.decide import Decision, Progress, Standing
from tocsin_remediator.engine import acting
from tocsin_remediator.engine.common import apply, note_checks, standing
from tocsin_remediator.errors import ActionError
from tocsin_remediator.journal.settings import Promotion
from tocsin_remediator.model import CloseCode, Level, State, Verdict

if TYPE_CHECKING:
    from tocsin_remediator.engine.context import Context
    from tocsin_remediator.model import Incident

_RETRY_PACK = 60.0
_SEEN_NOW = {"absent_since": None, "unclear_since": None}
_SEEN = {
    Standing.CONFIRMED: Verdict.FAIL,
    # It still fires, as a contributor of a graver one.
    Standing.OUTRANKED: Verdict.FAIL,
    Standing.ABSENT: Verdict.PASS,
    Standing.SUPERSEDED: Verdict.PASS,
    Standing.INCONCLUSIVE: Verdict.INCONCLUSIVE,
}


def verifying(context: Context, incident: Incident) -> None:
    """One sample of the job's own indicators."""
    book = context.book(incident)
    if book is None or book.spec.verify is None or book.digest != incident.runbook_digest:
        apply(
            context,
            incident,
            Decision(State.NEEDS_HUMAN, "the runbook that would verify this is gone or changed"),
        )
        return
    spec = book.spec.verify
    now = context.now()
    progress = Progress.of(incident.facts.get("progress"), now)
    early = decide.settled(progress, spec, now)
    if early > 0:
        apply(context, incident, Decision(None, "the job settles after the action", wait=early))
        return
    values = dict((incident.plan or {}).get("target", {}))
    references = dict(incident.facts.get("references", {}))
    judged = checks.ask(context.prometheus, spec.checks, values, references, context.now)
    context.metrics.verifications.labels(incident.family, str(judged.verdict)).inc()
    progress, decision = decide.verification(progress, judged, spec, context.now())
    if decision.state is not None or incident.facts.get("last_sample") != str(judged.verdict):
        # Every sample counts, but only turns and the last one are worth a line.
        note_checks(context, incident, f"sample {progress.samples}", judged)
    facts = {"progress": progress.as_json(), "last_sample": str(judged.verdict)}
    if decision.state is None:
        now = context.now()
        facts = {**incident.facts, **facts}
        reason = f"sample {progress.samples}: {decision.reason}"
        context.journal.incidents.touch(incident, now, now + decision.wait, facts=facts, reason=reason)
        return
    apply(context, incident, decision, facts=facts)


def held(context: Context, incident: Incident) -> None:
    """The fix is on probation."""
    book = context.book(incident)
    hold = book.spec.verify.hold if book is not None and book.spec.verify is not None else 0.0
    seen, _ = standing(context, incident)
    decision = decide.holding(
        incident.state_since, hold, _SEEN[seen.standing], seen.reason, context.now(), context.waits.poll
    )
    if decision.state is State.CLOSED:
        context.journal.runs.end(context.journal.runs.latest(incident.id), "fixed", context.now())
    apply(context, incident, decision)


def rolling_back(context: Context, incident: Incident) -> None:
    """Undo what we did, or say why that is not possible; either way it counts against the runbook."""
    book = context.book(incident)
    _demote(context, incident)
    if book is None or book.digest != incident.runbook_digest:
        apply(
            context,
            incident,
            Decision(State.NEEDS_HUMAN, "the runbook that would undo this is gone or changed"),
        )
        return
    spec = book.spec.rollback
    if spec.strategy == "none":
        context.journal.runs.end(context.journal.runs.latest(incident.id), "failed", context.now())
        apply(
            context,
            incident,
            Decision(State.ESCALATED, f"{incident.reason}; not undone: {spec.reason_if_none}"),
        )
        return
    decision = acting.advance(context, incident, rollback=True)
    if decision is not None:
        apply(context, incident, decision)
        return
    values = dict((incident.plan or {}).get("target", {}))
    judged = checks.ask(context.prometheus, spec.verify, values, {}, context.now)
    if judged.verdict is Verdict.PASS:
        note_checks(context, incident, "rollback", judged)
        apply(context, incident, Decision(State.ROLLED_BACK, f"undone and checked: {judged.reason}"))
        return
    if context.now() - incident.state_since >= book.spec.limits.deadline:
        note_checks(context, incident, "rollback", judged)
        apply(
            context,
            incident,
            Decision(State.NEEDS_HUMAN, f"the rollback cannot be verified: {judged.reason}"),
        )
        return
    apply(
        context, incident, Decision(None, f"undone; being checked: {judged.reason}", wait=context.waits.poll)
    )


def _demote(context: Context, incident: Incident) -> None:
    if incident.level != Level.AUTO.word:
        return
    name = str((incident.plan or {}).get("runbook", incident.family))
    current = context.journal.settings.promotion(name)
    if current is not None and current.level < Level.AUTO and current.digest == incident.runbook_digest:
        return
    context.journal.settings.promote(
        Promotion(
            name,
            Level.APPROVE,
            incident.runbook_digest,
            f"demoted after incident {incident.id}",
            context.now(),
        )
    )


def rolled_back(context: Context, incident: Incident) -> None:
    """It counts as a failed attempt; people take over."""
    context.journal.runs.end(context.journal.runs.latest(incident.id), "rolled_back", context.now())
    apply(context, incident, Decision(State.ESCALATED, "the fix did not work and was undone"))


def escalated(context: Context, incident: Incident) -> None:
    """The pack is built once; then it waits until the fault is gone or a person closes it."""
    if "pack" not in incident.facts:
        pack = _pack(context, incident)
        if pack is None:
            context.journal.incidents.touch(incident, context.now(), context.now() + _RETRY_PACK)
            return
        incident = apply(context, incident, Decision(None, incident.reason), facts={"pack": pack})
    seen, decision = standing(context, incident)
    gone = decision is not None and seen.standing in (Standing.ABSENT, Standing.SUPERSEDED)
    if decision is not None and gone:
        if decision.state is State.CLOSED:
            decision = replace(decision, reason=f"after the escalation: {decision.reason}")
            apply(context, incident, decision)
        else:
            # The reason for the escalation stays the headline.
            apply(context, incident, replace(decision, reason=incident.reason))
        return
    facts = {**incident.facts, **_SEEN_NOW, **(decision.facts if decision is not None else {})}
    context.journal.incidents.touch(incident, context.now(), context.now() + context.waits.poll, facts=facts)


def _pack(context: Context, incident: Incident) -> str | None:
    for step in context.journal.runs.steps(incident.id):
        if step.action == "escalation.pack" and step.status == "applied":
            return step.output
    instance = context.journal.database.instance
    request = Request(
        incident=incident.id,
        verb="pack",
        args={},
        request_id=f"tocsin-{instance}-i{incident.id}-pack",
        timeout=_RETRY_PACK,
        started=lambda pid, at: None,
    )
    try:
        outcome = context.adapters["escalation"].run(request)
    except ActionError as err:
        context.metrics.actions.labels(incident.family, "escalation.pack", "not_applied").inc()
        context.journal.incidents.note(
            incident.id, "escalation", f"will be tried again: {err}", context.now()
        )
        return None
    context.metrics.actions.labels(incident.family, "escalation.pack", "applied").inc()
    context.journal.incidents.note(incident.id, "escalation", outcome.text, context.now())
    return outcome.text


def needs_human(context: Context, incident: Incident) -> None:
    """
    Stays until a person closes it.

    Only what was never acted on may end by itself, when the fault is gone: nothing of ours is left.
    """
    touched = acting.begun(context, incident)
    seen, decision = standing(context, incident)
    if not touched and decision is not None and seen.standing in (Standing.ABSENT, Standing.SUPERSEDED):
        if decision.state is State.CLOSED:
            code = CloseCode.SELF if seen.standing is Standing.ABSENT else decision.code
            apply(context, incident, replace(decision, code=code))
        else:
            apply(context, incident, replace(decision, reason=incident.reason))
        return
    facts = {**incident.facts, **_SEEN_NOW, **(decision.facts if decision is not None else {})}
    context.journal.incidents.touch(incident, context.now(), context.now() + context.waits.poll, facts=facts)
