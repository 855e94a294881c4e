"""Ends, restarts and kills of ranks: by whom they are told, to whom they belong, what a restart keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.kmsg.parse import Event
from tocsin_exporter.life import Key, Life, RankLife
from tocsin_exporter.sources.bpf import ExitEvent
from tocsin_exporter.sources.kmsg import KernelEvent
from tocsin_exporter.sources.latest import ErrorCounter

KEY = ("slurm/7", "3")


def process(pid: int, rank: str = "3", job: str = "slurm/7", start: int | None = None) -> ProcessIdentity:
    ticks = pid if start is None else start
    return ProcessIdentity(pid, ticks, 900.0 + ticks, job, rank, "slurm")


def oom(pid: int, when: float, scope: str = "cgroup", count: int = 1) -> KernelEvent:
    return KernelEvent(Event("oom_kill", 1, {"pid": pid, "process": "python", "scope": scope}, count), when)


class Node:
    """Identity and clock, moved by the test, and the life of what runs here."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.here: dict[int, ProcessIdentity] = {}
        self.gone: list[tuple[ProcessIdentity, float]] = []
        self.children: dict[int, Key] = {}
        self.errors = ErrorCounter()
        self.life = self._new()

    def _new(self) -> Life:
        return Life(self, lambda: self.now, child_of=self.children.get, errors=self.errors)

    def living(self) -> tuple[ProcessIdentity, ...]:
        return tuple(self.here.values())

    def departed(self) -> tuple[tuple[ProcessIdentity, float], ...]:
        return tuple(self.gone)

    def by_pid(self, pid: int) -> ProcessIdentity | None:
        return self.here.get(pid)

    def subscribe(self, arrived: Any, left: Any) -> None:
        for who in self.living():
            arrived(who)

    def start(self, pid: int, rank: str = "3", **more: Any) -> ProcessIdentity:
        self.here[pid] = who = process(pid, rank, **more)
        self.life.arrived(who)
        return who

    def end(self, pid: int, status: int | None = None) -> None:
        """End a process; without a *status* only identity notices."""
        who = self.here.pop(pid)
        self.gone.append((who, self.now))
        if status is not None:
            self.life.ended(ExitEvent(who, status, self.now))
        self.life.left(who)

    def rank(self, key: Key = KEY) -> RankLife:
        return self.life.ranks()[key]

    def again(self, *, alive: bool = True, gone_at: float | None = None) -> None:
        """Stop the exporter and start it again, with what its state file kept."""
        kept = json.loads(json.dumps(self.life.saved()))
        self.gone.clear()
        self.life = self._new()
        self.life.restore(kept)
        if alive:
            self.life.start(lambda pid, ticks: pid in self.here and self.here[pid].start_ticks == ticks)
        else:
            self.life.start(None, gone_at)


@pytest.fixture
def node() -> Node:
    return Node()


def test_restarts_are_counted_from_the_second_start_on(node: Node) -> None:
    """A rank that ended and is started anew: each start after the first is a restart."""
    for attempt, status in enumerate((9, 1 << 8, None)):
        node.start(10 + attempt)
        node.end(10 + attempt, status)
        node.now += 10
    node.start(20)

    assert 3 == node.rank().restarts
    assert {"ok": 0, "error": 1, "signal": 1, "unknown": 1} == node.rank().counts


def test_a_change_of_mind_is_no_restart(node: Node) -> None:
    """Identity finds the rank below its wrapper: nothing has ended, nothing was started again."""
    wrapper = node.start(10)
    del node.here[10]
    node.life.left(wrapper)
    node.start(11)
    node.now += 5

    assert 0 == node.rank().restarts
    assert {0} == set(node.rank().counts.values())


def test_a_short_life_below_a_wrapper_has_an_end(node: Node) -> None:
    """Also when nobody has scraped since identity took the wrapper for the rank."""
    wrapper = node.start(10)
    del node.here[10]
    node.life.left(wrapper)
    node.start(11)
    node.now += 9
    node.end(11, 1 << 8)

    assert {"ok": 0, "error": 1, "signal": 0, "unknown": 0} == node.rank().counts


