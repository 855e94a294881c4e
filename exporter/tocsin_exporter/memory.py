"""Keeps the process's memory flat over weeks: what a scrape or a reading has used goes back to the system."""

from __future__ import annotations

import ctypes
import gc

__all__ = ["keep", "return_freed"]

# malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def return_freed() -> None:
    """
    Have freed memory given back, from one arena for all threads; to be called before there are threads.

    By default glibc takes an arena per thread and raises its thresholds with the texts of the scrapes, so
    that the heap climbs by a megabyte now and then for hours. Other C libraries lack the call: nothing is
    done there.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, 256 << 10)
        mallopt(_TRIM_THRESHOLD, 128 << 10)


def keep() -> None:
    """Leave what there is now out of the garbage collector's full passes, which took 20 ms of a scrape."""
    gc.collect()
    gc.freeze()
