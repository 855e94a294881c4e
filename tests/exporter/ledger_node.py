"""A node of mutable devices and processes around a real ledger, for the tests of attribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tocsin_exporter.attribution import Attribution, HeldDevice
from tocsin_exporter.identity.assigned import Assignment
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.identity.resolver import Holder
from tocsin_exporter.kmsg.parse import Event
from tocsin_exporter.sources.kmsg import KernelEvent
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.model import Device, NvmlReading
from tocsin_exporter.state import StateFile

Key = tuple[str, tuple[str, ...]]

REMAPS: Key = ("row_remaps_total", ("uncorrected",))
ECC: Key = ("ecc_errors_total", ("uncorrected", "dram"))
ENERGY: Key = ("energy_joules_total", ())
THROTTLE: Key = ("throttle_seconds_total", ("hw_thermal",))


def pci(index: int) -> str:
    """Return the address of the device at *index*."""
    return f"0000:{0x10 + index:02x}:00.0"


def gpu(index: int, uuid: str, *pids: int, **more: object) -> Device:
    """Return a whole GPU with one value of each kind of counter."""
    device = Device(
        gpu=str(index),
        uuid=uuid,
        pci=pci(index),
        counters={ENERGY: 5000.0, REMAPS: 7.0, ECC: 3.0, THROTTLE: 40.0},
        pids=pids,
    )
    return replace(device, **more)  # type: ignore[arg-type]


@dataclass
class Who:
    """An identity view that tests set."""

    members: list[ProcessIdentity] = field(default_factory=list)
    given: list[Assignment] = field(default_factory=list)

    def living(self) -> tuple[ProcessIdentity, ...]:
        """Return the processes of jobs."""
        return tuple(self.members)

    def assigned(self) -> tuple[Assignment, ...]:
        """Return what jobs were given."""
        return tuple(self.given)

    def holder_of(self, pid: int) -> Holder | None:
        """Return the job of any process."""
        return next((Holder(who.job_id, who.rank) for who in self.members if who.pid == pid), None)

    def start(
        self, pid: int, job: str, rank: str = "0", *, at: float = 900.0, gpus: tuple[int, ...] = ()
    ) -> None:
        """Let a process of a job start at Unix time *at*."""
        self.members.append(
            ProcessIdentity(
                pid=pid,
                start_ticks=int(at * 100),
                start_time=at,
                job_id=job,
                rank=rank,
                allocator="slurm",
                gpu_indices=gpus,
            )
        )

    def end(self, pid: int) -> None:
        """Let a process end."""
        self.members = [who for who in self.members if who.pid != pid]


class Node:
    """A node whose clocks, devices and processes tests turn; the ledger and its state file are real."""

    def __init__(
        self,
        state: Path | None = None,
        *,
        now: float = 1000.0,
        who: Who | None = None,
        boot: str = "boot-1",
        log: str = "device",
        wall_ahead: float = 0.0,
        patience: float = 5.0,
        sysfs: Path = Path("/nowhere"),
    ) -> None:
        self.state, self.log, self.sysfs = state, log, sysfs
        self.clock = now
        self.wall_ahead = wall_ahead
        self.who = who or Who()
        self.errors = ErrorCounter()
        self.devices: dict[str, Device] = {}
        self.ledger = Attribution(
            self.who, StateFile(state), self.errors, boot_id=boot, log_identity=lambda: self.log,
            sysfs=sysfs, wall=lambda: self.clock + self.wall_ahead, clock=lambda: self.clock,
            patience=patience,
        )  # fmt: skip

    def again(
        self,
        *,
        passed: float = 20.0,
        boot: str = "boot-1",
        who: Who | None = None,
        change: Callable[[Device], Device] = lambda device: device,
    ) -> Node:
        """Return the node with a new exporter on the same state file, as after ``kill -9``."""
        fresh = Node(
            self.state,
            now=self.clock + passed,
            who=who or self.who,
            boot=boot,
            log=self.log,
            sysfs=self.sysfs,
            wall_ahead=self.wall_ahead,
        )
        fresh.devices = {name: change(device) for name, device in self.devices.items()}
        return fresh

    def add(self, device: Device) -> None:
        """Put a device in, or replace it."""
        self.devices[f"{device.uuid}{device.mig}"] = device

    def use(self, uuid: str, *pids: int) -> None:
        """Let the driver list *pids* on a device."""
        for name, device in self.devices.items():
            if device.uuid == uuid:
                self.devices[name] = replace(device, pids=pids)

    def grow(self, uuid: str, key: Key, by: float) -> None:
        """Let a counter of a device grow."""
        for name, device in self.devices.items():
            if device.uuid == uuid:
                counters = {**device.counters, key: device.counters.get(key, 0.0) + by}
                self.devices[name] = replace(device, counters=counters)

    def set_counters(self, uuid: str, counters: dict[Key, float]) -> None:
        """Let the counters of a device show *counters*."""
        for name, device in self.devices.items():
            if device.uuid == uuid:
                self.devices[name] = replace(device, counters=counters)

    def read(self, *, passed: float = 5.0, without: tuple[str, ...] = ()) -> None:
        """Let time pass and read all devices but those *without*."""
        self.clock += passed
        seen = tuple(device for device in self.devices.values() if device.uuid not in without)
        self.ledger.on_reading(NvmlReading(self.clock, seen))
        self.ledger.flush()

    def event(
        self,
        index: int = 0,
        *,
        kind: str = "xid",
        cls: str = "reset",
        code: int = 48,
        ago: float = 0.0,
        seq: int = 1,
        count: int = 1,
        gpu_instance: int | None = None,
        compute_instance: int | None = None,
    ) -> None:
        """Let the kernel log tell of a device, *ago* seconds after it was written."""
        fields: dict[str, str | int] = {"pci": pci(index)}
        if gpu_instance is not None:
            fields["gpu_instance"] = gpu_instance
        if compute_instance is not None:
            fields["compute_instance"] = compute_instance
        if kind == "xid":
            fields |= {"code": code, "class": cls}
        when = self.clock + self.wall_ahead - ago
        self.ledger.on_events([KernelEvent(Event(kind, 1, fields, count), when)], seq)
        self.ledger.flush()

    def held(self, job: str, uuid: str = "GPU-a") -> HeldDevice | None:
        """Return what is served of a job on a device."""
        published = self.ledger.published().devices
        return next((each for each in published if each.job_id == job and each.uuid == uuid), None)

    def counter(self, job: str, key: Key, uuid: str = "GPU-a") -> float | None:
        """Return a served counter of a job."""
        held = self.held(job, uuid)
        return None if held is None else held.counters.get(key)

    def xids(self, job: str, cls: str = "reset", uuid: str = "GPU-a") -> int | None:
        """Return the served Xid count of a job."""
        held = self.held(job, uuid)
        return None if held is None else held.xid[cls]

    def jobs(self, uuid: str = "GPU-a") -> set[str]:
        """Return the jobs with series on a device."""
        return {each.job_id for each in self.ledger.published().devices if each.uuid == uuid}

    @property
    def unattributed(self) -> int:
        """What belongs to nobody."""
        return self.ledger.published().unattributed
