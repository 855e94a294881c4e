"""How many series a rank can have, and what the collectors make of what the kernel counted."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.exporter.support import collector_set, series

from tocsin_exporter.bpf import build
from tocsin_exporter.collectors import cuda, nccl
from tocsin_exporter.sources.bpf import RankCounts, layout, symbols

MOST_SERIES_PER_RANK = 250


def served(rank: RankCounts) -> list[str]:
    """Return the series of one rank in all tiers."""
    source: Any = SimpleNamespace(failures={}, counts=lambda: (rank,))
    return series(collector_set(cuda.build(source), nccl.build(source)).scrape())


def counted(value: int, *, without: frozenset[str] = frozenset()) -> RankCounts:
    """Return a rank of which every word the kernel counts has *value*."""
    stat = layout.RankStat((value,) * len(layout.RankStat.zero().words))
    return RankCounts("slurm/1", "0", frozenset(("cuda", "cudart", "nccl")), stat, 0.0, without)


def test_a_rank_with_everything_stays_within_the_bound() -> None:
    """
    With every class of size, data type and communicator in use, a rank has at most 250 series.
    """
    assert len(served(counted(1))) <= MOST_SERIES_PER_RANK


def test_what_was_not_used_has_no_series_but_kinds_begin_at_zero() -> None:
    """
    Calls, errors and bytes by kind exist at 0; classes, types and communicators appear with their first call.
    """
    lines = "\n".join(served(counted(0)))

    assert 'tocsin_nccl_calls_total{node="gpu-001",job_id="slurm/1",rank="0",op="all_reduce"} 0' in lines
    assert 'tocsin_cuda_alloc_failures_total{node="gpu-001",job_id="slurm/1",rank="0"} 0' in lines
    assert not re.search("sized_calls|type_bytes|communicator", lines)


def test_an_operation_that_is_left_out_has_no_series() -> None:
    """
    What is not probed on purpose is absent, never 0.
    """
    left_out = frozenset(("alloc", "launch", "all_reduce"))
    lines = "\n".join(served(counted(1, without=left_out)))

    assert not re.search('op="(alloc|launch|all_reduce)"|alloc_failures|launch_gap', lines)
    assert 'op="sync_stream"' in lines


def test_looking_for_errors_is_no_progress() -> None:
    """
    A watchdog asks for errors all the time, most of all while a collective hangs: that is no progress.
    """
    words = list(layout.RankStat.zero().words)
    start = symbols.op_number("async_error") * 5
    words[start], words[start + 3] = 9, 1_000_000_000
    polled = RankCounts("slurm/1", "0", frozenset(("nccl",)), layout.RankStat(tuple(words)), 0.0)

    lines = "\n".join(served(polled))

    assert 'op="async_error"} 9' in lines
    assert "tocsin_nccl_last_call_timestamp_seconds" not in lines


def test_the_numbers_of_the_header_are_those_of_the_reader() -> None:
    """
    The C header and its mirror agree about every bound and place.
    """
    text = (Path(build.FOLDER) / "abi.h").read_text()
    said = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)$", text, re.M)}

    assert {
        "SLOTS": layout.SLOTS,
        "OPS": layout.OPS,
        "BUCKETS": layout.BUCKETS,
        "COMMS": layout.OTHER_COMM + 1,
        "FIRST_PAYLOAD": layout.FIRST_PAYLOAD,
        "PAYLOADS": layout.PAYLOADS,
        "SIZES": len(layout.SIZES),
        "TYPES": len(layout.TYPES),
    } == {name: said[name] for name in said if name not in ("CHUNK", "MAX_CHUNKS", "MAX_STEPS")}
    assert len(symbols.PAYLOAD_OPS) == layout.PAYLOADS
    assert layout.FIRST_PAYLOAD == symbols.op_number(symbols.PAYLOAD_OPS[0])
    assert max(map(symbols.op_number, symbols.OPS)) < symbols.PROBE_OP < layout.OPS
    assert len({symbols.op_number(op) for op in symbols.OPS}) == len(symbols.OPS)
