"""Limits and use of the control groups around a process, of both versions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources.procfs import read_small

__all__ = ["CgroupReading", "Cgroups", "Place", "parse_paths"]

_DEEPEST = 32
# The first version says "no limit" by the greatest number of pages.
_NO_LIMIT = 1 << 62
_FIELD = re.compile(r"^([a-z_]{1,32}) (\d{1,20})$", re.MULTILINE)
_SOME = re.compile(r"^some .*total=(\d{1,20})$", re.MULTILINE)
_RESOURCES = ("cpu", "memory", "io")
_NODE = re.compile(r" N(\d{1,4})=(\d{1,20})")


@dataclass(frozen=True, slots=True)
class CgroupReading:
    """
    What the groups around a process tell; all None outside of any group.

    ``cpu_quota`` is the tightest in CPUs; throttling is the sum over the groups that have a quota. Memory
    use, limit, hits and ``ooms`` (how often it ran out, version two only) are those of the group with the
    least limit, else of the innermost; kills those of the innermost. ``pressure`` are seconds in which some
    task of the innermost group of version two had to wait, by resource.
    """

    cpu_quota: float | None = None
    cpu_periods: int | None = None
    throttled_periods: int | None = None
    throttled_seconds: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_limit_hits: int | None = None
    ooms: int | None = None
    oom_kills: int | None = None
    pressure: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """
    The folders that matter for a process, found rarely and read often.

    ``memory`` is the group whose limit counts, ``innermost`` the process's own.
    """

    cpu: tuple[Path, ...] = ()
    cpu_v2: bool = False
    quota: float | None = None
    memory: Path | None = None
    innermost: Path | None = None
    memory_v2: bool = False
    limit: int | None = None
    second: Path | None = None


def parse_paths(text: str) -> dict[str, str]:
    """Return path by controller, "" for the second version, of /proc/PID/cgroup; unusable paths left out."""
    found: dict[str, str] = {}
    for line in text.splitlines()[:64]:
        parts = line.split(":", 2)
        # What lies above the exporter's own namespace cannot be found from here.
        if len(parts) != 3 or not parts[2].startswith("/") or ".." in parts[2].split("/"):
            continue
        for controller in parts[1].split(","):
            found.setdefault(controller, parts[2])
    return found


class Cgroups:
    """The tree under *root* (/sys/fs/cgroup): one of the two versions, or both side by side."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def place(self, paths: Mapping[str, str]) -> Place:
        """Return the folders for a process with these *paths* (of `parse_paths`)."""
        cpu, cpu_v2 = self._chain("cpu", "cpu.max", paths)
        memory, memory_v2 = self._chain("memory", "memory.max", paths)
        quotas = {folder: quota for folder in cpu if (quota := _quota(folder, v2=cpu_v2)) is not None}
        limits = {folder: limit for folder in memory if (limit := _limit(folder, v2=memory_v2)) is not None}
        tightest = min(limits, key=lambda folder: limits[folder], default=None)
        return Place(
            cpu=tuple(quotas) or cpu[:1],
            cpu_v2=cpu_v2,
            quota=min(quotas.values(), default=None),
            memory=tightest or (memory[0] if memory else None),
            innermost=memory[0] if memory else None,
            memory_v2=memory_v2,
            limit=limits[tightest] if tightest is not None else None,
            second=self._innermost(paths),
        )

    def read(self, place: Place) -> CgroupReading:
        """Return what the groups of *place* count now."""
        periods = throttled = 0
        seconds = 0.0
        seen = False
        for folder in place.cpu:
            fields = _fields(folder / "cpu.stat")
            if "nr_periods" not in fields:
                continue
            seen = True
            periods += fields["nr_periods"]
            throttled += fields.get("nr_throttled", 0)
            seconds += fields.get("throttled_usec", 0) / 1e6 + fields.get("throttled_time", 0) / 1e9
        use = hits = kills = ooms = None
        if place.memory is not None and place.innermost is not None:
            use_file, hit_file, kill_file = (
                ("memory.current", "memory.events", "memory.events")
                if place.memory_v2
                else ("memory.usage_in_bytes", "memory.failcnt", "memory.oom_control")
            )
            use = _number(place.memory / use_file)
            if place.memory_v2:
                events = _fields(place.memory / hit_file)
                hits, ooms = events.get("max"), events.get("oom")
            else:
                hits = _number(place.memory / hit_file)
            kills = _fields(place.innermost / kill_file).get("oom_kill")
        return CgroupReading(
            cpu_quota=place.quota,
            cpu_periods=periods if seen else None,
            throttled_periods=throttled if seen else None,
            throttled_seconds=seconds if seen else None,
            memory_bytes=use,
            memory_limit_bytes=place.limit,
            memory_limit_hits=hits,
            ooms=ooms,
            oom_kills=kills,
            pressure=_pressure(place.second) if place.second is not None else {},
        )

    def memory_by_node(self, place: Place) -> dict[int, int]:
        """Return how much of the innermost group's memory lies on each NUMA node, in one unit or another."""
        if place.innermost is None:
            return {}
        lines = _text(place.innermost / "memory.numa_stat").splitlines()
        # The second version tells kinds of memory, the first a total; "file" holds shared memory already.
        wanted = ("anon ", "file ") if place.memory_v2 else ("hierarchical_total=",)
        chosen = [line for line in lines if line.startswith(wanted)]
        if not chosen and not place.memory_v2:
            chosen = [line for line in lines if line.startswith("total=")]
        found: dict[int, int] = {}
        for line in chosen:
            for node, amount in _NODE.findall(line):
                found[int(node)] = found.get(int(node), 0) + int(amount)
        return found

    def _chain(self, controller: str, file: str, paths: Mapping[str, str]) -> tuple[tuple[Path, ...], bool]:
        """Return the groups from the process's own outwards, less the root, and whether of version two."""
        path = paths.get(controller)
        if path is not None and (base := self._first(controller)) is not None:
            return tuple(_upwards(base, path)), False
        path, base = paths.get(""), self._second()
        if path is None or base is None:
            return (), True
        # Controllers may end above the innermost group.
        return tuple(folder for folder in _upwards(base, path) if (folder / file).exists()), True

    def _innermost(self, paths: Mapping[str, str]) -> Path | None:
        base = self._second()
        path = paths.get("")
        return next(iter(_upwards(base, path)), None) if base is not None and path is not None else None

    def _first(self, controller: str) -> Path | None:
        plain = self._root / controller
        if plain.is_dir():
            return plain
        try:
            names = os.listdir(self._root)
        except OSError:
            return None
        return next((self._root / name for name in sorted(names) if controller in name.split(",")), None)

    def _second(self) -> Path | None:
        for base in (self._root, self._root / "unified"):
            if (base / "cgroup.controllers").exists():
                return base
        return None


def _upwards(base: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part][:_DEEPEST]
    folders = [base.joinpath(*parts[:count]) for count in range(len(parts), 0, -1)]
    # A group that is not below this root belongs to another view of the tree.
    return folders if not folders or folders[0].is_dir() else []


def _pressure(folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for resource in _RESOURCES:
        if match := _SOME.search(_text(folder / f"{resource}.pressure")):
            found[resource] = int(match[1]) / 1e6
    return found


def _quota(folder: Path, *, v2: bool) -> float | None:
    if v2:
        words = _text(folder / "cpu.max").split()
        quota, period = (words[0], words[1]) if len(words) == 2 else ("max", "0")
        if not quota.isdigit() or not period.isdigit() or not int(period):
            return None
        return int(quota) / int(period)
    least, length = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return least / length if least and length else None


def _limit(folder: Path, *, v2: bool) -> int | None:
    limit = _number(folder / ("memory.max" if v2 else "memory.limit_in_bytes"))
    return limit if limit is not None and limit < _NO_LIMIT else None


def _text(path: Path) -> str:
    try:
        return read_small(path, 8192).decode("ascii", "replace")
    except SourceError:
        return ""


def _fields(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in _FIELD.findall(_text(path))}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 21 else None
