"""One step of the state machine per call: read facts, decide, write the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tocsin_remediator import checks, decide
from tocsin_remediator.decide import Decision, Standing
from tocsin_remediator.engine import acting, outcome, planning
from tocsin_remediator.engine.common import apply, note_checks, read_evidence, standing
from tocsin_remediator.errors import Refused
from tocsin_remediator.journal.records import Shadow
from tocsin_remediator.model import CloseCode, Incident, Judgement, Level, State, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tocsin_remediator.engine.context import Context
    from tocsin_remediator.runbook.model import Runbook


def advance(context: Context, incident: Incident) -> None:
    """Take an incident one step further; StaleIncident when somebody else just did."""
    _STEPS[incident.state](context, incident)


def received(context: Context, incident: Incident) -> None:
    """Attach it to its case and read the evidence while it is fresh."""
    seen, waiting = standing(context, incident)
    if waiting is not None:
        apply(context, incident, waiting)
        return
    labels = {k: v for k, v in {**incident.labels, **seen.labels}.items() if k != "__name__"}
    incident = apply(
        context,
        incident,
        Decision(State.CORRELATED, f"{seen.reason}; case {incident.case_id}"),
        labels=labels,
    )


def correlated(context: Context, incident: Incident) -> None:
    """Confirmed: case file, rule out, plan."""
    seen, waiting = standing(context, incident)
    if waiting is not None:
        apply(context, incident, waiting)
        return
    read_evidence(context, incident, "onset")
    book = context.book(incident)
    if book is None:
        text = f"there is no runbook for {incident.family}: a person decides"
        apply(context, incident, Decision(State.RECOMMENDED, text), level=Level.RECOMMEND.word)
        return
    try:
        values = planning.target_values(book, {**incident.labels, **seen.labels})
        judged = checks.ask(context.prometheus, book.spec.rule_out, values, {}, context.now)
        other = decide.ruled_out(judged, context.waits, incident.state_since, context.now())
        if other is not None:
            apply(context, incident, other)
            return
        plan = planning.plan(context, book, values)
    except planning.Undecided as err:
        blocked = decide.ruled_out(
            Judgement(Verdict.INCONCLUSIVE, str(err)), context.waits, incident.state_since, context.now()
        )
        apply(context, incident, blocked or Decision(None, str(err), wait=context.waits.poll))
        return
    except Refused as err:
        apply(context, incident, Decision(State.NEEDS_HUMAN, f"no plan can be made: {err}"))
        return
    _planned(context, incident, book, plan, judged)


def _planned(
    context: Context, incident: Incident, book: Runbook, plan: Mapping[str, Any], judged: Judgement
) -> None:
    allowed, why = planning.allowed(context, incident, book)
    decision = decide.planned(allowed, why, incident.labels.get("verdict", ""))
    level = Level.RECOMMEND if decision.state is State.RECOMMENDED else allowed
    digest = planning.digest(plan)
    now = context.now()
    context.metrics.plans.labels(incident.family, level.word).inc()
    if level is Level.RECOMMEND:
        context.journal.records.save_shadow(
            Shadow(incident.id, book.metadata.name, book.digest, now, plan, decision.reason)
        )
    note_checks(context, incident, "ruled out", judged)
    ttl = book.spec.automation.approval.ttl
    apply(
        context,
        incident,
        decision,
        plan=dict(plan),
        plan_digest=digest,
        level=level.word,
        runbook_digest=book.digest,
        deadline_at=now + ttl if decision.state is State.AWAITING_APPROVAL else None,
        next_at=now + context.waits.poll if decision.state is not State.QUEUED else now,
    )


def recommended(context: Context, incident: Incident) -> None:
    """Nothing is done; it ends when the fault clears, or starts over when the verdict gets definite."""
    seen, waiting = standing(context, incident)
    if waiting is not None:
        apply(context, incident, waiting)
        return
    if context.now() - incident.state_since >= context.config.timing.recommend_expiry:
        apply(context, incident, Decision(State.CLOSED, "nobody took it up", code=CloseCode.EXPIRED))
        return
    was, now_says = incident.labels.get("verdict", ""), seen.labels.get("verdict", "")
    if was == "inconclusive" and now_says not in ("", "inconclusive"):
        labels = {**incident.labels, **{k: v for k, v in seen.labels.items() if k != "__name__"}}
        apply(context, incident, Decision(State.CORRELATED, f"the verdict is {now_says} now"), labels=labels)
        return
    apply(context, incident, _still(incident, context))


def _still(incident: Incident, context: Context) -> Decision:
    clear = {"absent_since": None, "unclear_since": None}
    return Decision(None, incident.reason, wait=context.waits.poll, facts=clear)


def awaiting_approval(context: Context, incident: Incident) -> None:
    """A person is asked; the fault may clear or be outranked meanwhile."""
    seen, waiting = standing(context, incident)
    if incident.deadline_at is not None and context.now() > incident.deadline_at:
        apply(
            context,
            incident,
            Decision(State.NEEDS_HUMAN, "nobody approved or rejected in time"),
            deadline_at=None,
        )
        return
    # Outranked or unclear: it goes on waiting, and approval will ask again before acting.
    if waiting is not None and seen.standing in (Standing.ABSENT, Standing.SUPERSEDED):
        apply(context, incident, waiting)
        return
    if waiting is not None:
        now, facts = context.now(), {**incident.facts, **waiting.facts}
        context.journal.incidents.touch(incident, now, now + context.waits.poll, facts=facts)
        return
    apply(context, incident, _still(incident, context))


def queued(context: Context, incident: Incident) -> None:
    """Allowed. Everything is asked again, then the attempt is counted, then it begins."""
    book = context.book(incident)
    if book is None or book.digest != incident.runbook_digest:
        apply(
            context, incident, Decision(State.NEEDS_HUMAN, "the runbook has changed since the plan was made")
        )
        return
    _, waiting = standing(context, incident)
    if waiting is not None:
        apply(context, incident, waiting)
        return
    values = dict((incident.plan or {}).get("target", {}))
    judged = checks.ask(context.prometheus, book.spec.rule_out, values, {}, context.now)
    other = decide.ruled_out(judged, context.waits, incident.state_since, context.now())
    if other is not None:
        apply(context, incident, other)
        return
    try:
        fresh = planning.plan(context, book, values)
    except planning.Undecided as err:
        unclear = Judgement(Verdict.INCONCLUSIVE, str(err))
        blocked = decide.ruled_out(unclear, context.waits, incident.state_since, context.now())
        apply(context, incident, blocked or Decision(None, str(err), wait=context.waits.poll))
        return
    except Refused as err:
        apply(context, incident, Decision(State.NEEDS_HUMAN, f"the plan no longer holds: {err}"))
        return
    if planning.digest(fresh) != incident.plan_digest:
        apply(
            context,
            incident,
            Decision(State.CORRELATED, "what is right to do has changed since: planning again"),
        )
        return
    _start(context, incident, book, values)


def _start(context: Context, incident: Incident, book: Runbook, values: Mapping[str, str]) -> None:
    preconditions = checks.ask(context.prometheus, book.spec.preconditions, values, {}, context.now)
    limits = book.spec.limits
    with context.starting:
        now = context.now()
        attempts, latest = context.journal.runs.attempts(
            incident.family, incident.target, now - limits.attempts.window
        )
        others = [one for one in context.journal.incidents.acting() if one.id != incident.id]
        mine = [one for one in others if one.subject == incident.subject]
        stop, why = context.stop()
        facts = decide.Gate(
            stop=stop,
            why=why,
            busy=f"incident {mine[0].id} is acting on {incident.subject}" if mine else "",
            running=len({one.subject for one in others}),
            attempts=attempts,
            last_attempt=latest,
            preconditions=preconditions,
            queued_since=incident.state_since,
        )
        closed = decide.gate(facts, limits, context.config.max_concurrent, now, context.waits)
        if closed is not None:
            apply(context, incident, closed)
            return
        reason = f"attempt {attempts + 1} of {limits.attempts.per_target}"
        context.journal.runs.begin(incident, reason, now, now + limits.deadline)


def evidence(context: Context, incident: Incident) -> None:
    """What is known before anything is touched: case file, and the values to compare with later."""
    read_evidence(context, incident, "before the action")
    book = context.book(incident)
    references: dict[str, float] = {}
    if book is not None and book.spec.verify is not None:
        values = dict((incident.plan or {}).get("target", {}))
        for check in book.spec.verify.checks:
            if check.expect.of == "value":
                continue
            value, source = checks.reference(context.prometheus, check, values, incident.opened_at)
            if value is not None:
                references[check.id] = value
            text = f"{check.id}: {source}" + ("" if value is None else f" = {value:.6g}")
            context.journal.incidents.note(incident.id, "reference", text, context.now())
    apply(
        context, incident, Decision(State.EXECUTING, "the evidence is kept"), facts={"references": references}
    )


def executing(context: Context, incident: Incident) -> None:
    """The next step of the plan."""
    if not acting.begun(context, incident):
        seen, _ = standing(context, incident)
        if seen.standing is not Standing.CONFIRMED:
            apply(context, incident, Decision(State.QUEUED, f"not sent, asked once more: {seen.reason}"))
            return
    decision = acting.advance(context, incident, rollback=False)
    if decision is not None:
        apply(context, incident, decision)
        return
    book = context.book(incident)
    if book is None or book.spec.verify is None:
        to, text = (
            (State.ESCALATED, "the evidence pack is with those who can act")
            if any(step["action"] == "escalation.pack" for step in (incident.plan or {}).get("steps", ()))
            else (State.HELD, "there is nothing to verify")
        )
        apply(context, incident, Decision(to, text))
        return
    now = context.now()
    apply(
        context,
        incident,
        Decision(State.VERIFYING, "all steps are done; the job's own indicators decide"),
        facts={"progress": decide.Progress(since=now).as_json()},
        next_at=now + min(book.spec.verify.settle, 5.0),
    )


_STEPS: Mapping[State, Callable[[Context, Incident], None]] = {
    State.RECEIVED: received,
    State.CORRELATED: correlated,
    State.RECOMMENDED: recommended,
    State.AWAITING_APPROVAL: awaiting_approval,
    State.QUEUED: queued,
    State.EVIDENCE: evidence,
    State.EXECUTING: executing,
    State.VERIFYING: outcome.verifying,
    State.HELD: outcome.held,
    State.ROLLING_BACK: outcome.rolling_back,
    State.ROLLED_BACK: outcome.rolled_back,
    State.ESCALATED: outcome.escalated,
    State.NEEDS_HUMAN: outcome.needs_human,
}
