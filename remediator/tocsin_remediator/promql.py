"""Queries out of templates: a value enters only as a whole quoted `=` matcher."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tocsin_remediator.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = re.compile(r"\$\{([a-z_]+(?:\.[a-z_]+)?)\}")

# The one place where a variable may stand: label="${…}" and nothing else between the quotes.
_WHOLE_MATCHER: Final = re.compile(r'[A-Za-z_][A-Za-z0-9_]*\s*=\s*"\$\{[a-z_]+(?:\.[a-z_]+)?\}"')


def quote(value: str) -> str:
    """`value` as a quoted PromQL string; Refused for NUL, which Prometheus cannot carry."""
    if "\x00" in value:
        raise Refused("a label value contains NUL")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def selector(metric: str, labels: Mapping[str, str]) -> str:
    """`metric{a="b",…}` with every value escaped."""
    return metric + "{" + ",".join(f"{name}={quote(value)}" for name, value in labels.items()) + "}"


def misplaced(query: str) -> str | None:
    """The first variable of `query` that is not the whole of a quoted `=` matcher, if any."""
    rest = _WHOLE_MATCHER.sub("", query)
    found = VARIABLE.search(rest)
    if found is not None:
        return found[0]
    return "${" if "${" in rest else None


def variables(query: str) -> list[str]:
    """The variables that `query` uses."""
    return VARIABLE.findall(query)


def fill(query: str, values: Mapping[str, str]) -> str:
    """The query with its variables replaced; Refused when one has no value."""

    def one(found: re.Match[str]) -> str:
        value = values.get(found[1])
        if value is None:
            raise Refused(f"the query needs {found[0]}, which this incident does not have")
        # The quotes stand in the template.
        return quote(value)[1:-1]

    return VARIABLE.sub(one, query)
