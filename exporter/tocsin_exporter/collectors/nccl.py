"""NCCL calls per rank: by kind, by size, by data type, and per communicator."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.collectors.cuda import counted
from tocsin_exporter.sources.bpf import BpfSource, RankCounts
from tocsin_exporter.sources.bpf.layout import OTHER_COMM, SIZES, TYPES
from tocsin_exporter.sources.bpf.symbols import NCCL_OPS, PAYLOAD_OPS, op_number

__all__ = ["NAME", "NcclCollector", "build"]

NAME = "nccl"

# A watchdog looks for errors all the time, most of all while a collective hangs.
_PROGRESS_OPS = tuple(op for op in NCCL_OPS if op != "async_error")


class NcclCollector:
    """
    Serves a rank from the moment its NCCL is probed.

    Calls, bytes and errors by kind begin at 0; classes of size, data types and communicators appear with
    their first call.
    """

    name = NAME

    def __init__(self, bpf: BpfSource | None) -> None:
        self._bpf = bpf

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        for rank in counted(self._bpf):
            if "nccl" not in rank.layers:
                continue
            key = (rank.job_id, rank.rank)
            for op, stat in rank.counted(NCCL_OPS).items():
                yield Sample("tocsin_nccl_calls_total", (*key, op), stat.calls)
                if op not in PAYLOAD_OPS:
                    yield Sample("tocsin_nccl_errors_total", (*key, op), stat.errors)
            yield from _payloads(rank, key)
            yield from _communicators(rank, key)
            last = rank.last_call(_PROGRESS_OPS)
            if last is not None:
                yield Sample("tocsin_nccl_last_call_timestamp_seconds", key, last)


def _payloads(rank: RankCounts, key: tuple[str, str]) -> Iterator[Sample]:
    # One for all of them: which one failed first is chance, and the rank's bound of series is tight.
    stats = rank.counted(PAYLOAD_OPS)
    errors = sum(stat.errors for stat in stats.values())
    yield Sample("tocsin_nccl_errors_total", (*key, "transfer"), errors)
    for op, stat in stats.items():
        yield Sample("tocsin_nccl_bytes_total", (*key, op), stat.bytes)
        for size, calls in zip(SIZES, rank.stat.sizes(op_number(op)), strict=True):
            if calls:
                yield Sample("tocsin_nccl_sized_calls_total", (*key, op, size), calls)
    for name, (calls, count) in zip(TYPES, rank.stat.types, strict=True):
        if calls:
            yield Sample("tocsin_nccl_type_bytes_total", (*key, name), count)


def _communicators(rank: RankCounts, key: tuple[str, str]) -> Iterator[Sample]:
    for index, comm in enumerate(rank.stat.comms):
        label = (*key, "other" if index == OTHER_COMM else str(index))
        if comm.ranks:
            yield Sample("tocsin_nccl_communicator_info", (*label, str(comm.ranks), str(comm.rank)), 1)
        if comm.calls:
            yield Sample("tocsin_nccl_communicator_calls_total", label, comm.calls)
            yield Sample("tocsin_nccl_communicator_bytes_total", label, comm.bytes)
            yield Sample(
                "tocsin_nccl_communicator_last_call_timestamp_seconds",
                label,
                comm.last_ns / 1e9 + rank.offset,
            )


def build(bpf: BpfSource | None) -> NcclCollector:
    """Return the collector."""
    return NcclCollector(bpf)
