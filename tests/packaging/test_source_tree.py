"""Rules of the house that no other tool checks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOTS = ("common", "exporter", "remediator", "lab")
MOST_LINES = 600


def _sources(root: Path) -> list[Path]:
    return [path for name in ROOTS for path in sorted((root / name).rglob("*.py"))]


def _named(call: ast.Call) -> str:
    return ast.unparse(call.func)


def test_no_source_file_is_longer_than_one_sitting(root: Path) -> None:
    sources = _sources(root)
    long = [path.name for path in sources if len(path.read_text("utf-8").splitlines()) > MOST_LINES]

    assert sources
    assert long == []


@pytest.mark.parametrize("source_root", ROOTS)
def test_programs_are_started_by_argument_vectors_only(root: Path, source_root: str) -> None:
    """A shell between us and a program would read names from outside as commands."""
    found = []
    for path in sorted((root / source_root).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            shell = any(key.arg == "shell" and ast.unparse(key.value) != "False" for key in node.keywords)
            if shell or _named(node) in {"os.system", "os.popen", "subprocess.getoutput"}:
                found.append(f"{path.name}:{node.lineno}")

    assert found == []
