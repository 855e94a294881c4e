"""Shipped runbooks are sound; broken ones are refused with file, line and reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest
import yaml

from tocsin_remediator.cli import main
from tocsin_remediator.errors import InputFileError
from tocsin_remediator.runbook.load import load_dir, load_file, schema_text

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).resolve().parents[2] / "runbooks"
FILES = sorted(FOLDER.glob("*.yaml"))
DEAD_RANK = (FOLDER / "DeadRank.yaml").read_text()


def test_there_are_runbooks() -> None:
    """
    The first four families have one each.
    """
    assert {"DeadRank", "FailSlowGpu", "GpuThrottled", "LossDivergence"} <= {file.stem for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_runbook_is_sound(file: Path) -> None:
    """
    It loads, and the published schema accepts it too.
    """
    book = load_file(file)
    schema = json.loads((FOLDER / "schema.json").read_text())

    assert file.stem == book.metadata.family
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(file.read_text()))


def test_the_published_schema_is_the_programs() -> None:
    """
    `check-runbooks --schema` prints what is committed.
    """
    assert schema_text() == (FOLDER / "schema.json").read_text()


def replaced(old: str, new: str) -> Callable[[str], str]:
    """A change of one place; the place must exist."""

    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


@pytest.mark.parametrize(
    ("change", "at", "reason"),
    [
        pytest.param(replaced("kind: Runbook", "kind: Playbook"), "kind: Playbook", "Runbook", id="kind"),
        pytest.param(replaced("  version: 1", "  version: one"), "version: one", "integer", id="version"),
        pytest.param(replaced("  owner:", "  ovner:"), None, "owner", id="a missing key"),
        pytest.param(
            replaced("  side: yours", "  side: yours\n  extra: 1"),
            "extra: 1",
            "unknown key",
            id="unknown key",
        ),
        pytest.param(
            replaced("  side: yours", "  side: yours\n  side: below"),
            "side: below",
            "second time",
            id="a key twice",
        ),
        pytest.param(replaced("  side: yours", "  side: [yours"), None, "not YAML", id="not YAML"),
        pytest.param(
            replaced("key: [job_id]", "key: [job]"), "key: [job]", "no field", id="key without field"
        ),
        pytest.param(
            replaced("key: [job_id]", "key: [rank]"), "key: [rank]", "required", id="an optional key"
        ),
        pytest.param(
            replaced('query: count(tocsin_job:verdict:info{family="DeadRank"})', "query: a or vector(0)"),
            "vector(0)",
            "missing data",
            id="missing data made a zero",
        ),
        pytest.param(
            replaced(
                'node="${target.node}"}\n          expect: {op: empty}',
                'node=~"${target.node}"}\n          expect: {op: empty}',
            ),
            'node=~"',
            "whole of a quoted matcher",
            id="a variable in a regular expression",
        ),
        pytest.param(
            replaced('job_id="${target.job_id}"', 'job_id="${target.jobs}"'),
            "target.jobs",
            "no field",
            id="unknown variable",
        ),
        pytest.param(
            replaced("        baseline: {window: 30m, before: 1m}\n", ""),
            "of: baseline_ratio",
            "needs a baseline",
            id="relative to nothing",
        ),
        pytest.param(
            replaced("action: scheduler.restart\n", "action: scheduler.reboot\n"),
            "scheduler.reboot",
            "none of",
            id="unknown action",
        ),
        pytest.param(
            replaced('with: {job_id: "${target.job_id}"}', 'with: {job_id: "${target.rank}"}'),
            'with: {job_id: "${target.rank}"}',
            "wants a job_id",
            id="an argument of another type",
        ),
        pytest.param(
            replaced('with: {job_id: "${target.job_id}"}', 'with: {job_id: "x-${target.job_id}"}'),
            'with: {job_id: "x-',
            "whole variable",
            id="an argument built from pieces",
        ),
        pytest.param(
            replaced('with: {job_id: "${target.job_id}"}', 'with: {job_id: "${target.job_id}", all: "yes"}'),
            "all:",
            "no argument",
            id="an unknown argument",
        ),
        pytest.param(
            replaced("id: restart-without-node", "id: restart-in-place"),
            "id: restart-in-place",
            "stands twice",
            id="a step twice",
        ),
        pytest.param(
            lambda text: text.replace("role: indicator", "role: context"),
            "checks:",
            "indicator",
            id="no indicator",
        ),
        pytest.param(
            replaced(
                "      - id: signal-alive\n        role: guard",
                "      - id: signal-alive\n        role: context",
            ),
            "checks:",
            "guard",
            id="no guard",
        ),
        pytest.param(
            replaced("    for: 30s", "    for: 9s"), "for: 9s", "three samples", id="too few samples"
        ),
        pytest.param(
            replaced("    deadline: 15m", "    deadline: 40s"),
            "deadline: 40s",
            "shorter",
            id="no time to verify",
        ),
        pytest.param(
            replaced("    deadline: 30m", "    deadline: 5m"),
            "deadline: 5m",
            "shorter than the steps",
            id="no time to act",
        ),
        pytest.param(replaced("settle: 15s", "settle: soon"), "settle: soon", "duration", id="no duration"),
        pytest.param(
            lambda text: re.sub(r"    acceptIrreversible: >-\n.*\n", "", text),
            "ceiling: auto",
            "acceptIrreversible",
            id="auto without a word on what is lost",
        ),
        pytest.param(
            lambda text: re.sub(r"    reasonIfNone: .*\n", "", text),
            "rollback:",
            "reasonIfNone",
            id="no undo and no reason",
        ),
        pytest.param(
            replaced("strategy: none", "strategy: undo"),
            "rollback:",
            "needs steps",
            id="an undo without steps",
        ),
        pytest.param(
            replaced("          onNoData: fail", "          onNoData: pass"),
            "onNoData: pass",
            "never proves",
            id="no data passes",
        ),
        pytest.param(
            replaced("name: DeadRank", "name: DeadRanks"), "name: DeadRanks", "family", id="another name"
        ),
        pytest.param(
            replaced(
                "job_id: {from: label.job_id, type: job_id}", "job_id: {from: label.job_id, type: node}"
            ),
            "fields:",
            "cases are kept per job",
            id="no job",
        ),
        pytest.param(lambda text: "", None, "mapping", id="an empty file"),
        pytest.param(lambda text: "- a\n- b\n", None, "mapping", id="a list"),
    ],
)
def test_a_broken_runbook_is_refused(
    tmp_path: Path, change: Callable[[str], str], at: str | None, reason: str
) -> None:
    """
    The error names the file, the line of the culprit and what is wrong with it.
    """
    file = tmp_path / "DeadRank.yaml"
    text = change(DEAD_RANK)
    file.write_text(text)

    with pytest.raises(InputFileError) as caught:
        load_file(file)

    assert reason in caught.value.reason
    assert str(file) == caught.value.file
    if at is not None:
        lines = text.splitlines()
        # A key may stand on the line and its value on the next.
        near = lines[max(caught.value.line - 1, 0) : caught.value.line + 1]
        assert any(at in line for line in near), (caught.value, near)


def test_a_file_under_another_name_is_refused(tmp_path: Path) -> None:
    """
    Page, alert and file share one name.
    """
    (tmp_path / "Other.yaml").write_text(DEAD_RANK)

    assert ["the file must be called DeadRank.yaml"] == [one.reason for one in load_dir(tmp_path).refused]


def test_one_broken_file_costs_one_family(tmp_path: Path) -> None:
    """
    The others are loaded.
    """
    for file in FILES:
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "DeadRank.yaml").write_text("kind: [")
    library = load_dir(tmp_path)

    assert 1 == len(library.refused)
    assert {file.stem for file in FILES} - {"DeadRank"} == set(library.books)


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    """
    Comments and layout change nothing, a threshold does.
    """
    first = load_file(FOLDER / "DeadRank.yaml").digest
    file = tmp_path / "DeadRank.yaml"
    file.write_text("# a remark\n" + DEAD_RANK)
    same = load_file(file).digest
    file.write_text(DEAD_RANK.replace("value: 0.8", "value: 0.7"))

    assert first == same
    assert first != load_file(file).digest


def test_check_runbooks_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    0 for sound ones, 1 with file:line for broken ones, 2 for no folder.
    """
    (tmp_path / "DeadRank.yaml").write_text(
        DEAD_RANK.replace("kind: Runbook", "kind: Runbook\nkind: Runbook")
    )

    codes = [main(["check-runbooks", str(folder)]) for folder in (FOLDER, tmp_path, tmp_path / "none")]

    assert [0, 1, 2] == codes
    assert f"{tmp_path}/DeadRank.yaml:3: key 'kind' stands here a second time" in capsys.readouterr().err
