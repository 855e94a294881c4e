"""A stored case file with what has happened since, and the material of an evidence pack."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tocsin_remediator.adapters.escalation import measurements
from tocsin_remediator.casefile import render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tocsin_remediator.journal import Journal
    from tocsin_remediator.model import Incident


def empty(incident: Incident) -> dict[str, Any]:
    """The case file of an incident whose evidence has not been read (yet)."""
    return {
        "schema": "tocsin/case-file/v1",
        "made_by": "",
        "moment": "before the evidence was read",
        "at": incident.opened_at,
        "case": incident.case_id,
        "incident": incident.id,
        "family": incident.family,
        "subject": incident.subject,
        "target": incident.target,
        "summary": incident.annotations.get("summary", ""),
        "description": incident.annotations.get("description", ""),
        "verdict": {"labels": dict(incident.labels), "statement": None},
        "contributors": None,
        "fired": [],
        "quiet": [],
        "missing": [],
        "cannot_see": [],
        "plots": [],
    }


def assemble(journal: Journal, incident: Incident) -> dict[str, Any]:
    """The case file of an incident: evidence as first read, and everything since."""
    case = journal.records.casefile(incident.id) or empty(incident)
    events = journal.incidents.events(incident.id)
    case["state"] = str(incident.state)
    case["close_code"] = incident.close_code
    case["reason"] = incident.reason
    case["plan"] = incident.plan
    case["timeline"] = [
        {"at": event.at, "kind": event.kind, "text": event.message, "query": "", "detail": ""}
        for event in events
        if event.kind != "check"
    ]
    case["actions"] = [
        {
            "at": step.intent_at,
            "kind": step.status,
            "text": f"{'undo: ' if step.rollback else ''}{step.action} "
            + ", ".join(f"{name}={value}" for name, value in sorted(step.args.items())),
            "query": step.request_id,
            "detail": f" {step.output}",
        }
        for step in journal.runs.steps(incident.id)
    ]
    case["verification"] = [
        {
            "at": result["at"],
            "kind": result["verdict"],
            "text": f"{result['id']} ({result['role']}): {result['reason']}; expected {result['expected']}",
            "query": result["query"],
            "detail": f" = {', '.join(str(v['value']) for v in result['values'][:4]) or 'no series'}",
        }
        for event in events
        if event.kind == "check"
        for result in event.data.get("results", ())
    ]
    return case


def pack_material(
    journal: Journal, incident_id: int, ask: str, url: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Summary and files of an evidence pack."""
    incident = journal.incidents.get(incident_id)
    case = assemble(journal, incident)
    summary = {
        "incident": incident.id,
        "case": incident.case_id,
        "family": incident.family,
        "subject": incident.subject,
        "target": incident.target,
        "verdict": dict(incident.labels),
        "first_seen": incident.opened_at,
        "reason": incident.reason,
        "ask": ask,
        "url": f"{url}/incidents/{incident.id}" if url else "",
    }
    return summary, _files(case, summary)


def _files(case: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, str]:
    return {
        "summary.md": f"# {summary['family']} on {summary['target']}\n\n{summary['ask']}\n\n"
        + render.markdown(case),
        "case.html": render.html(case),
        "case.json": json.dumps(case, indent=2, sort_keys=True, allow_nan=False) + "\n",
        "measurements.csv": measurements(case),
    }
