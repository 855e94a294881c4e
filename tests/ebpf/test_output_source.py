"""Lines from pieces, and whose training they tell of."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tocsin_exporter.collectors import output
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.sources.bpf import OutputChunk
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.output import OutputSource
from tocsin_exporter.sources.tail import Tails

Start = Callable[..., Any]

LINE = " iteration {0:8d}/    1000 | lm loss: {1:.6E} | grad norm: 0.5 |\n"


def process(pid: int, rank: str) -> ProcessIdentity:
    return ProcessIdentity(pid, pid * 10, 0.0, "torchrun/demo", rank, "torchrun")


class Known:
    """An identity view of fixed processes."""

    def __init__(self, *processes: ProcessIdentity) -> None:
        self.processes = processes
        self.left: Any = None

    def living(self) -> tuple[ProcessIdentity, ...]:
        return self.processes

    def departed(self) -> tuple[tuple[ProcessIdentity, float], ...]:
        return ()

    def by_pid(self, pid: int) -> ProcessIdentity | None:
        return None

    def subscribe(self, arrived: Any, left: Any) -> None:
        self.left = left
        for each in self.processes:
            arrived(each)


class Clock:
    """A clock that the test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def last_steps(made: OutputSource) -> dict[tuple[str, str], int | None]:
    return {key: training.step for key, training in made.ended_training().items()}


def source(*processes: ProcessIdentity, clock: Clock | None = None) -> tuple[OutputSource, Known]:
    known = Known(*processes)
    made = OutputSource(known, ErrorCounter(), None, clock=clock or Clock())
    known.subscribe(made._arrived, made._left)
    return made, known


def give(
    made: OutputSource, who: ProcessIdentity, text: str, when: float = 1.0, *, gap: bool = False
) -> None:
    made.feed(OutputChunk(who, 1, 1, text.encode(), when, gap))


def value(made: OutputSource, family: str, rank: str) -> list[float]:
    collector = output.build(made, None)
    return [each.value for each in collector.collect() if each.family == family and each.labels[1] == rank]


def test_a_line_in_many_pieces_is_one_line() -> None:
    """
    A line is read when its end arrives, however it was cut, and counted once.
    """
    who = process(10, "0")
    made, _ = source(who)

    for character in LINE.format(7, 2.5):
        give(made, who, character)

    assert [7] == value(made, "tocsin_training_step", "0")
    assert [1] == value(made, "tocsin_training_output_lines_total", "0")


def test_no_line_is_joined_over_a_gap() -> None:
    """
    After lost output the rest of the cut line is dropped and counted; the next line is read.
    """
    who = process(10, "0")
    made, _ = source(who)

    give(made, who, " iteration       99/")
    give(made, who, "   77/    1000 | lm loss: 9.9 |\n" + LINE.format(8, 2.0), gap=True)

    assert [8] == value(made, "tocsin_training_step", "0")
    assert [len(" iteration       99/") + len("   77/    1000 | lm loss: 9.9 |")] == value(
        made, "tocsin_training_output_dropped_bytes_total", "0"
    )


def test_an_endless_line_is_dropped_and_counted() -> None:
    """
    A line without an end costs bounded memory, every dropped byte is counted, and the next line is read.
    """
    who = process(10, "0")
    made, _ = source(who)

    for _ in range(20):
        give(made, who, "x" * 10000)
    give(made, who, "y\n" + LINE.format(8, 2.0))

    assert [200001] == value(made, "tocsin_training_output_dropped_bytes_total", "0")
    assert [8] == value(made, "tocsin_training_step", "0")


def test_a_launcher_repeats_and_does_not_count() -> None:
    """
    What a launcher prints of its ranks is not progress of its own, nor counted for the ranks again.
    """
    launcher, rank = process(1, ""), process(10, "0")
    made, _ = source(launcher, rank)

    give(made, rank, LINE.format(7, 2.5))
    give(made, launcher, "[rank0]:" + LINE.format(9, 2.5) + LINE.format(10, 2.5))

    assert [7] == value(made, "tocsin_training_step", "0")
    assert [] == value(made, "tocsin_training_step", "")


def test_a_job_without_ranks_counts_for_itself() -> None:
    """
    A process that belongs to a job and has no rank is served with an empty rank.
    """
    who = process(10, "")
    made, _ = source(who)

    give(made, who, LINE.format(7, 2.5))

    assert [7] == value(made, "tocsin_training_step", "")


