"""What is counted for which job."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tocsin_exporter.attribution import Attribution, HeldDevice
from tocsin_exporter.attribution.holding import KEEP_SECONDS, LINGER_SECONDS
from tocsin_exporter.identity.assigned import Assignment
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.identity.resolver import Holder
from tocsin_exporter.kmsg.parse import Event
from tocsin_exporter.sources.kmsg import KernelEvent
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.model import Device, NvmlReading
from tocsin_exporter.sources.sysfs import Port
from tocsin_exporter.state import VERSION, StateFile

PCI = "0000:3b:00.0"
REMAPS = ("row_remaps_total", ("uncorrected",))
ENERGY = ("energy_joules_total", ())


def process(
    pid: int, job: str, rank: str = "0", gpus: tuple[int, ...] = (), start: float = 900.0
) -> ProcessIdentity:
    return ProcessIdentity(
        pid=pid, start_ticks=pid, start_time=start, job_id=job, rank=rank, allocator="slurm", gpu_indices=gpus
    )


@dataclass
class Who:
    """An identity view that tests set."""

    members: list[ProcessIdentity] = field(default_factory=list)

    def living(self) -> tuple[ProcessIdentity, ...]:
        return tuple(self.members)

    def assigned(self) -> tuple[Assignment, ...]:
        return ()

    def holder_of(self, pid: int) -> Holder | None:
        return next((Holder(who.job_id, who.rank) for who in self.members if who.pid == pid), None)


class Node:
    """A node with one device, whose clock, counters and processes tests turn."""

    def __init__(
        self,
        state: Path | None = None,
        *,
        now: float = 1000.0,
        who: Who | None = None,
        log: str = "device",
        sysfs: Path = Path("/nowhere"),
    ) -> None:
        self.now = now
        self.who = who or Who()
        self.errors = ErrorCounter()
        self.raw: dict[tuple[str, tuple[str, ...]], float] = {ENERGY: 5000.0, REMAPS: 7.0}
        self.ledger = Attribution(
            self.who, StateFile(state), self.errors, boot_id="boot-1", log_identity=lambda: log, sysfs=sysfs,
            wall=lambda: self.now, clock=lambda: self.now,
        )  # fmt: skip

    def read(self, *pids: int, passed: float = 5.0) -> None:
        self.now += passed
        device = Device(gpu="0", uuid="GPU-a", pci=PCI, counters=dict(self.raw), pids=pids)
        self.ledger.on_reading(NvmlReading(self.now, (device,)))
        self.ledger.flush()

    def xid(self, seq: int, *, when: float | None = None, kind: str = "reset", code: int = 48) -> None:
        event = Event("xid", 1, {"code": code, "pci": PCI, "class": kind})
        self.ledger.on_events([KernelEvent(event, self.now if when is None else when)], seq)
        self.ledger.flush()

    def held(self, job: str) -> HeldDevice | None:
        return next((each for each in self.ledger.published().devices if each.job_id == job), None)

    def counter(self, job: str, key: tuple[str, tuple[str, ...]]) -> float | None:
        held = self.held(job)
        return None if held is None else held.counters.get(key)

    def xids(self, job: str, kind: str = "reset") -> int | None:
        held = self.held(job)
        return None if held is None else held.xid[kind]


def test_job_counters_are_born_at_zero_and_count_from_there() -> None:
    """An old remap and the energy of earlier owners are not this job's."""
    node = Node(who=Who([process(1, "slurm/1")]))
    node.read(1)
    assert (0.0, 0.0) == (node.counter("slurm/1", REMAPS), node.counter("slurm/1", ENERGY))

    node.raw = {ENERGY: 5300.0, REMAPS: 8.0}
    node.read(1)

    assert (1.0, 300.0) == (node.counter("slurm/1", REMAPS), node.counter("slurm/1", ENERGY))


