"""deploy/setup: reading the machine's apt sources and choosing where newer programs come from."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SETUP = Path(__file__).resolve().parents[2] / "deploy" / "setup"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SETUP / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


archive = _load("archive")
setup = _load("setup")

BOOKWORM = """\
Types: deb
# a comment inside a stanza
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def test_the_archive_is_the_one_that_serves_the_release_itself() -> None:
    """Neither the security archive nor a third party's is where sid lies."""
    found = archive.debian_archive(archive.parse_deb822(BOOKWORM), "bookworm")

    assert found == archive.Source(
        "http://mirror.example/debian",
        ("bookworm", "bookworm-updates"),
        ("main",),
        "/usr/share/keyrings/debian-archive-keyring.gpg",
    )


def test_a_disabled_stanza_and_a_source_stanza_are_left_out() -> None:
    text = "Types: deb-src\nURIs: http://a/\nSuites: trixie\nComponents: main\n\n"
    text += "Types: deb\nEnabled: no\nURIs: http://b/\nSuites: trixie\nComponents: main\n"

    assert archive.parse_deb822(text) == []


def test_a_key_given_inline_is_no_path() -> None:
    """Such a key is the stanza's own; sid is then checked with Debian's keyring."""
    text = (
        "Types: deb\nURIs: http://a/\nSuites: trixie\nComponents: main\nSigned-By:\n -----BEGIN\n .\n abc\n"
    )

    assert [source.signed_by for source in archive.parse_deb822(text)] == [""]


def test_one_line_sources_are_read_with_and_without_options() -> None:
    text = (
        "# deb http://no/ bookworm main\n"
        "deb http://a/debian bookworm main contrib # the mirror\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://b/debian bookworm-updates main\n"
        "deb-src http://a/debian bookworm main\n"
        "deb cdrom:[Debian]/ bookworm main\n"
        "deb [broken http://c/ bookworm main\n"
        "deb http://short\n"
    )

    expected = [
        archive.Source("http://a/debian", ("bookworm",), ("main", "contrib"), ""),
        archive.Source("http://b/debian", ("bookworm-updates",), ("main",), "/k.gpg"),
    ]
    assert expected == archive.parse_one_line(text)


def test_both_forms_are_found_under_one_folder(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://a/debian bookworm main\n")
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "debian.sources").write_text(BOOKWORM)
    (parts / "notes.txt").write_text("deb http://never/ bookworm main\n")

    uris = [source.uri for source in archive.read_sources(tmp_path)]

    assert uris == [
        "http://a/debian",
        "http://mirror.example/debian",
        "http://mirror.example/debian-security",
    ]


def test_no_folder_is_no_source(tmp_path: Path) -> None:
    assert archive.read_sources(tmp_path / "none") == []


def test_the_line_for_a_newer_suite_keeps_mirror_and_key(tmp_path: Path) -> None:
    source = archive.Source("http://a/debian", ("bookworm",), ("main",), "/k.gpg")
    bare = archive.Source("http://a/debian", ("bookworm",), ("main",), "")
    keyring = tmp_path / "archive.gpg"
    keyring.touch()

    assert archive.source_line(source, "sid") == "deb [signed-by=/k.gpg] http://a/debian sid main\n"
    assert (
        archive.source_line(bare, "sid", [keyring]) == f"deb [signed-by={keyring}] http://a/debian sid main\n"
    )
    # Without any keyring file apt's own trusted keys decide.
    assert archive.source_line(bare, "sid", []) == "deb http://a/debian sid main\n"


def test_a_suite_that_cannot_be_fetched_says_why(tmp_path: Path) -> None:
    """An archive that is not there ends in one sentence, not in a traceback."""
    source = archive.Source(f"file://{tmp_path}/nowhere", ("bookworm",), ("main",), "")

    with pytest.raises(archive.FetchError, match="apt-get"):
        archive.fetch(source, "sid", ["prometheus"], tmp_path / "work", tmp_path / "root")


