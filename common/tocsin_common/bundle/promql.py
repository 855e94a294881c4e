"""
Which series an expression names.

Not a parser: enough of the lexer to tell metric names from functions, label names, durations and
words, for the lints over rules and dashboards and for the list of a dashboard's queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["raw_selectors", "series_names"]

_NAME = re.compile(r"(?<![\w:.$])([a-zA-Z_][\w:]*)\s*(\{[^}]*\})?")
_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "Inf", "NaN", "inf", "nan", "by", "without"})


def raw_selectors(expr: str) -> Iterator[tuple[str, str]]:
    """Yield (name, selector as written) of each series that no rule records and the server does not make."""
    for name, matchers in _selectors(expr):
        if ":" not in name and not name.startswith("ALERTS"):
            yield name, name + matchers


def series_names(expr: str) -> set[str]:
    """Return the names of all series that *expr* reads."""
    return {name for name, _matchers in _selectors(expr)}


def _selectors(expr: str) -> Iterator[tuple[str, str]]:
    texts: list[str] = []

    def keep(match: re.Match[str]) -> str:
        texts.append(match.group(0))
        return f'"{len(texts) - 1}"'

    def restore(match: re.Match[str]) -> str:
        return texts[int(match.group(1))]

    # Strings may hold anything that looks like PromQL, closing braces too.
    plain = _GROUPING.sub(" ", _STRING.sub(keep, expr))
    for match in _NAME.finditer(plain):
        name, matchers = match.group(1), match.group(2) or ""
        rest = plain[match.end(1) :].lstrip()
        inside = plain.count("{", 0, match.start()) > plain.count("}", 0, match.start())
        if name in _WORDS or rest.startswith("(") or inside:
            continue
        yield name, _STRING.sub(restore, matchers)
