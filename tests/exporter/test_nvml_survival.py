"""What the exporter survives of driver and child: hangs, kills, stops, garbage, growth; with real processes."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.exporter.running import Running

from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.model import UP_REASONS, DriverEvent, NvmlReading
from tocsin_exporter.sources.nvml.progress import OTHER_CALL, Call, Page, Pen
from tocsin_exporter.sources.nvml.source import NvmlSource
from tocsin_exporter.sources.nvml.suspects import PAUSES, Suspects
from tocsin_exporter.sources.nvml.watch import HangWatch
from tocsin_lab.sim import trouble
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import create_node

# A child in a few lines that speaks the frames of the real one; `SCRIPT` is what it does per request.
CHILD = """
import json, mmap, os, signal, struct, sys, time
page = mmap.mmap(int(sys.argv[1]), mmap.PAGESIZE)
def call(index, name):
    struct.pack_into("=qQ64s", page, 0, index, time.monotonic_ns(), name.encode())
def send(message):
    body = json.dumps(message).encode()
    sys.stdout.buffer.write(struct.pack(">I", len(body)) + body); sys.stdout.buffer.flush()
def device(at, **more):
    send({"begin": at})
    send({"device": {"index": at, "up": True, "reason": "", "uuid": f"GPU-{at}", "pids": [], **more}})
send({"ready": True})
for number, line in enumerate(sys.stdin):
    asked = json.loads(line)
    if asked.get("release"):
        send({"released": True}); break
    order = [i for i in asked.get("only", range(3)) if i not in asked.get("skip", [])]
    SCRIPT
    send({"end": {"count": 3}})
