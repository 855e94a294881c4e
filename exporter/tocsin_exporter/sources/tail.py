"""Follows the files behind the standard output of processes, where the kernel side cannot capture it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tocsin_exporter.identity.model import ProcessIdentity

__all__ = ["Tails"]

_MAX_FILES = 512
_MAX_READ = 256 << 10


@dataclass(slots=True)
class _File:
    descriptor: int
    process: ProcessIdentity
    fd: int
    position: int


class Tails:
    """
    Open files of living processes, each file once although several processes may share it.

    A shared file counts for the process with the lowest rank. Files are followed from the end
    that they have when first seen.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._files: dict[tuple[int, int], _File] = {}

    def read(self, living: Iterable[ProcessIdentity]) -> Iterator[tuple[ProcessIdentity, int, bytes, bool]]:
        """Yield (process, descriptor, new bytes, whether some were skipped before them)."""
        processes = sorted(living, key=lambda process: (int(process.rank or -1), process.pid))
        wanted: dict[tuple[int, int], tuple[ProcessIdentity, int]] = {}
        for process in processes:
            for fd in (1, 2):
                key = self._regular(process.pid, fd)
                if key is not None:
                    wanted.setdefault(key, (process, fd))
        for key in [key for key in self._files if key not in wanted]:
            # One last look: the process may have written just before it ended.
            file = self._files.pop(key)
            try:
                yield from self._new(file)
            finally:
                os.close(file.descriptor)
        for key, (process, fd) in wanted.items():
            known = self._files.get(key)
            if known is None:
                known = self._open(process, fd)
                if known is None:
                    continue
                self._files[key] = known
            known.process, known.fd = process, fd
            yield from self._new(known)

    def _regular(self, pid: int, fd: int) -> tuple[int, int] | None:
        try:
            status = (self._proc / str(pid) / "fd" / str(fd)).stat()
        except OSError:
            return None
        return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None

    def _open(self, process: ProcessIdentity, fd: int) -> _File | None:
        if len(self._files) >= _MAX_FILES:
            return None
        # The process may have put a pipe in its place meanwhile, which would wait for a writer.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            descriptor = os.open(self._proc / str(process.pid) / "fd" / str(fd), flags)
        except OSError:
            return None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            return None
        return _File(descriptor, process, fd, status.st_size)

    def _new(self, file: _File) -> Iterator[tuple[ProcessIdentity, int, bytes, bool]]:
        size = os.fstat(file.descriptor).st_size
        gap = begin = size < file.position
        if begin:
            file.position = 0
        if size - file.position > _MAX_READ:
            file.position, gap = size - _MAX_READ, True
        data = os.pread(file.descriptor, size - file.position, file.position)
        file.position += len(data)
        if data:
            # What was truncated begins with a whole line: the gap costs the line before it only.
            yield file.process, file.fd, b"\n" + data if begin else data, gap

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()
