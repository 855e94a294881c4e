"""Lustre clients: what llite counts per mount, and how osc and mdc see their servers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources.procfs import read_small

__all__ = ["LustreClient", "LustreTarget", "clients", "parse_import", "parse_stats"]

_MOST_CLIENTS = 32
_MOST_TARGETS = 4096
_STATE = re.compile(r"^\s*state:\s*(\w+)\s*$", re.M)
_SAMPLES = re.compile(r"^(\w+)\s+(\d{1,20}) samples \[(\w+)\](?:\s+(\d{1,20}) (\d{1,20}) (\d{1,20}))?")
# <fsname>-<target>-<kind>-<client's superblock>: scratch-OST0000-osc-ffff9d0f8a7c3000
_TARGET = re.compile(r"^(?P<fs>[\w.]{1,16})-(?P<target>(?:OST|MDT)[0-9a-f]{4})-(?:osc|mdc)-(?P<client>\w+)$")
_LLITE = re.compile(r"^(?P<fs>[\w.]{1,16})-(?P<client>\w+)$")


@dataclass(frozen=True, slots=True)
class LustreTarget:
    """One server of a mount: ``kind`` osc (data) or mdc (metadata), ``state`` as the client names it."""

    kind: str
    target: str
    state: str
    waits: int | None = None
    wait_seconds: float | None = None


@dataclass(slots=True)
class LustreClient:
    """One Lustre mount, by file system name; bytes and seconds since it was mounted."""

    filesystem: str
    client: str
    bytes: dict[str, int] = field(default_factory=dict)
    operations: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    targets: list[LustreTarget] = field(default_factory=list)


def parse_stats(text: str) -> dict[str, tuple[int, str, int | None]]:
    """Return name → (samples, unit, sum or None) of one of Lustre's ``stats`` files."""
    found = {}
    for line in text.splitlines():
        if match := _SAMPLES.match(line):
            found[match[1]] = (int(match[2]), match[3], int(match[6]) if match[6] else None)
    return found


def parse_import(text: str) -> str | None:
    """Return the state of a connection (FULL, DISCONN, CONNECTING, EVICTED, REPLAY…), None without one."""
    match = _STATE.search(text)
    return match[1] if match else None


def clients(roots: Iterable[Path]) -> tuple[tuple[LustreClient, ...], tuple[SourceError, ...]]:
    """
    Read every Lustre mount below *roots*: ``fs/lustre`` of /proc and /sys, ``lustre`` of debugfs.

    Which file stands in which tree has changed over the versions, so each is taken where it is. Errors of
    files that are there and cannot be read come beside the result.
    """
    found: dict[str, LustreClient] = {}
    targets: dict[tuple[str, str, str], LustreTarget] = {}
    owners: dict[tuple[str, str, str], tuple[str, str]] = {}
    problems: list[SourceError] = []
    for root in roots:
        for folder in _folders(root / "llite"):
            match = _LLITE.match(folder.name)
            if match is None or (match["client"] not in found and len(found) >= _MOST_CLIENTS):
                continue
            client = found.setdefault(match["client"], LustreClient(match["fs"], match["client"]))
            _llite(client, folder, problems)
        for kind in ("osc", "mdc"):
            for folder in _folders(root / kind):
                match = _TARGET.match(folder.name)
                if match is None or len(targets) >= _MOST_TARGETS:
                    continue
                key = (kind, match["client"], match["target"])
                owners[key] = (match["client"], match["fs"])
                targets[key] = _target(
                    targets.get(key) or LustreTarget(kind, match["target"], ""), folder, problems
                )
    for key, target in sorted(targets.items()):
        client_id, filesystem = owners[key]
        found.setdefault(client_id, LustreClient(filesystem, client_id)).targets.append(target)
    return tuple(found.values()), tuple(problems)


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except OSError:
        return []


def _text(path: Path, problems: list[SourceError]) -> str | None:
    try:
        return read_small(path).decode("ascii", "replace")
    except SourceError as err:
        if err.reason != "unsupported":
            problems.append(err)
        return None


def _llite(client: LustreClient, folder: Path, problems: list[SourceError]) -> None:
    text = _text(folder / "stats", problems)
    for name, (samples, unit, total) in parse_stats(text or "").items():
        if unit == "bytes" and name in ("read_bytes", "write_bytes"):
            if total is not None:
                client.bytes[name.removesuffix("_bytes")] = total
            client.operations.setdefault(name.removesuffix("_bytes"), (samples, None))
        elif unit in ("usec", "usecs"):
            client.operations[name] = (samples, total / 1e6 if total is not None else None)
        elif unit in ("regs", "reqs"):
            client.operations[name] = (samples, None)


def _target(before: LustreTarget, folder: Path, problems: list[SourceError]) -> LustreTarget:
    state, waits, seconds = before.state, before.waits, before.wait_seconds
    if (text := _text(folder / "import", problems)) is not None:
        state = parse_import(text) or state
    if (text := _text(folder / "stats", problems)) is not None and (
        wait := parse_stats(text).get("req_waittime")
    ):
        waits, seconds = wait[0], wait[2] / 1e6 if wait[2] is not None else None
    return LustreTarget(before.kind, before.target, state, waits, seconds)
