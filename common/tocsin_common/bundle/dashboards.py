"""What a dashboard asks, with its variables filled in: for tests and for a look without Grafana."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tocsin_common.bundle import BundleError

__all__ = ["DEFAULTS", "load", "panels", "queries", "substitute", "variable_queries"]

# What Grafana would put in place of its own and the dashboards' variables.
DEFAULTS: Mapping[str, str] = {
    "__rate_interval": "1m",
    "__interval": "15s",
    "__range": "30m",
    "cluster": ".*",
    "job_id": "torchrun/demo",
}


def load(path: Path) -> dict[str, Any]:
    """Return the dashboard in *path*; `BundleError` when it is not one JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as err:
        raise BundleError(f"{path}: not JSON: {err}; run `tocsin-bundle render`") from err
    if not isinstance(content, dict):
        raise BundleError(f"{path}: not a dashboard; run `tocsin-bundle render`")
    return content


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every panel that asks something; rows are passed over and looked into."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", ())
        else:
            yield panel


def queries(dashboard: Path | Mapping[str, Any], values: Mapping[str, str] | None = None) -> list[str]:
    """
    Return every PromQL expression of *dashboard*, annotations included, ready to be run.

    *values* are taken before `DEFAULTS`. An unknown variable raises `BundleError`.
    """
    content = load(dashboard) if isinstance(dashboard, Path) else dashboard
    found = [target["expr"] for panel in panels(content) for target in panel["targets"]]
    found += [note["expr"] for note in content["annotations"]["list"]]
    return [substitute(expr, values) for expr in found]


def variable_queries(dashboard: Mapping[str, Any]) -> list[str]:
    """Return the ``label_values(...)`` questions of the dashboard's variables, as written."""
    return [row["query"]["query"] for row in dashboard["templating"]["list"] if row["type"] == "query"]


def substitute(expr: str, values: Mapping[str, str] | None = None) -> str:
    """Return *expr* with ``$name`` replaced; an unknown variable raises `BundleError`."""
    known = {**DEFAULTS, **(values or {})}
    for name in sorted(known, key=len, reverse=True):
        expr = expr.replace(f"${{{name}}}", known[name]).replace(f"${name}", known[name])
    if "$" in expr:
        raise BundleError(f"{expr}: a variable without a value; known are {', '.join(sorted(known))}")
    return expr
