"""
NVIDIA's own driver and NCCL libraries, called without a GPU: every call fails, and every call is seen.

What a call returns on a node with a GPU was never run here; that it is counted does not hang on it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ebpf import real_libraries
from tests.ebpf.real_libraries import RealLibraries

from tocsin_exporter.collectors import cuda, nccl
from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.sources.bpf.elf import read_dynamic
from tocsin_exporter.sources.bpf.symbols import SYMBOLS, sites

Start = Callable[..., Any]
Call = Callable[..., int]

HERE = Path(__file__).parent

pytestmark = pytest.mark.long

# As cuda.h and nccl.h name them.
_FLOAT32, _BFLOAT16 = 7, 9

# Entry point, times, arguments, kind of call, bytes that it stands for.
CUDA_CALLS: tuple[tuple[str, int, tuple[int, ...], str], ...] = (
    ("cuLaunchKernel", 50, (), "launch"),
    ("cuLaunchKernel_ptsz", 7, (), "launch"),
    ("cuLaunchKernelEx", 3, (), "launch"),
    ("cuGraphLaunch", 4, (), "graph_launch"),
    ("cuMemcpyHtoDAsync_v2", 5, (0, 0, 4096), "memcpy_h2d"),
    ("cuMemcpyDtoH_v2", 6, (0, 0, 4096), "memcpy_d2h"),
    ("cuMemcpyAsync", 2, (0, 0, 64), "memcpy_async"),
    ("cuStreamSynchronize", 8, (), "sync_stream"),
    ("cuStreamSynchronize_ptsz", 1, (), "sync_stream"),
    ("cuEventSynchronize", 9, (), "sync_event"),
    ("cuCtxSynchronize", 10, (), "sync_context"),
    ("cuMemAlloc_v2", 11, (0, 1 << 20), "alloc"),
    ("cuMemAllocAsync", 1, (0, 1 << 20), "alloc"),
    ("cuMemFree_v2", 12, (), "free"),
)
NCCL_CALLS: tuple[tuple[str, int, tuple[int, ...], str, int], ...] = (
    ("ncclAllReduce", 6, (0, 0, 1000, _FLOAT32), "all_reduce", 4000),
    ("ncclAllGather", 5, (0, 0, 1000, _BFLOAT16), "all_gather", 2000),
    ("ncclReduceScatter", 4, (0, 0, 10, _FLOAT32), "reduce_scatter", 40),
    ("ncclBroadcast", 3, (0, 0, 10, _BFLOAT16), "broadcast", 20),
    ("ncclReduce", 2, (0, 0, 1, _FLOAT32), "reduce", 4),
    ("ncclSend", 7, (0, 1 << 20, 0), "send", 1 << 20),
    ("ncclRecv", 8, (0, 1 << 20, 0), "recv", 1 << 20),
)


@pytest.fixture(scope="module")
def real() -> RealLibraries:
    """Both libraries, or a skip that says why not."""
    try:
        return real_libraries.libraries()
    except real_libraries.UnavailableError as err:
        pytest.skip(str(err))


class Caller:
    """A process that makes the calls it is told to make; ``pid`` is as the test's namespace names it."""

    def __init__(self, *libraries: Path, before: tuple[str, ...] = (), python: str = sys.executable) -> None:
        self._answers, write = os.pipe()
        self._process = subprocess.Popen(
            [*before, python, str(HERE / "caller.py"), str(write), *map(str, libraries)],
            stdin=subprocess.PIPE,
            pass_fds=[write],
        )
        os.close(write)
        self._lines = os.fdopen(self._answers, "r")
        assert self._lines.readline() == "ready\n", "the libraries did not load"
        self.pid = self._leaf(self._process.pid)

    @staticmethod
    def _leaf(pid: int) -> int:
        # `unshare --fork` stays as the parent of what it starts.
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return Caller._leaf(int(children[0])) if children else pid

    def call(self, symbol: str, times: int, *arguments: int) -> int:
        """Call and return the last result."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, (symbol, times, *arguments))).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._lines.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._lines.close()


@pytest.fixture
def call_in() -> Iterator[Callable[..., Caller]]:
    """Start callers that end with the test."""
    callers: list[Caller] = []

    def start(*libraries: Path, **options: Any) -> Caller:
        callers.append(Caller(*libraries, **options))
        return callers[-1]

    yield start
    for caller in callers:
        caller.close()


def served(watched: Any) -> Counter[tuple[str, str]]:
    """Return what the collectors serve, by (family, kind of call); other labels are summed over."""
    total: Counter[tuple[str, str]] = Counter()
    for collector in (cuda.build(watched.source), nccl.build(watched.source)):
        for sample in collector.collect():
            if isinstance(sample, Sample) and sample.family.startswith(("tocsin_cuda_", "tocsin_nccl_")):
                total[sample.family, sample.labels[2] if len(sample.labels) > 2 else ""] += int(sample.value)
    return total


def make_all(caller: Caller) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Make every call of both tables; return CUDA calls, NCCL calls and NCCL bytes by kind."""
    cuda_calls: Counter[str] = Counter()
    nccl_calls: Counter[str] = Counter()
    payload: Counter[str] = Counter()
    for symbol, times, arguments, op in CUDA_CALLS:
        caller.call(symbol, times, *arguments)
        cuda_calls[op] += times
    for symbol, times, arguments, op, size in NCCL_CALLS:
        caller.call(symbol, times, *arguments)
        nccl_calls[op] += times
        payload[op] += times * size
    return cuda_calls, nccl_calls, payload


