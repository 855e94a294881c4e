"""A scheduler reached by allow-listed commands: the lab, or a site's own wrapper."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any, Final

from tocsin_remediator import typed
from tocsin_remediator.adapters import process
from tocsin_remediator.adapters.base import Outcome, Request
from tocsin_remediator.adapters.catalogue import ACTIONS
from tocsin_remediator.errors import ActionError, Applied, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tocsin_remediator.config import Command, Config, Scheduler

_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}
_SHOWN: Final = 400


class CommandScheduler:
    """Restarts and moves jobs. Which scheduler a job belongs to follows from its job_id."""

    def __init__(self, config: Config, folder: Path) -> None:
        """`folder` takes the output of the commands."""
        self._config = config
        self._folder = folder

    def preview(self, verb: str, args: Mapping[str, str]) -> list[str]:
        """The argument vector, with the request id left open."""
        _, command = self._command(verb, args)
        return command.fill({**_checked(verb, args), "request_id": "{request_id}"})

    def idempotent(self, verb: str, args: Mapping[str, str]) -> bool:
        """Whether the command is given the request id."""
        return "request_id" in self._command(verb, args)[1].placeholders

    def describe(self, job_id: str) -> dict[str, Any]:
        """What the scheduler knows of a job; ActionError(applied=no) when it does not say."""
        scheduler = self._scheduler(job_id)
        argv = scheduler.describe.fill({"job_id": typed.check("job_id", job_id)})
        timeout = scheduler.describe.timeout or self._config.timing.describe_timeout
        # A name of its own: several incidents may ask about one job at once.
        name = f"describe-{secrets.token_hex(8)}"
        try:
            done = process.run(
                argv, folder=self._folder, name=name, timeout=timeout, environment=_environment(scheduler)
            )
        except OSError as err:
            raise ActionError(Applied.NO, f"{argv[0]} cannot be started: {err.strerror or err}") from err
        finally:
            process.forget(self._folder, name)
        if done.code is None:
            raise ActionError(Applied.NO, f"{argv[0]} did not describe {job_id} within {timeout:g}s")
        if done.code != 0:
            raise ActionError(
                Applied.NO, f"{argv[0]} exited {done.code}: {_shown(done.stderr or done.stdout)}"
            )
        answer = _json_line(done.stdout)
        if answer is None:
            raise ActionError(Applied.NO, f"{argv[0]} printed no JSON object: {_shown(done.stdout)}")
        return answer

    def ended(self, job_id: str) -> bool:
        """Whether the scheduler says that the job is over; False when it does not say."""
        try:
            answer = self.describe(job_id)
        except (ActionError, Refused):
            return False
        return answer.get("job_id") == job_id and answer.get("state") in ("finished", "stopped")

    def confirm_target(self, verb: str, args: Mapping[str, str]) -> str:
        """The scheduler must know exactly this job, and exactly this rank on exactly this GPU."""
        values = _checked(verb, args)
        answer = self.describe(values["job_id"])
        if answer.get("job_id") != values["job_id"]:
            raise Refused(f"asked for {values['job_id']}, the scheduler described {answer.get('job_id')!r}")
        state = answer.get("state")
        if state == "finished":
            raise Refused(f"{values['job_id']} has finished; there is nothing to repair")
        ranks = answer.get("ranks")
        rows = [row for row in ranks if isinstance(row, dict)] if isinstance(ranks, list) else []
        if "rank" in values:
            mine = [row for row in rows if str(row.get("rank")) == values["rank"]]
            if len(mine) != 1:
                raise Refused(f"the scheduler knows {len(mine)} ranks {values['rank']} of {values['job_id']}")
            if "gpu_uuid" in values and mine[0].get("gpu_uuid") != values["gpu_uuid"]:
                raise Refused(
                    f"rank {values['rank']} is on {mine[0].get('gpu_uuid')!r}, not on {values['gpu_uuid']}"
                )
        if verb == "move_rank" and answer.get("spare") == []:
            raise Refused(f"the scheduler has no spare GPU for rank {values['rank']}")
        if "node" in values and not any(row.get("node") == values["node"] for row in rows):
            raise Refused(f"{values['job_id']} has no rank on node {values['node']}")
        return f"{values['job_id']} is {state}, attempt {answer.get('attempt')}, {len(rows)} ranks"

    def run(self, request: Request) -> Outcome:
        """Run the allow-listed command of this verb."""
        scheduler, command = self._command(request.verb, request.args)
        argv = command.fill({**_checked(request.verb, request.args), "request_id": request.request_id})
        timeout = min(request.timeout, command.timeout or request.timeout)
        try:
            done = process.run(
                argv,
                folder=self._folder,
                name=request.request_id,
                timeout=timeout,
                environment=_environment(scheduler),
                started=request.started,
            )
        except OSError as err:
            raise ActionError(Applied.NO, f"{argv[0]} cannot be started: {err.strerror or err}") from err
        said = _shown(done.stdout) or _shown(done.stderr)
        if done.code is None:
            raise ActionError(Applied.UNKNOWN, f"{argv[0]} was ended after {timeout:g}s: {said}")
        answer = _json_line(done.stdout)
        if done.code != 0:
            # Only the other side can say that it did nothing; an exit status alone does not.
            refused = answer is not None and answer.get("applied") is False
            raise ActionError(
                Applied.NO if refused else Applied.UNKNOWN,
                f"{argv[0]} exited {done.code}: {_shown(done.stderr) or said}",
            )
        return Outcome(said or "done", answer or {})

    def _scheduler(self, job_id: str) -> Scheduler:
        scheduler = self._config.scheduler_for(job_id)
        if scheduler is None:
            raise Refused(f"no scheduler is configured for {job_id}")
        return scheduler

    def _command(self, verb: str, args: Mapping[str, str]) -> tuple[Scheduler, Command]:
        scheduler = self._scheduler(args.get("job_id", ""))
        command = scheduler.actions.get(verb)
        if command is None:
            raise Refused(f"scheduler {scheduler.name} has no command for {verb}")
        return scheduler, command


def _checked(verb: str, args: Mapping[str, str]) -> dict[str, str]:
    params = ACTIONS[f"scheduler.{verb}"].params
    return {name: typed.check(kind, args.get(name, "")) for name, kind in params.items()}


def _environment(scheduler: Scheduler) -> dict[str, str]:
    return {**_ENVIRONMENT, **scheduler.environment}


def _json_line(text: str) -> dict[str, Any] | None:
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                return None
            return value if isinstance(value, dict) else None
    return None


def _shown(text: str) -> str:
    return " ".join(text.split())[:_SHOWN]
