"""Complaints about events: lost, sticky, doubled, drowned, misread."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.exporter.complaints.node import Agent

from tocsin_exporter.kmsg.xid_classes import CLASSES, table
from tocsin_lab.sim import kmsg, trouble

CODES = "tocsin_gpu_xid_code_errors_total"
CLASS = "tocsin_gpu_xid_errors_total"
WHEN = "tocsin_gpu_event_timestamp_seconds"


@pytest.fixture
def restarted(make: Callable[..., Agent]) -> Iterator[Agent]:
    """An exporter of a test's own, to be killed and started again."""
    agent = make(gpus=1, hcas=0).start()
    yield agent
    agent.close()


@pytest.mark.complaint(1)
def test_the_same_xid_twice_is_counted_twice(agent: Agent) -> None:
    """
    An Xid is a counter with the time of the last one, not a gauge that sticks until a restart.

    NVIDIA/dcgm-exporter#500, #190, #95, #502; NVIDIA/DCGM#277.
    """
    agent.xid(0, 63)
    first = agent.until(lambda scrape: scrape.value(CODES, gpu="0", code="63") == 1)
    agent.xid(0, 63)
    second = agent.until(lambda scrape: scrape.value(CODES, gpu="0", code="63") == 2)
    kind = table()[63].kind

    assert "counter" == second.types[CODES]
    assert 1 == (second.value(CLASS, gpu="0", **{"class": kind}) or 0) - (
        first.value(CLASS, gpu="0", **{"class": kind}) or 0
    )
    before, after = (scrape.value(WHEN, gpu="0", **{"class": kind}) for scrape in (first, second))
    assert before is not None
    assert after is not None
    assert after > before
    assert second.value(CODES, gpu="1", code="63") is None


@pytest.mark.complaint(2)
def test_an_xid_that_the_driver_library_never_reports_is_counted(agent: Agent) -> None:
    """
    Some Xids, 62 among them, come through the kernel log alone.

    NVIDIA/DCGM#235.
    """
    agent.xid(1, 62)

    agent.until(lambda scrape: scrape.value(CODES, gpu="1", code="62") == 1)


@pytest.mark.complaint(2)
def test_an_event_that_comes_both_ways_is_counted_once(agent: Agent) -> None:
    """
    The kernel log and the driver's own events are merged: told by one, the other or both, an Xid is one.

    NVIDIA/DCGM#235.
    """
    sources = "tocsin_exporter_device_events_total"
    before = agent.scrape().total(sources, source="both")
    trouble.emit(agent.paths.devices, 1, trouble.EVENT_XID, 31)
    agent.xid(1, 31)
    agent.until(lambda scrape: scrape.total(sources, source="both") == before + 1)
    trouble.emit(agent.paths.devices, 1, trouble.EVENT_XID, 43)
    agent.until(lambda scrape: scrape.value(CODES, gpu="1", code="43") == 1, 40)

    assert 1 == agent.scrape().value(CODES, gpu="1", code="31")


@pytest.mark.complaint(3)
def test_no_xid_is_missed_or_counted_again_over_a_restart(restarted: Agent) -> None:
    """
    What came before the first start, while the exporter was killed, and after, is each counted once.

    NVIDIA/NVSentinel#1532, #1417; nebius/nebius-solutions-library#1114.
    """
    restarted.stop()
    (restarted.paths.state / "exporter.json").unlink()
    restarted.xid(0, 48)
    restarted.start()
    restarted.until(lambda scrape: scrape.value(CODES, code="48") == 1)

    restarted.xid(0, 48)
    restarted.until(lambda scrape: scrape.value(CODES, code="48") == 2)
    restarted.stop(signal.SIGKILL)
    restarted.xid(0, 48)
    restarted.xid(0, 79)
    restarted.start()

    restarted.until(lambda scrape: scrape.value(CODES, code="79") == 1)
    assert 3 == restarted.scrape().value(CODES, code="48")
    restarted.stop()
    restarted.start()
    again = restarted.until(lambda scrape: scrape.value(CODES, code="79") is not None)
    assert (3, 1) == (again.value(CODES, code="48"), again.value(CODES, code="79"))


