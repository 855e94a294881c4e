"""Calls of the CUDA driver and NCCL, counted by real uprobes in real processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tocsin_exporter.sources.bpf import Limits, Rung
from tocsin_exporter.sources.bpf.symbols import op_number

Start = Callable[..., Any]

RUNGS = [pytest.param(rung, id=rung.value) for rung in Rung]


def calls(counts: Any, op: str) -> int:
    return int(counts.stat.op(op_number(op)).calls)


def comm_calls(counts: Any) -> tuple[int, ...]:
    return tuple(comm.calls for comm in counts.stat.comms)


@pytest.mark.parametrize("rung", RUNGS)
def test_each_rung_counts_exactly(rung: Rung, watch: Start, new_rank: Start, view: Any) -> None:
    """
    Every way of attaching gives the same exact counts, errors and bytes for a process that ran before.
    """
    rank = new_rank()
    view.add(rank.pid)
    watched = watch(view, rungs=(rung,))
    watched.probed("cuda", "nccl")

    rank.do("launch 1000", "alloc 3 100", "alloc 2 4096", "copy 4", "sync 5 0", "fail", "ctx 7")
    rank.do("init", "use 0 6 1000 7", "gather 0 10 9", "reduce 0 10 8", "send 0 3 1", "group 2", "destroy 0")
    counts = watched.rank()

    assert rung.value == watched.source.rung
    expected = {
        "launch": 1000,
        "alloc": 5,
        "memcpy_h2d": 4,
        "sync_stream": 6,
        "sync_context": 7,
        "comm_init": 1,
        "all_reduce": 6,
        "all_gather": 1,
        "reduce": 1,
        "send": 1,
        "group_end": 2,
        "comm_destroy": 1,
    }
    assert expected == {op: calls(counts, op) for op in expected}
    assert (2, 1, 0) == tuple(
        counts.stat.op(op_number(op)).errors for op in ("alloc", "sync_stream", "sync_context")
    )
    assert (24000, 20, 80, 3) == tuple(
        counts.stat.op(op_number(op)).bytes for op in ("all_reduce", "all_gather", "reduce", "send")
    )
    assert (9, *[0] * 16) == comm_calls(counts)


def test_sync_latency_is_the_time_of_the_call(watch: Start, new_rank: Start, view: Any) -> None:
    """
    A synchronising call of 20 ms is in the bucket above 10 ms, and the sum is no less than slept.
    """
    rank = new_rank()
    view.add(rank.pid)
    watched = watch(view)
    watched.probed("cuda")

    rank.do("sync 3 20000", "sync 4 0")
    wait = watched.rank().stat.wait

    assert 7 == sum(wait.buckets)
    assert 3 == sum(wait.buckets[4:])
    assert wait.sum_ns >= 60_000_000


def test_gaps_are_between_launches_of_one_thread(watch: Start, new_rank: Start, view: Any) -> None:
    """
    N launches give N - 1 gaps, and a pause between two of them is one long gap.
    """
    rank = new_rank()
    view.add(rank.pid)
    watched = watch(view)
    watched.probed("cuda")

    rank.do("launch 50", "sync 1 30000", "launch 50")
    gap = watched.rank().stat.gap

    assert 99 == sum(gap.buckets)
    assert gap.sum_ns >= 30_000_000
    assert sum(gap.buckets[6:]) >= 1


def test_communicators_are_told_apart_by_creation(watch: Start, new_rank: Start, view: Any) -> None:
    """
    Calls count per communicator in order of creation; from the 17th on they share the last place.
    """
    rank = new_rank()
    view.add(rank.pid)
    watched = watch(view)
    watched.probed("nccl")

    rank.do(*["init"] * 18, "use 1 5 1 0", "use 0 2 1 0", "use 16 3 1 0", "use 17 4 1 0")

    assert (2, 5, *[0] * 14, 7) == comm_calls(watched.rank())


def test_a_communicator_from_before_the_probe_counts_from_its_first_call(
    watch: Start, new_rank: Start, view: Any
) -> None:
    """
    A communicator whose creation was not seen gets its place with its first call.
    """
    rank = new_rank()
    rank.do("init", "init")
    view.add(rank.pid)
    watched = watch(view)
    watched.probed("nccl")

    rank.do("use 1 3 1 0", "use 0 2 1 0")

    assert (3, 2) == comm_calls(watched.rank())[:2]


def test_only_targets_count(watch: Start, new_rank: Start, view: Any) -> None:
    """
    A process that identity does not know leaves no trace, although its library is probed.
    """
    rank, stranger = new_rank(), new_rank()
    view.add(rank.pid)
    watched = watch(view)
    watched.needs_output()
    watched.probed("cuda")

    stranger.do("launch 100", "print unseen", "newline")
    rank.do("launch 1", "print seen", "newline")
    watched.until(lambda: b"seen\n" == watched.text())

    assert ["0"] == [counts.rank for counts in watched.source.counts()]
    assert 1 == calls(watched.rank(), "launch")


def test_two_exporters_see_only_their_own(watch: Start, new_rank: Start, view: Any) -> None:
    """
    Two sources on one kernel probe the same files and count each call once, each for its own ranks.
    """
    first, second = new_rank(), new_rank()
    other = type(view)()
    view.add(first.pid, rank="0")
    other.add(second.pid, rank="1")
    watched, watched_other = watch(view), watch(other)
    watched.probed("cuda", rank="0")
    watched_other.probed("cuda", rank="1")

    first.do("launch 10")
    second.do("launch 20")

    assert [("0", 10)] == [(c.rank, calls(c, "launch")) for c in watched.source.counts()]
    assert [("1", 20)] == [(c.rank, calls(c, "launch")) for c in watched_other.source.counts()]


def test_a_rank_in_several_processes_is_one_and_never_falls(watch: Start, new_rank: Start, view: Any) -> None:
    """
    A rank's counters are the sum over its processes and keep what an ended one had counted.
    """
    main, worker = new_rank(), new_rank()
    view.add(main.pid)
    view.add(worker.pid)
    watched = watch(view)
    watched.probed("cuda")

    main.do("launch 10")
    worker.do("launch 5")
    assert 15 == calls(watched.rank(), "launch")
    worker.say("exit 0")
    worker.wait()
    watched.until(lambda: len(watched.exits) == 1)

    assert 15 == calls(watched.rank(), "launch")


def test_the_rate_guard_counts_what_it_leaves_out(watch: Start, new_rank: Start, view: Any) -> None:
    """
    Launches above the limit are counted; only their gaps are left out, which is told.
    """
    rank = new_rank()
    view.add(rank.pid)
    watched = watch(view, limits=Limits(launches=100))
    watched.probed("cuda")

    rank.do("launch 1000")
    counts = watched.rank()

    assert counts.stat.drop_rate_guard > 0
    assert 1000 == calls(counts, "launch")
    # The first launch of a thread has no gap.
    assert 999 == sum(counts.stat.gap.buckets) + counts.stat.drop_rate_guard


def test_nothing_is_left_after_stop(watch: Start, new_rank: Start, view: Any) -> None:
    """
    After the stop this process holds no BPF object, and calls cost no trap any more.
    """
    rank = new_rank()
    view.add(rank.pid)
    watched = watch(view)
    watched.probed("cuda", "nccl")
    held = bpf_descriptors()

    watched.source.stop()

    assert held
    assert [] == bpf_descriptors()
    assert () == watched.source.counts()
    rank.do("launch 1")


def bpf_descriptors() -> list[str]:
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return [name for name in names if "bpf" in name or "perf_event" in name]


def test_what_is_not_wanted_is_not_attached(watch: Start, new_rank: Start, view: Any) -> None:
    """
    A collector that is turned off costs no probe: its calls and its output are not seen.
    """
    rank = new_rank()
    view.add(rank.pid)
    watched = watch(view, wanted={"nccl"})
    watched.probed("nccl")

    rank.do("launch 5", "group 2", "print unseen", "newline")
    counts = watched.rank()

    assert {"nccl"} == counts.layers
    assert [0, 2] == [calls(counts, op) for op in ("launch", "group_end")]
    assert 0 == counts.stat.out_bytes
