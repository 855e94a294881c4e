"""Free space of mounts, asked in threads that may hang: one per mount, never a second beside a stuck one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

__all__ = ["Answer", "Space", "SpaceProbe"]


@dataclass(frozen=True, slots=True)
class Space:
    """What statvfs tells: bytes in all and for users, inodes in all and free (None where it counts none)."""

    size: int
    available: int
    files: int | None
    files_free: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """
    How a mount answered: ``space`` of its last answer, ``seconds`` that this took, ``error`` (errno) when it
    was one, and ``waiting`` seconds that a question has been open, None when none is.
    """

    space: Space | None
    seconds: float | None
    error: int | None
    waiting: float | None


class _Asked:
    """One mount: at most one thread that waits for it."""

    def __init__(self) -> None:
        self.begin: float | None = None
        self.space: Space | None = None
        self.seconds: float | None = None
        self.error: int | None = None


class SpaceProbe:
    """
    Asks mounts for their free space without waiting for them.

    A mount that hangs costs one sleeping thread until it answers, and at most *most* mounts are asked.
    Nothing here is joined at the end: the threads are daemons.
    """

    def __init__(
        self,
        *,
        most: int = 64,
        clock: Callable[[], float] = time.monotonic,
        statvfs: Callable[[str], os.statvfs_result] = os.statvfs,
    ) -> None:
        self._most = most
        self._clock = clock
        self._statvfs = statvfs
        self._lock = threading.Lock()
        self._asked: dict[str, _Asked] = {}

    def ask(self, paths: Collection[str]) -> int:
        """Ask every path that has no open question; forget the others. Return how many were too many."""
        wanted = sorted(paths)
        chosen = wanted[: self._most]
        now = self._clock()
        with self._lock:
            for path in [
                path for path, asked in self._asked.items() if path not in chosen and asked.begin is None
            ]:
                del self._asked[path]
            due = []
            for path in chosen:
                asked = self._asked.setdefault(path, _Asked())
                if asked.begin is None:
                    asked.begin = now
                    due.append((path, asked))
        for path, asked in due:
            threading.Thread(target=self._wait, args=(path, asked, now), name="space", daemon=True).start()
        return len(wanted) - len(chosen)

    def answers(self, settle: float = 0.0) -> dict[str, Answer]:
        """Return how each mount answered; give open questions up to *settle* seconds first."""
        end = time.monotonic() + settle
        while time.monotonic() < end:
            with self._lock:
                if all(asked.begin is None for asked in self._asked.values()):
                    break
            time.sleep(0.005)
        now = self._clock()
        with self._lock:
            return {
                path: Answer(
                    asked.space,
                    asked.seconds,
                    asked.error,
                    None if asked.begin is None else now - asked.begin,
                )
                for path, asked in self._asked.items()
            }

    def _wait(self, path: str, asked: _Asked, begin: float) -> None:
        space, error = None, None
        try:
            raw = self._statvfs(path)
            space = Space(
                raw.f_frsize * raw.f_blocks,
                raw.f_frsize * raw.f_bavail,
                raw.f_files or None,
                raw.f_favail if raw.f_files else None,
            )
        except OSError as err:
            error = err.errno or 0
        with self._lock:
            asked.space, asked.error, asked.seconds, asked.begin = space, error, self._clock() - begin, None
