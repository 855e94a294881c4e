"""/proc/PID/stat: a process is known by its pid *and* its start, since pids are given out again."""

from __future__ import annotations

from pathlib import Path

__all__ = ["fields", "split", "start"]


def split(text: str) -> tuple[str, list[str]]:
    """Return the name and the fields from the state on (index 0 is the state, 19 the start)."""
    # The name may hold spaces and parentheses: it ends at the last one.
    head, _, rest = text.rpartition(")")
    return head.partition("(")[2], rest.split()


def fields(pid: int, procfs: Path = Path("/proc")) -> list[str]:
    """Return the fields from the state on, none when the process is gone."""
    try:
        return split((procfs / str(pid) / "stat").read_text(encoding="utf-8", errors="replace"))[1]
    except OSError:
        return []


def start(pid: int, procfs: Path = Path("/proc")) -> str:
    """Return the start in clock ticks since boot; empty when it is gone or only waits to be reaped."""
    found = fields(pid, procfs)
    return found[19] if len(found) > 19 and found[0] not in ("Z", "X", "x") else ""
