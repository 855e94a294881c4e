"""The shape of bpf/abi.h: what the kernel counts, records, configuration."""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = [
    "BUCKETS",
    "CONFIG",
    "FIRST_PAYLOAD",
    "NO_COOKIE",
    "OPS",
    "OTHER_COMM",
    "PAYLOADS",
    "RANK_STAT",
    "RECORD",
    "RECORD_EXIT",
    "RECORD_OUTPUT",
    "SIZES",
    "SIZE_BOUNDS",
    "SLOTS",
    "TARGET",
    "TYPES",
    "CommStat",
    "Histogram",
    "OpStat",
    "RankStat",
]

SLOTS = 512
OPS = 48
BUCKETS = 12
COMMS = 17
OTHER_COMM = COMMS - 1
FIRST_PAYLOAD = 20
PAYLOADS = 10
NO_COOKIE = 2**64 - 1

# ncclDataType_t in its order; the last is what this table does not know.
TYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"),
    *("bfloat16", "float8_e4m3", "float8_e5m2", "other"),
)
# Classes of payloads by their upper bound in bytes; latency rules the first, bandwidth the last.
SIZE_BOUNDS = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
SIZES = (*("4KiB", "64KiB", "1MiB", "16MiB", "256MiB"), "larger")

RECORD_OUTPUT = 1
RECORD_EXIT = 2

# kind, tgid, token, value, time_ns, len, dropped
RECORD = struct.Struct("=IIIiQII")
TARGET = struct.Struct("=II")
# constant_cookie, launch_limit, output_limit, pidns_dev, pidns_ino, wait_bounds, gap_bounds, size_bounds
CONFIG = struct.Struct(f"=5Q{BUCKETS - 1}Q{BUCKETS - 1}Q{len(SIZE_BOUNDS)}Q")

_OP_WORDS = 5
_OP_LAST = 3
_HIST_WORDS = 1 + BUCKETS
_COMM_WORDS = 5
_COMM_LAST = 2
_WAIT = OPS * _OP_WORDS
_GAP = _WAIT + _HIST_WORDS
_SIZE = _GAP + _HIST_WORDS
_TYPE = _SIZE + PAYLOADS * len(SIZES)
_COMM = _TYPE + 2 * len(TYPES)
_TAIL = _COMM + COMMS * _COMM_WORDS
_WORDS = _TAIL + 11

RANK_STAT = struct.Struct(f"={_WORDS}Q")

# Words of which two processes of one rank have the greater rather than the sum.
_GREATER = frozenset(
    [number * _OP_WORDS + _OP_LAST for number in range(OPS)]
    + [_COMM + number * _COMM_WORDS + word for number in range(COMMS) for word in (_COMM_LAST, 3, 4)]
)


@dataclass(frozen=True, slots=True)
class OpStat:
    """
    Calls of one kind.

    ``last_ns`` is monotonic, 0 before the first call; ``spent_ns`` is the time in calls that are timed.
    """

    calls: int
    errors: int
    bytes: int
    last_ns: int
    spent_ns: int


@dataclass(frozen=True, slots=True)
class CommStat:
    """One communicator; ``ranks`` is 0 when its creation was not seen or does not tell."""

    calls: int
    bytes: int
    last_ns: int
    ranks: int
    rank: int


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
        return Histogram(self.words[_GAP], self.words[_GAP + 1 : _SIZE])

    def sizes(self, number: int) -> tuple[int, ...]:
        """Return the calls of operation *number*, which has a payload, per class of `SIZES`."""
        start = _SIZE + (number - FIRST_PAYLOAD) * len(SIZES)
        return self.words[start : start + len(SIZES)]

    @property
    def types(self) -> tuple[tuple[int, int], ...]:
        """(calls, bytes) per data type, in the order of `TYPES`."""
        words = self.words[_TYPE:_COMM]
        return tuple(zip(words[::2], words[1::2], strict=True))

    @property
    def comms(self) -> tuple[CommStat, ...]:
        """Communicators in order of creation; the last entry stands for all further ones."""
        return tuple(
            CommStat(*self.words[start : start + _COMM_WORDS]) for start in range(_COMM, _TAIL, _COMM_WORDS)
        )

    @property
    def alloc_failures(self) -> int:
        """Allocations for which the device had no memory."""
        return self.words[_TAIL]

    @property
    def drop_map_full(self) -> int:
        """Events not counted because a map was full."""
        return self.words[_TAIL + 1]

    @property
    def drop_ring_full(self) -> int:
        """Records that did not fit into the ring buffer."""
        return self.words[_TAIL + 2]

    @property
    def drop_rate_guard(self) -> int:
        """Launches above the rate limit: counted, but not their gaps."""
        return self.words[_TAIL + 3]

    @property
    def out_bytes(self) -> int:
        """Bytes of output handed over."""
        return self.words[_TAIL + 4]

    @property
    def out_dropped_bytes(self) -> int:
        """Bytes of output that were not."""
        return self.words[_TAIL + 5]

    def plus(self, other: RankStat) -> RankStat:
        """Return the sum; of times of last calls the later, of a communicator's size the greater."""
        return RankStat(
            tuple(
                max(a, b) if index in _GREATER else a + b
                for index, (a, b) in enumerate(zip(self.words, other.words, strict=True))
            )
        )
