"""One table of every family that the exporter can serve; the manual's page and the tests read it too."""

from __future__ import annotations

from tocsin_exporter.metrics import gpu, job, node, pcie, rank, storage
from tocsin_exporter.metrics.family import Family, Kind, Tier

__all__ = ["FAMILIES", "Family", "Kind", "Tier", "family"]

_ALL = (*gpu.FAMILIES, *job.FAMILIES, *node.FAMILIES, *pcie.FAMILIES, *rank.FAMILIES, *storage.FAMILIES)

FAMILIES: dict[str, Family] = {row.name: row for row in sorted(_ALL, key=lambda row: row.name)}

if len(FAMILIES) != len(_ALL):
    raise AssertionError("a metric family is listed twice")


def family(name: str) -> Family:
    """Return the row called *name*; a collector asking for an unlisted name is a bug (KeyError)."""
    return FAMILIES[name]