def test_a_counter_that_falls_adds_nothing_and_goes_on() -> None:
    """A driver reload restarts the base: nothing negative, nothing counted twice."""
    node = Node(who=Who([process(1, "slurm/1")]))
    node.read(1)
    for value in (5100.0, 20.0, 50.0):
        node.raw[ENERGY] = value
        node.read(1)

    assert 130.0 == node.counter("slurm/1", ENERGY)


def test_every_class_exists_at_zero_before_its_first_event() -> None:
    """A rule that reads a class finds a zero as soon as the job holds the device."""
    node = Node(who=Who([process(1, "slurm/1")]))
    node.read(1)
    held = node.held("slurm/1")

    assert held is not None
    assert 9 == len(held.xid)
    assert {0} == set(held.xid.values())


def test_no_holder_no_job_series() -> None:
    """A device that nobody holds has its events on its own series only."""
    node = Node()
    node.read()
    node.xid(1)

    assert () == node.ledger.published().devices
    assert 1 == node.ledger.published().events[0].xid["reset"]


def test_every_holder_of_a_shared_device_counts_an_event() -> None:
    """Two jobs on one device are both told."""
    node = Node(who=Who([process(1, "slurm/1"), process(2, "slurm/2")]))
    node.read(1, 2)
    node.xid(1)

    assert (1, 1) == (node.xids("slurm/1"), node.xids("slurm/2"))


def test_the_rank_is_named_only_where_one_holds_the_device() -> None:
    """Two ranks of one job on a device leave the rank open."""
    node = Node(who=Who([process(1, "slurm/1", "0"), process(2, "slurm/1", "1")]))
    node.read(1)
    first = node.held("slurm/1")
    node.read(1, 2)
    second = node.held("slurm/1")

    assert first is not None
    assert second is not None
    assert ("0", "") == (first.rank, second.rank)


def test_the_environment_tells_where_the_driver_does_not() -> None:
    """Without a process list a rank holds the devices it was given."""
    node = Node(who=Who([process(1, "slurm/1", gpus=(0,))]))
    node.read()

    assert node.held("slurm/1") is not None


def test_a_late_event_belongs_to_the_job_that_just_left() -> None:
    """Clean-up Xids and remaps within the grace count; later ones do not."""
    node = Node(who=Who([process(1, "slurm/1")]))
    node.read(1)
    node.who.members = []
    node.read()
    node.raw[REMAPS] += 1
    node.read(passed=LINGER_SECONDS - 10)
    node.xid(1)
    node.raw[REMAPS] += 1
    node.read(passed=30)
    node.xid(2)

    assert (1.0, 1) == (node.counter("slurm/1", REMAPS), node.xids("slurm/1"))


def test_an_event_belongs_to_the_holder_at_its_time() -> None:
    """A record that is read late goes to the job of that moment, not to the next one."""
    node = Node(who=Who([process(1, "slurm/1", start=990.0)]))
    node.read(1)
    during = node.now
    node.who.members = []
    node.read()
    node.who.members = [process(2, "slurm/2", start=node.now + 60)]
    node.read(2, passed=60)
    node.xid(1, when=during)

    assert (1, 0) == (node.xids("slurm/1"), node.xids("slurm/2"))


def test_event_counts_outlive_the_job_and_the_rest_does_not() -> None:
    """Counts of events stay unchanged for 15 minutes after the grace, energy ends with it, owner too."""
    node = Node(who=Who([process(1, "slurm/1")]))
    node.read(1)
    node.xid(1)
    node.who.members = []
    node.read()
    node.read(passed=LINGER_SECONDS + 10)
    held = node.held("slurm/1")

    assert held is not None
    assert (1, False, False) == (held.xid["reset"], held.active, held.owner)
    assert {REMAPS} == set(held.counters)

    node.read(passed=KEEP_SECONDS - 20)
    assert node.held("slurm/1") is not None
    node.read(passed=30)
    assert node.held("slurm/1") is None


