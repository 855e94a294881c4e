"""Reading devices through the killable child, with the simulated library and with children that misbehave."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.model import Device, pci_address
from tocsin_exporter.sources.nvml.source import NvmlSource
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import NodePaths, create_node

# A child in a few lines that speaks the frames of the real one; `SCRIPT` is what it does per request.
CHILD = """
import json, struct, sys, time
def send(message):
    body = json.dumps(message).encode()
    sys.stdout.buffer.write(struct.pack(">I", len(body)) + body); sys.stdout.buffer.flush()
def device(index, **more):
    send({"begin": index})
    send({"device": {"index": index, "up": True, "reason": "", "uuid": f"GPU-{index}", "pids": [], **more}})
send({"ready": True})
for number, line in enumerate(sys.stdin):
    asked = json.loads(line)
    SCRIPT
"""


def scripted(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", CHILD.replace("SCRIPT", script.replace("\n", "\n    ")))


@pytest.fixture
def start() -> Iterator[Callable[..., NvmlSource]]:
    made: list[NvmlSource] = []

    def make(library: Path | None = None, deadline: float = 2.0, command: tuple[str, ...] = ()) -> NvmlSource:
        made.append(NvmlSource(library, 5.0, deadline, 60.0, ErrorCounter(), command=command))
        return made[-1]

    yield make
    for source in made:
        source.close()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodePaths:
    paths = create_node(tmp_path, "gpu-001", gpus=2, hcas=2)
    monkeypatch.setenv("TOCSIN_SIM_DEVICES", str(paths.devices))
    return paths


def until_read(source: NvmlSource, seconds: float = 15.0) -> None:
    """Read until it works; the pauses between tries are the source's own."""
    end = time.monotonic() + seconds
    source.read_once()
    while source.latest.read()[1] is not None and time.monotonic() < end:
        time.sleep(0.1)
        source.read_once()


def reason(source: NvmlSource) -> str:
    error = source.latest.read()[1]
    return error.reason if error else ""


def test_devices_are_read(start: Callable[..., NvmlSource], nvml_library: Path, node: NodePaths) -> None:
    """Identity, gauges in base units, counters and throttle states of each device come in."""
    source = start(nvml_library)
    source.read_once()
    reading, error = source.latest.read()

    assert error is None
    assert reading is not None
    assert ["0", "1"] == [device.gpu for device in reading.devices]
    first = reading.devices[0]
    assert first.uuid.startswith("GPU-")
    assert 700.0 == first.gauges[("power_limit_watts", ())]
    assert first.gauges[("sm_clock_max_hertz", ())] > 1e9
    assert 1.0 == first.gauges[("throttle_active", ("idle",))]
    assert {"corrected", "uncorrected"} == {
        labels[0] for name, labels in first.counters if name == "row_remaps_total"
    }
    assert () == first.pids


def test_activity_needs_two_readings(
    start: Callable[..., NvmlSource], nvml_library: Path, node: NodePaths
) -> None:
    """Activity is a mean between two readings, so the first one has none."""
    source = start(nvml_library)
    source.read_once()
    first = source.latest.read()[0]
    time.sleep(0.15)
    source.read_once()
    second = source.latest.read()[0]

    assert first is not None
    assert second is not None
    assert ("sm_active_ratio", ()) not in first.devices[0].gauges
    assert 0.0 == second.devices[0].gauges[("sm_active_ratio", ())]


def test_throttling_is_seen_as_state_and_as_time(
    start: Callable[..., NvmlSource], nvml_library: Path, node: NodePaths
) -> None:
    """A reason bit is a state at once and grows into seconds while it lasts."""
    source = start(nvml_library)
    source.read_once()
    with Node(node.devices) as mapped:
        mapped.state.devices[1].throttle_reasons = 0x40
    time.sleep(0.2)
    source.read_once()
    time.sleep(0.2)
    source.read_once()
    reading = source.latest.read()[0]

    assert reading is not None
    quiet, hot = reading.devices
    assert 1.0 == hot.gauges[("throttle_active", ("hw_thermal",))]
    assert hot.counters[("throttle_seconds_total", ("hw_thermal",))] >= 0.3
    assert 0.0 == quiet.counters[("throttle_seconds_total", ("hw_thermal",))]


def test_a_lost_device_keeps_its_identity_and_the_others_go_on(
    start: Callable[..., NvmlSource], nvml_library: Path, node: NodePaths
) -> None:
    """A device that fell off is down with the reason; the other one is read as before."""
    source = start(nvml_library)
    source.read_once()
    uuid = source.devices()[1].uuid
    with Node(node.devices) as mapped:
        mapped.state.devices[1].lost = 1
    source.read_once()

    assert [(True, ""), (False, "gpu_lost")] == [(device.up, device.reason) for device in source.devices()]
    assert uuid == source.devices()[1].uuid
    reading = source.latest.read()[0]
    assert reading is not None
    assert ("power_watts", ()) in reading.devices[0].gauges


