"""Local disks by /proc/diskstats; pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

__all__ = ["Disk", "parse"]

# Sectors here are of 512 bytes, whatever the disk's own are (Documentation/admin-guide/iostats.rst).
_SECTOR = 512
_MOST = 256
_PSEUDO = re.compile(r"^(?:loop|ram|zram|sr|fd)\d+$")


@dataclass(frozen=True, slots=True)
class Disk:
    """One disk since boot: calls, bytes, seconds by direction; in flight now; busy and weighted seconds."""

    name: str
    calls: dict[str, int]
    bytes: dict[str, int]
    seconds: dict[str, float]
    in_flight: int
    busy: float
    weighted: float


def parse(lines: Iterable[str], whole: Collection[str]) -> tuple[Disk, ...]:
    """
    Return the disks of *whole* (the names below /sys/block, so that partitions do not count twice).

    Loops, memory and removable drives are left out; odd lines too.
    """
    found: list[Disk] = []
    for line in lines:
        words = line.split()
        if len(words) < 14 or words[2] not in whole or _PSEUDO.match(words[2]) or len(found) >= _MOST:
            continue
        if not all(word.isascii() and word.isdigit() and len(word) <= 20 for word in words[3:14]):
            continue
        value = [int(word) for word in words[3:]]
        # Since 4.18 discards, since 5.5 flushes.
        flush = value[15:17] if len(value) >= 17 else None
        found.append(
            Disk(
                words[2],
                {"read": value[0], "write": value[4], **({"flush": flush[0]} if flush else {})},
                {"read": value[2] * _SECTOR, "write": value[6] * _SECTOR},
                {
                    "read": value[3] / 1e3,
                    "write": value[7] / 1e3,
                    **({"flush": flush[1] / 1e3} if flush else {}),
                },
                value[8],
                value[9] / 1e3,
                value[10] / 1e3,
            )
        )
    return tuple(found)
