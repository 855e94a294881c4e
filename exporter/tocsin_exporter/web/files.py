"""Reading what the web configuration file names; without `ssl`, which is not always needed."""

from __future__ import annotations

import os
from pathlib import Path

from tocsin_exporter.errors import ConfigError

__all__ = ["read_bounded"]

_MOST_BYTES = 1 << 20


def read_bounded(path: Path, what: str) -> bytes:
    """Return the bytes of a file of at most a mebibyte; ConfigError names *what*, the path and the reason."""
    try:
        # A pipe in place of the file must not stop the reader.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as source:
            body = source.read(_MOST_BYTES + 1)
    except OSError as err:
        raise ConfigError(f"--web.config.file: {what} {path} cannot be read: {err.strerror}") from None
    if body is None or len(body) > _MOST_BYTES:
        raise ConfigError(f"--web.config.file: {what} {path} is not a file of at most 1 MiB")
    return body
