"""Configuration files of the stack's servers, as data: what is tested is what runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tocsin_lab.stack.ports import LOOPBACK

INTERVAL = "5s"
EXPORTER_JOB = "tocsin-exporter"
REMEDIATOR_JOB = "tocsin-remediator"


def prometheus(
    exporters: Mapping[str, int], remediator: int, alertmanager: int, rules: Sequence[Path]
) -> dict[str, Any]:
    """Return Prometheus' configuration; *exporters* maps a node's name to the port of its exporter."""
    return {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL, "scrape_timeout": "4s"},
        "rule_files": [str(path) for path in rules],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"{LOOPBACK}:{alertmanager}"]}]}]},
        "scrape_configs": [
            {
                "job_name": EXPORTER_JOB,
                # The exporter's own `node` label is the scheduler's name of the node.
                "honor_labels": True,
                "static_configs": [{"targets": [f"{LOOPBACK}:{port}" for port in exporters.values()]}],
            },
            {
                "job_name": REMEDIATOR_JOB,
                "static_configs": [{"targets": [f"{LOOPBACK}:{remediator}"]}],
            },
        ],
    }


def alertmanager(remediator: int) -> dict[str, Any]:
    """Return Alertmanager's configuration: verdicts go to the remediator, one notice per alert."""
    return {
        "route": {
            "receiver": "nobody",
            "group_by": ["..."],
            "group_wait": "0s",
            "group_interval": "1s",
            # Says it again while it stands: a remediator that was down hears of it soon.
            "repeat_interval": "1m",
            "routes": [{"receiver": "tocsin-remediator", "matchers": ['alertname="TocsinVerdict"']}],
        },
        "receivers": [
            {"name": "nobody"},
            {
                "name": "tocsin-remediator",
                "webhook_configs": [
                    {
                        "url": f"http://{LOOPBACK}:{remediator}/api/v1/alerts",
                        "send_resolved": True,
                        "max_alerts": 1000,
                    }
                ],
            },
        ],
    }


def write(path: Path, body: Mapping[str, Any]) -> Path:
    """Write *body* as YAML and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(body), sort_keys=False), "utf-8")
    return path
