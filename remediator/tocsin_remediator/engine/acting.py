"""Carrying out a plan: intent, target confirmed, action, outcome; once, whatever happens in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tocsin_remediator.adapters import process
from tocsin_remediator.adapters.base import Request
from tocsin_remediator.adapters.catalogue import ACTIONS
from tocsin_remediator.decide import Decision, Recovery, recover
from tocsin_remediator.errors import ActionError, Applied, Refused
from tocsin_remediator.model import State, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tocsin_remediator.adapters.base import Adapter
    from tocsin_remediator.engine.context import Context
    from tocsin_remediator.model import Incident, StepRecord

_ON_FAILURE = {
    "rollback": State.ROLLING_BACK,
    "needs_human": State.NEEDS_HUMAN,
    "escalate": State.ESCALATED,
}


def advance(context: Context, incident: Incident, *, rollback: bool) -> Decision | None:
    """
    Do the next step of the plan (or of its rollback).

    None when there is none left. At most one action is sent per call; what was sent before a
    restart is settled first.
    """
    plan: Mapping[str, Any] = incident.plan or {}
    steps = plan.get("rollback" if rollback else "steps", ())
    done = [record for record in context.journal.runs.steps(incident.id) if record.rollback is rollback]
    run = context.journal.runs.latest(incident.id)
    by_position = {record.position: record for record in done if record.run_id == run}
    for position, step in enumerate(steps):
        record = by_position.get(position)
        if record is not None and record.status == "applied":
            continue
        if record is not None and record.status == "unknown":
            return Decision(
                State.NEEDS_HUMAN, f"step {step['id']}: what it did is not known: {record.output}"
            )
        if record is not None and record.status == "not_applied":
            return _failed(step, f"step {step['id']} did not succeed: {record.output}", rollback)
        stop, why = context.stop()
        if stop is Stop.HALT or (stop is Stop.FREEZE and not rollback):
            to = State.NEEDS_HUMAN if rollback or by_position else State.QUEUED
            return Decision(to, f"{why}; step {step['id']} was not sent")
        return _take(context, incident, run, position, step, record, rollback=rollback)
    return None


def begun(context: Context, incident: Incident) -> bool:
    """Whether the current run has written an intent."""
    run = context.journal.runs.latest(incident.id)
    return any(step.run_id == run for step in context.journal.runs.steps(incident.id))


def _take(
    context: Context,
    incident: Incident,
    run: int,
    position: int,
    step: Mapping[str, Any],
    record: StepRecord | None,
    *,
    rollback: bool,
) -> Decision | None:
    action = ACTIONS[step["action"]]
    adapter = context.adapters[action.adapter]
    if record is None:
        try:
            known = adapter.confirm_target(action.verb, step["args"])
        except Refused as err:
            return Decision(State.NEEDS_HUMAN, f"step {step['id']} was not sent: {err}")
        except ActionError as err:
            return _failed(
                step, f"step {step['id']} was not sent, the target cannot be confirmed: {err}", rollback
            )
        if known:
            context.journal.incidents.note(incident.id, "target", known, context.now())
        record = context.journal.runs.intend(
            run=run,
            incident=incident.id,
            position=position,
            step=step["id"],
            action=step["action"],
            args=step["args"],
            request_id=request_id(context, incident, run, position, rollback=rollback),
            rollback=rollback,
            now=context.now(),
        )
    else:
        ahead, why = recover(
            idempotent=adapter.idempotent(action.verb, step["args"]),
            still_running=process.runs(record.pid, record.pid_start),
        )
        if ahead is Recovery.WAIT:
            # Whoever would have ended it at its timeout is gone.
            if context.now() - record.intent_at < float(step["timeout"]):
                return Decision(None, why, wait=context.config.timing.poll)
            ahead, why = Recovery.ASK, f"{why}, past its timeout (pid {record.pid})"
        context.journal.incidents.note(incident.id, "recovery", f"step {step['id']}: {why}", context.now())
        if ahead is Recovery.ASK:
            context.journal.runs.outcome(record.id, "unknown", why, context.now())
            return Decision(State.NEEDS_HUMAN, f"step {step['id']}: {why}")
    return _send(context, incident, adapter, step, record, rollback=rollback)


def _send(
    context: Context,
    incident: Incident,
    adapter: Adapter,
    step: Mapping[str, Any],
    record: StepRecord,
    *,
    rollback: bool,
) -> Decision | None:
    action = ACTIONS[step["action"]]
    request = Request(
        incident=incident.id,
        verb=action.verb,
        args=step["args"],
        request_id=record.request_id,
        timeout=float(step["timeout"]),
        started=lambda pid, at: context.journal.runs.started(record.id, pid, at),
    )
    try:
        outcome = adapter.run(request)
    except ActionError as err:
        status = "not_applied" if err.applied is Applied.NO else "unknown"
        context.journal.runs.outcome(record.id, status, str(err), context.now())
        context.metrics.actions.labels(incident.family, step["action"], status).inc()
        if err.applied is Applied.UNKNOWN:
            return Decision(State.NEEDS_HUMAN, f"step {step['id']}: what it did is not known: {err}")
        return _failed(step, f"step {step['id']} was refused: {err}", rollback)
    context.journal.runs.outcome(record.id, "applied", outcome.text, context.now())
    context.metrics.actions.labels(incident.family, step["action"], "applied").inc()
    context.journal.incidents.note(
        incident.id,
        "action",
        f"{step['action']}: {outcome.text}",
        context.now(),
        {"args": dict(step["args"])},
    )
    return Decision(None, f"step {step['id']} done", wait=0.0)


def request_id(context: Context, incident: Incident, run: int, position: int, *, rollback: bool) -> str:
    """The same for every try of this step; different for another journal, since schedulers remember."""
    kind = "undo" if rollback else "do"
    return f"tocsin-{context.journal.database.instance}-i{incident.id}-r{run}-{kind}{position}"


def _failed(step: Mapping[str, Any], reason: str, rollback: bool) -> Decision:
    if rollback:
        return Decision(State.NEEDS_HUMAN, f"the rollback failed: {reason}")
    return Decision(_ON_FAILURE[step["on_failure"]], reason)