def test_a_job_that_returns_does_not_count_what_happened_meanwhile() -> None:
    """Between two runs of a job on a device the counters are nobody's."""
    node = Node(who=Who([process(1, "slurm/1")]))
    node.read(1)
    node.who.members = []
    node.read()
    node.read(passed=LINGER_SECONDS + 10)
    node.raw[REMAPS] += 5
    node.read()
    node.who.members = [process(3, "slurm/1", start=node.now)]
    node.read(3)
    node.raw[REMAPS] += 1
    node.read(3)

    assert 1.0 == node.counter("slurm/1", REMAPS)


def test_an_event_of_a_device_not_yet_known_waits_for_it() -> None:
    """The log is read before the driver answers; nothing of it is lost."""
    node = Node(who=Who([process(1, "slurm/1")]))
    node.xid(1)
    node.read(1)

    assert 1 == node.xids("slurm/1")
    assert 1 == node.ledger.published().events[0].codes[48]


def test_polled_events_get_a_time_too() -> None:
    """A remap and an uncorrected error set the time of their class."""
    node = Node(who=Who([process(1, "slurm/1")]))
    node.raw[("ecc_errors_total", ("uncorrected", "dram"))] = 0.0
    node.read(1)
    node.raw[REMAPS] += 1
    node.raw[("ecc_errors_total", ("uncorrected", "dram"))] = 1.0
    node.read(1)
    held = node.held("slurm/1")

    assert held is not None
    assert {"row_remap": node.now, "ecc_uncorrected": node.now} == held.times


def restarted(
    node: Node, state: Path, *members: ProcessIdentity, passed: float = 20.0, log: str = "device"
) -> Node:
    again = Node(state, now=node.now + passed, who=Who(list(members)), log=log)
    again.raw = dict(node.raw)
    return again


def test_event_counts_survive_a_restart(tmp_path: Path) -> None:
    """After a restart the counts stand as served before, and the log goes on behind the cursor."""
    state = tmp_path / "state.json"
    node = Node(state, who=Who([process(1, "slurm/1")]))
    node.read(1)
    node.xid(41)
    again = restarted(node, state, process(1, "slurm/1"))

    assert 1 == again.ledger.published().events[0].xid["reset"]
    assert 1 == again.xids("slurm/1")
    assert 41 == again.ledger.cursor


def test_what_happened_while_down_goes_to_the_same_holder(tmp_path: Path) -> None:
    """A job on both sides of the gap gets the gap's increments."""
    state = tmp_path / "state.json"
    node = Node(state, who=Who([process(1, "slurm/1")]))
    node.read(1)
    node.xid(1)
    node.raw[REMAPS] += 2
    again = restarted(node, state, process(1, "slurm/1"))
    again.xid(2, when=node.now + 5)
    again.read(1)

    assert (2.0, 2) == (again.counter("slurm/1", REMAPS), again.xids("slurm/1"))
    assert 0 == again.ledger.published().unattributed


def test_what_happened_while_down_and_holders_changed_is_nobodys(tmp_path: Path) -> None:
    """Increments of a gap in which the holder changed are counted as belonging to nobody."""
    state = tmp_path / "state.json"
    node = Node(state, who=Who([process(1, "slurm/1")]))
    node.read(1)
    node.xid(1)
    node.raw[REMAPS] += 2
    again = restarted(node, state, process(9, "slurm/9", start=node.now + 100), passed=120)
    again.xid(2, when=node.now + 60)
    again.read(9)

    assert (0.0, 1) == (again.counter("slurm/1", REMAPS), again.xids("slurm/1"))
    assert (0.0, 0) == (again.counter("slurm/9", REMAPS), again.xids("slurm/9"))
    assert 3 == again.ledger.published().unattributed


