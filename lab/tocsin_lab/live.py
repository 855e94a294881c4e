"""``tocsin-lab live SCENARIO``: play a scenario with real processes and score the verdict."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin_common import durations
from tocsin_lab import inject, scenarios
from tocsin_lab.errors import LabError
from tocsin_lab.scenario import Fault, Scenario
from tocsin_lab.score import Timeline, first_fault, judge, matches
from tocsin_lab.stack import http, incidents
from tocsin_lab.stack.lab import Lab, Options, take_run_dir
from tocsin_lab.stack.plan import LabPlan
from tocsin_lab.stack.rundir import RunDir
from tocsin_lab.up import Stopping, say

LOOK_SECONDS = 1.0
# A right verdict must also last before a run may end early.
STOOD_SECONDS = 35.0
# How long an approved incident may take from the verdict to its end.
INCIDENT_SECONDS = 600.0
JOB_START_SECONDS = 60.0
FINAL_STATES = frozenset({"closed", "rolled_back", "needs_human", "escalated", "recommended"})
LOUD = 'ALERTS{alertname=~"Tocsin.+",alertname!="TocsinVerdict",alertstate="firing",verdict!=""}'


def playable(found: Scenario) -> LabPlan:
    """Return the plan of a scenario; LabError names what cannot be played live."""
    job = found.jobs[0]
    if job.kind != "training":
        raise LabError(f"{found.name}: only training jobs can be played live")
    prefix, _, name = job.job_id.partition("/")
    if prefix != "torchrun":
        raise LabError(f"{found.name}: live jobs are started torchrun-style, so job_id begins with torchrun/")
    if found.scrape_interval != 5.0:
        raise LabError(f"{found.name}: the lab scrapes every 5s; remove scrape_interval or set it to 5s")
    for fault in found.faults:
        reason = inject.unplayable(fault.kind)
        if reason:
            raise LabError(f"{found.name}: {fault.kind} cannot be played live: {reason}")
    names = tuple(found.nodes.all())
    return LabPlan(
        nodes=found.nodes.count,
        gpus=found.nodes.gpus,
        hcas=found.nodes.hcas,
        gpu_model=found.nodes.gpu_model,
        job=name,
        ranks=job.ranks,
        step_seconds=job.step_seconds,
        names=names,
    )


@dataclass
class _Act:
    """One thing to do at one time."""

    at: float
    fault: Fault
    clear: bool
    done: bool = False


@dataclass
class Played:
    """What a run saw."""

    timeline: Timeline
    struck: float | None = None
    length: float = 0.0
    incident: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)


class Player:
    """Plays one scenario on a started lab."""

    def __init__(self, lab: Lab, found: Scenario, tell: Callable[[str], None]) -> None:
        self._lab = lab
        self._found = found
        self._tell = tell
        self._start = time.monotonic()
        self._seen = Played(Timeline(gap=15.0))
        self._acts = sorted(
            [_Act(fault.at, fault, clear=False) for fault in found.faults]
            + [_Act(fault.until, fault, clear=True) for fault in found.faults if fault.until is not None],
            key=lambda act: act.at,
        )
        self._approved: set[str] = set()

    def wait_for_training(self) -> None:
        """Wait until the job's steps are seen: the scenario's clock starts there."""
        deadline = time.monotonic() + JOB_START_SECONDS
        while not self._steps():
            self._lab.stack.watch()
            if time.monotonic() > deadline:
                raise LabError(
                    f"no step of {self._lab.plan.job_id} was seen in {JOB_START_SECONDS:.0f} s; "
                    f"see {self._lab.run.logs} and {self._lab.run.root / 'jobs'}"
                )
            time.sleep(LOOK_SECONDS)
        self._start = time.monotonic()

    def _steps(self) -> bool:
        try:
            return bool(http.query(self._lab.prometheus, "tocsin_job:step:max"))
        except LabError:
            return False

    def play(self, seconds: float, until_verdict: bool, approve: bool, stopping: Stopping) -> Played:
        """Play for *seconds*, or until the expected verdict stood (and its incident ended)."""
        end_of_incident = None
        while True:
            now = time.monotonic() - self._start
            self._lab.stack.watch()
            self._act(now)
            self._look(time.monotonic() - self._start)
            stood = self._stood()
            if approve and stood:
                self._approve()
                if end_of_incident is None:
                    end_of_incident = now + INCIDENT_SECONDS
            waiting = approve and stood and not self._ended() and now < (end_of_incident or 0)
            enough = now >= seconds or (until_verdict and (stood >= STOOD_SECONDS or self._ended()))
            if (enough and not waiting) or stopping.asked:
                break
            time.sleep(LOOK_SECONDS)
        self._seen.length = time.monotonic() - self._start
        return self._seen

    def _act(self, now: float) -> None:
        for act in self._acts:
            if act.done or now < act.at:
                continue
            act.done = True
            fault = act.fault
            if act.clear:
                inject.clear(self._lab.run, fault)
                self._tell(f"{fault.kind} is taken away")
                continue
            where = inject.strike(self._lab.run, fault)
            self._tell(f"{fault.kind} strikes {where}")
            if self._seen.struck is None and fault == first_fault(self._found):
                self._seen.struck = time.monotonic() - self._start

    def _look(self, now: float) -> None:
        try:
            rows = [labels for labels, _ in http.query(self._lab.prometheus, "tocsin_job:verdict:info")]
            loud = [labels for labels, _ in http.query(self._lab.prometheus, LOUD)]
        except LabError as err:
            self._seen.problems.append(str(err))
            return
        before = len(self._seen.timeline.rows)
        self._seen.timeline.look(now, rows, [labels["alertname"].removeprefix("Tocsin") for labels in loud])
        for row in self._seen.timeline.rows[before:]:
            self._tell(f"verdict: {dict(row.labels)}")

    def _stood(self) -> float:
        """Return for how long the expected verdict stands or stood, 0 when it never did."""
        expected = self._found.expect.labels
        spans = [
            max(row.last - row.first, 0.001)
            for row in self._seen.timeline.rows
            if expected is not None and matches(row, expected)
        ]
        return max(spans, default=0.0)

    def _approve(self) -> None:
        expected = self._found.expect.labels or {}
        try:
            every = incidents.listed(self._lab.remediator)
        except LabError as err:
            # It may be starting again; the next look asks again.
            self._seen.problems.append(str(err))
            return
        found = [one for one in every if one["family"] == expected.get("family")]
        for one in found:
            if one["state"] == "awaiting_approval" and one["id"] not in self._approved:
                incidents.approve(self._lab.run, str(one["id"]))
                self._approved.add(one["id"])
                self._tell(f"incident {one['id']} approved")
        if found:
            before = (self._seen.incident or {}).get("state")
            # The open ones stand first, the latest before the others.
            latest = found[0]
            self._seen.incident = latest
            if latest["state"] != before:
                self._tell(f"incident {latest['id']} is {latest['state']}")

    def _ended(self) -> bool:
        return self._seen.incident is not None and self._seen.incident["state"] in FINAL_STATES


def run(arguments: argparse.Namespace) -> int:
    """Run the command: 0 right, 1 wrong, 2 unusable."""
    found = scenarios.find(arguments.scenario)
    plan = playable(found)
    try:
        seconds = durations.parse(arguments.duration) if arguments.duration else found.duration
    except ValueError as err:
        raise LabError(f"--duration: {err}") from err
    tell = _quiet if arguments.json else say
    folder = Path(tempfile.mkdtemp(prefix="tocsin-live-"))
    stopping = Stopping()
    case: dict[str, Any] = {"name": found.name, "ok": False}
    with stopping.listen():
        run_dir = RunDir(folder / "run")
        take_run_dir(run_dir, tell)
        lab = Lab(run_dir, Options(plan, simulate=True, any_ports=True), tell)
        problems: list[str] = []
        keep = arguments.keep
        try:
            lab.start()
            player = Player(lab, found, tell)
            player.wait_for_training()
            tell(f"{found.name}: {lab.plan.job_id} trains, Prometheus is {lab.prometheus}")
            played = player.play(seconds, arguments.until_verdict, arguments.approve, stopping)
            case = judge(found, played.timeline, played.struck, played.length)
            if arguments.approve:
                case["incident"] = played.incident
            if stopping.asked:
                case["ok"], case["why"] = False, "interrupted"
        except KeyboardInterrupt:
            case["why"] = "interrupted"
        except LabError:
            keep = True
            raise
        finally:
            problems = lab.stop(keep)
            if not keep and not problems:
                folder.rmdir()
    if problems:
        case["ok"], case["problems"] = False, problems
    _print(case, arguments.json)
    return 0 if case["ok"] else 1


def _quiet(text: str) -> None:
    sys.stderr.write(text + "\n")


def _print(case: dict[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(case) + "\n")
        return
    if case["ok"]:
        taken = case.get("seconds_to_verdict")
        say(
            f"{case['name']}: right" + (f", after {taken} s" if taken is not None else ", nothing was raised")
        )
    else:
        say(f"{case['name']}: wrong: {case.get('why') or case.get('problems')}")
