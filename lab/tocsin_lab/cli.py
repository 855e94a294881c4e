"""``tocsin-lab``: the whole loop on one machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tocsin_lab.errors import LabError
from tocsin_lab.job.cli import add_job_parser, run_job
from tocsin_lab.stack.rundir import RunDir, default_run_dir

EXIT_OK, EXIT_WRONG, EXIT_UNUSABLE = 0, 1, 2


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    top = argparse.ArgumentParser(
        prog="tocsin-lab", description="Run the whole loop on one machine, break something, watch it."
    )
    top.add_argument(
        "--run-dir",
        type=Path,
        default=None,
        help="where the lab keeps its files (default: $XDG_RUNTIME_DIR/tocsin-lab or /tmp/tocsin-lab-UID)",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="start the stack and stay until Ctrl-C")
    up.add_argument("--background", action="store_true", help="return once the stack answers")
    up.add_argument("--keep", action="store_true", help="leave the run directory when it stops")
    up.add_argument("--any-ports", action="store_true", help="take free ports instead of the documented ones")
    up.add_argument(
        "--simulate",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="simulated nodes (default: only where no driver is loaded)",
    )
    up.add_argument("--nodes", type=int, default=2, help="simulated nodes (2)")
    up.add_argument("--gpus", type=int, default=4, help="GPUs per simulated node (4)")
    up.add_argument("--hcas", type=int, default=2, help="HCAs per simulated node (2)")
    up.add_argument("--ranks", type=int, default=6, help="ranks of the demo job (6)")
    up.add_argument("--step-seconds", type=float, default=1.0, help="length of a healthy step (1.0)")

    inject = commands.add_parser("inject", help="make something go wrong, or right again")
    inject.add_argument("fault", nargs="?", metavar="FAULT", help="see --list")
    inject.add_argument("--list", action="store_true", help="list the faults")
    inject.add_argument("--clear", action="store_true", help="take the fault away again")
    inject.add_argument("--job", default=None, help="job (default: the only one)")
    inject.add_argument("--rank", type=int, help="the rank that it hits")
    inject.add_argument("--node", help="the node that it hits")
    inject.add_argument("--gpu", type=int, help="the GPU of --node that it hits")
    inject.add_argument("--magnitude", type=float, help="how much: see --list")
    inject.add_argument("--reason", help="throttle: thermal, power_brake or sw_power_cap")
    inject.add_argument("--signal", type=int, help="rank_exit: the signal")
    inject.add_argument("--exit-code", type=int, help="rank_exit: the exit status")
    inject.add_argument("--code", type=int, help="the Xid, or what a call returns: see --list")
    inject.add_argument("--what", help="which form of the fault: see --list")
    inject.add_argument("--link", type=int, help="the NVLink that it hits")
    inject.add_argument("--field", type=int, help="the NVML field value that it hits")
    inject.add_argument("--call", help="the NVML function that it hits")
    inject.add_argument("--for", dest="duration", help="take it away again after this time, e.g. 90s")

    live = commands.add_parser("live", help="play a scenario for real and score the verdict")
    live.add_argument("scenario", type=Path, metavar="SCENARIO", help="a file, or the name of a shipped one")
    live.add_argument("--json", action="store_true", help="print the result as JSON")
    live.add_argument("--approve", action="store_true", help="approve the fix, wait until the incident ends")
    live.add_argument(
        "--until-verdict",
        action="store_true",
        help="end soon after the expected verdict",
    )
    live.add_argument("--duration", help="play this long instead of the scenario's duration")
    live.add_argument("--keep", action="store_true", help="leave the run directory")

    status = commands.add_parser("status", help="what runs, what stands, what is broken")
    status.add_argument("--json", action="store_true", help="print it as JSON")

    commands.add_parser("down", help="stop a running lab")

    scenario = commands.add_parser("scenario", help="about scenario files")
    about = scenario.add_subparsers(dest="about", required=True, metavar="WHAT")
    about.add_parser("schema", help="print the JSON Schema of a scenario file")
    check = about.add_parser("check", help="read scenario files and say what is wrong with them")
    check.add_argument("files", nargs="+", type=Path, metavar="FILE", help="scenario files")
    about.add_parser("list", help="list the shipped scenarios")

    add_job_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 not right, 2 cannot be done (the reason is on standard error)."""
    arguments = parser().parse_args(argv)
    root = arguments.run_dir or default_run_dir(os.environ, os.getuid())
    run = RunDir(Path(root).absolute())
    try:
        return _dispatch(arguments, run)
    except LabError as err:
        sys.stderr.write(f"tocsin-lab: {err}\n")
        return EXIT_UNUSABLE
    except BrokenPipeError:
        # The reader of our output went away; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _dispatch(arguments: argparse.Namespace, run: RunDir) -> int:
    """Import what the command needs only: `job` is run for each action and must be quick."""
    command = arguments.command
    if command == "job":
        return run_job(arguments, run.root)
    if command == "up":
        from tocsin_lab import up

        return up.run(arguments, run)
    if command == "inject":
        from tocsin_lab import inject

        return inject.run(arguments, run)
    if command == "live":
        from tocsin_lab import live

        return live.run(arguments)
    if command == "scenario":
        from tocsin_lab import scenarios

        return scenarios.run(arguments)
    from tocsin_lab import status

    return status.run_down(run) if command == "down" else status.run(arguments, run)
