"""Which versions of CUDA, NCCL and the framework a rank has loaded, by mapped files and package metadata."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.sources.latest import ErrorCounter, PollingSource

__all__ = ["Software", "SoftwareSource", "loaded", "mapped_files", "packages", "sites_of"]

_SECONDS = 15.0
# Libraries come in over the first minutes. Each look takes the process's memory lock for milliseconds.
_LOOKS = (15.0, 60.0, 300.0)
_LOOKS_A_TURN = 16
_MAPS_LIMIT = 8 << 20
_MOST_ENTRIES = 20000
_MOST_SITES = 8

_VERSION = r"\d{1,6}(?:\.\d{1,6}){0,4}"
# A file's own name where it has the whole version, as distributions and NVIDIA's own archives name it.
_FILES = {
    "nccl": re.compile(rf"/libnccl\.so\.({_VERSION})$"),
    "cuda": re.compile(rf"/libcudart[^/]{{0,20}}\.so\.({_VERSION})$"),
    "cudnn": re.compile(rf"/libcudnn\.so\.({_VERSION})$"),
    "driver": re.compile(rf"/libcuda\.so\.({_VERSION})$"),
}
_DIST = re.compile(r"^([A-Za-z0-9_.]{1,60})-([0-9][0-9A-Za-z.+]{0,40})\.dist-info$")
_PACKAGES = {
    "nccl": re.compile(r"^nvidia_nccl_cu\d+$"),
    "cuda": re.compile(r"^nvidia_cuda_runtime(?:_cu\d+)?$"),
    "cudnn": re.compile(r"^nvidia_cudnn_cu\d+$"),
    "torch": re.compile(r"^torch$"),
    "jax": re.compile(r"^jaxlib$"),
}
# Where a mapped file shows that a package is in use, and what lies above it.
_IN_SITE = re.compile(r"^(.*/(?:site|dist)-packages)/(torch|jaxlib|nvidia)/")


@dataclass(frozen=True, slots=True)
class Software:
    """Versions, "" where they are not known; ``driver`` is that of the loaded libcuda."""

    torch: str = ""
    jax: str = ""
    cuda: str = ""
    cudnn: str = ""
    nccl: str = ""
    driver: str = ""


def mapped_files(procfs: Path, pid: int) -> frozenset[str]:
    """Return the paths of the shared objects of *pid* as it sees them; SourceError when unreadable."""
    found: set[str] = set()
    try:
        with (procfs / str(pid) / "maps").open("rb") as file:
            for line in file.read(_MAPS_LIMIT).splitlines():
                place = line.find(b"/")
                if place > 0 and b".so" in line:
                    found.add(os.fsdecode(line[place:].removesuffix(b" (deleted)")))
    except PermissionError as err:
        raise SourceError("no_permission", f"{procfs}/{pid}/maps: {err.strerror}") from err
    except OSError as err:
        raise SourceError("unsupported", f"{procfs}/{pid}/maps: {err.strerror}") from err
    return frozenset(found)


def sites_of(files: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the folders of Python packages among *files*, with the packages that are loaded from each."""
    found: dict[str, set[str]] = {}
    for path in files:
        if (match := _IN_SITE.match(path)) and (match[1] in found or len(found) < _MOST_SITES):
            found.setdefault(match[1], set()).add(match[2])
    return {site: frozenset(names) for site, names in found.items()}


def packages(procfs: Path, pid: int, site: str) -> dict[str, str]:
    """Return name and version of the packages in the folder *site* of a process; empty when unreadable."""
    try:
        with os.scandir(procfs / str(pid) / "root" / site.lstrip("/")) as entries:
            matches = [_DIST.match(entry.name) for entry in islice(entries, _MOST_ENTRIES)]
    except OSError:
        return {}
    return {match[1].lower(): match[2] for match in matches if match}


def loaded(files: Iterable[str], installed: Mapping[str, Mapping[str, str]]) -> Software:
    """
    Return the versions by the mapped *files* and what is *installed* in each folder of packages.

    A version in a file's name is what is loaded; a package's version counts only where a file of it is
    mapped, and only where the file's name has less (`libcudart.so.12`).
    """
    versions = {each.name: "" for each in fields(Software)}
    paths = sorted(files)
    for path in paths:
        for name, pattern in _FILES.items():
            match = pattern.search(path)
            if match and len(match[1]) > len(versions[name]):
                versions[name] = match[1]
    for site, names in sites_of(paths).items():
        for package, version in installed.get(site, {}).items():
            for name, pattern in _PACKAGES.items():
                if not pattern.match(package) or not _in_use(name, names, site, paths):
                    continue
                if len(version) > len(versions[name]):
                    versions[name] = version
    # A bare major version says that the library is there, not which.
    return Software(**{name: text if "." in text else "" for name, text in versions.items()})


def _in_use(name: str, names: frozenset[str], site: str, paths: list[str]) -> bool:
    if name in ("torch", "jax"):
        return {"torch": "torch", "jax": "jaxlib"}[name] in names
    part = {"nccl": "nccl", "cuda": "cuda_runtime", "cudnn": "cudnn"}[name]
    return any(path.startswith((f"{site}/nvidia/{part}/", f"{site}/nvidia/cu1")) for path in paths)


class SoftwareSource(PollingSource[dict[tuple[int, int], Software]]):
    """
    Looks a few times into each young rank, in a thread of its own: its files may lie on a disk that hangs.

    The reading has (pid, start) of living ranks.
    """

    def __init__(
        self,
        procfs: Path,
        living: Callable[[], tuple[ProcessIdentity, ...]],
        errors: ErrorCounter,
        *,
        looks: tuple[float, ...] = _LOOKS,
        interval: float = _SECONDS,
    ) -> None:
        super().__init__("software", interval, 4 * 60.0, errors)
        self._procfs = procfs
        self._living = living
        self._looks = looks
        self._known: dict[tuple[int, int], tuple[float, int, Software]] = {}

    def now(self) -> dict[tuple[int, int], Software]:
        """Return the newest reading, empty where there is none."""
        return self.latest.read()[0] or {}

    def read(self) -> dict[tuple[int, int], Software]:
        """Look at those that are due; a process that cannot be read costs only itself."""
        now = time.monotonic()
        ranks = {(who.pid, who.start_ticks) for who in self._living() if who.rank}
        known = {key: self._known.get(key, (now, 0, Software())) for key in ranks}
        turn = 0
        for key, (first, looks, software) in known.items():
            if looks >= len(self._looks) or now - first < self._looks[looks] or turn >= _LOOKS_A_TURN:
                continue
            turn += 1
            known[key] = (first, looks + 1, self._look(key[0]) or software)
        self._known = known
        return {key: software for key, (_, _, software) in known.items()}

    def _look(self, pid: int) -> Software | None:
        try:
            files = mapped_files(self._procfs, pid)
        except SourceError as err:
            if err.reason != "unsupported":
                self._errors.add(self.name, err.reason)
            return None
        return loaded(files, {site: packages(self._procfs, pid, site) for site in sites_of(files)})
