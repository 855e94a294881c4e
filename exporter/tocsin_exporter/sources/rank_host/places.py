"""Which CPUs and which memory lie beside a GPU, from sysfs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources.procfs import read_small

__all__ = ["Beside", "beside", "parse_list"]

_RANGE = re.compile(r"^(\d{1,6})(?:-(\d{1,6}))?$")
# Far above any machine; a list beyond it is none.
_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class Beside:
    """CPUs and NUMA nodes beside some devices; empty where the firmware does not tell."""

    cpus: frozenset[int] = frozenset()
    nodes: frozenset[int] = frozenset()


def parse_list(text: str) -> frozenset[int]:
    """Return the numbers of a kernel list such as ``0-3,8``; empty when it is none."""
    found: set[int] = set()
    for part in text.strip().split(","):
        match = _RANGE.match(part)
        if match is None:
            return frozenset()
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first + len(found) > _MOST:
            return frozenset()
        found.update(range(first, last + 1))
    return frozenset(found)


def beside(sysfs: Path, devices: Iterable[str]) -> Beside:
    """Return what lies beside the devices with these PCI addresses; one that does not tell spoils it all."""
    cpus: frozenset[int] = frozenset()
    nodes: set[int] = set()
    for pci in devices:
        folder = sysfs / "bus/pci/devices" / pci
        try:
            node = int(read_small(folder / "numa_node", 64))
            local = parse_list(read_small(folder / "local_cpulist", 8192).decode("ascii", "replace"))
        except (SourceError, ValueError):
            return Beside()
        # Without word from the firmware the kernel says -1 and takes all CPUs for local.
        if node < 0 or not local:
            return Beside()
        cpus |= local
        nodes.add(node)
    return Beside(cpus, frozenset(nodes))