def test_os_release_values_lose_their_quotes() -> None:
    text = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nID=debian\n# x=y\nVERSION_CODENAME=trixie\n'

    fields = setup.os_release(text)

    assert fields == {
        "PRETTY_NAME": "Debian GNU/Linux 13 (trixie)",
        "ID": "debian",
        "VERSION_CODENAME": "trixie",
    }


def test_stamps_outlive_the_process_and_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "build" / "setup.json"
    setup.Stamps(path).put("venv", "abc dev")

    assert setup.Stamps(path).get("venv") == "abc dev"
    path.write_text("{broken")
    assert setup.Stamps(path).get("venv") == ""


def test_a_stamp_changes_with_names_and_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "a.c", tmp_path / "b.c"
    one.write_text("x")
    two.write_text("x")

    assert len({setup.digest([one]), setup.digest([two]), setup.digest([one, two]), setup.digest([])}) == 4


def test_a_missing_package_without_root_is_named_with_its_price(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be installed is said once, and the set-up goes on without it."""
    monkeypatch.setattr(setup.os, "geteuid", lambda: 1000)
    setup.install_packages([setup.Need("clang", lambda: False, "no eBPF")])

    text = capsys.readouterr().out

    assert "apt-get install clang" in text
    assert "without clang: no eBPF" in text


def test_a_required_package_that_stays_missing_stops_the_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup.os, "geteuid", lambda: 1000)

    with pytest.raises(setup.SetupError, match="python3-venv"):
        setup.install_packages([setup.Need("python3-venv", lambda: False, "no .venv", required=True)])


def test_programs_are_linked_under_their_usual_names(tmp_path: Path) -> None:
    """Debian calls Alertmanager prometheus-alertmanager; the project calls it by its own name."""
    folder = tmp_path / "root" / "usr" / "bin"
    folder.mkdir(parents=True)
    for name in ("prometheus", "promtool", "prometheus-alertmanager", "amtool"):
        path = folder / name
        path.write_text(f"#!/bin/sh\necho '{name}, version 3.5.3 (branch: x)'\n")
        path.chmod(0o755)

    found = setup.link_tools(tmp_path / "root", tmp_path / "bin")

    assert found == dict.fromkeys(("prometheus", "promtool", "alertmanager", "amtool"), "3.5.3")
    assert (tmp_path / "bin" / "alertmanager").resolve() == folder / "prometheus-alertmanager"


def test_a_program_finds_its_data_beside_it_from_any_folder(tmp_path: Path) -> None:
    """Debian's builds have /usr/share built in; the copy is led to its own folder, byte for byte as long."""
    folder = tmp_path / "root" / "usr" / "bin"
    data = tmp_path / "root" / "usr" / "share" / "prometheus"
    for made in (folder, data):
        made.mkdir(parents=True)
    (data / "page").write_text("the page\n")
    program = folder / "prometheus"
    program.write_text('#!/bin/sh\ncat "/usr/share/prometheus/page"; echo "$1"\n')
    size = program.stat().st_size

    assert archive.relocate(program)
    assert program.stat().st_size == size
    link = tmp_path / "bin" / "prometheus"
    link.parent.mkdir()
    link.write_text(archive.wrapper(program, data, link.parent))
    link.chmod(0o755)
    done = subprocess.run([link, "argument"], cwd="/", capture_output=True, text=True, check=True)

    assert done.stdout == "the page\nargument\n"


def test_a_program_without_data_is_left_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "amtool"
    program.write_text("#!/bin/sh\n")

    assert not archive.relocate(program)
    assert program.read_text() == "#!/bin/sh\n"


def test_a_program_that_does_not_start_is_not_linked(tmp_path: Path) -> None:
    folder = tmp_path / "root" / "usr" / "bin"
    folder.mkdir(parents=True)
    (folder / "prometheus").write_text("no program")

    with pytest.raises(setup.SetupError, match="prometheus"):
        setup.link_tools(tmp_path / "root", tmp_path / "bin")
