"""The shipped scenarios, and ``tocsin-lab scenario``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tocsin_lab import scenario
from tocsin_lab.errors import LabError, ScenarioError
from tocsin_lab.stack.programs import checkout


def shipped() -> list[Path]:
    """Return the scenario files that come with this version."""
    root = checkout()
    folder = root / "lab" / "scenarios" if root else Path(__file__).resolve().parent / "_scenarios"
    return sorted(folder.glob("*.yaml"))


def find(wanted: Path) -> scenario.Scenario:
    """Return the scenario of a file or of a shipped name; LabError when it is neither."""
    if wanted.is_file():
        return scenario.read(wanted)
    for path in shipped():
        if path.stem == str(wanted):
            return scenario.read(path)
    names = ", ".join(path.stem for path in shipped())
    raise LabError(f"{wanted} is neither a scenario file nor one of the shipped: {names}")


def run(arguments: argparse.Namespace) -> int:
    """Run the command: 0 all right, 2 when a file cannot be used."""
    if arguments.about == "schema":
        sys.stdout.write(json.dumps(scenario.schema(), indent=1) + "\n")
        return 0
    if arguments.about == "list":
        for path in shipped():
            found = scenario.read(path)
            sys.stdout.write(f"{found.name:<18} {found.description}\n")
        return 0
    worst = 0
    for path in arguments.files:
        try:
            scenario.read(path)
        except ScenarioError as err:
            sys.stderr.write(f"{err}\n")
            worst = 2
    return worst
