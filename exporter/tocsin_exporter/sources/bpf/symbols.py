"""Which symbols are probed, what each one means, and with which programs."""

from __future__ import annotations

import enum
import platform
from collections.abc import Collection
from dataclasses import dataclass

from tocsin_exporter.sources.bpf.elf import Symbol, probe_offset
from tocsin_exporter.sources.bpf.layout import FIRST_PAYLOAD

__all__ = [
    "CUDA_OPS",
    "NCCL_OPS",
    "OPS",
    "PAYLOAD_OPS",
    "PROBE_OP",
    "SYMBOLS",
    "WAITING_OPS",
    "Kind",
    "Site",
    "cookie",
    "op_number",
    "sites",
]

CUDA_OPS = (
    *("launch", "graph_launch"),
    *("memcpy_h2d", "memcpy_d2h", "memcpy_d2d", "memcpy_async", "memset"),
    *("alloc", "free"),
    *("sync_stream", "sync_event", "sync_context", "sync_device"),
    "module_load",
)
# What moves data, in the order of the kernel's size classes.
PAYLOAD_OPS = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send", "recv"),
    *("all_to_all", "gather", "scatter"),
)
NCCL_OPS = (
    *PAYLOAD_OPS,
    "group_end",
    *("comm_init", "comm_split", "comm_finalize", "comm_destroy", "comm_abort"),
    "async_error",
)
# All of them: what `--ebpf.disable-op` knows.
OPS = (*CUDA_OPS, *NCCL_OPS)
# Whose time is the wait for the device.
WAITING_OPS = ("sync_stream", "sync_event", "sync_context")
_NUMBERS = {
    **{name: number for number, name in enumerate(CUDA_OPS)},
    **{name: number for number, name in enumerate(NCCL_OPS, FIRST_PAYLOAD)},
}

# Counts the loader's own test of whether probes fire; never served.
PROBE_OP = 47

_WAITS = 1 << 28
_TIMED = 1 << 29
_ENDS_COMM = 1 << 30
_ALLOCATES = 1 << 31


class Kind(enum.Enum):
    """How a symbol is probed: (program at entry, program at return or none)."""

    LAUNCH = ("launch_enter", "")
    CALL = ("call_enter", "call_leave")
    NCCL = ("nccl_enter", "nccl_leave")
    COMM_INIT = ("comm_enter", "comm_leave")
    ASYNC_ERROR = ("async_enter", "async_leave")


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


def cookie(
    op: str,
    *,
    count: int = 0,
    datatype: int = 0,
    comm: int = 0,
    ranks: int = 0,
    rank: int = 0,
    flags: int = 0,
) -> int:
    """Pack what a probe must know: the operation and which arguments (from 1) carry what."""
    return _NUMBERS[op] | count << 8 | datatype << 12 | comm << 16 | ranks << 20 | rank << 24 | flags


# Operation → entry points, each with the number of the argument that holds a size in bytes (0: none does).
# Asynchronous copies count by direction where the name tells one. Copies of arrays and in two or three
# dimensions describe their size in memory, which is not read.
_LAUNCHES = {
    "launch": (
        *("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuLaunch"),
        *("cuLaunchGrid", "cuLaunchGridAsync", "cuLaunchCooperativeKernelMultiDevice"),
    ),
    "graph_launch": ("cuGraphLaunch",),
}
_CALLS: dict[str, dict[str, int]] = {
    "memcpy_h2d": {
        **dict.fromkeys(("cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2"), 3),
        **dict.fromkeys(("cuMemcpyHtoA_v2", "cuMemcpyHtoAAsync_v2"), 4),
    },
    "memcpy_d2h": {
        **dict.fromkeys(("cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2"), 3),
        **dict.fromkeys(("cuMemcpyAtoH_v2", "cuMemcpyAtoHAsync_v2"), 4),
    },
    "memcpy_d2d": {
        **dict.fromkeys(("cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2"), 3),
        **dict.fromkeys(("cuMemcpyPeer", "cuMemcpyPeerAsync"), 5),
    },
    "memcpy_async": {
        **dict.fromkeys(("cuMemcpy", "cuMemcpyAsync"), 3),
        **dict.fromkeys(("cuMemcpy2D_v2", "cuMemcpy2DAsync_v2", "cuMemcpy2DUnaligned_v2"), 0),
        **dict.fromkeys(("cuMemcpy3D_v2", "cuMemcpy3DAsync_v2", "cuMemcpy3DPeer", "cuMemcpy3DPeerAsync"), 0),
        **dict.fromkeys(("cuMemcpyBatchAsync", "cuMemcpy3DBatchAsync"), 0),
    },
    "memset": dict.fromkeys(
        (
            *("cuMemsetD8_v2", "cuMemsetD16_v2", "cuMemsetD32_v2"),
            *("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"),
            *("cuMemsetD2D8_v2", "cuMemsetD2D8Async", "cuMemsetD2D32_v2", "cuMemsetD2D32Async"),
        ),
        0,
    ),
    "alloc": {
        "cuMemAlloc_v2": 2,
        "cuMemAllocManaged": 2,
        "cuMemAllocAsync": 2,
        "cuMemAllocFromPoolAsync": 2,
        "cuMemCreate": 2,
        # Width and height: their product is no argument.
        "cuMemAllocPitch_v2": 0,
    },
    "free": dict.fromkeys(("cuMemFree_v2", "cuMemFreeAsync", "cuMemRelease"), 0),
    "module_load": dict.fromkeys(
        (
            *("cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary"),
            *("cuLibraryLoadData", "cuLibraryLoadFromFile"),
        ),
        0,
    ),
}
_WAITING = {
    "sync_stream": ("cuStreamSynchronize",),
    "sync_event": ("cuEventSynchronize",),
    "sync_context": ("cuCtxSynchronize", "cuCtxSynchronize_v2"),
}
# The runtime has no entry point of the driver for it: it waits for the context, which is counted there too.
_RUNTIME = {"sync_device": ("cudaDeviceSynchronize", "cudaThreadSynchronize")}