def test_a_report_that_comes_too_late_counts_nothing_twice(node: Node) -> None:
    """The end was counted as unknown; its signal is served all the same."""
    who = node.start(10)
    node.end(10)
    node.now += 10
    assert 1 == node.rank().counts["unknown"]

    node.life.ended(ExitEvent(who, 9, 1000.5))

    assert {"ok": 0, "error": 0, "signal": 0, "unknown": 1} == node.rank().counts
    assert (1000.5, "", "9") == node.rank().last


def test_core_dumps_are_counted(node: Node) -> None:
    """The status says whether memory was written out."""
    for pid, status in ((10, 11), (11, 11 | 0x80)):
        node.start(pid)
        node.end(pid, status)

    assert (1, 2) == (node.rank().cores, node.rank().counts["signal"])


def test_a_kill_for_lack_of_memory_belongs_to_the_rank(node: Node) -> None:
    """By the pid in the kernel log, before or after the end is known, by whose memory ran out."""
    node.start(10)
    node.life.on_log([oom(10, 1001.0)])
    node.now = 1001.5
    node.end(10, 9)
    node.start(11, "4")
    node.now = 1003.0
    node.end(11, 9)
    node.life.on_log([oom(11, 1002.0, "global")])

    assert ({"cgroup": 1, "global": 0}, {"cgroup": 1001.0}) == (node.rank().kills, node.rank().killed)
    assert {"cgroup": 0, "global": 1} == node.rank(("slurm/7", "4")).kills


def test_a_killed_child_belongs_to_its_rank(node: Node) -> None:
    """A data loader that is killed counts for the rank; what is in no job counts for nobody."""
    node.start(10)
    node.children[12] = KEY
    node.life.on_log([oom(12, 999.0, count=2), oom(13, 999.0)])

    assert {"cgroup": 2, "global": 0} == node.rank().kills
    assert [KEY] == list(node.life.ranks())


@pytest.mark.parametrize(
    ("pid", "when"),
    [
        pytest.param(10, 880.0, id="before the process started"),
        pytest.param(11, 1100.0, id="long after it had ended"),
        pytest.param(12, 800.0, id="a child's pid of long ago"),
    ],
)
def test_a_pid_of_another_time_is_somebody_else(pid: int, when: float, node: Node) -> None:
    """Pids are used again: a kill at a time when the rank did not live is not the rank's."""
    node.start(10)
    node.start(11)
    node.end(11, 9)
    node.children[12] = KEY
    node.now = 1200.0
    node.life.on_log([oom(pid, when)])

    assert {"cgroup": 0, "global": 0} == node.rank().kills


def test_a_killed_process_without_a_rank_counts_for_its_job(node: Node) -> None:
    """A child of what has no rank: kills have a series, ends of ranks have none."""
    node.children[12] = ("k8s/ns/engine", "")
    node.life.on_log([oom(12, 999.0)])

    rank = node.rank(("k8s/ns/engine", ""))
    assert (1, False) == (rank.kills["cgroup"], rank.ranked)


def test_a_restart_keeps_what_was_counted(node: Node) -> None:
    """Ends, restarts, cores and kills of before the exporter's restart are served after it."""
    node.start(10)
    node.life.on_log([oom(10, 1000.0)])
    node.end(10, 9 | 0x80)
    node.start(11)
    before = node.rank()
    node.again()
    after = node.rank()

    for fact in ("counts", "cores", "restarts", "last", "kills", "killed", "main"):
        assert getattr(before, fact) == getattr(after, fact), fact
    node.now += 100
    assert 0 == node.rank().counts["unknown"]


