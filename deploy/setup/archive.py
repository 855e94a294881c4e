"""
Read the machine's apt sources and fetch programs of a newer Debian suite beside the system.

Standard library only: this runs before the virtual environment exists. The archive is the one that
the machine already uses, so a mirror, a proxy or a cache keeps working, and apt checks its signature.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)

# What Debian builds into Prometheus and Alertmanager.
SHARE = b"/usr/share/prometheus"


class FetchError(Exception):
    """Packages of one suite could not be had; the text says which and why."""


@dataclass(frozen=True)
class Source:
    """One enabled binary archive; ``signed_by`` is a keyring's path, or '' for apt's own keys."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str


def parse_deb822(text: str) -> list[Source]:
    """Return the enabled binary archives of one ``*.sources`` file; broken stanzas are left out."""
    found: list[Source] = []
    for fields in _stanzas(text):
        if "deb" not in fields.get("types", "").split():
            continue
        if fields.get("enabled", "yes").strip().lower() in {"no", "false", "0"}:
            continue
        signed_by = fields.get("signed-by", "").strip()
        if "\n" in signed_by or not signed_by.startswith("/"):
            # A key given inline signs this stanza alone; the archive keyring signs every Debian suite.
            signed_by = ""
        suites = tuple(fields.get("suites", "").split())
        components = tuple(fields.get("components", "").split())
        found.extend(Source(uri, suites, components, signed_by) for uri in fields.get("uris", "").split())
    return found


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    last = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, last = {}, ""
        elif line[0] in " \t":
            if last:
                fields[last] += "\n" + line.strip()
        elif ":" in line:
            name, _, value = line.partition(":")
            last = name.strip().lower()
            fields[last] = value.strip()


def parse_one_line(text: str) -> list[Source]:
    """Return the binary archives of one ``sources.list`` file; lines that apt would refuse are left out."""
    found: list[Source] = []
    for raw in text.splitlines():
        line = raw.split("#", 1)[0].strip()
        if not line.startswith(("deb ", "deb\t")):
            continue
        rest = line[3:].strip()
        options: dict[str, str] = {}
        if rest.startswith("["):
            inside, closed, rest = rest[1:].partition("]")
            if not closed:
                continue
            options = dict(part.split("=", 1) for part in inside.split() if "=" in part)
        words = rest.split()
        if len(words) < 2 or words[0].startswith("cdrom:"):
            continue
        signed_by = options.get("signed-by", "")
        found.append(
            Source(words[0], (words[1],), tuple(words[2:]), signed_by if signed_by.startswith("/") else "")
        )
    return found


def read_sources(etc_apt: Path) -> list[Source]:
    """Return every enabled binary archive under *etc_apt* in apt's own order."""
    found: list[Source] = []
    main = etc_apt / "sources.list"
    if main.is_file():
        found += parse_one_line(main.read_text("utf-8", "replace"))
    parts = etc_apt / "sources.list.d"
    for path in sorted(parts.iterdir()) if parts.is_dir() else []:
        if path.suffix == ".sources":
            found += parse_deb822(path.read_text("utf-8", "replace"))
        elif path.suffix == ".list":
            found += parse_one_line(path.read_text("utf-8", "replace"))
    return found


def debian_archive(sources: Sequence[Source], codename: str) -> Source | None:
    """Return the archive that serves *codename* itself: its other suites lie beside it."""
    for source in sources:
        if codename in source.suites and "main" in source.components:
            return source
    return None


def source_line(
    archive: Source, suite: str, keyrings: Sequence[Path] = KEYRINGS, component: str = "main"
) -> str:
    """Return the one-line source of *suite* on *archive*, signed as the machine's own entry is."""
    keyring = archive.signed_by or next((str(path) for path in keyrings if path.is_file()), "")
    option = f"[signed-by={keyring}] " if keyring else ""
    return f"deb {option}{archive.uri} {suite} {component}\n"


def fetch(
    archive: Source,
    suite: str,
    packages: Sequence[str],
    work: Path,
    root: Path,
    *,
    component: str = "main",
) -> None:
    """
    Unpack *packages* of *suite*'s *component* into *root* with apt's lists and cache under *work*.

    The system's own package state is neither read for decisions nor changed.
    Raises FetchError with apt's last words.
    """
    lists, cache = work / "lists", work / "cache"
    debs = cache / "archives"
    for folder in (lists / "partial", debs / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    listing = work / "suite.list"
    listing.write_text(source_line(archive, suite, component=component), "utf-8")
    options = [
        *("-o", f"Dir::Etc::sourcelist={listing}"),
        *("-o", "Dir::Etc::sourceparts=/dev/null"),
        *("-o", f"Dir::State::lists={lists}"),
        *("-o", f"Dir::Cache={cache}"),
        # The private folders belong to the caller, which apt's download user cannot enter.
        *("-o", "APT::Sandbox::User="),
        *("-o", "Acquire::Retries=2"),
        *("-o", "Acquire::Languages=none"),
    ]
    _run(["apt-get", "-qq", *options, "update"], work)
    _run(["apt-get", "-qq", *options, "download", *packages], debs)
    files = sorted(debs.glob("*.deb"))
    if not files:
        raise FetchError(f"apt-get download {' '.join(packages)} of {suite} left no package")
    root.mkdir(parents=True, exist_ok=True)
    for deb in files:
        _run(["dpkg", "-x", str(deb), str(root)], work)
    shutil.rmtree(work, ignore_errors=True)


def relocate(program: Path) -> bool:
    """
    Point a program's data folder at descriptor 9; False when it has none built in.

    Debian's builds read web pages and notification templates from /usr/share, which belongs to packages
    that are installed. The replacement has the same length, so nothing else in the file moves.
    """
    body = program.read_bytes()
    there = b"/proc/self/fd/9".ljust(len(SHARE), b"/")
    if SHARE not in body:
        return there in body
    fresh = program.with_suffix(".new")
    fresh.write_bytes(body.replace(SHARE, there))
    fresh.chmod(0o755)
    fresh.replace(program)
    return True


def wrapper(program: Path, data: Path, folder: Path) -> str:
    """Return a shell script for *folder* that opens *data* as descriptor 9 and becomes *program*."""
    there = [os.path.relpath(path, folder) for path in (data, program)]
    return (
        "#!/bin/sh\n"
        "# The program's pages and templates lie beside it, not in /usr/share; descriptor 9 leads there.\n"
        'here=$(dirname "$(readlink -f "$0")")\n'
        f'exec 9<"$here/{there[0]}"\n'
        f'exec "$here/{there[1]}" "$@"\n'
    )


def _run(argv: Sequence[str], cwd: Path) -> None:
    try:
        done = subprocess.run(
            argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise FetchError(f"{argv[0]}: {err}") from err
    # apt-get update ends with 0 although an archive could not be reached; the download then tells.
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise FetchError(f"{argv[0]} ended with {done.returncode}: {' | '.join(words)}")
