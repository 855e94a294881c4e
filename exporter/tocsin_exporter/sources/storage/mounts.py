"""Mounted file systems by /proc/PID/mountinfo, sorted into kinds; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["KINDS", "Mount", "kind_of", "parse", "unescape"]

KINDS = ("nfs", "lustre", "weka", "beegfs", "gpfs", "ceph", "smb", "object", "fuse", "local", "memory")

_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")
_MOST = 4096
_LONGEST = 1024

_BY_TYPE = {
    **dict.fromkeys(("nfs", "nfs4"), "nfs"),
    "lustre": "lustre",
    "wekafs": "weka",
    "beegfs": "beegfs",
    "gpfs": "gpfs",
    "ceph": "ceph",
    **dict.fromkeys(("cifs", "smb3"), "smb"),
    **dict.fromkeys(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "fuseblk"), "local"),
    **dict.fromkeys(("tmpfs", "ramfs"), "memory"),
}
# The part of a FUSE mount's type after "fuse.", or of its source, that says that objects lie behind it.
_OBJECT = (
    *("s3fs", "goofys", "gcsfuse", "mountpoint-s3", "geesefs", "juicefs", "rclone", "blobfuse"),
    *("ossfs", "cosfs", "obsfs"),
)
_FUSE_KINDS = {"glusterfs": "fuse", "ceph": "ceph", "lustre": "lustre", "beegfs": "beegfs"}


@dataclass(frozen=True, slots=True)
class Mount:
    """
    One mount as its mount namespace shows it.

    ``device`` is ``major:minor`` of the file system, ``root`` the part of it that is mounted (`/` unless it
    is a bind mount), ``point`` where, ``source`` what the mounter named.
    """

    device: str
    root: str
    point: str
    fstype: str
    source: str
    read_only: bool

    @property
    def kind(self) -> str:
        """One of `KINDS`, or "" for file systems that hold no data."""
        return kind_of(self.fstype, self.source)


def kind_of(fstype: str, source: str) -> str:
    """Return the kind of a file system, "" for those that hold no data of a job."""
    known = _BY_TYPE.get(fstype)
    if known is not None:
        return known
    if fstype == "fuse" or fstype.startswith("fuse."):
        name = fstype.partition(".")[2] or source.partition("#")[0]
        if any(name.startswith(each) or source.startswith(each) for each in _OBJECT):
            return "object"
        return _FUSE_KINDS.get(name.partition(".")[0], "fuse") if not name.startswith("lxc") else ""
    return ""


def unescape(text: str) -> str:
    """Return a path of /proc with its octal escapes decoded."""
    if "\\" not in text:
        return text
    # What is escaped are bytes, not characters.
    raw = _ESCAPE.sub(lambda match: bytes((int(match[1], 8),)), text.encode("utf-8", "surrogateescape"))
    return raw.decode("utf-8", "replace")


def parse(lines: Iterable[str]) -> tuple[Mount, ...]:
    """
    Return the mounts of a mountinfo text, in its order; the last of several on one point is the visible one.

    Lines that are none are left out.
    """
    found: dict[str, Mount] = {}
    for line in lines:
        before, dash, after = line.partition(" - ")
        left, right = before.split(" "), after.rstrip("\n").split(" ")
        if not dash or len(left) < 6 or len(right) < 3 or len(found) >= _MOST or len(line) > 4 * _LONGEST:
            continue
        point = unescape(left[4])
        options = {*left[5].split(","), *right[2].split(",")}
        found.pop(point, None)
        found[point] = Mount(left[2], unescape(left[3]), point, right[0], unescape(right[1]), "ro" in options)
    return tuple(found.values())