def test_an_end_that_no_exporter_saw_is_unknown(node: Node) -> None:
    """A rank that lived when the exporter stopped and is gone when it is back has ended somehow."""
    node.start(10)
    node.start(20, "4")
    node.here.pop(10)
    node.start(30, "5")
    node.here[30] = process(30, "6", start=31)
    node.now = 1500.0
    node.again()

    assert (1, (1500.0, "", "")) == (node.rank().counts["unknown"], node.rank().last)
    assert 0 == node.rank(("slurm/7", "4")).counts["unknown"]
    assert 1 == node.rank(("slurm/7", "5")).counts["unknown"]
    node.again()
    assert 1 == node.rank().counts["unknown"]


def test_a_rank_that_was_started_anew_meanwhile_has_restarted(node: Node) -> None:
    """One end unseen, one restart."""
    node.start(10)
    node.here = {11: process(11)}
    node.again()

    assert (1, 1) == (node.rank().counts["unknown"], node.rank().restarts)


def test_a_reboot_ends_all_ranks(node: Node) -> None:
    """After a reboot no process of before lives, whatever has its pid; it ended before the boot."""
    node.start(10)
    node.now = 2000.0
    node.again(alive=False, gone_at=1800.0)

    assert (1800.0, "", "") == node.rank().last


def test_a_kill_while_nobody_looked_is_the_ranks(node: Node) -> None:
    """The kernel log is read on from where it was left: a kill in the gap goes to the rank that it ended."""
    node.start(10)
    node.here.clear()
    node.now = 1300.0
    node.again()
    node.life.on_log([oom(10, 1200.0), oom(10, 1400.0)])

    assert {"cgroup": 1, "global": 0} == node.rank().kills


def test_an_alive_process_that_identity_does_not_find_is_let_go(node: Node) -> None:
    """Half a minute after the start a rank that is not found has ended, as far as anybody can tell."""
    node.start(10)
    kept = node.life.saved()
    node.here.clear()
    node.life = node._new()
    node.life.restore(kept)
    node.life.start(lambda _pid, _ticks: True)
    assert 0 == node.rank().counts["unknown"]

    node.now += 31

    assert 1 == node.rank().counts["unknown"]


@pytest.mark.parametrize(
    "rows", [None, 7, {"a": 1}, [None], [["job"]], [["slurm/7", "3", {}, 0, 0, None, {}, {}, None, None, 0]]]
)
def test_a_state_that_makes_no_sense_is_counted(rows: Any, node: Node) -> None:
    """What cannot be read is left out, and said."""
    node.life.restore({"ranks": rows, "last": rows})

    assert {("state", "bad_data"): 2} == node.errors.counts()
    assert {} == node.life.ranks()
    assert {} == node.life.last_facts({})


def test_the_last_facts_of_a_rank_outlive_a_restart(node: Node) -> None:
    """Losses as printed, no number too, until 15 minutes after they were told; newer ones replace them."""
    facts = {KEY: {"step": 7.0, "loss": float("nan")}, ("slurm/7", "4"): {"step": 8.0}}
    node.life.last_facts(facts)
    node.now += 600
    node.life.last_facts(facts)
    node.again()
    kept = node.life.last_facts({("slurm/7", "4"): {"step": 9.0}})

    assert repr({"step": 7.0, "loss": float("nan")}) == repr(kept[KEY])
    assert {"step": 9.0} == kept["slurm/7", "4"]
    node.now += 301
    assert {("slurm/7", "4"): {"step": 9.0}} == node.life.last_facts({})


def test_ranks_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many ranks the longest dead goes first, a living one stays."""
    monkeypatch.setattr("tocsin_exporter.life._MOST_RANKS", 3)
    for pid in (1, 2, 3):
        node.start(pid, str(pid))
    for pid in (2, 3):
        node.now += 1
        node.end(pid, 0)
    node.start(4, "4")

    assert ["1", "3", "4"] == sorted(rank for _, rank in node.life.ranks())
    assert {("life", "too_many_ranks"): 1} == node.errors.counts()
