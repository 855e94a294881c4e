"""What attribution asks of the identity view, and what it publishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tocsin_exporter.attribution.holding import Key
from tocsin_exporter.identity.assigned import Assignment
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.identity.resolver import Holder

__all__ = ["DeviceEvents", "HeldDevice", "HeldPort", "Published", "Who"]


class Who(Protocol):
    """What attribution asks of the identity view."""

    def living(self) -> tuple[ProcessIdentity, ...]:
        """Return the processes of jobs."""

    def holder_of(self, pid: int) -> Holder | None:
        """Return the job of any process."""

    def assigned(self) -> tuple[Assignment, ...]:
        """Return what the allocator gave to the jobs, used or not."""


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """Events of one device since the log began: by Xid class, by exact code, and the last times."""

    gpu: str
    uuid: str
    mig: str
    xid: Mapping[str, int]
    codes: Mapping[int, int]
    times: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """What a job has of a device: ``active`` while a process is there, ``owner`` 30 s longer."""

    gpu: str
    uuid: str
    mig: str
    job_id: str
    rank: str
    active: bool
    owner: bool
    counters: Mapping[Key, float]
    xid: Mapping[str, int]
    times: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HeldPort:
    """What a job has of a port."""

    port: str
    job_id: str
    active: bool
    owner: bool
    counters: Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class Published:
    """
    What the collectors serve.

    ``unattributed`` counts events that belong to nobody because nobody looked while the holder changed,
    ``unmatched`` the processes that the driver lists and of which nobody knows the job.
    """

    events: tuple[DeviceEvents, ...] = ()
    devices: tuple[HeldDevice, ...] = ()
    ports: tuple[HeldPort, ...] = ()
    unattributed: int = 0
    unmatched: int = 0
