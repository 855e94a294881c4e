"""Incidents as plain JSON, the same for API, CLI and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tocsin_remediator.journal import Journal
    from tocsin_remediator.model import Incident


def brief(incident: Incident) -> dict[str, Any]:
    """One line of a list."""
    labels = incident.labels
    return {
        "id": incident.id,
        "case": incident.case_id,
        "family": incident.family,
        "target": incident.target,
        "state": str(incident.state),
        "job_id": incident.subject,
        "verdict": labels.get("verdict", ""),
        "side": labels.get("side", ""),
        "layer": labels.get("layer", ""),
        "rank": labels.get("rank", ""),
        "node": labels.get("node", ""),
        "level": incident.level,
        "opened_at": incident.opened_at,
        "state_since": incident.state_since,
        "close_code": incident.close_code,
        "reason": incident.reason,
        "plan_digest": incident.plan_digest,
    }


def full(journal: Journal, incident: Incident) -> dict[str, Any]:
    """Everything about an incident except its case file."""
    return {
        **brief(incident),
        "labels": dict(incident.labels),
        "annotations": dict(incident.annotations),
        "runbook_digest": incident.runbook_digest,
        "plan": incident.plan,
        "facts": dict(incident.facts),
        "deadline_at": incident.deadline_at,
        "timeline": [
            {"at": event.at, "kind": event.kind, "message": event.message}
            for event in journal.incidents.events(incident.id)
        ],
        "steps": [
            {
                "step": step.step,
                "action": step.action,
                "args": dict(step.args),
                "request_id": step.request_id,
                "status": step.status,
                "intent_at": step.intent_at,
                "outcome_at": step.outcome_at,
                "output": step.output,
                "rollback": step.rollback,
            }
            for step in journal.runs.steps(incident.id)
        ],
        "approvals": [
            {"decision": one.decision, "who": one.who, "at": one.at, "reason": one.reason}
            for one in journal.records.approvals(incident.id)
        ],
    }
