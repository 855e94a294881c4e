"""The wheel: what is shipped is what was tested, and it works without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tocsin_common.bundle import bundle_root, rendered_files

COMMANDS = ("tocsin-exporter", "tocsin-remediator", "tocsin-bundle", "tocsin-lab")


def _run(argv: Sequence[str | Path], cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from this checkout."""
    out = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, root], root)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> frozenset[str]:
    """The files in the wheel."""
    with zipfile.ZipFile(wheel) as opened:
        return frozenset(opened.namelist())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files unpacked where no checkout is near, as an installation lays them."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder)
    return folder


def test_only_our_own_names_are_installed(names: frozenset[str]) -> None:
    """A generic top-level name such as `tests` would collide with other distributions."""
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}

    assert tops == {"tocsin_common", "tocsin_exporter", "tocsin_remediator", "tocsin_lab"}


def test_the_licences_say_what_the_files_say(root: Path, wheel: Path, names: frozenset[str]) -> None:
    """All is Apache-2.0 but the kernel's part, which is dual licensed; the texts of all three are inside."""
    with zipfile.ZipFile(wheel) as opened:
        [name] = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = opened.read(name).decode()
    sources = sorted((root / "exporter" / "tocsin_exporter" / "bpf").glob("*.[ch]"))
    marks = {
        path.read_text().splitlines()[0].removeprefix("/* SPDX-License-Identifier: ") for path in sources
    }

    assert marks == {"GPL-2.0-only OR BSD-2-Clause"}
    assert "License-Expression: Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)" in metadata
    texts = {name.rpartition(".dist-info/licenses/")[2] for name in names if ".dist-info/licenses/" in name}
    assert texts == {"LICENSE", "LICENSES/GPL-2.0-only.txt", "LICENSES/BSD-2-Clause.txt"}


def test_the_whole_bundle_is_inside(names: frozenset[str]) -> None:
    root = bundle_root()
    expected = {
        f"tocsin_common/_bundle/{file.path.relative_to(root).as_posix()}" for file in rendered_files(root)
    }

    assert expected <= names


def test_the_simulators_sources_and_the_scenarios_are_inside(root: Path, names: frozenset[str]) -> None:
    native = {f"tocsin_lab/_native/{path.name}" for path in (root / "lab" / "native").glob("*.[ch]")}
    scenarios = {f"tocsin_lab/_scenarios/{path.name}" for path in (root / "lab/scenarios").glob("*.yaml")}

    assert native
    assert scenarios
    assert native | scenarios <= names


def test_the_bpf_objects_are_inside_where_they_were_built(root: Path, names: frozenset[str]) -> None:
    folder = root / "exporter" / "tocsin_exporter" / "bpf"
    built = {f"tocsin_exporter/bpf/{path.name}" for path in folder.glob("*.bpf.o")}
    if not built:
        pytest.skip("no BPF objects: clang or libbpf-dev is missing")

    assert built <= names


def test_nothing_that_was_built_by_accident_is_inside(names: frozenset[str]) -> None:
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".so", ".so.1"))]


@pytest.mark.parametrize("name", ["tocsin_common", "tocsin_exporter", "tocsin_remediator", "tocsin_lab"])
def test_types_are_shipped(names: frozenset[str], name: str) -> None:
    assert f"{name}/py.typed" in names


def test_the_installed_bundle_is_found_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    code = (
        "from tocsin_common.bundle import bundle_root, rendered_files;"
        "print(bundle_root()); print(len(rendered_files(bundle_root())))"
    )
    text = _run([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(installed))

    where, count = text.splitlines()
    assert Path(where) == installed / "tocsin_common" / "_bundle"
    assert int(count) == len(rendered_files(bundle_root()))


def test_the_installed_scenarios_are_found_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tocsin_lab", "scenario", "list"]
    text = _run(argv, tmp_path, PYTHONPATH=str(installed))

    assert "dead-rank" in text


def test_the_simulator_builds_from_the_wheels_own_sources(installed: Path, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    argv = [sys.executable, "-m", "tocsin_lab.sim.build", "--out", str(tmp_path / "lib")]
    _run(argv, tmp_path, PYTHONPATH=str(installed))

    assert (tmp_path / "lib" / "libnvidia-ml.so.1").is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_how_it_is_used(command: str, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / command

    assert f"usage: {command}" in _run([program, "--help"], tmp_path)


def test_the_exporter_does_not_import_the_remediator_nor_the_other_way_round(tmp_path: Path) -> None:
    """A node agent must not need a web framework, and the remediator no driver library."""
    for one, other in (("tocsin_exporter", "tocsin_remediator"), ("tocsin_remediator", "tocsin_exporter")):
        code = (
            f"import sys, {one}.cli; wrong = [m for m in sys.modules if m.split('.')[0] == {other!r}];"
            "print(wrong); raise SystemExit(bool(wrong))"
        )
        _run([sys.executable, "-c", code], tmp_path)
