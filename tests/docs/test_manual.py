"""The manual says what the code does: generated where it can be, checked where it cannot."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tocsin_common.bundle import bundle_root
from tocsin_exporter.config import COLLECTORS
from tocsin_exporter.metrics import FAMILIES

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#([^)\s]+))?\)")


@pytest.fixture(scope="module")
def generate(root: Path) -> ModuleType:
    """The generator of the manual's pages."""
    spec = importlib.util.spec_from_file_location("tocsin_docs_generate", root / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_current(generate: ModuleType) -> None:
    stale = [path.name for path, text in generate.pages().items() if path.read_text("utf-8") != text]

    assert stale == []


def test_a_stale_page_is_told_with_its_name(root: Path, tmp_path: Path, generate: ModuleType) -> None:
    """The check can fail: a page that somebody edited by hand is found."""
    text = generate.readme((root / "README.md").read_text("utf-8"))
    edited = text.replace("DeadRank", "DeadRnak")

    assert edited != text
    assert generate.readme(edited) == text


def test_every_series_belongs_to_a_part_of_the_manual(generate: ModuleType) -> None:
    homeless = [name for name in FAMILIES if not generate.subsystem(name)]

    assert homeless == []


def test_every_series_is_in_the_manual(root: Path) -> None:
    page = (root / "docs" / "metrics.md").read_text("utf-8")

    assert [name for name in FAMILIES if f"`{name}`" not in page] == []


def test_every_alert_is_in_the_manual(root: Path, generate: ModuleType) -> None:
    page = (root / "docs" / "families.md").read_text("utf-8")

    assert [one.name for one in generate.alerts() if f"`{one.name}`" not in page] == []


def test_every_runbook_is_linked_from_the_manual(root: Path) -> None:
    page = (root / "docs" / "families.md").read_text("utf-8")
    books = [path.stem for path in (bundle_root() / "runbooks").glob("*.yaml")]

    assert books
    assert [name for name in books if f"runbooks/{name}.yaml" not in page] == []


def test_every_collector_has_its_flags_in_the_manual(root: Path) -> None:
    page = (root / "docs" / "commands.md").read_text("utf-8")

    assert [name for name in COLLECTORS if f"`--no-collector.{name}`" not in page] == []


def test_every_argument_has_a_meaning(root: Path) -> None:
    page = (root / "docs" / "commands.md").read_text("utf-8").splitlines()

    assert [line for line in page if line.startswith("| `") and line.rstrip(" |").endswith("`")] == []


def test_the_contract_flags_are_in_the_manual(root: Path) -> None:
    page = (root / "docs" / "commands.md").read_text("utf-8")
    flags = (
        "--web.listen-address", "--web.config.file", "--node.name", "--path.procfs", "--path.sysfs",
        "--path.kmsg", "--path.state",
        "--nvml.library", "--collect.interval", "--identity.only-env", "--ebpf.backend", "--tier", "--once",
        "--prometheus-url", "--alertmanager-url", "--runbooks", "--journal", "--config", "--dry-run",
        "--run-dir", "--until-verdict",
    )  # fmt: skip

    assert [flag for flag in flags if f"`{flag}`" not in page] == []


def test_every_make_target_of_the_contract_is_there_with_help(root: Path) -> None:
    done = subprocess.run(["make"], cwd=root, capture_output=True, text=True, timeout=30, check=True)
    listed = {line.split()[1] for line in done.stdout.splitlines()}

    assert {"up", "test", "setup", "render", "lint", "golden", "bench", "bpf", "wheel"} <= listed


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/families.md", "deploy/README.md"]
)
def test_links_lead_somewhere(root: Path, page: str) -> None:
    path = root / page
    dead = []
    for target, anchor in LINK.findall(path.read_text("utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        there = path.parent / target
        if not there.exists():
            dead.append(target)
        elif anchor and f"# {anchor}" not in there.read_text("utf-8").lower():
            dead.append(f"{target}#{anchor}")

    assert dead == []


def test_commands_in_the_readme_are_commands_of_the_programs(root: Path) -> None:
    from tocsin_lab.cli import parser

    text = (root / "README.md").read_text("utf-8")
    lines = [
        line.split("#")[0].split() for line in text.splitlines() if line.startswith(".venv/bin/tocsin-lab ")
    ]

    assert lines
    for words in lines:
        parser().parse_args(words[1:])
