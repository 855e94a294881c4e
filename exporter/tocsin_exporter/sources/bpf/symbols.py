"""Which symbols are probed, what each one means, and with which programs."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tocsin_exporter.sources.bpf.elf import Symbol, probe_offset

__all__ = ["CUDA_OPS", "NCCL_OPS", "PROBE_OP", "SYMBOLS", "Kind", "Site", "cookie", "op_number", "sites"]

CUDA_OPS = (
    "launch",
    "graph_launch",
    "memcpy_h2d",
    "memcpy_d2h",
    "memcpy_d2d",
    "memcpy_async",
    "alloc",
    "free",
    "sync_stream",
    "sync_event",
    "sync_context",
)
NCCL_OPS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "send",
    "recv",
    "group_end",
    "comm_init",
    "comm_abort",
    "comm_destroy",
)
_NUMBERS = {name: number for number, name in enumerate((*CUDA_OPS, *NCCL_OPS))}

# Counts the loader's own test of whether probes fire; never served.
PROBE_OP = 31

_WAITS = 1 << 24
_ENDS_COMM = 1 << 25


class Kind(enum.Enum):
    """How a symbol is probed: (program at entry, program at return or none)."""

    LAUNCH = ("launch_enter", "")
    CALL = ("call_enter", "call_leave")
    NCCL = ("nccl_enter", "")
    COMM_INIT = ("comm_enter", "comm_leave")


@dataclass(frozen=True, slots=True)
class _Row:
    op: str
    kind: Kind
    cookie: int


@dataclass(frozen=True, slots=True)
class Site:
    """One probe: a program at an offset of the file, with what it is to know."""

    program: str
    offset: int
    cookie: int
    symbol: str

    @property
    def at_return(self) -> bool:
        """Whether the probe fires when the function returns."""
        return self.program.endswith("_leave")


def op_number(op: str) -> int:
    """Return the index of *op* in the kernel's table."""
    return _NUMBERS[op]


def cookie(op: str, *, count: int = 0, datatype: int = 0, comm: int = 0, flags: int = 0) -> int:
    """Pack what a probe must know: the operation and which arguments (from 1) carry what."""
    return _NUMBERS[op] | count << 8 | datatype << 12 | comm << 16 | flags


def _cuda() -> dict[str, _Row]:
    launches = {
        "launch": ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel"),
        "graph_launch": ("cuGraphLaunch",),
    }
    # Asynchronous copies count by direction where the name tells one.
    calls = {
        "memcpy_h2d": ("cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2"),
        "memcpy_d2h": ("cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2"),
        "memcpy_d2d": ("cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2", "cuMemcpyPeer", "cuMemcpyPeerAsync"),
        "memcpy_async": ("cuMemcpyAsync",),
        "alloc": (
            "cuMemAlloc_v2",
            "cuMemAllocPitch_v2",
            "cuMemAllocManaged",
            "cuMemAllocAsync",
            "cuMemAllocFromPoolAsync",
            "cuMemCreate",
        ),
        "free": ("cuMemFree_v2", "cuMemFreeAsync", "cuMemRelease"),
    }
    waits = {
        "sync_stream": ("cuStreamSynchronize",),
        "sync_event": ("cuEventSynchronize",),
        "sync_context": ("cuCtxSynchronize", "cuCtxSynchronize_v2"),
    }
    rows: dict[str, _Row] = {}
    for group, kind, flags in ((launches, Kind.LAUNCH, 0), (calls, Kind.CALL, 0), (waits, Kind.CALL, _WAITS)):
        for op, names in group.items():
            for name in names:
                # The per-thread default stream has entry points of its own.
                for variant in (name, f"{name}_ptsz", f"{name}_ptds"):
                    rows[variant] = _Row(op, kind, cookie(op, flags=flags))
    return rows


def _nccl() -> dict[str, _Row]:
    # (symbol, op, count argument, datatype argument, communicator argument).
    # ncclBcast is left out: it calls ncclBroadcast, which would count it twice.
    collectives = (
        ("ncclAllReduce", "all_reduce", 3, 4, 6),
        ("ncclAllGather", "all_gather", 3, 4, 5),
        ("ncclReduceScatter", "reduce_scatter", 3, 4, 6),
        ("ncclBroadcast", "broadcast", 3, 4, 6),
        ("ncclReduce", "reduce", 3, 4, 7),
        ("ncclSend", "send", 2, 3, 5),
        ("ncclRecv", "recv", 2, 3, 5),
        ("ncclGroupEnd", "group_end", 0, 0, 0),
    )
    rows = {
        name: _Row(op, Kind.NCCL, cookie(op, count=count, datatype=datatype, comm=comm))
        for name, op, count, datatype, comm in collectives
    }
    for name, op in (("ncclCommAbort", "comm_abort"), ("ncclCommDestroy", "comm_destroy")):
        rows[name] = _Row(op, Kind.NCCL, cookie(op, comm=1, flags=_ENDS_COMM))
    for name, out in (
        ("ncclCommInitRank", 1),
        ("ncclCommInitRankConfig", 1),
        ("ncclCommInitRankScalable", 1),
        ("ncclCommInitAll", 1),
        ("ncclCommSplit", 4),
    ):
        rows[name] = _Row("comm_init", Kind.COMM_INIT, cookie("comm_init", comm=out))
    return rows


_CUDA, _NCCL = _cuda(), _nccl()

# Layer → symbols.
SYMBOLS: dict[str, frozenset[str]] = {"cuda": frozenset(_CUDA), "nccl": frozenset(_NCCL)}


def sites(found: dict[str, Symbol]) -> tuple[Site, ...]:
    """Return the probes for *found* symbols; several names of one place are probed once."""
    table = {**_CUDA, **_NCCL}
    seen: set[int] = set()
    result: list[Site] = []
    for name, symbol in sorted(found.items()):
        if symbol.offset in seen:
            continue
        seen.add(symbol.offset)
        row = table[name]
        offset = symbol.offset + probe_offset(symbol)
        for program in row.kind.value:
            if program:
                result.append(Site(program, offset, row.cookie, name))
    return tuple(result)
