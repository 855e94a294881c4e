"""
Cases in short form, and promtool's form of them.

A case file holds a list of cases:

    name:      the sentence of the behaviour
    job:       fields of `background.Job` that differ
    changes:   fields of `background.Change`; `from`, `to` are durations, other keys are labels
    long:      true for what a threshold's neighbourhood needs and every run does not
    expect:    list of {at, and one or more of firing, quiet, verdict, query+value, alert}

`firing` is {alert, labels...}; `quiet` a list of alerts that do not fire at that time;
`verdict` the labels of the one verdict row, or none. `alert` is an entry of promtool's
`alert_rule_test`, where labels and annotations must match completely.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.rules.background import INTERVAL, Change, Job, build, lines, parse_duration

__all__ = ["Case", "expand", "load"]

CASES = Path(__file__).with_name("cases")


@dataclass(frozen=True, slots=True)
class Case:
    """One case: its file, and what it says."""

    file: str
    name: str
    job: Job
    changes: tuple[Change, ...]
    expect: tuple[dict[str, Any], ...]
    long: bool = False

    def fires(self) -> set[str]:
        """Return the alerts that this case expects to fire at some time."""
        names = {entry["firing"]["alert"] for entry in self.expect if "firing" in entry}
        names |= {
            entry["alert"]["alertname"]
            for entry in self.expect
            if "alert" in entry and entry["alert"].get("exp_alerts")
        }
        if any(entry.get("verdict", "none") != "none" for entry in self.expect):
            names.add("TocsinVerdict")
        return names

    def quiet(self) -> set[str]:
        """Return the alerts that this case expects not to fire, and that it does not expect later."""
        names = {name for entry in self.expect for name in entry.get("quiet", ())}
        if any(entry.get("verdict") == "none" for entry in self.expect):
            names.add("TocsinVerdict")
        return names - self.fires()

    def names(self) -> set[str]:
        """Return every alert that the case speaks of."""
        quiet = {name for entry in self.expect for name in entry.get("quiet", ())}
        return self.fires() | quiet


def load(folder: Path = CASES) -> tuple[Case, ...]:
    """Return the cases of every file; a malformed one raises ValueError with file and case."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        for row in yaml.safe_load(path.read_text(encoding="utf-8")):
            try:
                found.append(_case(path.name, row))
            except (KeyError, TypeError, ValueError) as err:
                raise ValueError(f"{path}: case {row.get('name', row)!r}: {err}") from err
    return tuple(found)


def _case(file: str, row: dict[str, Any]) -> Case:
    unknown = row.keys() - {"name", "job", "changes", "expect", "long"}
    if unknown or not row["expect"]:
        raise ValueError(f"unknown keys {sorted(unknown)}" if unknown else "expects nothing")
    job = dict(row.get("job", {}))
    if "for" in job:
        job["seconds"] = parse_duration(job.pop("for"))
    if "models" in job:
        job["models"] = tuple(job["models"])
    changes = tuple(map(_change, row.get("changes", ())))
    return Case(file, row["name"], Job(**job), changes, tuple(row["expect"]), bool(row.get("long", False)))


def _change(row: dict[str, Any]) -> Change:
    rest = dict(row)
    own: dict[str, Any] = {
        "start": parse_duration(rest.pop("from", "0s")),
        "end": parse_duration(rest.pop("to")) if "to" in rest else None,
        "cycle": tuple(rest.pop("cycle", ())),
    }
    own |= {key: rest.pop(key) for key in ("metric", "value", "slope", "gone", "hold", "add") if key in rest}
    return Change(labels={key: str(value) for key, value in rest.items()}, **own)


def expand(case: Case, rules: list[str]) -> dict[str, Any]:
    """Return the promtool test file of *case* over the rule files *rules*."""
    expressions: list[dict[str, Any]] = []
    alerts: list[dict[str, Any]] = []
    for entry in case.expect:
        _expectation(entry, expressions, alerts)
    return {
        "rule_files": rules,
        "evaluation_interval": f"{INTERVAL}s",
        # Both groups run at the same instant in promtool; patterns first costs the events nothing.
        "group_eval_order": ["tocsin-patterns", "tocsin-events"],
        "tests": [
            {
                "name": case.name,
                "interval": f"{INTERVAL}s",
                "input_series": lines(build(case.job, case.changes)),
                "alert_rule_test": alerts,
                "promql_expr_test": expressions,
            }
        ],
    }


def _expectation(
    entry: dict[str, Any], expressions: list[dict[str, Any]], alerts: list[dict[str, Any]]
) -> None:
    unknown = entry.keys() - {"at", "firing", "quiet", "verdict", "query", "value", "alert"}
    if unknown:
        raise ValueError(f"unknown expectation {sorted(unknown)}")
    at = entry["at"]

    def ask(expr: str, value: float) -> None:
        expressions.append({"expr": expr, "eval_time": at, "exp_samples": [{"labels": "{}", "value": value}]})

    if "firing" in entry:
        labels = {"alertstate": "firing", **entry["firing"]}
        labels["alertname"] = labels.pop("alert")
        ask(f"count(ALERTS{_selector(labels)}) or vector(0)", 1)
    for name in entry.get("quiet", ()):
        ask(f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)', 0)
    if "verdict" in entry:
        row = entry["verdict"]
        ask("count(tocsin_job:verdict:info) or vector(0)", 0 if row == "none" else 1)
        ask('count(ALERTS{alertname="TocsinVerdict"}) or vector(0)', 0 if row == "none" else 1)
        if row != "none":
            ask(f"count(tocsin_job:verdict:info{_selector(row)}) or vector(0)", 1)
    if "query" in entry:
        ask(entry["query"], math.nan if entry["value"] == "NaN" else entry["value"])
    if "alert" in entry:
        alerts.append({"eval_time": at, **entry["alert"]})


def _selector(labels: dict[str, str]) -> str:
    return "{" + ", ".join(f'{key}="{_escape(str(value))}"' for key, value in labels.items()) + "}"


def _escape(text: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", text)
