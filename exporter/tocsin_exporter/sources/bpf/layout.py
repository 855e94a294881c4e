"""The shared shape of bpf/tocsin.bpf.c: maps, records, configuration."""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = [
    "BUCKETS",
    "CONFIG",
    "NO_COOKIE",
    "OPS",
    "OTHER_COMM",
    "RANK_STAT",
    "RECORD",
    "RECORD_EXIT",
    "RECORD_OUTPUT",
    "SLOTS",
    "TARGET",
    "Histogram",
    "OpStat",
    "RankStat",
]

SLOTS = 512
OPS = 32
BUCKETS = 12
COMMS = 17
OTHER_COMM = COMMS - 1
NO_COOKIE = 2**64 - 1

RECORD_OUTPUT = 1
RECORD_EXIT = 2

# kind, tgid, token, value, time_ns, len, dropped
RECORD = struct.Struct("=IIIiQII")
TARGET = struct.Struct("=II")
# constant_cookie, launch_limit, output_limit, pidns_dev, pidns_ino, wait_bounds, gap_bounds
CONFIG = struct.Struct(f"=5Q{BUCKETS - 1}Q{BUCKETS - 1}Q")

_OP_WORDS = 4
_HIST_WORDS = 1 + BUCKETS
_WAIT = OPS * _OP_WORDS
_GAP = _WAIT + _HIST_WORDS
_COMM = _GAP + _HIST_WORDS
_TAIL = _COMM + COMMS
_WORDS = _TAIL + 10

RANK_STAT = struct.Struct(f"={_WORDS}Q")


@dataclass(frozen=True, slots=True)
class OpStat:
    """Calls of one kind; ``last_ns`` is monotonic, 0 before the first call."""

    calls: int
    errors: int
    bytes: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations in nanoseconds; ``buckets`` each count only their own range."""

    sum_ns: int
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankStat:
    """Everything the kernel counted for one process, as 64-bit words in the order of the C structure."""

    words: tuple[int, ...]

    @classmethod
    def zero(cls) -> RankStat:
        """Return a structure without any count."""
        return cls((0,) * _WORDS)

    @classmethod
    def read(cls, buffer: bytes | memoryview, slot: int) -> RankStat:
        """Return the structure of *slot* in the mapped array."""
        return cls(RANK_STAT.unpack_from(buffer, slot * RANK_STAT.size))

    def op(self, number: int) -> OpStat:
        """Return the counts of operation *number*."""
        return OpStat(*self.words[number * _OP_WORDS : (number + 1) * _OP_WORDS])

    @property
    def wait(self) -> Histogram:
        """Time in synchronising calls."""
        return Histogram(self.words[_WAIT], self.words[_WAIT + 1 : _GAP])

    @property
    def gap(self) -> Histogram:
        """Time between launches of one thread."""
        return Histogram(self.words[_GAP], self.words[_GAP + 1 : _COMM])

    @property
    def comm_calls(self) -> tuple[int, ...]:
        """Collective calls per communicator in order of creation; the last entry counts all further ones."""
        return self.words[_COMM:_TAIL]

    @property
    def drop_map_full(self) -> int:
        """Events not counted because a map was full."""
        return self.words[_TAIL]

    @property
    def drop_ring_full(self) -> int:
        """Records that did not fit into the ring buffer."""
        return self.words[_TAIL + 1]

    @property
    def drop_rate_guard(self) -> int:
        """Launches above the rate limit, not counted elsewhere."""
        return self.words[_TAIL + 2]

    @property
    def out_bytes(self) -> int:
        """Bytes of output handed over."""
        return self.words[_TAIL + 3]

    @property
    def out_dropped_bytes(self) -> int:
        """Bytes of output that were not."""
        return self.words[_TAIL + 4]

    def plus(self, other: RankStat) -> RankStat:
        """Return the sum; of times of last calls the later."""
        last = {number * _OP_WORDS + 3 for number in range(OPS)}
        return RankStat(
            tuple(
                max(a, b) if index in last else a + b
                for index, (a, b) in enumerate(zip(self.words, other.words, strict=True))
            )
        )
