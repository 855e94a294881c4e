"""
The helper of tracefs.py: mounts tracefs where only this process sees it and prints numbers of tracepoints.

A script that needs nothing but the standard library, since it is started for a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

_MOUNT_POINT = "/sys/kernel/tracing"
_CLONE_NEWNS = 0x20000
_MS_REC_PRIVATE = 0x4000 | 0x40000


def _mount_privately() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.unshare.argtypes = [ctypes.c_int]
    libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
    mount_point = _MOUNT_POINT.encode()
    steps: tuple[tuple[str, Callable[..., int], tuple[object, ...]], ...] = (
        ("unshare the mount namespace", libc.unshare, (_CLONE_NEWNS,)),
        ("make mounts private", libc.mount, (b"none", b"/", None, _MS_REC_PRIVATE, None)),
        ("mount tracefs", libc.mount, (b"none", mount_point, b"tracefs", 0, None)),
    )
    for what, call, arguments in steps:
        if call(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _main(names: list[str]) -> int:
    try:
        _mount_privately()
        print(*(int((Path(_MOUNT_POINT) / "events" / name / "id").read_text()) for name in names))
    except (OSError, ValueError) as err:
        print(err, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
