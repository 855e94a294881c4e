"""From a confirmed verdict to a plan with exact arguments, fixed by a digest."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

from tocsin_remediator import checks, typed
from tocsin_remediator.adapters.catalogue import ACTIONS
from tocsin_remediator.decide import level
from tocsin_remediator.errors import Refused
from tocsin_remediator.model import Level, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tocsin_remediator.engine.context import Context
    from tocsin_remediator.model import Incident
    from tocsin_remediator.runbook.model import Runbook, Step

_VALUE: Final = re.compile(r"\$\{target\.([a-z_]+)\}")


class Undecided(Exception):  # noqa: N818  not an error: the answer is to ask again
    """Whether a step belongs into the plan cannot be told now."""


def target_values(book: Runbook, labels: Mapping[str, str]) -> dict[str, str]:
    """The target's typed values; Refused when a required one is missing or malformed."""
    values: dict[str, str] = {}
    for name, field in book.spec.target.fields.items():
        value = labels.get(field.from_.removeprefix("label."), "")
        if not value and not field.required:
            continue
        values[name] = typed.check(field.type, value)
    return values


def canonical(keys: Iterable[str], values: Mapping[str, str]) -> str:
    """The target as text; two alerts with the same text are the same incident."""
    return ",".join(f"{key}={values[key]}" for key in keys)


def allowed(context: Context, incident: Incident, book: Runbook) -> tuple[Level, str]:
    """How far this runbook may go here."""
    promotion = context.journal.settings.promotion(book.metadata.name)
    return level(
        ceiling=Level.of(book.spec.automation.ceiling),
        configured=Level.of(context.config.levels.get(incident.family, "recommend")),
        promoted=promotion.level if promotion is not None else None,
        promotion_current=promotion is not None and promotion.digest == book.digest,
        dry_run=context.dry_run,
    )


def arguments(step: Step, values: Mapping[str, str]) -> dict[str, str]:
    """The step's arguments, each checked against its type; Refused when one is missing."""
    params = ACTIONS[step.action].params
    made: dict[str, str] = {}
    for name, text in step.with_.items():
        whole = _VALUE.fullmatch(text)
        value = values.get(whole[1]) if whole is not None else text
        if value is None:
            raise Refused(f"step {step.id} needs {text}, which this incident does not have")
        made[name] = typed.check(params[name], value)
    return made


def plan(context: Context, book: Runbook, values: Mapping[str, str]) -> dict[str, Any]:
    """
    The plan: every step with its arguments and what would be run.

    Undecided when a `when` is inconclusive, Refused when a step cannot be carried out here.
    """
    steps = []
    for step in book.spec.steps:
        if step.when:
            judged = checks.ask(context.prometheus, step.when, values, {}, context.now)
            if judged.verdict is Verdict.INCONCLUSIVE:
                raise Undecided(f"whether step {step.id} is right cannot be told: {judged.reason}")
            if judged.verdict is Verdict.FAIL:
                continue
        steps.append(_planned(context, step, values))
    if book.spec.steps and not steps:
        raise Refused("no step of the runbook fits what is known")
    return {
        "runbook": book.metadata.name,
        "version": book.metadata.version,
        "runbook_digest": book.digest,
        "target": dict(values),
        "steps": steps,
        "rollback": [_planned(context, step, values) for step in book.spec.rollback.steps],
    }


def _planned(context: Context, step: Step, values: Mapping[str, str]) -> dict[str, Any]:
    args = arguments(step, values)
    action = ACTIONS[step.action]
    return {
        "id": step.id,
        "action": step.action,
        "args": args,
        "effect": str(action.effect),
        "timeout": step.timeout,
        "on_failure": step.on_failure,
        "says": step.says,
        "argv": context.adapters[action.adapter].preview(action.verb, args),
    }


def digest(plan_: Mapping[str, Any]) -> str:
    """What an approval is bound to."""
    plain = json.dumps(plan_, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()
