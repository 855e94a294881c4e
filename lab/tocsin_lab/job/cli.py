"""``tocsin-lab job …``: the lab's scheduler. Each command prints one JSON line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tocsin_lab.errors import JobError, LabError
from tocsin_lab.job import control
from tocsin_lab.job.spec import JobConfig, JobPaths, create_job
from tocsin_lab.sim.build import build

__all__ = ["add_job_parser", "main", "run_job"]


def _options(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="job_command", required=True, metavar="WHAT")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument("--job", default=None, help="name or job id (default: the only one)")
        return one

    start = command("start", "create the job unless it exists, and run it")
    start.add_argument("--ranks", type=int, default=6, help="how many (%(default)s)")
    start.add_argument(
        "--step-seconds", type=float, default=1.0, help="length of a healthy step (%(default)s)"
    )
    start.add_argument("--seed", type=int, default=1, help="of the loss curve (%(default)s)")
    start.add_argument("--total-steps", type=int, default=20000, help="when it ends (%(default)s)")
    start.add_argument("--checkpoint-every", type=int, default=30, help="in steps; 0: never (%(default)s)")
    start.add_argument(
        "--on-rank-exit", choices=("wait", "kill"), default="wait", help="what happens to its peers"
    )
    start.add_argument(
        "--lib", type=Path, default=Path(".build/lib"), help="folder of the native libraries (%(default)s)"
    )
    command("status", "where the ranks run, and which GPUs are spare")
    restart = command("restart", "restart from the last checkpoint")
    restart.add_argument(
        "--exclude-node", default=None, help="move the ranks of this node to spare GPUs elsewhere"
    )
    move = command("move-rank", "restart from the last checkpoint with one rank on another GPU")
    move.add_argument("--rank", type=int, required=True, help="the rank to move")
    move.add_argument("--avoid-gpu", required=True, help="UUID of the GPU to leave")
    stop = command("stop", "end the ranks")
    stop.add_argument("--launcher", action="store_true", help="end the launcher too")
    for one in (restart, move, stop):
        one.add_argument(
            "--request-id", default=None, help="the same id is acted on once and always gets the same answer"
        )


def add_job_parser(subparsers: Any) -> None:
    """Mount the commands under ``job`` of another parser."""
    _options(
        subparsers.add_parser("job", help="the lab's scheduler: start, status, restart, move-rank, stop")
    )


def run_job(arguments: argparse.Namespace, run_dir: Path) -> int:
    """Run a parsed command; prints one JSON line. 0 done, 1 refused (the reason is in the line)."""
    try:
        answer = _run(arguments, run_dir.absolute())
    except LabError as error:
        answer = {"ok": False, "error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if answer.get("ok") else 1


def _run(arguments: argparse.Namespace, run_dir: Path) -> dict[str, Any]:
    if arguments.job_command == "start":
        return _start(arguments, run_dir)
    paths = JobPaths(run_dir, control.only_job(run_dir, arguments.job))
    if arguments.job_command == "status":
        return control.status(paths)
    request: dict[str, Any] = {
        "op": arguments.job_command.replace("-", "_"),
        "request_id": arguments.request_id,
    }
    if arguments.job_command == "restart":
        request["exclude_node"] = arguments.exclude_node
    elif arguments.job_command == "move-rank":
        request |= {"rank": arguments.rank, "avoid_gpu": arguments.avoid_gpu}
    answer = control.ask(paths, request)
    if arguments.job_command == "stop" and arguments.launcher and answer.get("ok"):
        control.ask(paths, {"op": "shutdown"})
    return answer


def _start(arguments: argparse.Namespace, run_dir: Path) -> dict[str, Any]:
    name = (arguments.job or "demo").removeprefix("torchrun/")
    paths = JobPaths(run_dir, name)
    build(arguments.lib)
    if not paths.record.exists():
        config = JobConfig(
            step_seconds=arguments.step_seconds,
            seed=arguments.seed,
            total_steps=arguments.total_steps,
            checkpoint_every=arguments.checkpoint_every,
        )
        create_job(run_dir, name, arguments.ranks, config, on_rank_exit=arguments.on_rank_exit)
    answer = control.start(paths, arguments.lib)
    if answer["state"] == "stopped":
        raise JobError(f"job {name!r} was stopped: `tocsin-lab job restart --job {name}` runs it again")
    return answer


def main(argv: Sequence[str], run_dir: Path) -> int:
    """``tocsin-lab job`` with the arguments behind ``job``."""
    parser = argparse.ArgumentParser(prog="tocsin-lab job", description=__doc__)
    _options(parser)
    return run_job(parser.parse_args(argv), run_dir)


def _standalone() -> int:
    parser = argparse.ArgumentParser(prog="python -m tocsin_lab.job.cli", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    _options(parser)
    arguments = parser.parse_args()
    return run_job(arguments, arguments.run_dir)


if __name__ == "__main__":
    raise SystemExit(_standalone())
