"""What ranks write and how they end, seen at tracepoints."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tocsin_exporter.sources.bpf import Limits

Start = Callable[..., Any]


@pytest.fixture
def watched(watch: Start, view: Any) -> Any:
    watched = watch(view)
    watched.needs_output()
    return watched


def test_output_of_a_running_process_is_seen(watched: Any, new_rank: Start, view: Any) -> None:
    """
    What a process writes to stdout and stderr is seen, each on its own, wherever the descriptor leads.
    """
    rank = new_rank()
    view.add(rank.pid, rank="3")

    rank.do("print iteration ", "err trouble", "print 5", "newline", "vec several")
    watched.until(lambda: watched.text().endswith(b">\n"))

    assert b"iteration 5\n<several>\n" == watched.text()
    assert b"trouble" == watched.text(fd=2)
    assert {"3"} == {chunk.process.rank for chunk in watched.output}


def test_a_long_write_is_cut_and_counted(watched: Any, new_rank: Start, view: Any) -> None:
    """
    Of one write 16 KiB are seen; the rest is counted, and what comes next is marked as after a gap.
    """
    rank = new_rank()
    view.add(rank.pid)

    rank.do("big 16384", "big 20000", "print after")
    watched.until(lambda: watched.text().endswith(b"after"))

    assert 16384 * 2 + 5 == len(watched.text())
    assert 20000 - 16384 == watched.rank().stat.out_dropped_bytes
    assert [watched.output[-1]] == [chunk for chunk in watched.output if chunk.gap]


def test_a_flood_is_bounded_per_rank(watch: Start, new_rank: Start, view: Any) -> None:
    """
    Above the limit per second a rank's output is dropped and counted byte by byte.
    """
    rank = new_rank()
    view.add(rank.pid)
    watched = watch(view, limits=Limits(output_bytes=8192))
    watched.needs_output()

    rank.do(*["big 4096"] * 10)
    stat = watched.rank().stat

    assert stat.out_dropped_bytes > 0
    assert 40960 == stat.out_bytes + stat.out_dropped_bytes


@pytest.mark.parametrize(
    ("command", "code", "number"),
    [
        pytest.param("exit 0", 0, 0, id="a clean end"),
        pytest.param("exit 3", 3, 0, id="an exit code"),
        pytest.param("signal 9", 0, signal.SIGKILL, id="killed"),
        pytest.param("signal 11", 0, signal.SIGSEGV, id="a crash"),
    ],
)
def test_an_exit_is_told_with_code_or_signal(
    command: str, code: int, number: int, watched: Any, new_rank: Start, view: Any
) -> None:
    """
    The end of a rank is reported once, after its output, with its exit code or signal.
    """
    rank = new_rank()
    view.add(rank.pid)

    rank.do("print last words")
    rank.say(command)
    rank.wait()
    watched.until(lambda: bool(watched.exits))

    assert [(code, number)] == [(event.code, event.signal) for event in watched.exits]
    assert b"last words" == watched.text()
    assert () == watched.source.counts()


def test_a_process_ends_with_its_last_thread(watched: Any, new_rank: Start, view: Any) -> None:
    """
    When the first thread ends before the others, the end is the last one's, with the process's code.
    """
    rank = new_rank()
    view.add(rank.pid)

    rank.do("thread-exit 7")
    rank.wait()
    watched.until(lambda: bool(watched.exits))

    assert [7] == [event.code for event in watched.exits]


def test_a_reused_pid_is_no_target(watched: Any, new_rank: Start, view: Any) -> None:
    """
    An ended process is no target any more, even before identity has noticed the end.
    """
    rank = new_rank()
    view.add(rank.pid)

    rank.say("exit 1")
    rank.wait()
    watched.until(lambda: bool(watched.exits))
    view.remove(rank.pid)

    assert () == watched.source.counts()
    assert 1 == len(watched.exits)
