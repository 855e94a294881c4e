"""``tocsin-lab inject``: make something go wrong in the running lab, or right again."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from tocsin_common import durations
from tocsin_lab import faults
from tocsin_lab.errors import LabError
from tocsin_lab.scenario import BENIGN, FAULTS, Fault
from tocsin_lab.stack.rundir import RunDir

_FIELDS = (
    *("rank", "node", "gpu", "magnitude", "reason", "signal", "exit_code"),
    *("code", "what", "link", "field", "call"),
)


def unplayable(kind: str) -> str:
    """Return why a kind of fault cannot be caused live, '' when it can."""
    if kind in faults.KINDS:
        return ""
    if kind in FAULTS | BENIGN:
        return f"the lab causes {', '.join(sorted(faults.KINDS))}"
    return f"no such fault; there are {', '.join(sorted(faults.KINDS))}"


def strike(run: RunDir, fault: Fault) -> str:
    """Cause *fault* now and return in words what it hit; LabError when it cannot be."""
    found = faults.inject(run.root, fault.kind, job=_job(fault.job_id), **_given(fault))
    where = {name: found[name] for name in ("job_id", "rank", "node", "gpu") if found.get(name) is not None}
    return " ".join(f"{name} {value}" for name, value in where.items())


def clear(run: RunDir, fault: Fault) -> None:
    """Take *fault* away again."""
    faults.clear(
        run.root, fault.kind, job=_job(fault.job_id), rank=fault.rank, node=fault.node, gpu=fault.gpu
    )


def active(run: RunDir) -> list[dict[str, Any]]:
    """Return the faults that act now."""
    return faults.active(run.root)


def _given(fault: Fault) -> dict[str, Any]:
    return {name: getattr(fault, name) for name in _FIELDS if getattr(fault, name) is not None}


def _job(job_id: str | None) -> str | None:
    return job_id.removeprefix("torchrun/") if job_id else None


def run(arguments: argparse.Namespace, run_dir: RunDir) -> int:
    """Run the command; 0 done, LabError when it cannot be."""
    from tocsin_lab.status import running_lab

    if arguments.list:
        for kind in sorted(faults.KINDS):
            row = faults.KINDS[kind]
            values = ", ".join(f"{name} {value}" for name, value in row.defaults.items())
            default = f" (default: {values})" if values else ""
            sys.stdout.write(f"{kind:<16} hits a {row.target}: {row.text}{default}\n")
        return 0
    if not arguments.fault:
        raise LabError("which fault? `tocsin-lab inject --list` shows them")
    reason = unplayable(arguments.fault)
    if reason:
        raise LabError(f"{arguments.fault}: {reason}")
    running_lab(run_dir)
    job = arguments.job if not arguments.job or "/" in arguments.job else f"torchrun/{arguments.job}"
    fault = Fault.model_construct(
        kind=arguments.fault,
        at=0.0,
        job_id=job,
        **{name: getattr(arguments, name) for name in _FIELDS},
    )
    if arguments.clear:
        clear(run_dir, fault)
        sys.stdout.write(f"{fault.kind} is taken away\n")
        return 0
    seconds = _seconds(arguments.duration)
    sys.stdout.write(f"{fault.kind} strikes {strike(run_dir, fault)}\n")
    if seconds is not None:
        sys.stdout.write(f"taking it away in {arguments.duration}; Ctrl-C leaves it\n")
        sys.stdout.flush()
        time.sleep(seconds)
        clear(run_dir, fault)
        sys.stdout.write(f"{fault.kind} is taken away\n")
    return 0


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return durations.parse(text)
    except ValueError as err:
        raise LabError(f"--for: {err}") from err
