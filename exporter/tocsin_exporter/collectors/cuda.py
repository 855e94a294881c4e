"""CUDA driver calls per rank, and what the probes could not count."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin_exporter.collectors.base import HistogramSample, Sample
from tocsin_exporter.errors import CollectError
from tocsin_exporter.sources.bpf import BpfSource, RankCounts
from tocsin_exporter.sources.bpf.layout import Histogram
from tocsin_exporter.sources.bpf.symbols import CUDA_OPS, op_number

__all__ = ["NAME", "CudaCollector", "build", "counted"]

NAME = "cuda"

# Launches are probed at entry only, and a freed address tells nothing by its result.
_WITH_RESULT = tuple(op for op in CUDA_OPS if op not in ("launch", "graph_launch"))


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
            if rank.layers:
                for source, value in (
                    ("map_full", rank.stat.drop_map_full),
                    ("ring_full", rank.stat.drop_ring_full),
                    ("rate_guard", rank.stat.drop_rate_guard),
                ):
                    yield Sample("tocsin_rank_probe_drops_total", (*key, source), value)
            if "cuda" not in rank.layers:
                continue
            for op in CUDA_OPS:
                yield Sample("tocsin_cuda_calls_total", (*key, op), rank.stat.op(op_number(op)).calls)
            for op in _WITH_RESULT:
                yield Sample("tocsin_cuda_errors_total", (*key, op), rank.stat.op(op_number(op)).errors)
            yield _histogram("tocsin_cuda_sync_seconds", key, rank.stat.wait)
            yield _histogram("tocsin_cuda_launch_gap_seconds", key, rank.stat.gap)
            last = rank.last_call(CUDA_OPS)
            if last is not None:
                yield Sample("tocsin_cuda_last_call_timestamp_seconds", key, last)


def _histogram(name: str, key: tuple[str, str], histogram: Histogram) -> HistogramSample:
    return HistogramSample(name, key, histogram.buckets, histogram.sum_ns / 1e9)


def build(bpf: BpfSource | None) -> CudaCollector:
    """Return the collector."""
    return CudaCollector(bpf)
