"""promtool, and the outcome of every selected case: all run side by side before the first is judged."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from tests.rules.casefile import Case, expand

ROOT = Path(__file__).resolve().parents[2]


def find_promtool() -> Path | None:
    """Return the unpacked promtool, else the system's, else None."""
    unpacked = ROOT / ".tools" / "bin" / "promtool"
    if unpacked.is_file():
        return unpacked
    system = shutil.which("promtool")
    return Path(system) if system else None


@pytest.fixture(scope="session")
def promtool() -> Path:
    """promtool, or a skip that names what is missing."""
    found = find_promtool()
    if found is None:
        pytest.skip("promtool is not unpacked; `make setup` does it")
    return found


@pytest.fixture(scope="session")
def rule_files() -> list[str]:
    """The rendered rule files, as Prometheus loads them."""
    return sorted(str(path) for path in (ROOT / "rules" / "rendered").glob("*.yaml"))


def run_case(promtool: Path, case: Case, rules: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one case; its file stays in *folder* for a person to run again."""
    path = folder / f"{case.file.removesuffix('.yaml')}-{abs(hash(case.name))}.yaml"
    path.write_text(yaml.safe_dump(expand(case, rules), sort_keys=False, width=1_000_000), encoding="utf-8")
    return subprocess.run(
        [str(promtool), "test", "rules", str(path)], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest,
    promtool: Path,
    rule_files: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, subprocess.CompletedProcess[str]]:
    """What promtool said of each selected case, by its name."""
    folder = tmp_path_factory.mktemp("cases")
    parameters = [getattr(item, "callspec", None) for item in request.session.items]
    cases = [call.params.get("case") for call in parameters if call is not None]
    selected = {case.name: case for case in cases if isinstance(case, Case)}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        ran = pool.map(lambda case: run_case(promtool, case, rule_files, folder), selected.values())
        return dict(zip(selected, ran, strict=True))
