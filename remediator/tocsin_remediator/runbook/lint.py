"""What the shape of a runbook cannot say: rules between its parts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tocsin_remediator import promql
from tocsin_remediator.adapters.catalogue import ACTIONS, Effect
from tocsin_remediator.runbook.model import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tocsin_remediator.runbook.model import Check, Runbook, Step

Path = tuple[str | int, ...]
Finding = tuple[Path, str]

# A missing series and a zero must stay different: `or vector(0)` reads a dead exporter as health.
_FALLBACK: Final = re.compile(r"\bor\s+(?:on\s*\(\s*\)\s*)?vector\s*\(")
_VALUE: Final = re.compile(r"\$\{target\.([a-z_]+)\}")


def findings(book: Runbook) -> Iterator[Finding]:
    """Everything wrong with a well-formed runbook, with the path of the culprit."""
    if book.metadata.name != book.metadata.family:
        yield ("metadata", "name"), "name must be the family, so that page, alert and file agree"
    yield from _target(book)
    for path, check in _checks(book):
        yield from _check(book, path, check)
    yield from _steps(book)
    yield from _verify(book)
    yield from _rollback(book)


def _target(book: Runbook) -> Iterator[Finding]:
    fields = book.spec.target.fields
    for place, key in enumerate(book.spec.target.key):
        if key not in fields:
            yield ("spec", "target", "key", place), f"key {key!r} is no field of the target"
        elif not fields[key].required:
            yield ("spec", "target", "key", place), f"key {key!r} must be a required field"
    # A warning about a node opens no case: its runbook is read by people and may only advise.
    about_node = book.spec.target.kind == "node" and book.spec.automation.ceiling == "recommend"
    needed = "node" if about_node else "job_id"
    if needed not in fields or fields[needed].type != needed:
        why = "the warning names a node" if about_node else "cases are kept per job"
        yield ("spec", "target", "fields"), f"field {needed} of type {needed} is needed: {why}"


def _checks(book: Runbook) -> Iterator[tuple[Path, Check]]:
    spec = book.spec
    groups: list[tuple[Path, list[Check]]] = [
        (("spec", "ruleOut"), spec.rule_out),
        (("spec", "preconditions"), spec.preconditions),
        (("spec", "rollback", "verify"), spec.rollback.verify),
    ]
    if spec.verify is not None:
        groups.append((("spec", "verify", "checks"), spec.verify.checks))
    for place, step in enumerate(spec.steps):
        groups.append((("spec", "steps", place, "when"), step.when))
    for path, checks in groups:
        seen: set[str] = set()
        for place, check in enumerate(checks):
            yield (*path, place), check
            if check.id in seen:
                yield (*path, place, "id"), check
            seen.add(check.id)


def _check(book: Runbook, path: Path, check: Check) -> Iterator[Finding]:
    if path[-1] == "id":
        yield path, f"check id {check.id!r} stands twice"
        return
    if _FALLBACK.search(check.query):
        yield (*path, "query"), "`or vector(…)` turns missing data into a value; drop it and use onNoData"
    wrong = promql.misplaced(check.query)
    if wrong is not None:
        yield (*path, "query"), f'{wrong} must be the whole of a quoted matcher: label="{wrong}"'
    for name in promql.variables(check.query):
        field = name.removeprefix("target.")
        if not name.startswith("target.") or field not in book.spec.target.fields:
            yield (*path, "query"), f"${{{name}}} is no field of the target"
    if check.expect.of == "baseline_ratio" and check.baseline is None:
        yield (*path, "expect"), "baseline_ratio needs a baseline"
    if check.expect.of != "value" and check.expect.op in ("empty", "nonempty"):
        yield (*path, "expect"), "empty and nonempty compare with nothing"
    if check.on_no_data == "pass":
        yield (*path, "onNoData"), "no data never proves anything; use op empty beside a guard"


def _step(book: Runbook, path: Path, step: Step) -> Iterator[Finding]:
    action = ACTIONS.get(step.action)
    if action is None:
        yield (*path, "action"), f"{step.action} is none of {', '.join(sorted(ACTIONS))}"
        return
    fields = book.spec.target.fields
    for name in action.params:
        if name not in step.with_:
            yield (*path, "action"), f"{step.action} needs the argument {name}"
    for name, text in step.with_.items():
        if name not in action.params:
            yield (*path, "with", name), f"{step.action} has no argument {name}"
            continue
        whole = _VALUE.fullmatch(text)
        if whole is None:
            if action.params[name] != "text":
                yield (*path, "with", name), f"must be one whole variable such as ${{target.{name}}}"
        elif whole[1] not in fields:
            yield (*path, "with", name), f"{text} is no field of the target"
        elif fields[whole[1]].type != action.params[name]:
            yield (
                (*path, "with", name),
                f"{text} is a {fields[whole[1]].type}, {step.action} wants a {action.params[name]}",
            )
    if step.timeout <= 0:
        yield (*path, "timeout"), "a step needs a timeout"


def _steps(book: Runbook) -> Iterator[Finding]:
    spec = book.spec
    seen: set[str] = set()
    for place, step in enumerate(spec.steps):
        path: Path = ("spec", "steps", place)
        if step.id in seen:
            yield (*path, "id"), f"step id {step.id!r} stands twice"
        seen.add(step.id)
        yield from _step(book, path, step)
        action = ACTIONS.get(step.action)
        if (
            action is not None
            and action.effect is Effect.IRREVERSIBLE
            and spec.automation.ceiling == "auto"
            and spec.automation.accept_irreversible is None
        ):
            yield (
                ("spec", "automation", "ceiling"),
                f"auto with the irreversible {step.action} needs acceptIrreversible",
            )


def _verify(book: Runbook) -> Iterator[Finding]:
    spec = book.spec
    changes = any(
        ACTIONS[step.action].effect is not Effect.READ for step in spec.steps if step.action in ACTIONS
    )
    if spec.verify is None:
        if changes:
            yield ("spec", "steps"), "steps that change something need verify"
        return
    path: Path = ("spec", "verify")
    roles = {check.role for check in spec.verify.checks}
    if Role.INDICATOR not in roles:
        yield (*path, "checks"), "verify needs an indicator: something of the job itself"
    if Role.GUARD not in roles:
        yield (*path, "checks"), "verify needs a guard that proves the signal alive"
    if spec.verify.interval <= 0:
        yield (*path, "interval"), "the interval must be above zero"
    elif spec.verify.for_ < 2 * spec.verify.interval:
        yield (*path, "for"), "fewer than three samples; make `for` at least twice the interval"
    if spec.verify.deadline < spec.verify.settle + spec.verify.for_:
        yield (*path, "deadline"), "the deadline is shorter than settle plus for"
    need = sum(step.timeout for step in spec.steps) + spec.verify.settle + spec.verify.for_
    if spec.limits.deadline < need:
        yield ("spec", "limits", "deadline"), f"shorter than the steps plus settle plus for ({need:g}s)"


def _rollback(book: Runbook) -> Iterator[Finding]:
    rollback = book.spec.rollback
    path: Path = ("spec", "rollback")
    if rollback.strategy == "none":
        if rollback.reason_if_none is None:
            yield path, "strategy none needs reasonIfNone"
        if rollback.steps:
            yield (*path, "steps"), "strategy none has no steps"
    elif not rollback.steps:
        yield path, "strategy undo needs steps"
    elif not rollback.verify:
        yield path, "a rollback is verified too: add verify"
    for place, step in enumerate(rollback.steps):
        yield from _step(book, (*path, "steps", place), step)
