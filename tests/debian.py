"""Programs and libraries of the machine's own Debian archive, unpacked beside the system."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["UnavailableError", "fetch"]

_ROOT = Path(__file__).resolve().parents[1]


class UnavailableError(Exception):
    """Something cannot be had or run on this machine; the text says why."""


def fetch(what: str, packages: Sequence[str], work: Path, tree: Path, *, component: str = "main") -> None:
    """
    Unpack *packages* into *tree*, with apt's lists and cache under *work*.

    Raises UnavailableError, which calls them *what*, where they cannot be had.
    """
    sys.path.insert(0, str(_ROOT / "deploy" / "setup"))
    try:
        import archive
    finally:
        sys.path.pop(0)
    source = next(
        (each for each in archive.read_sources(Path("/etc/apt")) if "main" in each.components), None
    )
    if source is None:
        raise UnavailableError("no Debian archive in /etc/apt")
    try:
        archive.fetch(source, source.suites[0], packages, work, tree, component=component)
    except archive.FetchError as err:
        raise UnavailableError(f"{what} could not be fetched: {err}") from err
