"""
The files that sites load: rules, dashboards, runbooks.

In a checkout they lie at the top of the repository; a wheel carries a copy. `bundle_root`
finds them either way, and the checkout wins so that an edit is what runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["BundleError", "BundleFile", "bundle_root", "rendered_files"]

_PACKAGE = Path(__file__).resolve().parent.parent
_MARK = Path("rules") / "mixin.libsonnet"


class BundleError(Exception):
    """The bundle or a request to render or export it cannot be used; the text says what to do."""


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file that a site loads: ``kind`` is rules, dashboards or runbooks, ``path`` is absolute."""

    kind: str
    path: Path

    @property
    def name(self) -> str:
        """Where `tocsin-bundle export` puts it, relative to the target folder."""
        return f"{self.kind}/{self.path.name}"


def bundle_root(package: Path = _PACKAGE) -> Path:
    """Return the folder that holds rules/, dashboards/ and runbooks/, or raise `BundleError`."""
    candidates = (package.parent.parent, package / "_bundle")
    for candidate in candidates:
        if (candidate / _MARK).is_file():
            return candidate
    looked = " and ".join(str(candidate) for candidate in candidates)
    raise BundleError(f"no bundle beside the package: looked for {_MARK} in {looked}; install tocsin again")


def rendered_files(root: Path) -> tuple[BundleFile, ...]:
    """Return every file a site loads, by kind and name; raise `BundleError` when none is rendered."""
    places = (
        ("rules", root / "rules" / "rendered", "*.yaml"),
        ("dashboards", root / "dashboards" / "rendered", "*.json"),
        ("runbooks", root / "runbooks", "*.yaml"),
    )
    found = [BundleFile(kind, path) for kind, folder, names in places for path in sorted(folder.glob(names))]
    if not any(file.kind == "rules" for file in found):
        raise BundleError(f"no rendered rules under {root}; run `tocsin-bundle render` in the checkout")
    return tuple(found)
