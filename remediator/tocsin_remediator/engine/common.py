"""What every step of the state machine uses: writing a decision, re-asking, keeping evidence."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tocsin_remediator import decide
from tocsin_remediator.casefile.collect import collect
from tocsin_remediator.decide import Standing
from tocsin_remediator.engine import confirm

if TYPE_CHECKING:
    from tocsin_remediator.decide import Decision
    from tocsin_remediator.engine.context import Context
    from tocsin_remediator.model import Incident, Judgement
    from tocsin_remediator.runbook.model import Runbook

log = logging.getLogger(__name__)


def apply(context: Context, incident: Incident, decision: Decision, **values: Any) -> Incident:
    """
    Write a decision: a change of state, or when to look again.

    `facts` are merged into the incident's; StaleIncident when somebody else moved it.
    """
    now = context.now()
    facts = {**incident.facts, **values.pop("facts", {}), **decision.facts}
    if decision.state is None:
        if decision.reason != incident.reason:
            return context.journal.incidents.move(
                incident,
                incident.state,
                decision.reason,
                now,
                next_at=now + decision.wait,
                facts=facts,
                **values,
            )
        return context.journal.incidents.touch(incident, now, now + decision.wait, facts=facts, **values)
    log.info("incident %d: %s -> %s: %s", incident.id, incident.state, decision.state, decision.reason)
    return context.journal.incidents.move(
        incident, decision.state, decision.reason, now, code=decision.code, facts=facts, **values
    )


def keys(book: Runbook | None) -> list[str]:
    """The labels that make the target of a runbook's incidents."""
    if book is None:
        return ["job_id"]
    fields = book.spec.target.fields
    return [fields[key].from_.removeprefix("label.") for key in book.spec.target.key]


def standing(context: Context, incident: Incident) -> tuple[decide.Confirmation, Decision | None]:
    """How Prometheus sees the verdict now, and what that means before anything was done."""
    seen = confirm.confirm(context.prometheus, incident, keys(context.book(incident)))
    silent = seen.standing is Standing.INCONCLUSIVE and seen.reason.endswith(confirm.GONE)
    if silent and _waited(context, incident) and context.ended(incident.subject):
        # A job that is over has no signal for good; its scheduler is the second vantage.
        seen = decide.Confirmation(Standing.ABSENT, f"the scheduler says that {incident.subject} has ended")
    return seen, decide.before_acting(incident.state, seen, incident.facts, context.now(), context.waits)


def _waited(context: Context, incident: Incident) -> bool:
    if incident.facts.get("absent_since") is not None:
        return True
    since = incident.facts.get("unclear_since")
    return since is not None and context.now() - float(since) >= context.waits.confirm_quiet


def read_evidence(context: Context, incident: Incident, moment: str) -> None:
    """Keep a case file of this moment, once."""
    if moment in {kept for kept, _, _ in context.journal.records.casefiles(incident.id)}:
        return
    body = collect(
        context.prometheus,
        incident,
        moment=moment,
        now=context.now,
        budget=context.config.timing.evidence_budget,
    )
    context.journal.records.save_casefile(
        case=incident.case_id, incident=incident.id, moment=moment, body=body, now=context.now()
    )


def note_checks(context: Context, incident: Incident, what: str, judged: Judgement) -> None:
    """Put the answers of checks into the timeline."""
    if judged.results:
        context.journal.incidents.note(
            incident.id,
            "check",
            f"{what}: {judged.verdict}: {judged.reason}",
            context.now(),
            {"results": [result.as_json() for result in judged.results]},
        )
