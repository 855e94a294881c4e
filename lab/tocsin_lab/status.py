"""``tocsin-lab status`` and ``down``: look at a running lab, stop it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from typing import Any

from tocsin_lab.errors import LabError
from tocsin_lab.stack import http
from tocsin_lab.stack.procs import alive
from tocsin_lab.stack.rundir import RunDir, StackRecord, clean_up, read_record, running
from tocsin_lab.up import describe_verdict

STOP_SECONDS = 60.0


def running_lab(run: RunDir) -> StackRecord:
    """Return the record of the lab that runs; LabError when none does."""
    record = read_record(run.record)
    if record is None or not running(record):
        raise LabError(f"no lab runs in {run.root}; start one with `tocsin-lab up` or give its --run-dir")
    return record


def collect(run: RunDir, record: StackRecord) -> dict[str, Any]:
    """Return all there is to know about a running lab; what cannot be asked is null."""
    parts = [
        {"name": part.name, "pid": part.pid, "alive": alive(part.process), "log": part.log, "url": part.url}
        for part in record.components
    ]
    return {
        "run_dir": str(run.root),
        "ready": record.ready,
        "nodes": list(record.nodes),
        "jobs": list(record.jobs),
        "notes": list(record.notes),
        "components": parts,
        "verdicts": _verdicts(record),
        "incidents": _incidents(record),
        "faults": _faults(run, record),
    }


def _verdicts(record: StackRecord) -> list[dict[str, str]] | None:
    try:
        return [labels for labels, _ in http.query(record.urls["prometheus"], "tocsin_job:verdict:info")]
    except (LabError, KeyError):
        return None


def _incidents(record: StackRecord) -> list[dict[str, Any]] | None:
    from tocsin_lab.stack import incidents

    try:
        return incidents.listed(record.urls["remediator"].removesuffix("/incidents"))
    except (LabError, KeyError):
        return None


def _faults(run: RunDir, record: StackRecord) -> list[dict[str, Any]]:
    from tocsin_lab import inject

    return inject.active(run) if record.jobs else []


def run(arguments: argparse.Namespace, run_dir: RunDir) -> int:
    """Print the status; 0 when every part lives, 1 otherwise."""
    found = collect(run_dir, running_lab(run_dir))
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(_lines(found)) + "\n")
    return 0 if all(part["alive"] for part in found["components"]) else 1


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [f"lab in {found['run_dir']}: {'ready' if found['ready'] else 'starting'}"]
    lines += [f"  note: {note}" for note in found["notes"]]
    for part in found["components"]:
        state = "running" if part["alive"] else "NOT RUNNING"
        lines.append(f"  {part['name']:<18} {state:<11} pid {part['pid']:<8} {part['url']}")
    faults = found["faults"]
    lines.append("faults: " + ("none" if not faults else ""))
    lines += ["  " + " ".join(f"{key}={value}" for key, value in one.items()) for one in faults]
    verdicts = found["verdicts"]
    if verdicts is None:
        lines.append("verdicts: Prometheus does not answer")
    else:
        lines.append("verdicts: " + ("none" if not verdicts else ""))
        lines += [f"  {labels.get('job_id', '?')}: {describe_verdict(labels)}" for labels in verdicts]
    incidents = found["incidents"]
    if incidents is None:
        lines.append("incidents: the remediator does not answer")
    else:
        lines.append("incidents: " + ("none" if not incidents else ""))
        for one in incidents:
            lines.append(f"  {one['id']}  {one['family']}  {one['target']}  {one['state']}")
            if one["state"] == "awaiting_approval":
                journal = f"--journal sqlite:///{found['run_dir']}/remediator/journal.db"
                lines.append(f"    approve with: tocsin-remediator approve {one['id']} {journal}")
    return lines


def run_down(run_dir: RunDir) -> int:
    """Stop the lab of this run directory, running or left by a killed one; 0 when nothing is left."""
    record = read_record(run_dir.record)
    if record is None:
        raise LabError(f"no lab in {run_dir.root}")
    if not running(record):
        stopped = clean_up(run_dir, record)
        ended = f", stopped {', '.join(stopped)}" if stopped else ""
        sys.stdout.write(f"removed what a killed lab left in {run_dir.root}{ended}\n")
        return 0
    os.kill(record.supervisor.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while alive(record.supervisor):
        if time.monotonic() > deadline:
            raise LabError(f"process {record.supervisor.pid} does not stop after {STOP_SECONDS:.0f} s")
        time.sleep(0.1)
    sys.stdout.write(f"stopped the lab in {run_dir.root}\n")
    return 0
