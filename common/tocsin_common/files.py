"""Files that must be whole whenever somebody reads them, also after a crash."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["replace"]


def replace(path: Path, body: bytes) -> None:
    """
    Put *body* in the place of *path* in one step and on the disk before this returns.

    The folder must exist. OSError when it cannot be done; the old file is then still there.
    """
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    # The name itself is part of the folder.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
