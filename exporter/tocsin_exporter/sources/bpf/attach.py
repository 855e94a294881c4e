"""Keeps the probes of every library that a target has loaded, each file once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources.bpf.libraries import (
    Library,
    Mapping,
    is_probed_elsewhere,
    mapped_libraries,
    open_mapped,
    read_library,
)
from tocsin_exporter.sources.bpf.loader import Attachment, Programs

__all__ = ["Attacher"]

log = logging.getLogger(__name__)

_MAX_FILES = 64
_UNUSED_SECONDS = 600.0
_RETRY_SECONDS = 60.0


@dataclass(slots=True)
class _File:
    path: str
    library: Library
    attachment: Attachment | None
    note: str
    retry_at: float | None = None
    users: set[int] = field(default_factory=set)
    unused_since: float | None = None
    twin_of: str | None = None


class Attacher:
    """
    Attaches to files by inode, for *layers* among ``cuda`` and ``nccl``. Used from one thread.

    Calls of the operations *without* are not probed.
    """

    def __init__(
        self,
        proc: Path,
        programs: Programs,
        layers: Collection[str],
        clock: Callable[[], float],
        without: Collection[str] = (),
    ) -> None:
        self._proc = proc
        self._layers = layers
        self._without = frozenset(without)
        self._programs = programs
        self._clock = clock
        self._files: dict[tuple[int, int], _File] = {}
        # As /proc/PID/maps names a file → as stat names it; the two differ on some filesystems.
        self._known: dict[tuple[str, int, str], tuple[int, int]] = {}

    def probe(self, pid: int) -> frozenset[str]:
        """Probe what *pid* has loaded and return the layers that are now seen of it."""
        layers: set[str] = set()
        for mapping in mapped_libraries(self._proc, pid):
            entry = self._entry(pid, mapping)
            entry.users.add(pid)
            entry.unused_since = None
            if entry.attachment is not None:
                layers |= entry.library.layers
        return frozenset(layers)

    def _entry(self, pid: int, mapping: Mapping) -> _File:
        name = (mapping.device, mapping.inode, mapping.path)
        entry = self._files.get(self._known.get(name, (-1, -1)))
        if entry is not None and (entry.retry_at is None or self._clock() < entry.retry_at):
            return entry
        with open_mapped(self._proc, pid, mapping) as file:
            try:
                library = read_library(file, mapping, self._layers, self._without)
            except SourceError as err:
                log.warning("ebpf library=%s: %s", mapping.path, err.detail)
                library = Library((-2, mapping.inode), (), frozenset())
            entry = self._files.get(library.key)
            if entry is None or entry.retry_at is not None:
                twin = self._twin(pid, mapping, library, file)
                attachment, note, retry = self._attach(mapping, library, file, twin)
                retry_at = self._clock() + _RETRY_SECONDS if retry else None
                entry = _File(mapping.path, library, attachment, note, retry_at, twin_of=twin)
                self._files[library.key] = entry
        self._known[name] = library.key
        return entry

    def _attach(
        self, mapping: Mapping, library: Library, file: BinaryIO, twin: str | None
    ) -> tuple[Attachment | None, str, bool]:
        if not library.sites:
            return None, "no CUDA or NCCL symbols", False
        if sum(entry.attachment is not None for entry in self._files.values()) >= _MAX_FILES:
            return None, f"more than {_MAX_FILES} libraries", True
        if twin is not None:
            return Attachment([], [], self._programs.lib), f"the same file as {twin}", False
        try:
            # Through the descriptor: the path may name another file by now.
            attachment = self._programs.attach(f"/proc/self/fd/{file.fileno()}", library.sites)
        except SourceError as err:
            log.warning("ebpf library=%s is not probed: %s", mapping.path, err.detail)
            return None, err.detail, True
        log.info("ebpf library=%s places=%d", mapping.path, len(library.sites))
        return attachment, ",".join(sorted(library.layers)), False

    def _twin(self, pid: int, mapping: Mapping, library: Library, file: BinaryIO) -> str | None:
        """Return the path under which this very file is probed already, on overlay filesystems."""
        for entry in self._files.values():
            # Another exporter's breakpoint looks like ours, hence the comparison of the sites too.
            same = entry.attachment is not None and entry.library.sites == library.sites
            if same and is_probed_elsewhere(self._proc, pid, mapping, file, library):
                return entry.path
        return None

    def release(self, pids: set[int]) -> None:
        """Detach from files that none of *pids* has used for ten minutes."""
        now = self._clock()
        for key, entry in list(self._files.items()):
            entry.users &= pids
            if entry.users:
                continue
            if entry.unused_since is None:
                entry.unused_since = now
            elif now - entry.unused_since > _UNUSED_SECONDS:
                if entry.attachment is not None:
                    self._programs.detach(entry.attachment)
                # Twins relied on these probes: they are looked at afresh.
                gone = {key} | {name for name, other in self._files.items() if other.twin_of == entry.path}
                for name in gone:
                    self._files.pop(name, None)
                self._known = {name: known for name, known in self._known.items() if known not in gone}

    def report(self) -> dict[str, str]:
        """Return per path what is probed, or why nothing is."""
        return {entry.path: entry.note for entry in list(self._files.values())}
