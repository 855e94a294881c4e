"""
Lines of a kernel log to records: the prefix off, and the word on who wrote it.

Read are ``/dev/kmsg``, ``dmesg`` (plain, ``-T``, ``-d``, ``-x``, ``-r``, ISO), syslog (RFC 3164 and 5424)
and the short formats of the journal. Where a facility is shown it decides; a tag is believed
only without one.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

__all__ = ["MAX_LINE", "Record", "moment", "split", "unescape"]

# The kernel's own records are at most about 1 KiB; syslog may join a few.
MAX_LINE = 8192

_RAW = re.compile(r"(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;]*;(.*)", re.DOTALL | re.ASCII)
_DICTIONARY = re.compile(r"\s+[A-Z][A-Z0-9_]*=")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PRIORITY = re.compile(r"<(\d{1,3})>\s*", re.ASCII)
_DMESG_X = re.compile(
    r"(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d)\s*:\s*\w+\s*:\s*"
)
_RFC5424 = re.compile(r"1\s+(\S+)\s+\S+\s+(\S+)\s+\S+\s+\S+\s+(?:-|\[[^\]]*\])\s*(.*)")
# A fraction behind a comma is dmesg's own ISO form, which has no tag.
_WALL = re.compile(
    r"((?:[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?)"
    r"|(?:(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d| [A-Z]{2,5})?)"
    r"|(?:\d{9,10}\.\d{1,9}))\s+(.*)"
)
_TAG = re.compile(r"(?:\S*[^\s:]\s+)?([^\s:\[\]]+)(\[[^\]]*\])?:\s?(.*)")
_LAST_REPEATED = re.compile(r"(?:\S*[^\s:]\s+)?(last message repeated \d{1,9} times)$")
_STAMP = re.compile(
    r"\[\s*(\d+\.\d+|[A-Z][a-z]{2} [A-Z][a-z]{2} [\d :]+?|[A-Z][a-z]{2} *\d+ [\d:]+|\+ *\d+\.\d+)"
    r"(?: *<[^>]{1,24}>)?\]\s?"
)
_HOST_KERNEL = re.compile(r"[^\s:]+ kernel:\s")
_CALLER = re.compile(r"\[\s*[TC]\d+\]\s?")
_ISO_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d+(?:Z|[+-]\d\d:?\d\d))\s")
_ESCAPE = re.compile(r"(?:\\x[0-9a-f]{2})+")


class Record(NamedTuple):
    """
    One line without its prefix; ``ours``: the kernel wrote it.

    ``usec`` counts from boot, where told; ``stamp`` is the time of day as printed, or empty.
    """

    text: str
    ours: bool = True
    seq: int | None = None
    usec: int | None = None
    stamp: str = ""


def split(line: str) -> Record | None:
    """Take the prefix off *line*; None for lines that are no record (dictionary lines, empty ones)."""
    line = line[:MAX_LINE].rstrip("\r\n\0")
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if raw := _RAW.match(line):
        # Only what the kernel itself printed has facility 0; it forces another one on user space.
        return Record(raw[4], int(raw[1]) >> 3 == 0, int(raw[2]), int(raw[3]))
    # Dictionary lines of /dev/kmsg: ` SUBSYSTEM=pci`.
    if not line or line.isspace() or _DICTIONARY.match(line):
        return None
    ours = True
    if level := _PRIORITY.match(line):
        ours, line = int(level[1]) >> 3 == 0, line[level.end() :]
        if new := _RFC5424.match(line):
            return _stamped(new[3], ours=ours and new[2] in ("kernel", "-"), wall=new[1])
    elif facility := _DMESG_X.match(line):
        ours, line = facility[1] == "kern", line[facility.end() :]
    if wall := _WALL.match(line):
        if repeated := _LAST_REPEATED.match(wall[2]):
            return Record(repeated[1], ours, stamp=wall[1])
        if wall[2].startswith("["):
            # dmesg's own form, behind the time at which a container's output was kept.
            return _stamped(wall[2], ours=ours, wall=wall[1])
        if tag := _TAG.match(wall[2]):
            # A process may call itself "kernel"; the kernel has no process number.
            return _stamped(tag[3], ours=ours and tag[1] == "kernel" and tag[2] is None, wall=wall[1])
    return _stamped(line, ours=ours)


def _stamped(text: str, *, ours: bool, wall: str = "") -> Record:
    usec: int | None = None
    if stamp := _STAMP.match(text):
        if stamp[1].replace(".", "", 1).isdigit():
            usec = int(float(stamp[1][:20]) * 1e6)
        else:
            wall = wall or stamp[1]
        text = text[stamp.end() :]
        if host := _HOST_KERNEL.match(text):
            text = text[host.end() :]
    elif iso := _ISO_STAMP.match(text):
        text, wall = text[iso.end() :], iso[1]
    if caller := _CALLER.match(text):
        text = text[caller.end() :]
    return Record(text, ours, None, usec, wall)


@lru_cache(maxsize=256)
def _seconds(stamp: str) -> float | None:
    if stamp.replace(".", "", 1).isdigit():
        return float(stamp)
    words = stamp.split()
    try:
        if "-" in words[0] or (len(words) > 1 and "-" in words[1]):
            iso = "T".join(word for word in words if "-" in word or ":" in word)
            return datetime.fromisoformat(iso.replace(",", ".")).replace(tzinfo=UTC).timestamp()
        named = [word for word in words if word.isalpha()][-1]
        clock = next(word for word in words if ":" in word).partition(".")[0]
        day = next(word for word in words if word.isdigit() and len(word) < 3)
        # Only differences count, so any leap year will do.
        return datetime.strptime(f"2000 {named} {day} {clock} +0000", "%Y %b %d %H:%M:%S %z").timestamp()
    except (ValueError, IndexError, StopIteration, OverflowError):
        return None


def moment(record: Record) -> float | None:
    """Return the record's time in seconds, good beside others of the same log; None where it shows none."""
    if record.usec is not None:
        return record.usec / 1e6
    return _seconds(record.stamp) if record.stamp else None


def unescape(text: str) -> str:
    """Return *text* of a ``/dev/kmsg`` record with its ``\\xNN`` as characters."""
    if "\\x" not in text:
        return text
    return _ESCAPE.sub(
        lambda found: bytes.fromhex(found[0].replace("\\x", "")).decode("utf-8", "replace"), text
    )