def test_counters_of_a_living_rank_begin_at_zero() -> None:
    """
    Before a rank prints anything its counters are 0 and its gauges absent.
    """
    made, _ = source(process(10, "0"))

    assert [0] == value(made, "tocsin_training_nonfinite_losses_total", "0")
    assert [0] * 4 == value(made, "tocsin_training_events_total", "0")
    assert [] == value(made, "tocsin_training_step", "0")
    assert [] == value(made, "tocsin_training_phase", "0")


def test_a_new_process_of_a_rank_begins_with_nothing() -> None:
    """
    The end of a rank leaves its last step as a fact; its next process starts anew.
    """
    who = process(10, "0")
    made, known = source(who)
    give(made, who, LINE.format(7, 2.5))

    known.left(who)
    made._arrived(process(11, "0"))

    assert {("torchrun/demo", "0"): 7} == last_steps(made)
    assert [] == value(made, "tocsin_training_step", "0")


def test_last_words_count_although_the_end_was_noticed_before() -> None:
    """
    Lines that arrive just after the end, even one without an end of its own, belong to the rank.
    """
    clock = Clock()
    who = process(10, "0")
    made, known = source(who, clock=clock)

    known.left(who)
    give(made, who, LINE.format(8, 2.5) + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")
    clock.now += 3

    assert {("torchrun/demo", "0"): 8} == last_steps(made)
    assert [] == value(made, "tocsin_training_step", "0")
    assert [1, 0, 0, 0] == value(made, "tocsin_training_events_total", "0")


def test_failures_outlive_the_rank_and_its_next_attempt_adds_to_them() -> None:
    """
    What a rank died of is served for 15 minutes, and the count never falls between attempts.
    """
    clock = Clock()
    who = process(10, "0")
    made, known = source(who, clock=clock)
    give(made, who, "RuntimeError: CUDA error: out of memory\n")
    known.left(who)
    clock.now += 890
    assert [1, 0, 0, 0] == value(made, "tocsin_training_events_total", "0")

    made._arrived(process(11, "0"))
    give(made, process(11, "0"), "RuntimeError: CUDA error: out of memory\n")
    assert [2, 0, 0, 0] == value(made, "tocsin_training_events_total", "0")

    made._left(process(11, "0"))
    clock.now += 910
    value(made, "tocsin_training_events_total", "0")

    assert [] == value(made, "tocsin_training_events_total", "0")


def test_files_are_followed_from_their_end(tmp_path: Path) -> None:
    """
    A file behind stdout is read from where it ends at first sight, once although two ranks share it.
    """
    log = tmp_path / "log"
    log.write_text("old\n")
    for pid in (10, 11):
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        for fd in (1, 2):
            (folder / str(fd)).symlink_to(log)
    tails = Tails(tmp_path)
    living = (process(11, "1"), process(10, "0"))
    assert [] == list(tails.read(living))

    with log.open("a") as file:
        file.write("new\n")
    found = list(tails.read(living))
    log.write_text("anew\n")
    after = list(tails.read(living))
    tails.close()

    assert [("0", b"new\n", False)] == [(who.rank, data, gap) for who, _, data, gap in found]
    assert [(b"\nanew\n", True)] == [(data, gap) for _, _, data, gap in after]


def test_without_capture_a_real_process_is_tailed(new_rank: Start, view: Any, tmp_path: Path) -> None:
    """
    Where nothing is captured in the kernel, the file that a rank writes to is read.
    """
    with (tmp_path / "log").open("wb") as log:
        rank = new_rank(stdout=log.fileno())
    made = OutputSource(view, ErrorCounter(), None)
    made.start()
    view.add(rank.pid)
    try:
        for number in range(60):
            rank.do("print " + LINE.format(number, 2.5).strip(), "newline")
            if value(made, "tocsin_training_step", "0"):
                break
            time.sleep(0.1)
        assert value(made, "tocsin_training_step", "0")
    finally:
        made.stop()


def test_captured_output_is_not_tailed_too(watch: Start, new_rank: Start, view: Any, tmp_path: Path) -> None:
    """
    With capture in the kernel each line counts once, although it also ends up in a file.
    """
    with (tmp_path / "log").open("wb") as log:
        rank = new_rank(stdout=log.fileno())
    view.add(rank.pid)
    watched = watch(view)
    watched.needs_output()
    made = OutputSource(view, ErrorCounter(), watched.source)
    made.start()
    watched.source.listen_output(made.feed)
    rank.do("print one", "newline", "print two", "newline")
    watched.until(lambda: bool(value(made, "tocsin_training_output_lines_total", "0")[0]))
    time.sleep(1.5)
    made.stop()

    assert [2] == value(made, "tocsin_training_output_lines_total", "0")