def test_another_log_is_read_from_its_start(tmp_path: Path) -> None:
    """A cursor is only good for the log it came from."""
    state = tmp_path / "state.json"
    node = Node(state)
    node.read()
    node.xid(41)

    assert -1 == restarted(node, state, log="file:1:2").ledger.cursor


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "bad_data", id="empty"),
        pytest.param("{", "bad_data", id="cut"),
        pytest.param("[]", "bad_data", id="no object"),
        pytest.param("[" * 200_000, "bad_data", id="nested"),
        pytest.param('{"version": 99}', "other_version", id="another version"),
        pytest.param('{"version": 2, "boot_id": "b", "saved": 1, "devices": 3}', "bad_data", id="shape"),
        pytest.param('{"version": 2, "boot_id": "b", "saved": 1e999}', "bad_data", id="no finite number"),
        pytest.param('{"version": 2}' + " " * (9 << 20), "too_large", id="huge"),
    ],
)  # fmt: skip
def test_an_unusable_state_file_costs_the_old_counts_only(tmp_path: Path, text: str, reason: str) -> None:
    """The exporter starts anew, counts the loss with its reason, keeps the file for a look and serves."""
    state = tmp_path / "state.json"
    state.write_text(text)
    node = Node(state, who=Who([process(1, "slurm/1")]))
    node.read(1)

    assert node.held("slurm/1") is not None
    assert 1 == node.errors.counts()[("state", reason)]
    assert text == (tmp_path / "state.json.bad").read_text()
    assert VERSION == json.loads(state.read_text())["version"]


def test_a_state_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    """Without a place for the state events are still counted, and the lack is told."""
    (tmp_path / "file").write_text("")
    node = Node(tmp_path / "file/state.json", who=Who([process(1, "slurm/1")]))
    node.read(1)
    node.xid(1)

    assert 1 == node.xids("slurm/1")
    assert sum(count for (source, _), count in node.errors.counts().items() if source == "state") > 0


def port(name: str, path: tuple[str, ...], received: float, *, active: bool = True) -> Port:
    return Port(
        name=name, device=name.split("/")[0], active=active, rate=None, link_layer="", hca_type="",
        firmware="", pci_path=path,
        counters={("receive_bytes_total", ()): received, ("link_downed_total", ()): 3.0},
    )  # fmt: skip


def test_a_job_holds_the_ports_nearest_to_its_devices(tmp_path: Path) -> None:
    """The port below the same switch is the job's, the other one is not; it stays so when it goes down."""
    sysfs = tmp_path / "sys"
    near, far = "0000:3a:00.0", "0000:90:00.0"
    device = sysfs / f"devices/pci0000:3a/{near}/{PCI}"
    device.mkdir(parents=True)
    (sysfs / "bus/pci/devices").mkdir(parents=True)
    (sysfs / f"bus/pci/devices/{PCI}").symlink_to(device)
    node = Node(who=Who([process(1, "slurm/1")]), sysfs=sysfs)
    node.read(1)
    node.ledger.on_ports((port("mlx5_0/1", (near, "0000:3c:00.0"), 100.0), port("mlx5_1/1", (far,), 100.0)))
    node.ledger.on_ports(
        (port("mlx5_0/1", (near, "0000:3c:00.0"), 900.0, active=False), port("mlx5_1/1", (far,), 900.0))
    )

    ports = node.ledger.published().ports

    assert [("mlx5_0/1", "slurm/1")] == [(each.port, each.job_id) for each in ports]
    assert 800.0 == ports[0].counters[("receive_bytes_total", ())]
    assert 0.0 == ports[0].counters[("errors_total", ("link_downed",))]


def test_without_a_topology_all_active_ports_are_the_jobs() -> None:
    """Where nothing tells which port is near, the job has every port that is up."""
    node = Node(who=Who([process(1, "slurm/1")]))
    node.read(1)
    node.ledger.on_ports((port("mlx5_0/1", (), 0.0), port("mlx5_1/1", (), 0.0, active=False)))

    assert ["mlx5_0/1"] == [each.port for each in node.ledger.published().ports]


def test_devices_of_before_a_restart_are_remembered(tmp_path: Path) -> None:
    """A device that was there is known by its identity, so that its absence can be told."""
    state = tmp_path / "state.json"
    node = Node(state)
    node.read()
    node.xid(1)

    (known,) = restarted(node, state).ledger.known_devices()

    assert ("0", "GPU-a", PCI) == (known.gpu, known.uuid, known.pci)
