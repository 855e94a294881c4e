"""What the lab asks the remediator's own command line: incidents and approvals."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tocsin_lab.errors import LabError
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


def listed(run: RunDir) -> list[dict[str, Any]]:
    """Return the incidents as `tocsin-remediator incidents --json` prints them."""
    text = _ask(run, "incidents", "--json")
    try:
        found = json.loads(text)
    except ValueError as err:
        raise LabError(f"tocsin-remediator incidents --json printed no JSON: {text[:200]!r}") from err
    if not isinstance(found, list):
        raise LabError("tocsin-remediator incidents --json printed no list")
    return found


def approve(run: RunDir, incident: str) -> None:
    """Approve what an incident proposes."""
    _ask(run, "approve", incident)
