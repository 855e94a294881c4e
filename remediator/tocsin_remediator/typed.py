"""
Typed values: the only form in which a label may reach a query or an action.

Every pattern is matched over the whole value (`fullmatch`; `$` would let a trailing newline
through). None admits a leading dash, a comma, brackets or `=`: `ALL`, `node[1-8]` and
`--selector=x` each select a fleet in some scheduler, without any shell.
"""

from __future__ import annotations

import re
from typing import Final

from tocsin_remediator.errors import Refused

_PATTERNS: Final[dict[str, re.Pattern[str]]] = {
    "job_id": re.compile(
        r"slurm/[1-9][0-9]{0,9}"
        r"|k8s/[a-z0-9][a-z0-9-]{0,62}/[a-z0-9][a-z0-9.-]{0,252}"
        r"|(?:ray|mpi|torchrun|proc)/[A-Za-z0-9_][A-Za-z0-9._:@+/-]{0,160}"
    ),
    "rank": re.compile(r"0|[1-9][0-9]{0,6}"),
    "node": re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?"),
    "gpu": re.compile(r"0|[1-9][0-9]{0,2}"),
    "gpu_uuid": re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    "port": re.compile(r"[a-z][a-z0-9_]{0,30}(?:/[1-9][0-9]?)?"),
    "mount": re.compile(r"/[A-Za-z0-9._/-]{0,199}"),
    "engine": re.compile(r"[a-z][a-z0-9]{0,30}-[0-9]{1,5}"),
    "family": re.compile(r"[A-Z][A-Za-z0-9]{1,62}"),
    "text": re.compile(r"[^\x00-\x1f\x7f]{1,500}"),
}

# Words that a scheduler reads as a set, whatever their case.
_SETS: Final = frozenset({"all", "any", "none", "localhost"})

NAMES: Final = frozenset(_PATTERNS)


def check(kind: str, value: str) -> str:
    """
    Return `value` unchanged when it is one well-formed `kind`.

    Refused otherwise, with the value quoted and shortened. Whether it exists is for the
    scheduler to say.
    """
    pattern = _PATTERNS[kind]
    if not value:
        raise Refused(f"{kind} is empty; an empty target would mean everything, so nothing is done")
    if pattern.fullmatch(value) is None or (".." in value and kind != "text"):
        raise Refused(f"{kind} {shorten(value)} does not have the form of one {kind}")
    if kind == "node" and value.lower() in _SETS:
        raise Refused(f"node {value!r} names a set or no real node")
    return value


def shorten(value: str, limit: int = 80) -> str:
    """The value quoted for a message, with control characters shown and the length bounded."""
    return repr(value if len(value) <= limit else value[:limit] + "…")
