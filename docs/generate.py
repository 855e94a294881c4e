"""
Write the manual's tables from the code's own: ``python docs/generate.py [--check]``.

Pages: ``docs/metrics.md``, ``docs/families.md``, ``docs/commands.md``, and the marked tables of the README.
With ``--check`` nothing is written; the exit status is 1 when a page is not what the code says.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tocsin_common.bundle import bundle_root
from tocsin_exporter.metrics import FAMILIES

ROOT = Path(__file__).resolve().parents[1]

SUBSYSTEMS = {
    "gpu": "a GPU, through all its owners",
    "job_gpu": "a GPU while one job holds it: the value is what happened during the job",
    "job_port": "a fabric port while one job holds it",
    "job": "a job",
    "rank": "one rank's process",
    "training": "training progress, read from the job's own output",
    "cuda": "CUDA calls of a rank (eBPF)",
    "nccl": "NCCL calls of a rank (eBPF)",
    "fabric": "InfiniBand and RoCE ports",
    "pcie": "GPUs, HCAs and the ports above them on the PCI bus",
    "storage": "mounts, NFS and Lustre clients, local disks",
    "host": "the host",
    "identity": "who holds what, and where sources disagree",
    "collector": "the exporter's collectors",
    "exporter": "the exporter itself",
    "visibility": "what this node can show",
}


@dataclass(frozen=True)
class Alert:
    """One alert rule as rendered."""

    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    wait: str


def subsystem(metric: str) -> str:
    """Return the part of a metric's name that says what it is about."""
    rest = metric.removeprefix("tocsin_")
    return max(
        (name for name in SUBSYSTEMS if rest == name or rest.startswith(name + "_")), key=len, default=""
    )


def alerts() -> list[Alert]:
    """Return every alert of the rendered rules."""
    found: list[Alert] = []
    for path in sorted((bundle_root() / "rules" / "rendered").glob("*.yaml")):
        for group in yaml.safe_load(path.read_text("utf-8")).get("groups", []):
            for rule in group["rules"]:
                if "alert" in rule:
                    texts = {name: str(text) for name, text in rule.get("annotations", {}).items()}
                    found.append(
                        Alert(rule["alert"], rule.get("labels", {}), texts, str(rule.get("for", "0s")))
                    )
    return found


def families(of: Sequence[Alert]) -> list[Alert]:
    """Return the alerts that give a verdict, by order then name, the sure before the inconclusive one."""
    named = [one for one in of if one.labels.get("verdict") and one.name != "TocsinVerdict"]

    def place(one: Alert) -> tuple[int, str, bool]:
        return int(one.labels.get("order", 100)), one.name, one.labels["verdict"] == "inconclusive"

    return sorted(named, key=place)


