"""What processes used, from /proc: CPU time, memory, descriptors, threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tocsin_common import procstat
from tocsin_lab.stack.procs import descendants

__all__ = ["Memory", "cpu_seconds", "family", "memory", "open_files", "threads"]

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Memory:
    """
    Bytes of a group of processes.

    ``pss`` shares each page among all processes of the machine that map it, so other Python programs make it
    smaller; ``alone`` counts each file's pages once for the group, as on a machine where nobody shares
    them; ``private`` is what nobody shares.
    """

    pss: int
    alone: int
    private: int


def family(pid: int) -> list[int]:
    """Return a process and all below it."""
    return [pid, *(one.pid for one in descendants(pid))]


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return user and system time of processes and of their ended children."""
    total = 0
    for pid in pids:
        total += sum(int(field) for field in procstat.fields(pid)[11:15])
    return total / _TICKS


def memory(pids: Sequence[int]) -> Memory:
    """Return the memory of a group of processes; those that ended meanwhile count nothing."""
    pss = private = 0
    files: dict[str, int] = {}
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps").read_text("ascii", "replace")
        except OSError:
            continue
        file, rss, own = "", 0, 0
        for line in [*text.splitlines(), "0-0 end"]:
            words = line.split()
            if not words[0].endswith(":"):
                # A mapping begins; the one before it is complete.
                shared = rss - own
                if file and shared:
                    files[file] = max(files.get(file, 0), shared)
                elif shared:
                    private += shared
                mapped = len(words) > 5 and words[4] != "0"
                file, rss, own = f"{words[5]}@{words[2]}" if mapped else "", 0, 0
            elif words[0] == "Rss:":
                rss = int(words[1]) * 1024
            elif words[0] == "Pss:":
                pss += int(words[1]) * 1024
            elif words[0] in ("Private_Clean:", "Private_Dirty:"):
                own += int(words[1]) * 1024
                private += int(words[1]) * 1024
    return Memory(pss, private + sum(files.values()), private)


def open_files(pids: Sequence[int]) -> int:
    """Return the number of open descriptors."""
    return sum(len(_listed(f"/proc/{pid}/fd")) for pid in pids)


def threads(pids: Sequence[int]) -> int:
    """Return the number of threads."""
    return sum(len(_listed(f"/proc/{pid}/task")) for pid in pids)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
