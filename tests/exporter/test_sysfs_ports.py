"""Ports from recorded sysfs trees."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from tocsin_exporter.attribution import Attribution, HeldPort, Published
from tocsin_exporter.collectors.fabric import FabricCollector
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.sysfs import Expectation, FabricSource, distance, read_ports

STATE = {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}


def tree(
    root: Path, *, counters: dict[str, str], hw: dict[str, str] | None = None, device: str = "mlx5_0"
) -> Path:
    here = root / "class/infiniband" / device / "ports/1"
    for folder, files in (("", STATE), ("counters", counters), ("hw_counters", hw or {})):
        (here / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (here / folder / name).write_text(text + "\n")
    return here


def test_data_counters_are_words_of_four_octets(tmp_path: Path) -> None:
    """The traffic counters are bytes, the others counts, the rate bytes per second."""
    tree(
        tmp_path,
        counters={"port_rcv_data": "1000", "port_xmit_data": "5", "symbol_error": "7", "link_downed": "2"},
    )
    (port,) = read_ports(tmp_path, ErrorCounter())

    assert (4000.0, 20.0) == (
        port.counters[("receive_bytes_total", ())],
        port.counters[("transmit_bytes_total", ())],
    )
    assert 7.0 == port.counters[("errors_total", ("symbol_error",))]
    assert 2.0 == port.counters[("link_downed_total", ())]
    assert (True, 5e10, "mlx5_0/1") == (port.active, port.rate, port.name)


def test_missing_files_are_gaps_and_no_errors(tmp_path: Path) -> None:
    """A port without counters/ (soft RoCE) is served with what it has."""
    tree(tmp_path, counters={}, hw={"packet_seq_err": "3"})
    errors = ErrorCounter()
    (port,) = read_ports(tmp_path, errors)

    assert {("errors_total", ("packet_seq_err",)): 3.0} == port.counters
    assert {} == errors.counts()


def test_an_unreadable_file_is_a_gap_and_a_count(tmp_path: Path) -> None:
    """A file that cannot be read costs its own value and is counted by its name."""
    here = tree(tmp_path, counters={"symbol_error": "1", "port_rcv_errors": "2"})
    (here / "counters/VL15_dropped").mkdir()
    errors = ErrorCounter()
    (port,) = read_ports(tmp_path, errors)

    assert 1.0 == port.counters[("errors_total", ("symbol_error",))]
    assert ("errors_total", ("VL15_dropped",)) not in port.counters
    assert {("sysfs", "VL15_dropped"): 1} == errors.counts()


def test_a_pipe_among_the_files_is_not_waited_for(tmp_path: Path) -> None:
    """A FIFO, with or without a writer, costs its own value, is counted, and holds nobody up."""
    here = tree(tmp_path, counters={"symbol_error": "1"})
    os.mkfifo(here / "counters/port_rcv_errors")
    os.mkfifo(here / "counters/VL15_dropped")
    writer = os.open(here / "counters/VL15_dropped", os.O_RDWR)
    errors = ErrorCounter()
    (port,) = read_ports(tmp_path, errors)
    os.close(writer)

    assert {("errors_total", ("symbol_error",)): 1.0} == port.counters
    assert {("sysfs", "port_rcv_errors"): 1, ("sysfs", "VL15_dropped"): 1} == errors.counts()


@pytest.mark.parametrize(
    ("text", "active"),
    [
        pytest.param("4: ACTIVE", True, id="active"),
        pytest.param("1: DOWN", False, id="down"),
        pytest.param("ACTIVE", None, id="another form"),
        pytest.param("40: ?", None, id="no state"),
        pytest.param("", None, id="empty"),
    ],
)
def test_a_state_of_another_form_is_no_port_down(tmp_path: Path, text: str, active: bool | None) -> None:
    """Only a state that was read says that a port is up or down; another form is counted."""
    here = tree(tmp_path, counters={})
    (here / "state").write_text(text + "\n")
    errors = ErrorCounter()
    (port,) = read_ports(tmp_path, errors)

    assert active is port.active
    assert ({("sysfs", "state"): 1} if text and active is None else {}) == errors.counts()


def test_a_rate_that_is_no_number_costs_only_itself(tmp_path: Path) -> None:
    """The port is served without it."""
    here = tree(tmp_path, counters={"symbol_error": "1"})
    (here / "rate").write_text("1.2.3 Gb/sec\n")
    (port,) = read_ports(tmp_path, ErrorCounter())

    assert (None, 1.0) == (port.rate, port.counters[("errors_total", ("symbol_error",))])


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        pytest.param("N/A (no PMA)", False, id="firmware without the counter"),
        pytest.param("", False, id="empty"),
        pytest.param("0x12", True, id="another form"),
        pytest.param("-1", True, id="negative"),
        pytest.param("9" * 26, True, id="more than a counter holds"),
    ],
)
def test_a_value_that_is_no_count_is_absent(tmp_path: Path, text: str, counted: bool) -> None:
    """What is no number is never a 0."""
    tree(tmp_path, counters={"symbol_error": text})
    errors = ErrorCounter()
    (port,) = read_ports(tmp_path, errors)

    assert {} == port.counters
    assert counted == bool(errors.counts())


def test_a_node_without_adapters_has_no_ports(tmp_path: Path) -> None:
    """No class folder is no fault."""
    errors = ErrorCounter()

    assert () == read_ports(tmp_path, errors)
    assert {} == errors.counts()


def test_a_port_that_is_down_is_not_active(tmp_path: Path) -> None:
    """Only the logical state ACTIVE counts."""
    here = tree(tmp_path, counters={})
    (here / "state").write_text("2: INIT\n")

    assert [False] == [port.active for port in read_ports(tmp_path, ErrorCounter())]


@pytest.mark.complaint(25)
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("local_link_integrity_errors", 15),
        ("excessive_buffer_overrun_errors", 15),
        ("link_downed", 255),
        ("link_error_recovery", 255),
        ("symbol_error", 65535),
        ("port_xmit_discards", 65535),
        ("port_xmit_wait", 4294967295),
        ("port_rcv_data", 4294967295),
    ],
)
def test_a_counter_that_has_stopped_is_told(tmp_path: Path, name: str, most: int) -> None:
    """
    At the highest value of its width a counter stops; below, or beyond in a wider one, it counts.

    leptonai/gpud#943: a rule that waits for an increase is blind from there on.
    """
    here = tree(tmp_path, counters={})
    seen = []
    for value in (0, most - 1, most, most + 1):
        (here / "counters" / name).write_text(f"{value}\n")
        seen += [port.saturated for port in read_ports(tmp_path, ErrorCounter())]

    assert [{name: False}, {name: False}, {name: True}, {name: False}] == seen


def test_a_counter_that_is_not_read_is_not_said_to_count(tmp_path: Path) -> None:
    """What has no value has no flag, and the counters of hw_counters/ have no width that is known."""
    tree(tmp_path, counters={"symbol_error": "N/A (no PMA)"}, hw={"packet_seq_err": "65535"})

    assert [{}] == [port.saturated for port in read_ports(tmp_path, ErrorCounter())]


WEEK = 7 * 86400.0


@pytest.mark.complaint(26)
@pytest.mark.parametrize(
    ("states", "words", "expected"),
    [
        pytest.param([(0.0, False)], 0, False, id="never up: a spare, management or unprovisioned port"),
        pytest.param([(0.0, False)], 8192, False, id="a few management packets"),
        pytest.param([(0.0, True)], 0, True, id="up"),
        pytest.param([(0.0, True), (60.0, False)], 0, True, id="up before, down now"),
        pytest.param([(0.0, False)], 1 << 28, True, id="down since before the start, with a job's traffic"),
        pytest.param([(0.0, True), (1.0, False), (WEEK + 2.0, False)], 1 << 28, False, id="taken out of use"),
        pytest.param([(0.0, True), (WEEK + 2.0, False), (WEEK + 3.0, True)], 0, True, id="back in use"),
        pytest.param([(0.0, None)], 0, False, id="a state that is not told"),
    ],
)  # fmt: skip
def test_a_port_is_expected_by_evidence(
    tmp_path: Path, states: list[tuple[float, bool | None]], words: int, expected: bool
) -> None:
    """
    A port that was in use is missed when it is down; one that never was is down by design.

    NVIDIA/NVSentinel#1361, #1529, #1716, #1488, #458; leptonai/gpud#1247.
    """
    here = tree(tmp_path, counters={"port_rcv_data": str(words), "port_xmit_data": "0"})
    judge = Expectation()
    for now, active in states:
        (here / "state").write_text({True: "4: ACTIVE", False: "1: DOWN", None: "?"}[active] + "\n")
        (port,) = judge.judge(read_ports(tmp_path, ErrorCounter()), now)

    assert expected is port.expected


@dataclass
class Held:
    """The one job that holds the ports."""

    ports: tuple[HeldPort, ...]

    def published(self) -> Published:
        """Return what attribution would have published."""
        return Published(ports=self.ports)


def test_an_unused_port_that_is_down_is_no_finding_about_a_job(tmp_path: Path) -> None:
    """A job near a spare port gets no port that is down; near one that was in use and went down it does."""
    for device, words in (("mlx5_0", 1 << 28), ("mlx5_1", 0)):
        here = tree(tmp_path, counters={"port_rcv_data": str(words)}, device=device)
        (here / "state").write_text("1: DOWN\n")
    source = FabricSource(tmp_path, 5.0, 60.0, ErrorCounter())
    source.read_once()
    held = Held(tuple(HeldPort(f"mlx5_{at}/1", "slurm/1", True, True, {}) for at in range(2)))
    samples = list(FabricCollector(source, cast(Attribution, held)).collect())

    assert [(("mlx5_0/1", "slurm/1"), 0.0)] == [
        (sample.labels, sample.value) for sample in samples if sample.family == "tocsin_job_port_active"
    ]
    assert {("mlx5_0/1",): 1, ("mlx5_1/1",): 0} == {
        sample.labels: sample.value for sample in samples if sample.family == "tocsin_fabric_port_expected"
    }


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        pytest.param((("r", "s", "a"), 0), (("r", "s", "b"), 0), 2, id="one switch"),
        pytest.param((("r", "s", "a"), 0), (("r", "t", "b"), 0), 4, id="one root port"),
        pytest.param((("r",), 0), (("q",), 0), 100, id="one NUMA node"),
        pytest.param((("r",), 0), (("q",), 1), 200, id="two NUMA nodes"),
        pytest.param((("r",), -1), (("q",), 0), None, id="nothing known"),
    ],
)
def test_distance(
    one: tuple[tuple[str, ...], int], other: tuple[tuple[str, ...], int], expected: int | None
) -> None:
    """Devices below one switch are nearer than those of one NUMA node."""
    assert expected == distance(one, other)
