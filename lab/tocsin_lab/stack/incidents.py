"""What the lab asks the remediator's own command line: incidents and approvals."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tocsin_lab.errors import LabError
from tocsin_lab.stack import http
from tocsin_lab.stack.components import journal, python
from tocsin_lab.stack.rundir import RunDir


def _ask(run: RunDir, *arguments: str) -> str:
    argv = python("tocsin_remediator", *arguments, "--journal", journal(run.part("remediator")))
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
        )
    except subprocess.TimeoutExpired as err:
        raise LabError(f"tocsin-remediator {' '.join(arguments)}: no answer in 30 s") from err
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip()
        raise LabError(f"tocsin-remediator {' '.join(arguments)} ended with {done.returncode}: {reason}")
    return done.stdout


def listed(remediator: str) -> list[dict[str, Any]]:
    """Return the incidents of the remediator at this address; LabError when it does not answer."""
    text = http.get(f"{remediator}/api/v1/incidents")
    try:
        found = json.loads(text)
    except ValueError as err:
        raise LabError(f"{remediator}/api/v1/incidents: no JSON: {text[:200]!r}") from err
    rows = found.get("incidents") if isinstance(found, dict) else found
    if not isinstance(rows, list):
        raise LabError(f"{remediator}/api/v1/incidents: no list of incidents")
    return rows


def approve(run: RunDir, incident: str) -> None:
    """Approve what an incident proposes."""
    _ask(run, "approve", incident)
