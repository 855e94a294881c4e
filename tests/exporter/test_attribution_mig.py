"""MIG: each instance is a device with holders of its own, and the GPU they share tells them all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.exporter.ledger_node import ECC, ENERGY, REMAPS, THROTTLE, Node, gpu, pci

from tocsin_exporter.collectors.device_series import device_samples, holder_samples
from tocsin_exporter.identity.assigned import Assignment
from tocsin_exporter.sources.nvml.model import Device

A, B = "MIG-aaaa", "MIG-bbbb"
USED = ("memory_used_bytes", ())


def instance(uuid: str, mig: str, *pids: int, address: str = pci(0)) -> Device:
    return Device(gpu="0", uuid=uuid, mig=mig, pci=address, gauges={USED: 1.0}, pids=pids)


def two_jobs(address: str = pci(0)) -> Node:
    node = Node()
    node.who.start(1, "slurm/a")
    node.who.start(2, "slurm/b")
    # The driver lists an instance's processes on the whole GPU once more.
    node.add(gpu(0, "GPU-a", 1, 2))
    node.add(instance(A, "1/0", 1, address=address))
    node.add(instance(B, "2/0", 2, address=address))
    node.read()
    return node


@pytest.mark.parametrize("address", [pci(0), ""], ids=["with address", "without"])
def test_each_instance_has_its_own_holder(address: str) -> None:
    """A job holds the instance it runs on, and neither the other one nor the whole GPU."""
    held = two_jobs(address).ledger.published().devices

    assert {("0", A, "1/0", "slurm/a"), ("0", B, "2/0", "slurm/b")} == {
        (each.gpu, each.uuid, each.mig, each.job_id) for each in held
    }


def test_an_event_of_the_gpu_belongs_to_the_holders_of_all_instances() -> None:
    """The log names no instance: everybody on the GPU counts it, the device once."""
    node = two_jobs()
    node.event()

    assert (1, 1) == (node.xids("slurm/a", uuid=A), node.xids("slurm/b", uuid=B))
    assert [("GPU-a", "", 1)] == [
        (each.uuid, each.mig, each.xid["reset"]) for each in node.ledger.published().events
    ]


@pytest.mark.parametrize(
    "compute", [None, 0], ids=["gi", "gi and ci"]
)
def test_an_event_of_an_instance_belongs_to_its_holder_alone(compute: int | None) -> None:
    """The log names GPU-I, and mostly GPU-CI: the job on the other instance is not told."""
    node = two_jobs()
    node.event(gpu_instance=2, compute_instance=compute)

    assert (0, 1) == (node.xids("slurm/a", uuid=A), node.xids("slurm/b", uuid=B))


def test_what_happens_to_the_gpu_is_told_to_all_and_what_it_used_to_none() -> None:
    """Remaps, ECC errors and throttled time are everybody's; whose energy it was nobody knows."""
    node = two_jobs()
    for key in (REMAPS, ECC, THROTTLE, ENERGY):
        node.grow("GPU-a", key, 2)
    node.read()

    for job, uuid in (("slurm/a", A), ("slurm/b", B)):
        held = node.held(job, uuid)
        assert held is not None
        assert (2.0, 2.0, 2.0) == tuple(held.counters[key] for key in (REMAPS, ECC, THROTTLE))
        assert ENERGY not in held.counters
        assert "row_remap" in held.times


def test_the_state_of_the_gpu_is_told_to_its_instances_and_what_it_draws_is_not() -> None:
    """A throttled board throttles every instance; its power is no instance's."""
    node = two_jobs()
    throttled, power = ("throttle_active", ("hw_thermal",)), ("power_watts", ())
    node.devices["GPU-a"] = replace(node.devices["GPU-a"], gauges={throttled: 1.0, power: 500.0})
    node.read()
    samples = [
        (sample.family, sample.labels)
        for sample in (
            *device_samples(node.devices.values(), "gpu"),
            *holder_samples(node.devices.values(), node.ledger.published().devices, "gpu"),
        )
    ]

    for uuid, mig, job in ((A, "1/0", "slurm/a"), (B, "2/0", "slurm/b")):
        labels = ("0", uuid, mig, job, "0")
        assert ("tocsin_job_gpu_throttle_active", (*labels, "hw_thermal")) in samples
        assert ("tocsin_job_gpu_memory_used_bytes", labels) in samples
        assert ("tocsin_job_gpu_power_watts", labels) not in samples
    assert ("tocsin_gpu_power_watts", ("0", "GPU-a", "")) in samples


def test_zeros_of_the_gpu_s_events_exist_before_the_first_one() -> None:
    """A rule finds a zero for each event class of the GPU on the job series of an instance."""
    held = two_jobs().held("slurm/a", A)

    assert held is not None
    assert (0.0, 0.0) == (held.counters[REMAPS], held.counters[ECC])
    assert 9 == len(held.xid)


def test_an_event_that_names_no_instance_there_is_the_gpu_s() -> None:
    """The instance was taken apart meanwhile: its neighbours are not blamed."""
    node = two_jobs()
    node.event(gpu_instance=5, compute_instance=0)

    assert (0, 0) == (node.xids("slurm/a", uuid=A), node.xids("slurm/b", uuid=B))
    assert 1 == node.ledger.published().events[0].xid["reset"]


@pytest.mark.parametrize("name", [B, "MIG-GPU-a/2/0"])
def test_an_allocated_instance_has_a_holder(name: str) -> None:
    """Both forms of a MIG instance's name that the environment carries mean that instance."""
    node = Node()
    node.add(gpu(0, "GPU-a"))
    node.add(instance(A, "1/0"))
    node.add(instance(B, "2/0"))
    node.who.given = [Assignment(9, 1, 900.0, "slurm/idle", "4", (name,))]
    node.read()
    (held,) = node.ledger.published().devices

    assert (B, "2/0", "slurm/idle", "4") == (held.uuid, held.mig, held.job_id, held.rank)


def test_an_instance_that_is_taken_apart_is_held_by_nobody() -> None:
    """The GPU answers without it: its job, which lives on elsewhere, no longer holds it."""
    node = two_jobs()
    del node.devices[f"{A}1/0"]
    node.read()
    held = node.held("slurm/a", A)

    assert held is not None
    assert not held.active


def test_instances_that_are_gone_are_forgotten() -> None:
    """A day of reconfiguration leaves nothing behind."""
    node = two_jobs()
    node.who.members = []
    for round_ in range(60):
        node.devices = {}
        node.add(gpu(0, "GPU-a"))
        for each in range(7):
            node.add(instance(f"MIG-{round_}-{each}", f"{each}/0"))
        node.read(passed=600)

    assert len(node.ledger._devices.entries) < 70
