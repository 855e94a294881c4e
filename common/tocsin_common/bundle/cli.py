"""`tocsin-bundle`: list, render and export what sites load."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tocsin_common.bundle import BundleError, bundle_root, rendered_files
from tocsin_common.bundle.render import parse_setting, render, stale, write

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 the rendered files are stale, 2 it cannot be done (reason on stderr)."""
    options = _parser().parse_args(argv)
    try:
        root = bundle_root()
        if options.command == "list":
            return _list(root)
        if options.command == "render":
            return _render(root, check=options.check)
        return _export(root, options.folder, options.set)
    except (BundleError, OSError) as err:
        print(f"tocsin-bundle: {err}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tocsin-bundle", description="Rules, dashboards and runbooks.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print every file a site loads")
    one = commands.add_parser("render", help="write the rendered rules and dashboards of this checkout")
    one.add_argument("--check", action="store_true", help="write nothing, exit 1 when a file is stale")
    two = commands.add_parser("export", help="copy the bundle into a folder of yours")
    two.add_argument("folder", type=Path, help="where to; created if need be")
    two.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a value of rules/config.libsonnet (needs jsonnet: pip install 'tocsin[dev]')",
    )
    return parser


def _list(root: Path) -> int:
    for file in rendered_files(root):
        print(f"{file.kind}\t{file.path}")
    return 0


def _render(root: Path, *, check: bool) -> int:
    texts = render(root)
    if not check:
        write(root, texts)
        return 0
    reasons = stale(root, texts)
    for reason in reasons:
        print(f"{reason}; run `tocsin-bundle render`", file=sys.stderr)
    return 1 if reasons else 0


def _export(root: Path, folder: Path, settings: Sequence[str]) -> int:
    overrides = dict(parse_setting(text) for text in settings)
    changed: dict[str, str] = {}
    if overrides:
        changed = {name.replace("/rendered/", "/"): text for name, text in render(root, overrides).items()}
    for file in rendered_files(root):
        target = folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(changed.get(file.name) or file.path.read_text(encoding="utf-8"), encoding="utf-8")
        print(target)
    return 0