def test_a_hung_driver_is_told_and_survived(
    start: Callable[..., NvmlSource], nvml_library: Path, node: NodePaths
) -> None:
    """A hang ends the child at the deadline, no number outlives it, and after the hang reading goes on."""
    source = start(nvml_library, deadline=0.5)
    until_read(source)
    with Node(node.devices) as mapped:
        mapped.state.hang = 1
    source.read_once()

    assert "hung" == reason(source)
    reading = source.latest.read()[0]
    assert reading is not None
    assert not any(device.gauges or device.counters for device in reading.devices)
    assert {(False, "hung")} == {(device.up, device.reason) for device in source.devices()}

    with Node(node.devices) as mapped:
        mapped.state.hang = 0
    until_read(source)

    assert "" == reason(source)
    assert all(device.up for device in source.devices())


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        pytest.param(None, "no_library", id="the system has none"),
        pytest.param(Path(__file__), "no_library", id="a file that is no library"),
    ],
)
def test_no_library_is_a_reason(
    start: Callable[..., NvmlSource], library: Path | None, expected: str
) -> None:
    """Without a library the source says so and tells what to do."""
    if library is None and subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True
    ).stdout.count("libnvidia-ml.so.1"):
        pytest.skip("this machine has a driver")
    source = start(library)
    source.read_once()
    error = source.latest.read()[1]

    assert error is not None
    assert expected == error.reason
    assert "--nvml.library" in error.detail


def test_a_program_that_this_user_may_not_run_is_a_lack_of_rights(
    start: Callable[..., NvmlSource], tmp_path: Path
) -> None:
    """A child that cannot be started for want of rights is no bad data."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\n")
    source = start(command=(str(program),))
    source.read_once()

    assert "no_permission" == reason(source)


def test_one_hanging_device_does_not_hide_the_others(start: Callable[..., NvmlSource]) -> None:
    """The devices that answer are read in every cycle, the one that hangs is left alone for a while."""
    hangs_at_1 = """
order = [i for i in asked.get("only", range(3)) if i not in asked.get("skip", [])]
for index in order:
    if index == 1:
        send({"begin": 1}); time.sleep(60)
    device(index)
send({"end": {"count": 3}})
"""
    with_all = hangs_at_1.replace("index == 1", "index == 9")
    source = start(deadline=0.8, command=scripted(with_all))
    until_read(source)
    source.close()
    source._command = scripted(hangs_at_1)
    source.read_once()
    source.read_once()

    assert "hung" == reason(source)
    assert [("0", True, ""), ("1", False, "hung"), ("2", True, "")] == [
        (device.gpu, device.up, device.reason) for device in source.devices()
    ]
    reading = source.latest.read()[0]
    assert reading is not None
    assert ["0", "2"] == [device.gpu for device in reading.devices if device.up]


def test_a_device_that_is_no_longer_listed_is_missing(start: Callable[..., NvmlSource]) -> None:
    """A device that was there and is not is down, under its old identity."""
    source = start(command=scripted('device(0)\nif number == 0: device(1)\nsend({"end": {"count": 2}})'))
    source.read_once()
    source.read_once()

    assert [(True, ""), (False, "missing")] == [(device.up, device.reason) for device in source.devices()]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("sys.exit(3)", id="ends"),
        pytest.param('sys.stdout.buffer.write(b"\\xff" * 64); sys.stdout.buffer.flush(); time.sleep(9)', id="a frame too long"),
        pytest.param('sys.stdout.buffer.write(struct.pack(">I", 3) + b"{{{"); sys.stdout.buffer.flush()', id="no JSON"),
        pytest.param('send({"surprise": 1})', id="an unknown frame"),
    ],
)  # fmt: skip
def test_a_child_that_breaks_is_replaced(start: Callable[..., NvmlSource], script: str) -> None:
    """Whatever the child sends, the source has a reason and starts another one later."""
    source = start(command=scripted(script))
    source.read_once()

    assert "bad_data" == reason(source)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0018:01:00.0", "0018:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
    ],
)
def test_pci_addresses_have_one_form(text: str, expected: str) -> None:
    """Driver and kernel log name a device alike."""
    assert expected == pci_address(text)


def test_a_device_of_before_a_restart_that_does_not_return_is_missing(start: Callable[..., NvmlSource]) -> None:
    """What was there before the exporter's restart is judged with the first answer of the driver."""
    source = start(command=scripted('device(0)\nsend({"end": {"count": 1}})'))
    source.remember((Device(gpu="0", uuid="GPU-0"), Device(gpu="1", uuid="GPU-1")))
    before = source.devices()
    source.read_once()

    assert () == before
    assert [(True, ""), (False, "missing")] == [(device.up, device.reason) for device in source.devices()]
