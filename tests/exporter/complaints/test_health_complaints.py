"""Complaints about health: a reset that nobody hears of, alarms on what was handled, MIG, odd answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from tests.exporter.complaints.node import Agent, Scrape

from tocsin_lab.sim import trouble
from tocsin_lab.sim.trouble import SENTINELS, Blank

ACTION = "tocsin_gpu_recovery_action"
ACTIVITY = "tocsin_gpu_tensor_active_ratio"
ENERGY = "tocsin_gpu_energy_joules_total"
# Field ids of nvml.h: memory temperature, NVLink throughput (data, sent), recovery action.
MEMORY_TEMPERATURE, NVLINK_SENT = 82, 138
_UNKNOWN, _NOT_SUPPORTED, _INVALID = 999, 3, 2


@pytest.fixture(scope="module")
def hopper(make: Callable[..., Agent]) -> Iterator[Agent]:
    """An exporter on a node with H100s."""
    agent = make(flags=("--tier", "deep")).start()
    yield agent
    agent.close()


@pytest.fixture
def whole(hopper: Agent) -> Iterator[Agent]:
    """The same, with a driver that behaves again afterwards."""
    yield hopper
    trouble.take_away_rules(hopper.paths.devices)


@pytest.fixture
def fresh(make: Callable[..., Agent]) -> Iterator[Agent]:
    """An exporter that is not yet started, since some things are read once a minute."""
    agent = make(flags=("--tier", "deep"))
    yield agent
    agent.close()


@pytest.fixture(scope="module")
def mig(make: Callable[..., Agent]) -> Iterator[Agent]:
    """An exporter on a node whose first H100 is cut into two instances."""
    agent = make(flags=("--tier", "deep"))
    trouble.reconfigure_mig(agent.paths.devices, 0, ["3g.40gb", "1g.10gb"])
    agent.start()
    yield agent
    agent.close()


def wanted(scrape: Scrape, **labels: str) -> set[str]:
    """The recovery actions that are set."""
    return {found["action"] for found, value in scrape.series(ACTION, **labels) if value}


@pytest.mark.complaint(7)
def test_a_gpu_that_needs_a_reset_says_so(hopper: Agent) -> None:
    """
    The driver's recovery action is published as a state as long as it stands, and cleared with it.

    NVIDIA/DCGM#263; utkuozdemir/nvidia_gpu_exporter#393; kubernetes-sigs/dra-driver-nvidia-gpu#1441.
    """
    healthy = hopper.until(lambda scrape: scrape.series(ACTION, gpu="0"))
    none = wanted(healthy, gpu="0")
    trouble.recovery_action(hopper.paths.devices, 0, 1)
    sick = hopper.until(lambda scrape: wanted(scrape, gpu="0") != none)

    assert 1 == len(wanted(sick, gpu="0"))
    assert any("reset" in action for action in wanted(sick, gpu="0"))
    assert none == wanted(sick, gpu="1")
    trouble.recovery_action(hopper.paths.devices, 0, 0)
    hopper.until(lambda scrape: wanted(scrape, gpu="0") == none)


@pytest.mark.complaint(7)
def test_a_reset_that_a_board_needs_is_told_once_and_its_instances_point_to_it(mig: Agent) -> None:
    """
    The action is the board's: the row that its instances share a UUID or index with, whatever they hold.

    kubernetes-sigs/dra-driver-nvidia-gpu#1441.
    """
    trouble.recovery_action(mig.paths.devices, 0, 1)
    sick = mig.until(lambda scrape: any("reset" in one for one in wanted(scrape, gpu="0", mig="")))
    instances = [labels for labels, _ in sick.series("tocsin_gpu_mig_info", gpu="0")]
    trouble.recovery_action(mig.paths.devices, 0, 0)

    assert 2 == len(instances)
    assert {"0"} == {labels["gpu"] for labels in instances}


@pytest.mark.complaint(11)
def test_profiling_that_a_fault_has_switched_off_is_absent_and_not_zero(hopper: Agent) -> None:
    """
    After some faults the driver's profiling answers with zeros until a reset: then there is no activity.

    NVIDIA/DCGM#303, #173.
    """
    hopper.job("busy", [0])
    hopper.until(lambda scrape: scrape.series(ACTIVITY, gpu="0"))
    for how in (Blank.ZERO, Blank.NO_DATA):
        trouble.blank_profiling(hopper.paths.devices, 0, how)
        blank = hopper.until(lambda scrape: not scrape.series(ACTIVITY, gpu="0"))
        assert blank.series(ACTIVITY, gpu="1")
        assert 1 == blank.value("tocsin_gpu_up", gpu="0")
        trouble.blank_profiling(hopper.paths.devices, 0, Blank.OFF)
        if how is Blank.ZERO:
            # A refused metric is asked for again later, zeros are looked at in each reading.
            hopper.until(lambda scrape: scrape.series(ACTIVITY, gpu="0"))


@pytest.mark.complaint(11)
def test_link_counters_that_a_generation_no_longer_has_are_not_served_as_zero(fresh: Agent) -> None:
    """
    Hopper answers the NVLink counters of older boards with success and 0: errors come from where it counts.

    DataDog/datadog-agent#55966.
    """
    trouble.link_errors(fresh.paths.devices, 0, 3, 500.0, ["replay"])
    time.sleep(0.2)
    name = "tocsin_gpu_nvlink_errors_total"
    counted = fresh.start().until(lambda scrape: scrape.series(name, gpu="0", link="3"))

    assert counted.total(name, gpu="0", link="3") > 0
    assert 0 == counted.total(name, gpu="0", link="4") == counted.total(name, gpu="1")


@pytest.mark.complaint(12)
@pytest.mark.parametrize("spoiled", [False, True], ids=["one field fails", "one field spoils its batch"])
def test_one_field_that_fails_costs_no_other(whole: Agent, spoiled: bool) -> None:
    """
    A field that the driver refuses is missing alone, also where it makes the whole call fail.

    NVIDIA/dcgm-exporter#581; NVIDIA/DCGM#265.
    """
    name = "tocsin_gpu_memory_temperature_celsius"
    before = whole.until(lambda scrape: len(scrape.series(name)) == 2)
    trouble.fail_call(
        whole.paths.devices, _INVALID if spoiled else _NOT_SUPPORTED, trouble.FIELD_VALUES, 0,
        MEMORY_TEMPERATURE, whole=spoiled,
    )  # fmt: skip
    after = whole.until(lambda scrape: not scrape.series(name, gpu="0"))
    after = whole.cycles(2)

    assert not after.series(name, gpu="0")
    assert after.series(name, gpu="1")
    gone = {key for key, labels, _ in before.rows if labels.get("gpu") == "0"} - {
        key for key, labels, _ in after.rows if labels.get("gpu") == "0"
    }
    assert {name} == {one for one in gone if one.startswith("tocsin_gpu_")}


@pytest.mark.complaint(14)
@pytest.mark.parametrize("sentinel", sorted(SENTINELS))
def test_a_value_that_means_none_is_no_temperature(whole: Agent, sentinel: str) -> None:
    """
    What drivers hand out for "no value" is left out in every width; 9223372036854775794 is no temperature.

    NVIDIA/dcgm-exporter, sample in the README.
    """
    name = "tocsin_gpu_memory_temperature_celsius"
    whole.until(lambda scrape: scrape.series(name, gpu="0"))
    trouble.alter(whole.paths.devices, SENTINELS[sentinel], gpu=0, field=MEMORY_TEMPERATURE)
    trouble.alter(whole.paths.devices, SENTINELS[sentinel], "nvmlDeviceGetPowerUsage", gpu=0)
    after = whole.until(lambda scrape: not scrape.series(name, gpu="0"))

    assert after.series(name, gpu="1")
    assert all(0 <= value < 120 for _, value in after.series(name))
    assert all(0 <= value < 2000 for _, value in whole.cycles(1).series("tocsin_gpu_power_watts"))


@pytest.mark.complaint(30)
def test_handles_that_a_reload_of_the_manager_voids_are_taken_anew(whole: Agent) -> None:
    """
    "Unknown Error" on every call is a lost session: it has a reason of its own and ends with a new start.

    NVIDIA/nvidia-container-toolkit#48, #251, #1227; Project-HAMi/HAMi#1089.
    """
    up = "tocsin_gpu_up"
    before = whole.until(lambda scrape: scrape.total(up) == 2)
    trouble.void_handles(whole.paths.devices)
    reasons: set[str] = set()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        scrape = whole.scrape()
        reasons |= {labels.get("reason", "") for labels, value in scrape.series(up) if not value}
        again = scrape.value("tocsin_collector_last_success_timestamp_seconds", collector="gpu") or 0
        if scrape.total(up) == 2 and again > time.time() - 1:
            break
        time.sleep(0.05)

    assert whole.until(lambda scrape: scrape.total(up) == 2).series("tocsin_gpu_power_watts")
    assert not reasons & {"gpu_lost", "reset_required"}
    assert [labels for labels, _ in before.series("tocsin_gpu_info")] == [
        labels for labels, _ in whole.cycles(1).series("tocsin_gpu_info")
    ]


@pytest.mark.complaint(32)
def test_an_error_that_was_handled_raises_no_flag(fresh: Agent) -> None:
    """
    An uncorrectable error whose row was remapped is a count; only what is pending or failed is a flag.

    leptonai/gpud PR #108.
    """
    flags = ("row_remap_pending", "row_remap_failed", "sram_threshold_exceeded", "memory_unrepairable")
    for device in fresh.state.devices[:2]:
        device.ecc_dram[1] = device.remapped_rows[1] = 1
    fresh.state.devices[0].remap_failed = 1
    remaps = "tocsin_gpu_row_remaps_total"
    scrape = fresh.start().until(lambda one: one.series(remaps, gpu="1", severity="uncorrected"))

    assert 1 == scrape.value(remaps, gpu="1", severity="uncorrected")
    errors = scrape.value("tocsin_gpu_ecc_errors_total", gpu="1", severity="uncorrected", memory="dram")
    assert 1 == errors
    assert "counter" == scrape.types["tocsin_gpu_ecc_errors_total"]
    assert {0.0} == {scrape.total(f"tocsin_gpu_{flag}", gpu="1") for flag in flags}
    assert not [action for action in wanted(scrape, gpu="1") if "reset" in action]
    assert 1 == scrape.value("tocsin_gpu_row_remap_failed", gpu="0")


@pytest.mark.complaint(33)
def test_instances_are_named_by_the_driver_and_energy_is_told_once(mig: Agent) -> None:
    """
    An instance has the profile that the driver gives it, its own activity, no share of the board's energy.

    NVIDIA/dcgm-exporter#544, #430, #512, #317; NVIDIA/gpu-monitoring-tools#193.
    """
    scrape = mig.until(lambda one: len(one.series(ACTIVITY, gpu="0")) >= 2)
    instances = [labels for labels, _ in scrape.series("tocsin_gpu_mig_info", gpu="0")]

    assert {"3g.40gb", "1g.10gb"} == {labels["profile"] for labels in instances}
    assert 2 == len({labels["gpu_uuid"] for labels in instances})
    assert all(labels["mig"] for labels in instances)
    assert [""] == [labels.get("mig", "") for labels, _ in scrape.series(ENERGY, gpu="0")]
    # The driver gives no utilisation for a board in this mode: absent, while instances have their activity.
    assert not scrape.series("tocsin_gpu_utilization_ratio", gpu="0", mig="")
    told = {labels.get("mig", "") for labels, _ in scrape.series(ACTIVITY, gpu="0")}
    assert {labels["mig"] for labels in instances} <= told
