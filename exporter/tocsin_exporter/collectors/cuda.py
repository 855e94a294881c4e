"""CUDA calls per rank, and what the probes could not count."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin_exporter.collectors.base import HistogramSample, Sample
from tocsin_exporter.errors import CollectError
from tocsin_exporter.sources.bpf import BpfSource, RankCounts
from tocsin_exporter.sources.bpf.layout import Histogram, OpStat
from tocsin_exporter.sources.bpf.symbols import CUDA_OPS, WAITING_OPS

__all__ = ["NAME", "CudaCollector", "build", "counted"]

NAME = "cuda"

# Launches are probed at entry only.
_ENTRY_ONLY = ("launch", "graph_launch")
_WITH_BYTES = ("memcpy_h2d", "memcpy_d2h", "memcpy_d2d", "memcpy_async", "alloc")
_TIMED = (*WAITING_OPS, "sync_device", "alloc", "module_load")
_LAYERS = ("cuda", "nccl")


def counted(bpf: BpfSource | None) -> tuple[RankCounts, ...]:
    """Return the counts of all ranks; raises `CollectError` where probes are off."""
    if bpf is None:
        raise CollectError("disabled", "eBPF is turned off (--ebpf.backend)")
    failure = bpf.failures.get("probes")
    if failure is not None:
        raise CollectError(failure.reason, failure.detail)
    return bpf.counts()


class CudaCollector:
    """Serves a rank from the moment its driver library is probed: all counters begin at 0."""

    name = NAME

    def __init__(self, bpf: BpfSource | None) -> None:
        self._bpf = bpf

    def collect(self) -> Iterator[Sample | HistogramSample]:
        """Yield the samples of this scrape."""
        for rank in counted(self._bpf):
            key = (rank.job_id, rank.rank)
            for layer in _LAYERS:
                yield Sample("tocsin_rank_probed", (*key, layer), layer in rank.layers)
            if rank.layers:
                for source, value in (
                    ("map_full", rank.stat.drop_map_full),
                    ("ring_full", rank.stat.drop_ring_full),
                    ("rate_guard", rank.stat.drop_rate_guard),
                ):
                    yield Sample("tocsin_rank_probe_drops_total", (*key, source), value)
            if "cuda" in rank.layers:
                yield from self._calls(rank, key)

    def _calls(self, rank: RankCounts, key: tuple[str, str]) -> Iterator[Sample | HistogramSample]:
        stats = rank.counted(CUDA_OPS)
        if "cudart" not in rank.layers:
            # The runtime may be linked into something else, where nothing can be probed.
            stats.pop("sync_device", None)
        for op, stat in stats.items():
            yield from _samples(key, op, stat)
        if "alloc" in stats:
            yield Sample("tocsin_cuda_alloc_failures_total", key, rank.stat.alloc_failures)
        if stats.keys() & set(WAITING_OPS):
            yield _histogram("tocsin_cuda_sync_seconds", key, rank.stat.wait)
        if "launch" in stats:
            yield _histogram("tocsin_cuda_launch_gap_seconds", key, rank.stat.gap)
        last = rank.last_call(CUDA_OPS)
        if last is not None:
            yield Sample("tocsin_cuda_last_call_timestamp_seconds", key, last)


def _samples(key: tuple[str, str], op: str, stat: OpStat) -> Iterator[Sample]:
    label = (*key, op)
    yield Sample("tocsin_cuda_calls_total", label, stat.calls)
    if op not in _ENTRY_ONLY:
        yield Sample("tocsin_cuda_errors_total", label, stat.errors)
    if op in _WITH_BYTES:
        yield Sample("tocsin_cuda_bytes_total", label, stat.bytes)
    if op in _TIMED:
        yield Sample("tocsin_cuda_call_seconds_total", label, stat.spent_ns / 1e9)


def _histogram(name: str, key: tuple[str, str], histogram: Histogram) -> HistogramSample:
    return HistogramSample(name, key, histogram.buckets, histogram.sum_ns / 1e9)


def build(bpf: BpfSource | None) -> CudaCollector:
    """Return the collector."""
    return CudaCollector(bpf)
