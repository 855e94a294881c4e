"""``tocsin-lab up``: start the stack, say where everything is, report what happens, stop on Ctrl-C."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tocsin_lab.errors import LabError
from tocsin_lab.stack import http
from tocsin_lab.stack.lab import Lab, Options, take_run_dir
from tocsin_lab.stack.plan import LabPlan
from tocsin_lab.stack.procs import log_tail
from tocsin_lab.stack.rundir import RunDir, default_run_dir, open_own, read_record

LOOK_SECONDS = 2.0
BACKGROUND_SECONDS = 120.0


def say(text: str) -> None:
    """Print one line at once; a closed terminal must not stop the lab half-way."""
    try:
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        sys.stdout.flush()
    except (BrokenPipeError, OSError):
        return


class Stopping:
    """Turns the signals that end a program into a question that its loop asks."""

    def __init__(self) -> None:
        self.asked = False
        self.reason = ""

    @contextmanager
    def listen(self) -> Iterator[Stopping]:
        """Listen to Ctrl-C, SIGTERM and a closed terminal within the block."""
        watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self._note) for number in watched}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: object) -> None:
        first, self.asked = not self.asked, True
        self.reason = self.reason or signal.Signals(number).name
        if first and number == signal.SIGINT:
            # Start-up waits in loops of its own; this gets it out of them.
            raise KeyboardInterrupt


def plan_of(arguments: argparse.Namespace) -> LabPlan:
    """Return the plan that the flags ask for; LabError when it cannot be."""
    if not (1 <= arguments.nodes <= 16 and 1 <= arguments.gpus <= 16 and 0 <= arguments.hcas <= 16):
        raise LabError("--nodes and --gpus go from 1 to 16, --hcas from 0 to 16")
    if not 1 <= arguments.ranks <= min(64, arguments.nodes * arguments.gpus):
        room = arguments.nodes * arguments.gpus
        raise LabError(f"--ranks {arguments.ranks} do not fit on {room} GPUs")
    if not 0.05 <= arguments.step_seconds <= 60:
        raise LabError("--step-seconds goes from 0.05 to 60")
    return LabPlan(
        nodes=arguments.nodes,
        gpus=arguments.gpus,
        hcas=arguments.hcas,
        ranks=arguments.ranks,
        step_seconds=arguments.step_seconds,
    )


@contextmanager
def only_one(run: RunDir) -> Iterator[None]:
    """Keep a second lab out of the run directory while this one starts, runs and stops."""
    run.root.parent.mkdir(parents=True, exist_ok=True)
    path = run.root.parent / f".{run.root.name}.lock"
    handle = open_own(path)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(
                f"a lab already runs in {run.root}; stop it with `tocsin-lab down`, "
                "or choose another --run-dir"
            ) from None
        yield
        path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def run(arguments: argparse.Namespace, run_dir: RunDir) -> int:
    """Run the command; 0 after a clean stop, 1 when something was left or went wrong."""
    plan = plan_of(arguments)
    if arguments.background:
        return _background(arguments, run_dir)
    stopping = Stopping()
    with only_one(run_dir), stopping.listen():
        take_run_dir(run_dir, say)
        lab = Lab(run_dir, Options(plan, arguments.simulate, arguments.any_ports), say)
        failure = ""
        try:
            say("starting; the first answer takes a few seconds")
            lab.start()
            sys.stdout.write("\n".join(greeting(lab)) + "\n")
            sys.stdout.flush()
            _stay(lab, stopping)
        except KeyboardInterrupt:
            pass
        except LabError as err:
            failure = str(err)
            say(f"cannot start: {failure}")
        say(f"stopping ({stopping.reason})" if stopping.reason else "stopping")
        # From here on a second Ctrl-C must not leave anything behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        problems = lab.stop(keep=arguments.keep or bool(failure))
    for problem in problems:
        say(problem)
    if failure:
        say(f"the logs stay in {run_dir.logs}")
    else:
        say("stopped, nothing is left running" if not problems else "stopped with the problems above")
    return 1 if problems or failure else 0


def _background(arguments: argparse.Namespace, run_dir: RunDir) -> int:
    """Start the same command detached and wait until its record says that it is ready."""
    argv = [sys.executable, "-m", "tocsin_lab", "--run-dir", str(run_dir.root), "up"]
    argv += ["--keep"] * arguments.keep + ["--any-ports"] * arguments.any_ports
    if arguments.simulate is not None:
        argv.append("--simulate" if arguments.simulate else "--no-simulate")
    for name in ("nodes", "gpus", "hcas", "ranks", "step_seconds"):
        argv += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    run_dir.root.parent.mkdir(parents=True, exist_ok=True)
    log = run_dir.root.parent / f"{run_dir.root.name}.log"
    with os.fdopen(open_own(log), "wb") as output:
        output.truncate()
        started = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + BACKGROUND_SECONDS
    while time.monotonic() < deadline:
        if started.poll() is not None:
            raise LabError(f"the lab did not start; the end of {log}:\n{log_tail(log, 20)}")
        record = _own_record(run_dir, started.pid)
        if record:
            sys.stdout.write(log.read_text("utf-8", "replace"))
            return 0
        time.sleep(0.2)
    started.terminate()
    raise LabError(
        f"the lab is not ready after {BACKGROUND_SECONDS:.0f} s; the end of {log}:\n{log_tail(log, 20)}"
    )


def _own_record(run_dir: RunDir, pid: int) -> bool:
    try:
        record = read_record(run_dir.record)
    except LabError:
        return False
    return record is not None and record.ready and record.supervisor.pid == pid


def greeting(lab: Lab) -> list[str]:
    """Return what a person needs to know now: every URL and what to try next."""
    command = _command(lab.run)
    lines = ["", "Tocsin is running."]
    what = (
        "real hardware of this machine"
        if lab.real
        else f"{len(lab.nodes)} simulated nodes, job {lab.plan.job_id}"
    )
    lines.append(f"  watching      {what}")
    lines.append(f"  incidents     {lab.remediator}/incidents")
    # Debian's Prometheus comes without its pages; the API always answers.
    lines.append(f"  Prometheus    {lab.prometheus}/api/v1/query?query=tocsin_job:verdict:info")
    lines.append(f"  Alertmanager  {lab.wiring.url(lab.wiring.alertmanager)}")
    for node, port in lab.wiring.exporters.items():
        lines.append(f"  exporter      {lab.wiring.url(port)}/metrics  ({node})")
    lines.append(f"  logs          {lab.run.logs}")
    if not lab.real:
        lines += [
            "",
            "Let it train for a minute, then break something from another terminal:",
            f"  {command} inject fail_slow_gpu --rank 4 --magnitude 0.5",
            f"  {command} inject throttle --rank 2 --magnitude 0.5 --reason thermal",
            f"  {command} inject rank_exit --rank 1 --signal 9",
            f"  {command} inject loss_divergence",
            "and watch the verdict here, then approve the fix in the incidents page or with:",
            f"  {command} status",
        ]
    lines += ["", "Ctrl-C stops everything.", ""]
    return lines


def _command(run: RunDir) -> str:
    program = Path(sys.argv[0])
    inside = program.parent.name == "bin" and ".venv" in program.parts
    shown = ".venv/bin/tocsin-lab" if inside else "tocsin-lab"
    if run.root == default_run_dir(os.environ, os.getuid()):
        return shown
    return f"{shown} --run-dir {run.root}"


def _stay(lab: Lab, stopping: Stopping) -> None:
    """Watch the parts and tell of verdicts and incidents until asked to stop."""
    news = News(lab, say)
    while not stopping.asked:
        lab.stack.watch()
        news.look()
        time.sleep(LOOK_SECONDS)


class News:
    """Tells what changed since the last look: the verdict and the incidents."""

    def __init__(self, lab: Lab, tell: Callable[[str], None]) -> None:
        self._lab = lab
        self._tell = tell
        self._verdicts: dict[str, str] = {}

    def look(self) -> None:
        """Ask Prometheus once; silence while it does not answer."""
        try:
            rows = http.query(self._lab.prometheus, "tocsin_job:verdict:info")
        except LabError:
            return
        now = {labels.get("job_id", ""): describe_verdict(labels) for labels, _ in rows}
        for job, text in now.items():
            if self._verdicts.get(job) != text:
                self._tell(f"verdict on {job}: {text}; case file: {self._lab.remediator}/incidents")
        for job in self._verdicts.keys() - now.keys():
            self._tell(f"verdict on {job} is gone")
        self._verdicts = now


def describe_verdict(labels: dict[str, str]) -> str:
    """Return one line about a verdict row."""
    where = " ".join(f"{name} {labels[name]}" for name in ("rank", "node", "gpu") if labels.get(name))
    side = {"yours": "fix it on your side", "below": "lies below the node"}.get(labels.get("side", ""), "")
    parts = [f"{labels.get('family', '?')} ({labels.get('verdict', '?')})", where, side]
    return ", ".join(part for part in parts if part)