def check(watched: Any, made: tuple[Counter[str], Counter[str], Counter[str]]) -> None:
    """Compare what is served with what was called."""
    seen = served(watched)
    for family, expected in zip(
        ("tocsin_cuda_calls_total", "tocsin_nccl_calls_total", "tocsin_nccl_bytes_total"), made, strict=True
    ):
        assert dict(expected) == {op: seen[family, op] for op in expected}, family


def test_there_are_at_least_46_probe_points(real: RealLibraries) -> None:
    """
    Both libraries together offer 46 places and more, each found by its exported name.
    """
    points: set[tuple[str, int]] = set()
    for path, layer in ((real.cuda, "cuda"), (real.nccl, "nccl")):
        with path.open("rb") as file:
            points |= {(layer, site.offset) for site in sites(read_dynamic(file, SYMBOLS[layer]))}

    assert len(points) >= 46
    assert {"cuda", "nccl"} == {layer for layer, _ in points}


def test_every_call_of_the_real_libraries_is_counted(
    real: RealLibraries, call_in: Start, watch: Start, view: Any
) -> None:
    """
    A process that ran before is probed in both libraries, and counts and bytes are exact; every driver call
    that is probed at its return failed and is counted as failed.
    """
    caller = call_in(real.cuda, real.nccl)
    view.add(caller.pid)
    watched = watch(view)
    watched.probed("cuda", "nccl")

    made = make_all(caller)

    check(watched, made)
    seen = served(watched)
    failing = [op for op in made[0] if op not in ("launch", "graph_launch")]
    assert {op: made[0][op] for op in failing} == {op: seen["tocsin_cuda_errors_total", op] for op in failing}


def test_the_driver_says_that_there_is_no_device(real: RealLibraries, call_in: Start) -> None:
    """
    It is the real library that answers: no device (100), an error without a context, no communicator (4).
    """
    caller = call_in(real.cuda, real.nccl)

    assert caller.call("cuInit", 1) in (100, 999)
    assert caller.call("cuCtxSynchronize", 1) != 0
    assert 4 == caller.call("ncclAllReduce", 1, 0, 0, 1, _FLOAT32)


def test_a_library_that_was_upgraded_is_probed_where_it_still_runs(
    real: RealLibraries, call_in: Start, watch: Start, view: Any, tmp_path: Path
) -> None:
    """
    A driver upgrade under a running job: the old file is gone, its process is counted, and so is a new one.
    """
    library = tmp_path / "libcuda.so.1"
    shutil.copy(real.cuda, library)
    old = call_in(library)
    library.unlink()
    shutil.copy(real.cuda, library)
    new = call_in(library)
    view.add(old.pid, rank="0")
    view.add(new.pid, rank="1")
    watched = watch(view)
    watched.probed("cuda", rank="0")
    watched.probed("cuda", rank="1")

    old.call("cuCtxSynchronize", 3)
    new.call("cuCtxSynchronize", 4)

    counted = {
        sample.labels[1]: sample.value
        for sample in cuda.build(watched.source).collect()
        if isinstance(sample, Sample)
        and sample.family == "tocsin_cuda_calls_total"
        and sample.labels[2] == "sync_context"
    }
    assert {"0": 3, "1": 4} == counted


def test_a_rank_in_namespaces_of_its_own_is_counted(
    real: RealLibraries, call_in: Start, watch: Start, view: Any, tmp_path: Path
) -> None:
    """
    Other mount and pid namespaces, where the library has a path that does not exist outside.
    """
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    for path in (real.cuda, real.nccl):
        os.link(path, outside / path.name) if path.stat().st_dev == outside.stat().st_dev else shutil.copy(
            path, outside / path.name
        )
    script = f'mount --bind "{outside}" "{inside}" && exec "$@"'
    before = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script, "sh")
    try:
        caller = call_in(inside / "libcuda.so.1", inside / "libnccl.so.2", before=before)
    except AssertionError:
        pytest.skip("namespaces cannot be made here")
    view.add(caller.pid)
    watched = watch(view)
    watched.probed("cuda", "nccl")

    check(watched, make_all(caller))
