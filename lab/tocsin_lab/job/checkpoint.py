"""Checkpoints of the sample job: one file per rank, complete only when the tracker file names the step."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from tocsin_lab.job.model import Training

__all__ = ["TRACKER", "commit", "latest", "load", "save"]

TRACKER = "latest_checkpointed_iteration.txt"
_KEEP = 2


def _folder(root: Path, step: int) -> Path:
    return root / f"iter_{step:07d}"


def _write(path: Path, data: bytes) -> None:
    """Write, flush to the disk, rename: a reader sees the old file or the whole new one."""
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(fresh, path)


def save(root: Path, rank: int, state: Training, weights: int) -> None:
    """Write this rank's part of the checkpoint: state and ``weights`` bytes of it."""
    folder = _folder(root, state.step)
    folder.mkdir(parents=True, exist_ok=True)
    head = json.dumps(asdict(state)).encode()
    block = hashlib.sha256(head + bytes([rank % 256])).digest()
    body = (block * (weights // len(block) + 1))[:weights]
    _write(
        folder / f"rank_{rank:05d}.bin",
        head + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body,
    )


def commit(root: Path, step: int) -> None:
    """Declare the checkpoint of ``step`` complete and drop older ones; called once all ranks have saved."""
    descriptor = os.open(_folder(root, step), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _write(root / TRACKER, f"{step}".encode())
    for old in sorted(root.glob("iter_*"))[:-_KEEP]:
        shutil.rmtree(old, ignore_errors=True)


def latest(root: Path) -> int | None:
    """Step of the last complete checkpoint."""
    try:
        return int((root / TRACKER).read_text().strip())
    except FileNotFoundError:
        return None


def load(root: Path, rank: int, step: int) -> Training:
    """This rank's state of a complete checkpoint.

    Raises:
        ValueError: the file is damaged.
    """
    path = _folder(root, step) / f"rank_{rank:05d}.bin"
    head, digest, body = path.read_bytes().split(b"\n", 2)
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError(f"{path}: the weights do not match their checksum")
    return Training(**json.loads(head))
