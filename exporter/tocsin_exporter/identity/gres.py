"""Which device file Slurm's number of a GPU stands for: gres.conf, read; no I/O."""

from __future__ import annotations

import re
from itertools import product

__all__ = ["GpuFiles", "gpu_minors"]

# Device minors of a node's GPUs, by Slurm's index.
GpuFiles = tuple[int, ...]

_PAIR = re.compile(r"(\w+)\s*=\s*(\"[^\"]*\"|\S+)")
_ITEM = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*")
_RANGE = re.compile(r"^(\d{1,6})(?:-(\d{1,6}))?$")
_MINOR = re.compile(r"/nvidia(\d{1,4})$")
_MOST = 4096


def gpu_minors(text: str, node: str) -> GpuFiles | None:
    """
    Return the minors of the GPU device files of *node* in Slurm's order.

    None where the text leaves the order open, () where Slurm is to detect the devices itself. Slurm counts a
    node's devices from 0 in an order of its own: by type, by number of the device file, or as detected. Only
    where all of these give the same order is an index certain.
    """
    files: list[str] = []
    kinds: set[str] = set()
    detected = unlisted = False
    for line in _lines(text):
        if line.lower().startswith("include"):
            return None
        pairs = {name.lower(): value.strip('"') for name, value in _PAIR.findall(line)}
        if "nodename" in pairs and node not in expand(pairs["nodename"]):
            continue
        if "autodetect" in pairs:
            detected = pairs["autodetect"].lower() != "off"
        if pairs.get("name", "").lower() != "gpu":
            continue
        if "multiplefiles" in pairs:
            return None
        if "file" not in pairs:
            # Detected devices are sorted in among those that are listed.
            unlisted = True
            continue
        kinds.add(pairs.get("type", "").lower())
        files += expand(pairs["file"])
    minors = [int(match[1]) for match in map(_MINOR.search, files) if match]
    ordered = minors == sorted(set(minors))
    if not files:
        return () if detected else None
    if unlisted:
        return None
    return tuple(minors) if minors and len(minors) == len(files) and ordered and len(kinds) == 1 else None


def _lines(text: str) -> list[str]:
    joined = text.replace("\\\r\n", " ").replace("\\\n", " ")
    return [line for raw in joined.splitlines()[:_MOST] if (line := raw.split("#", 1)[0].strip())]


def expand(text: str) -> list[str]:
    """Return what a host or file list such as `gpu[1-3,07],x1` stands for, at most 4,096 names."""
    found: list[str] = []
    for item in _ITEM.findall(text[:_MOST]):
        if not item:
            continue
        parts = [
            _numbers(part[1:-1]) if part.startswith("[") else [part]
            for part in re.split(r"(\[[^\[\]]*\])", item)
        ]
        for combined in product(*parts):
            if len(found) >= _MOST:
                return found
            found.append("".join(combined))
    return found


def _numbers(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            continue
        first, last = match[1], match[2] or match[1]
        width, end = len(first), min(int(last), int(first) + _MOST)
        found += [str(number).zfill(width) for number in range(int(first), end + 1)]
    return found
