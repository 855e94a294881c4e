"""NFS clients by /proc/PID/mountstats: per operation calls, transmissions, bytes and times; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tocsin_exporter.sources.storage.mounts import unescape

__all__ = ["NfsMount", "Operation", "parse"]

_MOST_MOUNTS = 512
_MOST_OPERATIONS = 128
# Counters of 64 bits; what lies in the upper half has wrapped below zero.
_HALF = 1 << 63
# In the order of the line `bytes:`; the last two count pages.
_BYTES = (
    ("cached", "read"),
    ("cached", "write"),
    ("direct", "read"),
    ("direct", "write"),
    ("server", "read"),
    ("server", "write"),
)


@dataclass(frozen=True, slots=True)
class Operation:
    """
    One kind of call to the server since the mount, by the kernel's own name.

    ``calls`` that ended, ``sent`` transmissions (a retransmission is one more), ``timeouts`` that were major;
    seconds in the ``queue`` before the first transmission, on the ``round_trip`` of the last, and in ``all``.
    ``errors`` is None before Linux 5.3, which first counts replies that carry one.
    """

    calls: int
    sent: int
    timeouts: int
    bytes_sent: int
    bytes_received: int
    queue: float
    round_trip: float
    all: float
    errors: int | None = None

    @property
    def retransmissions(self) -> int | None:
        """Transmissions beyond the first of each call; None where the counters contradict each other."""
        return self.sent - self.calls if self.sent >= self.calls else None


@dataclass(slots=True)
class NfsMount:
    """One NFS mount; ``bytes`` is by path (cached, direct, server) and direction (read, write)."""

    point: str
    source: str
    age: int | None = None
    bytes: dict[tuple[str, str], int] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    connects: int | None = None
    backlog: int | None = None
    calls_sent: int | None = None


def parse(lines: Iterable[str]) -> tuple[NfsMount, ...]:
    """
    Return the NFS mounts of a mountstats text; of several on one point the last, which is the visible one.

    A line that is odd costs only what it tells.
    """
    found: dict[str, NfsMount] = {}
    mount: NfsMount | None = None
    operations = False
    for raw in lines:
        line = raw.strip()
        if line.startswith("device "):
            mount, operations = _head(line), False
            if mount is not None and (mount.point in found or len(found) < _MOST_MOUNTS):
                found[mount.point] = mount
            continue
        if mount is None:
            continue
        name, colon, rest = line.partition(":")
        if line == "per-op statistics":
            operations = True
        elif colon and operations:
            operation = _operation(rest.split())
            if operation is not None and len(mount.operations) < _MOST_OPERATIONS and name.isidentifier():
                mount.operations[name] = operation
        elif name == "age" and (numbers := _numbers(rest)):
            mount.age = numbers[0]
        elif name == "bytes":
            _bytes(mount, rest)
        elif name == "xprt":
            _transport(mount, rest.split())
    return tuple(found.values())


def _head(line: str) -> NfsMount | None:
    # device SERVER:/EXPORT mounted on /POINT with fstype nfs4 statvers=1.1
    before, middle, kind = line.rpartition(" with fstype ")
    source, on, point = before.removeprefix("device ").partition(" mounted on ")
    if not middle or not on or kind.split(" ")[0] not in ("nfs", "nfs4"):
        return None
    return NfsMount(unescape(point), unescape(source))


def _numbers(text: str) -> list[int]:
    words = text.split()
    return [int(word) for word in words] if all(_integer(word) for word in words) else []


def _integer(word: str) -> bool:
    return len(word) <= 21 and word.isascii() and word.removeprefix("-").isdigit()


def _bytes(mount: NfsMount, rest: str) -> None:
    for key, value in zip(_BYTES, _numbers(rest), strict=False):
        if 0 <= value < _HALF:
            mount.bytes[key] = value


def _operation(words: list[str]) -> Operation | None:
    if len(words) < 8 or not all(_integer(word) for word in words[:9]):
        return None
    values = [int(word) for word in words[:9]]
    if any(not 0 <= value < _HALF for value in values):
        return None
    calls, sent, timeouts, out, back, queue, trip, whole = values[:8]
    errors = values[8] if len(values) > 8 else None
    return Operation(calls, sent, timeouts, out, back, queue / 1e3, trip / 1e3, whole / 1e3, errors)


def _transport(mount: NfsMount, words: list[str]) -> None:
    # tcp: port bind_count connect_count connect_time idle_time sends recvs bad_xids req_u bklog_u …
    # udp: port bind_count sends recvs bad_xids req_u bklog_u …; rdma as tcp, as far as we read.
    if not words or not all(_integer(word) for word in words[1:]):
        return
    values = [int(word) for word in words[1:]]
    if any(value < 0 for value in values):
        return
    places = {"tcp": (2, 5, 9), "rdma": (2, 5, 9), "udp": (None, 2, 6)}.get(words[0])
    if places is None:
        return

    def at(place: int | None, before: int | None) -> int | None:
        if place is None or place >= len(values):
            return before
        # One line per connection (nconnect): the mount is their sum.
        return values[place] + (before or 0)

    mount.connects = at(places[0], mount.connects)
    mount.calls_sent = at(places[1], mount.calls_sent)
    mount.backlog = at(places[2], mount.backlog)
