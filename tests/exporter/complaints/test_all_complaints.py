"""That every complaint has its test, by number; the table of which symptom is answered where."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

# Complaints that users of GPU, InfiniBand and node exporters have filed in public, a line each.
SYMPTOMS = {
    1: "an Xid sticks in a gauge, a second one is invisible",
    2: "some Xids never come through the driver's library",
    3: "Xids before the start or during a restart are lost or counted again",
    4: "a storm of one Xid drowns everything",
    5: "sympathetic Xids count as broken devices",
    6: "two sources class one Xid differently, an unknown one becomes a support case",
    7: "a GPU needs a reset and its health says healthy",
    8: "a lost GPU takes its series, or the exporter, with it",
    9: "a hung driver call hangs the exporter, the liveness probe kills it again and again",
    10: "stale values are served for ever",
    11: "zero is served for what is not supported",
    12: "one unsupported field removes others of its batch",
    13: "gauges typed as counters, wrong units",
    14: "a sentinel is exported as a temperature",
    15: "device series lack labels when the owner is not known",
    16: "series stay when their owner ended",
    17: "one GPU becomes several series as owners change",
    18: "memory grows until the exporter is killed",
    19: "each scraper costs another reading, each scrape a process",
    20: "a slow driver at the start ends in a crash loop",
    21: "the exporter's handles block resets and reconfigurations",
    22: "profiling locks out profilers",
    23: "one unreadable file costs all ports",
    24: "port bytes are four times too low",
    25: "saturated counters blind the alerts",
    26: "ports that were never in use raise alarms",
    27: "a hung mount blocks the exporter",
    28: "a GPU is given to the wrong job",
    29: "pids do not match in containers",
    30: "the driver answers with an unknown error until the exporter is restarted",
    31: "polling wakes idle devices",
    32: "an alarm about an error that was handled",
    33: "MIG: wrong profiles, energy counted per instance",
    34: "versions and host names on every series",
    35: "a probe drops records in silence",
    36: "each scrape asks the scheduler, series per job explode",
}


def _marked(path: Path) -> dict[int, list[str]]:
    """Return the tests of a file by the complaint that they carry."""
    found: dict[int, list[str]] = {}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.complaint":
                found.setdefault(int(ast.unparse(mark.args[0])), []).append(
                    f"{node.name}: {ast.get_docstring(node) or ''}"
                )
    return found


@pytest.mark.parametrize("number", sorted(SYMPTOMS), ids=lambda number: f"{number}: {SYMPTOMS[number]}")
def test_each_complaint_is_answered_by_a_test_that_names_its_source(root: Path, number: int) -> None:
    """Each complaint has a test; its docstring names where it was filed."""
    tests = [
        test
        for path in sorted((root / "tests/exporter").rglob("test_*.py"))
        for test in _marked(path).get(number, [])
    ]

    assert tests
    assert any("/" in test for test in tests), tests


def test_no_test_answers_a_complaint_that_is_not_listed(root: Path) -> None:
    """A number without a symptom would be a slip."""
    numbers = {number for path in (root / "tests").rglob("test_*.py") for number in _marked(path)}

    assert set(SYMPTOMS) == numbers
