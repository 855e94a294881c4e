"""One reading of the node's storage every interval; nothing in it waits for a mount."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources.latest import ErrorCounter, PollingSource
from tocsin_exporter.sources.procfs import read_small
from tocsin_exporter.sources.storage import disks, lustre, mounts, nfs
from tocsin_exporter.sources.storage.space import Answer, SpaceProbe

__all__ = ["StorageReading", "StorageSource"]

_TABLE_LIMIT = 4 << 20
# Long enough for every mount that works, short enough not to matter.
_SETTLE_SECONDS = 0.25
# Views of the node's own disks and memory that a container runtime makes, thousands on a busy node.
_PLUMBING = (
    *("/var/lib/kubelet/", "/var/lib/docker/", "/var/lib/containers/", "/var/lib/containerd/"),
    *("/run/containerd/", "/run/docker/", "/run/k3s/", "/run/user/"),
)


@dataclass(frozen=True, slots=True)
class StorageReading:
    """
    What was read at one time.

    ``mounts`` holds one mount per file system (the shortest path of those that show it whole), ``space`` is
    by mount point, ``left_out`` counts mounts that were too many to be asked for it.
    """

    mounts: tuple[mounts.Mount, ...]
    nfs: tuple[nfs.NfsMount, ...]
    lustre: tuple[lustre.LustreClient, ...]
    disks: tuple[disks.Disk, ...]
    space: dict[str, Answer]
    left_out: int


class StorageSource(PollingSource[StorageReading]):
    """Reads the mounts of the node (of process 1 where that may be seen, else its own)."""

    def __init__(
        self,
        procfs: Path,
        sysfs: Path,
        interval: float,
        max_age: float,
        errors: ErrorCounter,
        *,
        probe: SpaceProbe | None = None,
    ) -> None:
        super().__init__("storage", interval, max_age, errors)
        self._procfs = procfs
        self._sysfs = sysfs
        self._probe = probe or SpaceProbe()

    def read(self) -> StorageReading:
        """Read once; raises SourceError only when not even the mounts are known."""
        whose = self._whose()
        table = mounts.parse(self._lines(whose / "mountinfo", needed=True))
        shown = shown_mounts(table)
        root = whose / "root"
        # Through the process's own root, so that a container sees the node's mounts where the node has them.
        paths = {f"{root}{mount.point}" if whose.name == "1" else mount.point: mount.point for mount in shown}
        left_out = self._probe.ask(paths)
        clients, problems = lustre.clients(
            (self._procfs / "fs/lustre", self._sysfs / "fs/lustre", self._sysfs / "kernel/debug/lustre")
        )
        for problem in problems:
            self._errors.add(self.name, problem.reason)
        return StorageReading(
            shown,
            nfs.parse(self._lines(whose / "mountstats")),
            clients,
            disks.parse(self._lines(self._procfs / "diskstats"), self._block_devices()),
            {
                paths[path]: answer
                for path, answer in self._probe.answers(_SETTLE_SECONDS).items()
                if path in paths
            },
            left_out,
        )

    @property
    def whole_node(self) -> bool:
        """Whether the mounts are the node's own rather than those of the exporter's container."""
        return self._whose().name == "1"

    def _whose(self) -> Path:
        first = self._procfs / "1"
        # The link says whether its mounts may be looked into; the file alone can be read by more.
        return (
            first
            if os.access(first / "mountinfo", os.R_OK) and os.access(first / "root", os.X_OK)
            else self._procfs / "self"
        )

    def _lines(self, path: Path, *, needed: bool = False) -> list[str]:
        try:
            return read_small(path, _TABLE_LIMIT).decode("utf-8", "surrogateescape").splitlines()
        except SourceError as err:
            if needed:
                raise
            if err.reason != "unsupported":
                self._errors.add(self.name, err.reason)
            return []

    def _block_devices(self) -> frozenset[str]:
        try:
            return frozenset(os.listdir(self._sysfs / "block"))
        except OSError:
            self._errors.add(self.name, "unsupported")
            return frozenset()


def shown_mounts(table: tuple[mounts.Mount, ...]) -> tuple[mounts.Mount, ...]:
    """Return one mount of each file system that holds data, in the order of their paths."""
    best: dict[tuple[str, str], mounts.Mount] = {}
    for mount in table:
        if not mount.kind or (mount.kind == "local" and mount.point.startswith(_PLUMBING)):
            continue
        # Where data loaders share batches; other memory holds no data of a job.
        if mount.kind == "memory" and mount.point != "/dev/shm":  # noqa: S108 - a mount, not a file
            continue
        key = (mount.device, mount.source)
        known = best.get(key)
        if known is None or _rank(mount) < _rank(known):
            best[key] = mount
    return tuple(sorted(best.values(), key=lambda mount: mount.point))


def _rank(mount: mounts.Mount) -> tuple[bool, int, str]:
    # The whole file system before a part of it, then the shorter path.
    return (mount.root != "/", len(mount.point), mount.point)
