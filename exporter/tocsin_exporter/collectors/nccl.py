"""NCCL calls per rank, in all and per communicator."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.collectors.cuda import counted
from tocsin_exporter.sources.bpf import BpfSource
from tocsin_exporter.sources.bpf.layout import OTHER_COMM
from tocsin_exporter.sources.bpf.symbols import NCCL_OPS, op_number

__all__ = ["NAME", "NcclCollector", "build"]

NAME = "nccl"

_WITH_PAYLOAD = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send", "recv")


class NcclCollector:
    """Serves a rank from the moment its NCCL is probed: all counters begin at 0."""

    name = NAME

    def __init__(self, bpf: BpfSource | None) -> None:
        self._bpf = bpf

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        for rank in counted(self._bpf):
            if "nccl" not in rank.layers:
                continue
            key = (rank.job_id, rank.rank)
            for op in NCCL_OPS:
                yield Sample("tocsin_nccl_calls_total", (*key, op), rank.stat.op(op_number(op)).calls)
            for op in _WITH_PAYLOAD:
                yield Sample("tocsin_nccl_bytes_total", (*key, op), rank.stat.op(op_number(op)).bytes)
            for index, calls in enumerate(rank.stat.comm_calls):
                if calls:
                    comm = "other" if index == OTHER_COMM else str(index)
                    yield Sample("tocsin_nccl_communicator_calls_total", (*key, comm), calls)
            last = rank.last_call(NCCL_OPS)
            if last is not None:
                yield Sample("tocsin_nccl_last_call_timestamp_seconds", key, last)


def build(bpf: BpfSource | None) -> NcclCollector:
    """Return the collector."""
    return NcclCollector(bpf)
