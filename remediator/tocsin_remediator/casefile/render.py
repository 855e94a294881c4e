"""A case file for people: HTML (self-contained) and Markdown."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tocsin_remediator.casefile import plot
from tocsin_remediator.casefile.statement import extent, moment, shown
from tocsin_remediator.durations import words

if TYPE_CHECKING:
    from collections.abc import Mapping

# Longer lists are summed up.
_LISTED: Final = 8


def environment() -> Environment:
    """Templates with everything escaped unless it is Markup."""
    made = Environment(
        loader=PackageLoader("tocsin_remediator", "web/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["moment"] = moment
    made.filters["words"] = words
    made.filters["shown"] = shown
    made.filters["extent"] = extent
    made.globals["plot_svg"] = plot.svg
    made.globals["plot_legend"] = plot.legend
    return made


def stylesheet() -> str:
    """The one stylesheet of all pages."""
    return (files("tocsin_remediator") / "web" / "tocsin.css").read_text(encoding="utf-8")


def html(case: Mapping[str, Any]) -> str:
    """One file that needs nothing else: for a ticket, a mail, a disk."""
    page = environment().get_template("case.html.j2")
    # The stylesheet is ours; everything of the case is escaped by the template.
    return page.render(case=case, css=Markup(stylesheet()))  # noqa: S704


def markdown(case: Mapping[str, Any]) -> str:
    """The case as Markdown; text from outside stands in code spans, where it is inert."""
    lines = [
        f"# Case {case['case']}, incident {case['incident']}: {case['family']}",
        "",
        f"- Target: {_code(case['target'])}",
        f"- Seen: {moment(case['at'])} ({case['moment']})",
        *(f"- {name}: {_code(value)}" for name, value in sorted(case["verdict"]["labels"].items())),
        "",
        _plain(case["summary"]),
        "",
    ]
    for title, key in (
        ("Evidence that fired", "fired"),
        ("Ruled out (quiet)", "quiet"),
        ("Evidence missing: not ruled out", "missing"),
    ):
        lines += [f"## {title}", ""]
        lines += [line for statement in case[key] for line in _statement(statement)] or ["Nothing.", ""]
    lines += ["## What cannot be seen from the node", "", *(f"- {text}" for text in case["cannot_see"]), ""]
    for title, key in (("Timeline", "timeline"), ("Actions", "actions"), ("Verification", "verification")):
        rows = case.get(key) or []
        if rows:
            lines += [
                f"## {title}",
                "",
                *(f"- {moment(row['at'])} {_plain(row['text'])}" for row in rows),
                "",
            ]
    lines += ["## Measurements", ""]
    for one in case["plots"]:
        lines.append(
            f"- {one['title']}: {_code(one['query'])}, {moment(one['start'])} to {moment(one['end'])}, "
            f"every {one['step']:.3g}s, {len(one['series'])} series"
        )
    return "\n".join(lines) + "\n"


def _statement(statement: Mapping[str, Any]) -> list[str]:
    query, rows = statement["query"], statement["values"]
    values = "; ".join(
        f"{_code(v['series'] or 'value')} = {shown(v['value'], query)}" for v in rows[:_LISTED]
    )
    if len(rows) > _LISTED:
        values = f"{extent(rows, query)}; {values}; …"
    values = values or "no series"
    more = f" and {statement['left_out']} more" if statement["left_out"] else ""
    return [
        f"- **{statement['id']}** {_plain(statement['text'])}",
        f"  - {_code(statement['query'])} at {moment(statement['at'])}: {values}{more}",
    ]


def _code(text: object) -> str:
    plain = " ".join(str(text).split())
    fence = "`" * (max((len(run) for run in _runs(plain)), default=0) + 1)
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def _runs(text: str) -> list[str]:
    found, run = [], ""
    for char in text + " ":
        if char == "`":
            run += char
        elif run:
            found.append(run)
            run = ""
    return found


def _plain(text: object) -> str:
    out = " ".join(str(text).split())
    for char in "\\`*_[]<>#|!":
        out = out.replace(char, f"\\{char}")
    return out