"""


def scripted(script: str, before: str = "") -> tuple[str, ...]:
    return (sys.executable, "-c", before + CHILD.replace("SCRIPT", script.replace("\n", "\n    ")))


class Kit:
    """A source on a simulated node (or with a scripted child) and the readings that it gave out."""

    def __init__(self, source: NvmlSource, devices: Path | None) -> None:
        self.source = source
        self.readings: list[NvmlReading] = []
        self.events: list[DriverEvent] = []
        self._node = Node(devices) if devices is not None else None
        source.listen(self.readings.append)
        source.listen_events(self.events.append)

    @property
    def sim(self) -> Node:
        assert self._node is not None
        return self._node

    def up(self) -> list[tuple[str, str]]:
        return [(device.gpu, device.reason) for device in self.source.devices()]

    def until(self, wanted: Callable[[], object], seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not wanted():
            assert time.monotonic() < end, (self.up(), self.source.latest.read()[1], self.source.child_ends())
            time.sleep(0.02)

    def next_reading(self) -> NvmlReading:
        before = len(self.readings)
        self.until(lambda: len(self.readings) > before + 1)
        return self.readings[-1]

    def child(self) -> int:
        """The process that reads now."""
        child = self.source._child
        assert child is not None
        return child.process.pid

    def reason(self) -> str:
        error = self.source.latest.read()[1]
        return error.reason if error else ""

    def close(self) -> None:
        if self._node is not None:
            self._node.state.hang = self._node.state.init_hang = 0
        self.source.stop()
        if self._node is not None:
            self._node.close()


Make = Callable[..., Kit]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Kit] = []

    def kit(gpus: int = 3, script: str = "", before: str = "", run: bool = True, **more: object) -> Kit:
        devices, library = None, None
        if not script:
            library = request.getfixturevalue("nvml_library")
            devices = create_node(tmp_path, "gpu-001", gpus=gpus, hcas=1).devices
            monkeypatch.setenv("TOCSIN_SIM_DEVICES", str(devices))
        settings: dict[str, object] = {"call_deadline": 0.4, "attach_seconds": 0.4, **more}
        source = NvmlSource(
            library, 0.2, 2.0, 60.0, ErrorCounter(),
            command=scripted(script, before) if script else (), **settings,  # type: ignore[arg-type]
        )  # fmt: skip
        made.append(Kit(source, devices))
        if run:
            source.start()
        return made[-1]

    yield kit
    for one in made:
        one.close()


def all_up(kit: Kit) -> bool:
    devices = kit.source.devices()
    return bool(devices) and all(device.up for device in devices) and kit.reason() == ""


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_one_gpu_hangs_for_long_and_the_others_are_read_in_each_cycle(make: Make) -> None:
    """A hanging GPU costs one child and then nothing: the others' readings go on, by the same child."""
    deadline = 1.0
    kit = make(gpus=3, call_deadline=deadline)
    kit.until(lambda: all_up(kit))
    kit.sim.state.devices[1].hang = 1
    kit.until(lambda: kit.up() == [("0", ""), ("1", "hung"), ("2", "")])
    kit.next_reading()
    reader, before = kit.child(), len(kit.readings)
    # The first pause ends meanwhile, so the device is tried again, by a child of its own.
    kit.until(lambda: kit.source.child_ends()["hung"] >= 2)

    during = kit.readings[before:]
    assert reader == kit.child()
    assert len(during) > 3
    for reading in during:
        states = {device.gpu: device for device in reading.devices}
        assert [True, False, True] == [states[gpu].up for gpu in "012"]
        assert ("power_watts", ()) in states["0"].gauges
        assert not states["1"].gauges
    steps = [second.wall - first.wall for first, second in itertools.pairwise(during)]
    # No cycle waits for the one that hangs: the next reading comes sooner than the call's deadline.
    assert sorted(steps)[len(steps) // 2] < deadline
    assert "hung" == kit.reason()

    kit.sim.state.devices[1].hang = 0
    kit.until(lambda: all_up(kit))
    assert () == kit.source.hung_calls()


def test_a_hung_call_is_named_with_its_age(make: Make) -> None:
    """Which call of which GPU hangs, and for how long, is told until the GPU answers again."""
    kit = make(gpus=2)
    kit.until(lambda: all_up(kit))
    uuid = kit.source.devices()[1].uuid
    kit.sim.state.devices[1].hang = 1
    kit.until(lambda: kit.source.hung_calls())
    (first,) = kit.source.hung_calls()
    time.sleep(0.3)
    (second,) = kit.source.hung_calls()

    assert ("1", uuid) == (first.gpu, first.uuid)
    assert first.call.startswith("nvml")
    assert first.call == second.call
    assert second.seconds >= first.seconds + 0.3
    assert first.seconds >= 0.4


def test_a_gpu_that_hangs_from_the_start_has_no_identity_and_is_told_all_the_same(make: Make) -> None:
    """The GPU is down under its index; those behind it are read."""
    kit = make(gpus=3, run=False)
    kit.sim.state.devices[0].hang = 1
    kit.source.start()
    kit.until(lambda: kit.up() == [("0", "hung"), ("1", ""), ("2", "")])

    assert "" == kit.source.devices()[0].uuid
    assert {"1", "2"} == {device.gpu for device in kit.next_reading().devices}


def test_several_gpus_hang_in_one_cycle(make: Make) -> None:
    """Each is found and left alone within one reading; the rest is read."""
    kit = make(gpus=4)
    kit.until(lambda: all_up(kit))
    kit.sim.state.devices[0].hang = kit.sim.state.devices[2].hang = 1
    kit.until(lambda: kit.up() == [("0", "hung"), ("1", ""), ("2", "hung"), ("3", "")])


def test_a_killed_child_costs_no_reading(make: Make) -> None:
    """Somebody kills the child (out of memory, a crash of the library): a new one reads on, no GPU was down."""
    kit = make(gpus=2)
    kit.until(lambda: all_up(kit))
    before = len(kit.readings)
    for number in (signal.SIGKILL, signal.SIGSEGV):
        os.kill(kit.child(), number)
        kit.next_reading()

    assert all(device.up for reading in kit.readings[before:] for device in reading.devices)
    assert 2 == kit.source.child_ends()["ended"]
    assert {} == {key: count for key, count in kit.source._errors.counts().items() if count}


def test_a_stopped_child_is_no_fault_of_a_gpu(make: Make) -> None:
    """A child that somebody stopped is replaced; nobody says that the driver hangs."""
    kit = make(gpus=2)
    kit.until(lambda: all_up(kit))
    pid, before = kit.child(), len(kit.readings)
    os.kill(pid, signal.SIGSTOP)
    kit.until(lambda: kit.source.child_ends()["stopped"])
    kit.next_reading()

    assert not alive(pid)
    assert all(device.up for reading in kit.readings[before:] for device in reading.devices)
    assert 0 == kit.source.child_ends()["hung"]


def test_a_start_that_hangs_is_told_while_it_lasts(make: Make) -> None:
    """An initialisation may take long; past its time it hangs, in that call, and the exporter tries again."""
    kit = make(gpus=1, run=False, start_seconds=1.0)
    kit.sim.state.init_hang = 1
    kit.source.start()
    kit.until(lambda: kit.reason() == "hung")
    (hung,) = kit.source.hung_calls()

    assert ("", "nvmlInitWithFlags") == (hung.gpu, hung.call)
    kit.sim.state.init_hang = 0
    kit.until(lambda: all_up(kit))
    assert () == kit.source.hung_calls()


def test_a_slow_start_is_waited_for(make: Make) -> None:
    """A start that takes several cycles' time ends in readings by the very child that began it."""
    kit = make(gpus=1, run=False)
    kit.sim.state.init_hang = 1
    kit.source.start()
    kit.until(lambda: kit.source._child is not None)
    pid = kit.child()
    time.sleep(1.0)
    kit.sim.state.init_hang = 0
    kit.until(lambda: all_up(kit))

    assert pid == kit.child()


@pytest.mark.parametrize(
    ("code", "collector", "devices"),
    [
        pytest.param(18, "no_driver", "version_mismatch", id="the library is newer than the driver"),
        pytest.param(9, "no_driver", "no_driver", id="the driver was unloaded"),
        pytest.param(4, "no_permission", "no_permission", id="no rights"),
        pytest.param(999, "no_permission", "access_lost", id="the container lost its devices"),
    ],
)
def test_a_driver_that_goes_and_comes(make: Make, code: int, collector: str, devices: str) -> None:
    """The session with the driver is lost: collector and devices have a reason each, no number stays, a new start heals it."""
    kit = make(gpus=2)
    kit.until(lambda: all_up(kit))
    kit.sim.state.init_code = code
    # A driver that is loaded anew makes every open session void.
    kit.sim.state.session += 1
    kit.until(lambda: kit.up() == [("0", devices), ("1", devices)])
    reading, error = kit.source.latest.read()
    assert error is not None
    assert collector == error.reason
    assert reading is not None
    assert not any(device.gauges or device.counters for device in reading.devices)
    kit.sim.state.init_code = 0
    kit.until(lambda: all_up(kit))


def test_an_unknown_error_of_all_is_lost_access_and_of_one_is_that_gpu_s(make: Make) -> None:
    """A container whose devices were taken away accuses no GPU; one GPU that answers so beside others is down itself."""
    kit = make(gpus=2)
    kit.until(lambda: all_up(kit))
    devices = Path(os.environ["TOCSIN_SIM_DEVICES"])
    trouble.fail_call(devices, 999, "nvmlDeviceGetHandleByIndex_v2", 1)
    os.kill(kit.child(), signal.SIGKILL)
    kit.until(lambda: kit.up() == [("0", ""), ("1", "unknown")])
    assert "" == kit.reason()

    trouble.fail_call(devices, 999, "nvmlDeviceGetHandleByIndex_v2", 0)
    os.kill(kit.child(), signal.SIGKILL)
    kit.until(lambda: kit.up() == [("0", "access_lost"), ("1", "access_lost")])
    assert "no_permission" == kit.reason()
    trouble.take_away_rules(devices)
    kit.until(lambda: all_up(kit))


def test_a_mig_change_is_taken_in_at_once(
    tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver reports that instances came or went: they are listed anew without waiting for the next cycle."""
    paths = create_node(tmp_path, "gpu-001", gpus=1, hcas=0, mig_profiles=("3g.40gb", "3g.40gb"))
    monkeypatch.setenv("TOCSIN_SIM_DEVICES", str(paths.devices))
    kit = Kit(NvmlSource(nvml_library, 3600.0, 2.0, 7200.0, ErrorCounter()), paths.devices)

    def profiles() -> list[str]:
        return [device.info["profile"] for device in kit.source.devices() if device.mig and device.up]

    kit.source.start()
    try:
        kit.until(lambda: profiles() == ["3g.40gb", "3g.40gb"])

        def awaited() -> int:
            # Events are awaited from the first reading on; the next one tells.
            kit.source.poke()
            return kit.source.registered()

        kit.until(awaited)
        trouble.reconfigure_mig(paths.devices, 0, ["1g.10gb", "2g.20gb"])
        kit.until(lambda: sorted(profiles()) == ["1g.10gb", "2g.20gb"])
    finally:
        kit.close()

    assert "mig_config" in {event.type for event in kit.events}
    assert not [device for device in kit.source.devices() if device.reason]


def test_garbage_of_one_gpu_costs_that_gpu(make: Make) -> None:
    """Rows that cannot be take down the device they stand for, whatever is wrong with them; the others are read."""
    wrong = (
        '{"values": 7}', '{"values": [["power_watts", [], "x"]]}', '{"uuid": "../../etc"}', '{"uuid": 5}', '{"pids": ["a"]}',
        '{"index": "one"}', '{"index": 100000}', '{"info": []}', '{"limits": {"a": [1]}}', '{"processes": [[1]]}',
    )  # fmt: skip
    kit = make(
        script="for i in order:\n"
        f"    wrong = {wrong!r}\n"
        "    device(i, **(json.loads(wrong[number % len(wrong)]) if i == 1 and number else {}))",
        run=False,
    )
    kit.source.read_once()
    assert all_up(kit)
    for _ in wrong:
        kit.source.read_once()
        assert [("0", ""), ("1", "bad_data"), ("2", "")] == kit.up()
        assert "" == kit.reason()


@pytest.mark.parametrize(
    "script",
    [
        pytest.param('while True: number += 1; device(number % 250, uuid=f"GPU-{number}")', id="a flood"),
        pytest.param("while True: device(0); time.sleep(0.1)", id="a trickle"),
    ],
)
def test_an_answer_without_end_gives_way(make: Make, script: str) -> None:
    """A child that never stops to send is replaced, and the devices that it makes up are bounded in number."""
    kit = make(script=script, run=False)
    kit.source.read_once()

    assert "bad_data" == kit.reason()
    assert 2 == kit.source.child_ends()["ended"]
    assert len(kit.source.devices()) <= 512


@pytest.mark.parametrize("frame", ['{"begin": "x"}', '{"begin": null}', '{"end": 7}', '{"end": {"left": 3}}'])
def test_frames_that_cannot_be_are_the_child_s_fault(make: Make, frame: str) -> None:
    """The child is replaced, and what it would send next is never taken for the answer to another question."""
    kit = make(script=f"send(json.loads({frame!r}))", run=False)
    kit.source.read_once()

    assert "bad_data" == kit.reason()
    assert kit.source._child is None


def test_a_library_that_crashes_at_one_gpu_costs_that_gpu(make: Make) -> None:
    """After the second crash at the same GPU that one is left out, as a hanging one is, and the others are read."""
    kit = make(script="for i in order:\n    call(i, 'nvmlDeviceGetName')\n    if i == 1: os.kill(os.getpid(), signal.SIGSEGV)\n    device(i)", run=False)
    kit.source.read_once()

    assert [("0", ""), ("1", "bad_data"), ("2", "")] == kit.up()
    assert "bad_data" == kit.reason()
    assert () == kit.source.hung_calls()


def test_a_child_that_grows_is_replaced(make: Make) -> None:
    """A library that leaks does not take the node's memory: past a bound a new child takes over, and no GPU was down."""
    kit = make(gpus=1, most_memory=1 << 20, recycle_seconds=0.5)
    kit.until(lambda: kit.source.child_ends()["memory"] >= 3)

    assert all(device.up for reading in kit.readings for device in reading.devices)
    assert "" == kit.reason()


def test_a_gpu_that_vanishes_is_missing_and_one_in_its_place_replaces_it(make: Make) -> None:
    """A GPU that is no longer listed stays told of; another board at its address means that it was exchanged."""
    kit = make(
        script='names = ["GPU-old"] if number == 0 else [] if number == 1 else ["GPU-new"]\n'
        'for i, name in enumerate(names): device(i, uuid=name, pci="0000:3b:00.0")',
        run=False,
    )
    kit.source.read_once()
    kit.source.read_once()
    gone = [(device.uuid, device.reason) for device in kit.source.devices()]
    kit.source.read_once()

    assert [("GPU-old", "missing")] == gone
    assert [("GPU-new", "")] == [(device.uuid, device.reason) for device in kit.source.devices()]


def test_a_mig_instance_that_is_taken_apart_is_no_loss(make: Make) -> None:
    """Instances come and go with their configuration; with a board that hangs they are down."""
    kit = make(
        script="if number == 2: call(0, 'nvmlDeviceGetName'); time.sleep(60)\n"
        "for i in order[:1]:\n"
        "    if i: break\n"
        "    device(0)\n"
        '    if number == 0: send({"device": {"index": 0, "up": True, "reason": "", "uuid": "MIG-a", "mig": "1/0"}})\n'
        '    send({"device": {"index": 0, "up": True, "reason": "", "uuid": "MIG-b", "mig": "2/0"}})',
        run=False,
    )
    seen = []
    for _ in range(3):
        kit.source.read_once()
        seen.append([(device.uuid, device.reason) for device in kit.source.devices()])

    assert [("GPU-0", ""), ("MIG-a", ""), ("MIG-b", "")] == seen[0]
    assert [("GPU-0", ""), ("MIG-b", "")] == seen[1]
    assert [("GPU-0", "hung"), ("MIG-b", "hung")] == seen[2]


def test_a_child_that_does_not_die_is_told_and_not_joined_by_others(make: Make) -> None:
    """A process that SIGKILL does not end (its call never leaves the kernel) is left behind; its GPU is not tried again."""
    kit = make(script="for i in order:\n    call(i, 'nvmlDeviceGetName')\n    time.sleep(60 * (i == 1))\n    device(i)", run=False)
    kit.source.read_once()
    assert [("0", ""), ("1", "hung"), ("2", "")] == kit.up()
    # No process here can be made immune to SIGKILL, so one that lives stands for it.
    crew = kit.source._crew
    (bystander,) = (child for child in [kit.source._child] if child is not None)
    bystander.held_by = 1
    crew.stuck.append(bystander)
    now = time.monotonic() + 120
    kit.source._probe.start(now)

    assert 1 == kit.source.stuck()
    assert kit.source._probe.child is None
    assert [] == kit.source._suspects.due(now)
    crew.stuck.clear()
    kit.source._probe.start(now + 120)
    assert kit.source._probe.child is not None


def test_a_device_that_is_slow_and_does_not_hang_is_read_in_turns(make: Make) -> None:
    """Many calls that each return in time are no hang: the cycle ends at its deadline, the rest comes first the next time."""
    slow = """
end = time.monotonic() + asked["seconds"]
order.sort(key=lambda i: i not in asked.get("first", []))
done = []
for i in order:
    if done and time.monotonic() > end: break
    for _ in range(3):
        call(i, "nvmlDeviceGetName"); time.sleep(0.25)
    done.append(i); device(i)
send({"end": {"count": 3, "left": [i for i in order if i not in done]}})
continue
"""
    kit = make(script=slow, run=False)
    kit.source._deadline = 1.2
    kit.source.read_once()
    first = kit.up()
    assert "timeout" == kit.reason()
    kit.source.read_once()

    assert [("0", ""), ("1", "")] == first
    assert [("0", ""), ("1", ""), ("2", "")] == kit.up()
    assert 0 == kit.source.child_ends()["hung"]


def test_events_arrive_between_two_readings(make: Make) -> None:
    """An event of the driver is handed on at once, as a typed row; one that cannot be read is counted."""
    event = '{"index": 0, "uuid": "GPU-0", "mig": "", "type": "xid", "code": 79, "wall": 1.5}'
    kit = make(
        script="for i in order: device(i)\n"
        'send({"end": {"count": 3}})\n'
        f'time.sleep(0.1); send({{"event": json.loads({event!r})}}); send({{"event": {{"index": "?"}}}})\n'
        "continue",
        run=False,
    )
    kit.source._interval = 60.0
    kit.source.start()
    kit.until(lambda: kit.events)
    kit.until(lambda: kit.source._errors.counts())

    assert DriverEvent("0", "GPU-0", "", "xid", 79, 1.5) == kit.events[0]
    assert {("nvml", "bad_data"): 1} == kit.source._errors.counts()


def test_children_leave_no_zombies(make: Make) -> None:
    """After many hangs and kills the process has the children that read now, and no others."""
    kit = make(gpus=2)
    kit.until(lambda: all_up(kit))
    for _ in range(3):
        os.kill(kit.child(), signal.SIGKILL)
        kit.next_reading()
    kit.source.stop()
    states = [
        stat.rpartition(")")[2].split()[:2]
        for stat in (path.read_text() for path in Path("/proc").glob("[0-9]*/stat"))
    ]

    assert ["Z", str(os.getpid())] not in states


# The parts.


def test_the_page_tells_the_call_that_runs() -> None:
    """What the child writes is what the parent reads; names that cannot be NVML's are not repeated."""
    page = Page()
    pen = Pen(os.dup(page.descriptor))
    assert page.read() is None
    pen.at(3)
    pen.enter(b"nvmlDeviceGetPowerUsage")
    call = page.read()
    assert call is not None
    assert (3, "nvmlDeviceGetPowerUsage") == call[:2]
    assert call.began <= time.monotonic_ns()
    pen.enter(b"nvml\nevil")
    call = page.read()
    assert call is not None
    assert OTHER_CALL == call.name
    pen.rest()
    assert page.read() is None
    page.close()


def test_only_time_that_is_seen_to_pass_counts() -> None:
    """After the whole machine stood still for an hour nobody is accused; after three looks in a row somebody is."""
    now = [100.0]
    watch = HangWatch(1.0, 3.0, 15.0, lambda: now[0])
    call = Call(2, "nvmlDeviceGetName", 7)
    assert watch.look(call, -1) is None
    now[0] += 3600
    assert watch.look(call, -1) is None
    now[0] += 0.5
    hang = watch.look(call, -1)

    assert hang is not None
    assert (2, "nvmlDeviceGetName") == (hang.index, hang.name)


def test_calls_that_return_are_no_hang_until_the_device_takes_too_long() -> None:
    """Each call within its deadline, and all of them together past the device's."""
    now = [100.0]
    watch = HangWatch(1.0, 3.0, 15.0, lambda: now[0])
    hangs = []
    for number in range(8):
        now[0] += 0.5
        hangs.append(watch.look(Call(2, "nvmlDeviceGetName", number + 1), -1))

    assert [None] * 5 == hangs[:5]
    assert hangs[6] is not None


def test_opening_a_board_may_take_seconds() -> None:
    """Without a persistence daemon the first call attaches the board: that is no hang until its own time is over."""
    now = [100.0]
    watch = HangWatch(1.0, 3.0, 15.0, lambda: now[0])
    looks = []
    for _ in range(40):
        now[0] += 0.5
        looks.append(watch.look(Call(2, "nvmlDeviceGetHandleByIndex_v2", 7), -1))

    assert [None] * 29 == looks[:29]
    assert looks[35] is not None


def test_pauses_grow_and_are_forgiven() -> None:
    """Each hang doubles the pause up to a bound; a device that has answered for long begins anew."""
    suspects = Suspects()
    now, pauses = 0.0, []
    for _ in range(len(PAUSES) + 1):
        suspect = suspects.hung(1, "nvmlDeviceGetName", now, now)
        pauses.append(suspect.until - now)
        now = suspect.until
        assert [1] == suspects.due(now)
    assert [*PAUSES, PAUSES[-1]] == pauses
    suspects.answered(1, now)
    assert PAUSES[-1] == suspects.hung(1, "nvmlDeviceGetName", now, now + 1).until - now - 1
    suspects.answered(1, now)
    assert PAUSES[0] == suspects.hung(1, "nvmlDeviceGetName", now, now + 3600).until - now - 3600


def test_reasons_are_of_a_closed_list() -> None:
    """Each reason is one word; none stands twice."""
    assert len(UP_REASONS) == len(set(UP_REASONS))
    assert all(reason.replace("_", "").isalpha() for reason in UP_REASONS)


# The whole exporter.


@pytest.fixture
def running(tmp_path: Path, nvml_library: Path) -> Iterator[Running]:
    exporter = Running(tmp_path, nvml_library)
    exporter.start()
    yield exporter
    exporter.close()


@pytest.mark.parametrize("hanging", [False, True], ids=["reading", "hanging in the driver"])
def test_the_child_does_not_outlive_the_exporter(running: Running, hanging: bool) -> None:
    """The exporter is killed: its child ends with it, wherever it is, and holds no device any more."""
    (child,) = running.children()
    with Node(running.paths.devices) as node:
        node.state.hang = int(hanging)
        running.end(signal.SIGKILL)
        end = time.monotonic() + 10
        while alive(int(child)) and time.monotonic() < end:
            time.sleep(0.02)

    assert not alive(int(child))


def test_liveness_and_scrapes_do_not_touch_a_driver_that_hangs(running: Running) -> None:
    """While every call hangs, `/-/healthy` says ok and scrapes say which call hangs, each far sooner than a call's deadline."""
    with Node(running.paths.devices) as node:
        node.state.hang = 1
        hung = 'tocsin_collector_error_info{collector="gpu",reason="hung"} 1'
        text = running.until(lambda text: hung in text and 2 == text.count('reason="hung"} 0.0'))
        began = time.monotonic()
        for _ in range(20):
            assert "ok" in running.get("/-/healthy")
            running.scrape()
        each = (time.monotonic() - began) / 20
        node.state.hang = 0

    # The running exporter's deadline for a call is half a second.
    assert each < 0.5 / 2
    assert 'call="nvml' in text
    assert 'tocsin_collector_success{collector="host"} 1' in text
    running.until(lambda text: 'tocsin_collector_success{collector="gpu"} 1' in text)


def test_a_driver_that_appears_later_is_found(tmp_path: Path, nvml_library: Path) -> None:
    """The exporter starts before the driver, says what is missing, and serves the devices once it is loaded."""
    running = Running(tmp_path, nvml_library)
    with Node(running.paths.devices) as node:
        node.state.init_code = 9
        running.start(ready=False)
        running.until(lambda text: 'tocsin_collector_error_info{collector="gpu",reason="no_driver"} 1' in text)
        node.state.init_code = 0
        running.until(lambda text: 2 == text.count("tocsin_gpu_power_watts{"))
    running.close()