@pytest.mark.complaint(4)
def test_a_storm_of_eight_hundred_thousand_lines_is_counted_in_full(restarted: Agent, tmp_path: Path) -> None:
    """
    A storm is counted to the last line, its series are as many as its codes, and scrapes go on meanwhile.

    NVIDIA/NVSentinel#1120: 800,000 lines of Xid 95, 29 of them distinct. Here a tenth of it.
    """
    lines, distinct = 80_000, 29
    pci = restarted.devices[0].pci.rsplit(".", 1)[0]
    size = restarted.paths.kmsg.stat().st_size
    before = restarted.scrape()
    texts = [
        f"NVRM: Xid (PCI:{pci}): 95, pid={1000 + line % distinct}, name=python3, Uncontained: LTC TAG"
        for line in range(lines)
    ]
    kmsg.append(restarted.paths.kmsg, texts)
    assert restarted.paths.kmsg.stat().st_size > size
    during = restarted.scrape()
    after = restarted.until(lambda scrape: scrape.value(CODES, code="95") == lines, 60)

    assert 1 == during.value("tocsin_gpu_up", gpu="0")
    assert lines == after.total(CLASS)
    # One more code and a time: nothing per line, per process or per distinct text.
    told = ("tocsin_gpu_xid", "tocsin_gpu_event", "tocsin_exporter")
    grown = sum(name.startswith(told) for name, _, _ in after.rows) - sum(
        name.startswith(told) for name, _, _ in before.rows
    )
    assert grown <= 4
    assert (restarted.paths.state / "exporter.json").stat().st_size < 1 << 20


@pytest.mark.complaint(5)
def test_a_sympathetic_xid_alone_never_looks_like_a_broken_device(agent: Agent) -> None:
    """
    Xid 45 follows from another process's end: its class asks for nothing, on one node or on seventy-seven.

    NVIDIA/NVSentinel#1710, PR #1629: 672 "fatal" events in three hours.
    """
    before = agent.scrape()
    for _ in range(20):
        agent.xid(0, 45, pid=4242)
    after = agent.until(lambda scrape: scrape.value(CODES, gpu="0", code="45") == 20)

    grown = {
        kind: (after.value(CLASS, gpu="0", **{"class": kind}) or 0)
        - (before.value(CLASS, gpu="0", **{"class": kind}) or 0)
        for kind in CLASSES
    }
    assert {"sympathetic": 20} == {kind: count for kind, count in grown.items() if count}


@pytest.mark.complaint(6)
def test_one_table_classes_every_xid_and_an_unknown_one_is_only_unknown(agent: Agent, tmp_path: Path) -> None:
    """
    The command, the counters and the table agree on each code; a code nobody knows asks for no support case.

    NVIDIA/NVSentinel#1357, #1888, #1252.
    """
    unknown = 1007
    assert unknown not in table()
    log = tmp_path / "kmsg"
    kmsg.create(log, "570.172.08", [], [])
    for code in (*table(), unknown):
        # The NVLink codes are told apart by their registers, which a bare record has not.
        kmsg.xid(log, agent.devices[1].pci, code)
    done = agent.command("parse-kmsg", str(log))
    told = {
        int(event["code"]): event.get("class")
        for event in map(json.loads, done.stdout.splitlines())
        if event["kind"] == "xid"
    }

    assert "unknown" == told[unknown]
    bare = {code for code in table() if not (code in (74, 154) or 144 <= code <= 150)}
    assert {code: table()[code].kind for code in bare} == {code: told[code] for code in bare}
    assert all(row.kind in CLASSES and row.source and row.action for row in table().values())

    agent.xid(1, unknown)
    after = agent.until(lambda scrape: scrape.value(CODES, gpu="1", code=str(unknown)) == 1)
    assert 1 == after.value(CLASS, gpu="1", **{"class": "unknown"})


@pytest.mark.complaint(6)
def test_a_blank_cell_of_the_table_is_an_error_and_shifts_nothing(root: Path, tmp_path: Path) -> None:
    """
    A row with a missing cell stops the program that reads it; no action slips into the column of classes.

    NVIDIA/NVSentinel#1252.
    """
    script = (
        "import sys, importlib.resources as r, pathlib\n"
        "from tocsin_exporter.kmsg import xid_classes as x\n"
        "real = r.files('tocsin_exporter.kmsg')\n"
        "x.resources.files = lambda name: pathlib.Path(sys.argv[1])\n"
        "print(len(x.table()))\n"
    )
    text = (root / "exporter/tocsin_exporter/kmsg/xid.tsv").read_text()
    row = next(line for line in text.splitlines() if line.startswith("48\t"))
    code, _, action, source = row.split("\t")
    for broken in (f"{code}\t\t{action}\t{source}", f"{code}\t{action}\t{source}"):
        (tmp_path / "xid.tsv").write_text(text.replace(row, broken))
        done = subprocess.run(
            [str(root / ".venv/bin/python"), "-c", script, str(tmp_path)], capture_output=True, text=True
        )
        assert 0 != done.returncode, done.stdout
        assert "ValueError" in done.stderr