def _variants(name: str) -> tuple[str, ...]:
    # The per-thread default stream has entry points of its own.
    return (name, f"{name}_ptsz", f"{name}_ptds")


def _cuda() -> dict[str, _Row]:
    rows: dict[str, _Row] = {}
    for op, names in _LAUNCHES.items():
        rows.update((each, _Row(op, Kind.LAUNCH, cookie(op))) for name in names for each in _variants(name))
    for op, sizes in _CALLS.items():
        flags = {"alloc": _ALLOCATES | _TIMED, "module_load": _TIMED}.get(op, 0)
        for name, argument in sizes.items():
            row = _Row(op, Kind.CALL, cookie(op, count=argument, flags=flags))
            rows.update((each, row) for each in _variants(name))
    for op, names in _WAITING.items():
        row = _Row(op, Kind.CALL, cookie(op, flags=_WAITS))
        rows.update((each, row) for name in names for each in _variants(name))
    return rows


def _cudart() -> dict[str, _Row]:
    return {
        name: _Row(op, Kind.CALL, cookie(op, flags=_TIMED))
        for op, names in _RUNTIME.items()
        for name in names
    }


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
        ("ncclAlltoAll", "all_to_all", 3, 4, 5),
        ("ncclGather", "gather", 3, 4, 6),
        ("ncclScatter", "scatter", 3, 4, 6),
    )
    rows = {
        name: _Row(op, Kind.NCCL, cookie(op, count=count, datatype=datatype, comm=comm))
        for name, op, count, datatype, comm in collectives
    }
    rows["ncclGroupEnd"] = _Row("group_end", Kind.NCCL, cookie("group_end"))
    rows["ncclCommFinalize"] = _Row("comm_finalize", Kind.NCCL, cookie("comm_finalize"))
    for name, op in (("ncclCommAbort", "comm_abort"), ("ncclCommDestroy", "comm_destroy")):
        rows[name] = _Row(op, Kind.NCCL, cookie(op, comm=1, flags=_ENDS_COMM))
    # The unique id, 128 bytes by value, is passed in memory on x86-64, and by reference, as an argument of
    # its own, on arm64.
    after_id = 4 if platform.machine() in ("aarch64", "arm64") else 3
    for name, op, out, ranks, rank in (
        ("ncclCommInitRank", "comm_init", 1, 2, after_id),
        ("ncclCommInitRankConfig", "comm_init", 1, 2, after_id),
        ("ncclCommInitRankScalable", "comm_init", 1, 2, 3),
        ("ncclCommInitAll", "comm_init", 1, 0, 0),
        ("ncclCommSplit", "comm_split", 4, 0, 0),
        ("ncclCommShrink", "comm_split", 4, 0, 0),
    ):
        rows[name] = _Row(op, Kind.COMM_INIT, cookie(op, comm=out, ranks=ranks, rank=rank))
    rows["ncclCommGetAsyncError"] = _Row("async_error", Kind.ASYNC_ERROR, cookie("async_error", comm=2))
    return rows


_ROWS = {"cuda": _cuda(), "cudart": _cudart(), "nccl": _nccl()}
_ALL = {name: row for rows in _ROWS.values() for name, row in rows.items()}

# Layer → symbols.
SYMBOLS: dict[str, frozenset[str]] = {layer: frozenset(rows) for layer, rows in _ROWS.items()}


def sites(found: dict[str, Symbol], without: Collection[str] = ()) -> tuple[Site, ...]:
    """Return the probes for *found* symbols, save those of the operations *without*; one per place."""
    seen: set[int] = set()
    result: list[Site] = []
    for name, symbol in sorted(found.items()):
        row = _ALL[name]
        if symbol.offset in seen or row.op in without:
            continue
        seen.add(symbol.offset)
        offset = symbol.offset + probe_offset(symbol)
        for program in row.kind.value:
            if program:
                result.append(Site(program, offset, row.cookie, name))
    return tuple(result)