def runbooks() -> dict[str, dict[str, Any]]:
    """Return the runbooks by name."""
    paths = sorted((bundle_root() / "runbooks").glob("*.yaml"))
    loaded = [yaml.safe_load(path.read_text("utf-8")) for path in paths]
    return {body["metadata"]["name"]: body for body in loaded}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    cells = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in rows]
    lines = [list(head), ["---"] * len(head), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def metrics_page() -> str:
    """Return docs/metrics.md."""
    parts = [
        "# Metrics",
        "",
        "Every series that the exporter can serve, from the one table in",
        "`exporter/tocsin_exporter/metrics/`. A field that is unsupported or unreadable is absent, never 0.",
        "`mig` and `rank` are left out when empty.",
        "Tiers: *core* is what the rules need, *fabric* adds the ports, *deep* everything else (`--tier`).",
        "",
    ]
    for name, meaning in SUBSYSTEMS.items():
        rows = [row for row in FAMILIES.values() if subsystem(row.name) == name]
        if not rows:
            continue
        parts += [f"## {name}", "", f"{meaning[0].upper()}{meaning[1:]}.", ""]
        cells = [
            (f"`{row.name}`", row.kind.value, ", ".join(row.labels), row.unit, row.tier.value, row.help)
            for row in rows
        ]
        parts.append(table(("name", "type", "labels", "unit", "tier", "meaning"), cells))
    return "\n".join(parts)


def _runbook(family: str, books: dict[str, dict[str, Any]]) -> str:
    """Return the link to a family's runbook, empty where there is none."""
    return f"[`runbooks/{family}.yaml`](../runbooks/{family}.yaml)" if family in books else ""


def plain(text: str) -> str:
    """Return an annotation for people: label templates become their names."""
    text = re.sub(r"{{-?\s*else[^}]*}}", " / ", text)
    text = re.sub(r"{{-?\s*(?:if|end|with|range)[^}]*}}", "", text)
    return re.sub(r"{{[^}]*?\$labels\.(\w+)[^}]*}}", r"‹\1›", text).replace("{{ $value }}", "‹value›")


def families_page() -> str:
    """Return docs/families.md."""
    every = alerts()
    books = runbooks()
    parts = [
        "# Failure families",
        "",
        "One alert per family, one verdict per job. The family with the least *order* wins, then the earlier",
        "event, then the name: a cause outranks its symptoms. Only `TocsinVerdict` pages.",
        "*side* is `yours` (fix it on the node or in the job),",
        "or `below` (the provider's or hardware team's).",
        "",
    ]
    seen: set[str] = set()
    for one in families(every):
        family = one.labels["family"]
        if family in seen:
            continue
        seen.add(family)
        parts += [f"## {family}", "", plain(one.annotations.get("summary", "")), ""]
        rows = [
            (
                f"`{same.name}`",
                same.labels.get("verdict", ""),
                same.labels.get("side", ""),
                same.labels.get("layer", ""),
                str(same.labels.get("order", "")),
                same.labels.get("tier", ""),
                same.wait,
            )
            for same in families(every)
            if same.labels["family"] == family
        ]
        parts.append(table(("alert", "verdict", "side", "layer", "order", "tier", "for"), rows))
        parts += [plain(one.annotations.get("description", "")), ""]
        if family in books:
            parts += [f"Runbook: {_runbook(family, books)}.", ""]
    others = [one for one in every if one.name.removeprefix("Tocsin") not in seen]
    parts += ["## Other alerts", ""]
    meanings = {
        (
            f"`{one.name}`",
            one.labels.get("severity", ""),
            plain(one.annotations.get("summary", "")),
            _runbook(one.labels.get("family", ""), books),
        )
        for one in others
    }
    parts.append(table(("alert", "severity", "meaning", "runbook"), sorted(meanings)))
    return "\n".join(parts)


def flags(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Return the options and operands of one parser with their help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
            continue
        if action.help == argparse.SUPPRESS:
            continue
        name = (
            ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{action.metavar or action.dest}`"
        )
        yield name, (action.help or "") % {**vars(action), "prog": parser.prog}


def commands_of(parser: argparse.ArgumentParser, level: int = 2, meaning: str = "") -> list[str]:
    """Return the part of the command page about one parser and its commands."""
    parts = [f"{'#' * level} {parser.prog}", ""]
    about = parser.description or meaning
    if about:
        parts += [f"{about[0].upper()}{about[1:].rstrip('.')}.", ""]
    rows = list(flags(parser))
    if rows:
        parts.append(table(("argument", "meaning"), rows))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            meanings = {row.dest: row.help or "" for row in action._choices_actions}
            for name, below in action.choices.items():
                parts += commands_of(below, level + 1, meanings.get(name, ""))
    return parts


def commands_page() -> str:
    """Return docs/commands.md."""
    # A default that comes from this shell is nobody else's default.
    os.environ.pop("TOCSIN_REMEDIATOR_JOURNAL", None)
    from tocsin_common.bundle import cli as bundle_cli
    from tocsin_exporter import cli as exporter_cli
    from tocsin_lab import cli as lab_cli
    from tocsin_remediator import cli as remediator_cli

    parts = ["# Commands", "", "Every command and flag, from the programs' own parsers.", ""]
    parsers = (exporter_cli._parser(), bundle_cli._parser(), remediator_cli._parser(), lab_cli.parser())
    for parser in parsers:
        parts += commands_of(parser)
    return "\n".join(parts)


def readme(text: str) -> str:
    """Return the README with its marked tables as the code says."""
    counts = [
        (f"`{name}`", str(sum(subsystem(row.name) == name for row in FAMILIES.values())), meaning)
        for name, meaning in SUBSYSTEMS.items()
    ]
    rows = [row for row in counts if row[1] != "0"]
    text = _between(text, "metrics", table(("series", "families", "about"), rows))
    verdicts = [
        (
            f"[{one.labels['family']}](docs/families.md#{one.labels['family'].lower()})",
            " / ".join(one.labels[name] for name in ("verdict", "side") if one.labels.get(name)),
            one.labels.get("layer", ""),
            plain(one.annotations.get("summary", "")),
        )
        for one in families(alerts())
    ]
    head = ("family", "verdict / side", "layer", "what it says")
    return _between(text, "families", table(head, list(dict.fromkeys(verdicts))))


def _between(text: str, mark: str, body: str) -> str:
    start, end = f"<!-- {mark}: generated by make render -->\n", f"<!-- end of {mark} -->"
    head, found, rest = text.partition(start)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"README.md: the marks {start.strip()} … {end} are missing")
    return head + start + "\n" + body + "\n" + end + tail


def pages() -> dict[Path, str]:
    """Return every generated file with the text it must have."""
    found = {
        ROOT / "docs" / "metrics.md": metrics_page(),
        ROOT / "docs" / "families.md": families_page(),
        ROOT / "docs" / "commands.md": commands_page(),
    }
    front = ROOT / "README.md"
    found[front] = readme(front.read_text("utf-8"))
    return {path: text.rstrip("\n") + "\n" for path, text in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pages; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write the generated pages of the manual.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail when a page is out of date")
    check = parser.parse_args(argv).check
    stale = 0
    for path, text in pages().items():
        now = path.read_text("utf-8") if path.is_file() else ""
        if now == text:
            continue
        stale += 1
        if check:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not what the code says; run `make render`\n")
        else:
            path.write_text(text, "utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
