"""Each threshold and each guard is held by a case: change one, and that case fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rules.casefile import load
from tests.rules.conftest import run_case

from tocsin_common.bundle.render import render

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = yaml.safe_load(Path(__file__).with_name("mutants.yaml").read_text(encoding="utf-8"))
CASES = load()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant["name"]))
def test_a_mutant_names_one_case(mutant: dict[str, Any]) -> None:
    named = [case.name for case in CASES if case.name.startswith(mutant["notices"])]

    assert len(named) == 1, named


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant["name"]))
def test_a_case_notices(mutant: dict[str, Any], promtool: Path, tmp_path: Path) -> None:
    """A mutant that its case accepts is a threshold that nothing holds."""
    (case,) = [case for case in CASES if case.name.startswith(mutant["notices"])]
    rules, changed = [], False
    for path, text in render(ROOT, mutant.get("set")).items():
        if path.startswith("rules/"):
            text = text.replace(mutant["cut"], mutant.get("instead", "")) if "cut" in mutant else text
            changed |= text != (ROOT / path).read_text(encoding="utf-8")
            rules.append(str(tmp_path / Path(path).name))
            Path(rules[-1]).write_text(text, encoding="utf-8")
    outcome = run_case(promtool, case, rules, tmp_path)

    assert changed, "the mutant changes nothing"
    # A file that does not load fails too, but shows nothing.
    assert (1, True) == (outcome.returncode, "FAILED" in outcome.stdout + outcome.stderr), outcome.stderr
