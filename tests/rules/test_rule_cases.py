"""Every case holds on the rendered rules, and no alert goes without its cases."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from tests.rules.background import build
from tests.rules.casefile import CASES, Case, load

ROOT = Path(__file__).resolve().parents[2]
ALL = load()


def alerts() -> set[str]:
    """The names of the rendered alerts."""
    return {
        rule["alert"]
        for path in (ROOT / "rules" / "rendered").glob("*.yaml")
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=f"{case.file.removesuffix('.yaml')}: {case.name}",
            marks=[pytest.mark.long] if case.long else [],
        )
        for case in ALL
    ],
)
def test_case_holds(case: Case, outcomes: dict[str, subprocess.CompletedProcess[str]]) -> None:
    """promtool agrees with every expectation of the case and has no warning about its input."""
    outcome = outcomes[case.name]
    text = outcome.stdout + outcome.stderr

    assert (0, False) == (outcome.returncode, "WARNING" in text), text


@pytest.mark.parametrize("name", sorted(alerts()))
def test_alert_has_a_firing_and_a_quiet_case(name: str) -> None:
    """An alert that no case makes fire, or that no case keeps quiet, is not tested."""
    firing = any(name in case.fires() for case in ALL if not case.long)
    quiet = any(name in case.quiet() for case in ALL if not case.long)

    assert (True, True) == (firing, quiet)


@pytest.mark.parametrize("name", sorted(alerts()))
def test_labels_and_annotations_are_compared_in_full(name: str) -> None:
    """At least one case writes out all labels and annotations, so that templates are run."""
    complete = [
        row
        for case in ALL
        for entry in case.expect
        if entry.get("alert", {}).get("alertname") == name
        for row in entry["alert"].get("exp_alerts", ())
    ]

    assert all(
        {"summary", "description", "evidence", "runbook_url"} == set(row["exp_annotations"])
        for row in complete
    )
    assert complete


def test_cases_speak_only_of_alerts_that_exist() -> None:
    """A misspelt name would be quiet for ever, and promtool would not mind."""
    assert set() == {name for case in ALL for name in case.names()} - alerts()


def test_every_family_has_its_case_file() -> None:
    """The case file bears the family's name, as runbook and manual page do, or that of a file of records."""
    families = {name.removeprefix("Tocsin") for name in alerts()}
    files = {path.stem for path in CASES.glob("*.yaml")}
    records = {path.stem for path in (ROOT / "rules" / "records").glob("*.libsonnet")}

    assert families <= files
    assert set() == files - families - records


def test_cases_have_names_of_their_own() -> None:
    """A name that stands twice would hide the outcome of one of the two."""
    names = [case.name if case.file else "" for case in ALL]
    doubled = {name for name in names if names.count(name) > 1}

    assert set() == doubled


def test_a_case_that_departs_from_nothing_is_refused(tmp_path: Path) -> None:
    """A change of a series that is not there would leave the healthy job as it is."""
    (tmp_path / "X.yaml").write_text(
        "- name: n\n  changes: [{metric: tocsin_rank_up, rank: 77, value: 0}]\n"
        "  expect: [{at: 1m, verdict: none}]\n",
        encoding="utf-8",
    )
    (case,) = load(tmp_path)
    with pytest.raises(ValueError, match="no series tocsin_rank_up"):
        build(case.job, case.changes)
