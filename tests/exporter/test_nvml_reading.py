"""What is read of each kind of device, and what a driver that misbehaves costs."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.driver import Driver, names, values

from tocsin_exporter.sources.nvml.calls import Error
from tocsin_exporter.sources.nvml.mig import profile_name
from tocsin_exporter.sources.nvml.quantities import QUANTITIES
from tocsin_exporter.sources.nvml.reader import all_unknown
from tocsin_exporter.sources.nvml.reads import TIERS, Quantity, field
from tocsin_exporter.sources.nvml.values import BlankError, GarbageError, Target
from tocsin_lab.sim import trouble

Make = Callable[..., Driver]
MODELS = ("A100-SXM", "H100-SXM", "H200-SXM", "B200", "L40S")
ACTIVITY = {"sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio", "dram_active_ratio"}
UTILIZATION, MEMORY_TEMPERATURE, POWER_INSTANT = "nvmlDeviceGetUtilizationRates", 82, 186


@pytest.fixture
def make(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def driver(**shape: Any) -> Driver:
        root = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        root.mkdir()
        return Driver(root, nvml_library, monkeypatch, **shape)

    return driver


# what each model has


@pytest.mark.parametrize(
    ("model", "there", "absent"),
    [
        ("A100-SXM", {"row_remaps_total", "nvlink_active", "ecc_errors_total"}, {*ACTIVITY, "recovery_action", "nvlink_bit_error_ratio", "retired_pages", "fan_speed_ratio", "fabric_state"}),
        ("H100-SXM", {*ACTIVITY, "recovery_action", "nvlink_active", "row_remaps_total", "pipe_active_cycles_total"}, {"nvlink_bit_error_ratio", "nvlink_recoveries_total", "retired_pages", "bank_remaps"}),
        ("B200", {*ACTIVITY, "recovery_action", "nvlink_bit_error_ratio", "nvlink_recoveries_total", "fabric_condition"}, {"retired_pages", "fan_speed_ratio"}),
        ("L40S", {"utilization_ratio", "power_watts", "energy_joules_total"}, {*ACTIVITY, "nvlinks", "nvlink_active", "nvlink_errors_total", "recovery_action", "mig_mode"}),
    ],
)  # fmt: skip
def test_what_a_model_does_not_offer_is_absent(
    make: Make, model: str, there: set[str], absent: set[str]
) -> None:
    """Each architecture is asked what it knows; the rest has no series, not a zero."""
    driver = make(gpu_model=model)
    reader = driver.reader("deep")
    driver.read(reader)
    row = driver.read(reader)[0]

    assert there <= names(row)
    assert set() == absent & names(row)


@pytest.mark.parametrize(("model", "kinds"), [("A100-SXM", True), ("H100-SXM", True), ("B200", False)])
def test_nvlink_errors_are_those_of_the_links_generation(make: Make, model: str, kinds: bool) -> None:
    """Up to Hopper the data link's counters are read, from Blackwell on the new fields; never both."""
    driver = make(gpu_model=model)
    found = {
        labels[1]
        for (name, labels) in values(driver.read(driver.reader())[0])
        if name == "nvlink_errors_total"
    }

    assert found
    assert {kind.startswith("dl_") for kind in found} == {kinds}


@pytest.mark.parametrize("number", [202, 206, 213, 219, 220, 235, 289])
def test_blackwells_fields_are_not_asked_of_a_hopper(make: Make, number: int) -> None:
    """A driver that answers them on older links answers nonsense: nothing of it is told."""
    driver = make(gpu_model="H100-SXM")
    trouble.alter(driver.devices, 7, field=number)
    row = driver.read(driver.reader("deep"))[0]

    assert {labels[1] for name, labels, _ in row["values"] if name == "nvlink_errors_total"} == {
        "dl_replay", "dl_recovery", "dl_crc_flit", "dl_crc_data", "dl_ecc_data",
    }  # fmt: skip
    assert not names(row) & {
        "nvlink_recoveries_total",
        "nvlink_bit_error_ratio",
        "nvlink_corrected_codewords_total",
    }


@pytest.mark.parametrize("model", MODELS)
def test_every_row_is_in_the_table(make: Make, model: str) -> None:
    """What the child sends is listed with as many labels, and nothing is sent twice."""
    driver = make(gpu_model=model)
    reader = driver.reader("deep")
    driver.read(reader)
    for name, labels, value in driver.read(reader)[0]["values"]:
        assert len(QUANTITIES[name].labels) == len(labels), name
        assert math.isfinite(value)
    assert values(driver.read(reader)[0])


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_reads_its_own_quantities_only(make: Make, tier: str) -> None:
    """What the tier does not serve is not asked of the driver either."""
    driver = make(gpu_model="H100-SXM")
    reader = driver.reader(tier)
    driver.read(reader)
    told = {QUANTITIES[name].tier for name in names(driver.read(reader)[0])}

    assert set(TIERS[: TIERS.index(tier) + 1]) == told


def test_a_chip_that_the_driver_cannot_name_is_asked_as_the_newest(make: Make) -> None:
    """A device of an unknown architecture is read like those of the newest one."""
    driver = make(gpu_model="B200")
    with driver.state() as state:
        state.profile.architecture = 0xFFFFFFFF
    row = driver.read(driver.reader())[0]

    assert {"power_watts", "nvlink_bit_error_ratio", "recovery_action"} <= names(row)
    assert "" == row["info"]["architecture"]


def test_a_device_without_identity_is_tried_again(make: Make) -> None:
    """When the UUID cannot be read at the start, nothing is told under no name."""
    driver = make()
    reader = driver.reader()
    trouble.fail_call(driver.devices, 10, call="nvmlDeviceGetUUID")
    [unknown] = driver.read(reader)
    trouble.take_away_rules(driver.devices)
    [known] = driver.read(reader)

    assert (False, "unknown") == (unknown["up"], unknown["reason"])
    assert known["up"]
    assert known["uuid"]


def test_slow_quantities_keep_their_value_between_reads(make: Make) -> None:
    """A quantity read every 30 s is served in every cycle, as last read, and changes with its next read."""
    driver = make()
    reader = driver.reader()
    key = ("nvlink_errors_total", ("3", "dl_replay"))
    before = values(driver.read(reader)[0])[key]
    with driver.state() as state:
        state.devices[0].links[3].counts[0] += 5
    soon = values(driver.read(reader, after=5)[0])[key]
    later = values(driver.read(reader, after=30)[0])[key]

    assert before == soon
    assert before + 5 == later


# a driver that misbehaves


@pytest.mark.parametrize("whole", [False, True], ids=["the field", "the batch"])
@pytest.mark.parametrize("code", [3, 999])
def test_one_bad_field_costs_only_itself(make: Make, whole: bool, code: int) -> None:
    """A field that fails, alone or with the batch that it is in, takes no other with it."""
    driver = make()
    good = names(driver.read(driver.reader())[0])
    trouble.fail_call(driver.devices, code, call=trouble.FIELD_VALUES, field=MEMORY_TEMPERATURE, whole=whole)
    row = driver.read(driver.reader())[0]

    assert row["up"]
    assert {"memory_temperature_celsius"} == good - names(row)


def test_an_unsupported_field_is_not_asked_again_for_a_while(make: Make) -> None:
    """The pause grows to ten minutes; a new reader asks at once."""
    driver = make()
    reader = driver.reader()
    trouble.fail_call(driver.devices, 3, call=trouble.FIELD_VALUES, field=MEMORY_TEMPERATURE)
    for _ in range(60):
        driver.read(reader)
    trouble.take_away_rules(driver.devices)
    soon, anew = driver.read(reader)[0], driver.read(driver.reader())[0]
    later = driver.read(reader, after=600)[0]

    assert "memory_temperature_celsius" not in names(soon)
    assert "memory_temperature_celsius" in names(anew)
    assert "memory_temperature_celsius" in names(later)


@pytest.mark.parametrize("sentinel", trouble.SENTINELS.values(), ids=trouble.SENTINELS)
@pytest.mark.parametrize(
    ("number", "wide", "lost"),
    [(MEMORY_TEMPERATURE, False, "memory_temperature_celsius"), (75, True, "clock_policy_seconds_total")],
)
def test_a_sentinel_is_no_measurement(make: Make, sentinel: int, number: int, wide: bool, lost: str) -> None:
    """Values that mean "no value", in the width of the field, are absent; they are no garbage either."""
    driver = make()
    for other in (75, 77, 78, 79, 80, 81) if wide else (number,):
        trouble.alter(driver.devices, sentinel, field=other)
    row = driver.read(driver.reader())[0]

    assert lost not in names(row)
    if wide or sentinel <= 0xFFFFFFFF:
        assert 0 == row["rejected"]


@pytest.mark.parametrize(
    ("call", "number", "value", "lost"),
    [
        pytest.param(trouble.FIELD_VALUES, MEMORY_TEMPERATURE, 4_000_000_000, "memory_temperature_celsius", id="a temperature of 4e9"),
        pytest.param("nvmlDeviceGetPowerUsage", 0, 4_000_000_000, "power_watts", id="a power of 4 MW"),
        pytest.param("nvmlDeviceGetTotalEnergyConsumption", 0, 2**62, "energy_joules_total", id="an energy of 2^62 mJ"),
        pytest.param(trouble.FIELD_VALUES, 230, 77, "recovery_action", id="a recovery action that does not exist"),
        pytest.param(trouble.GPM_METRICS, 2, math.nan, "sm_active_ratio", id="activity that is no number"),
        pytest.param(trouble.GPM_METRICS, 2, -40.0, "sm_active_ratio", id="negative activity"),
        pytest.param(trouble.GPM_METRICS, 2, 7000.0, "sm_active_ratio", id="activity of 7000 percent"),
    ],
)  # fmt: skip
def test_garbage_is_dropped_and_counted(make: Make, call: str, number: int, value: float, lost: str) -> None:
    """A number that cannot be costs its own series, and is counted."""
    driver = make()
    trouble.alter(driver.devices, value, call=call, field=number)
    reader = driver.reader()
    driver.read(reader)
    row = driver.read(reader)[0]

    assert lost not in names(row)
    assert row["rejected"] >= 1
    assert "memory_used_bytes" in names(row)


@pytest.mark.parametrize("how", [trouble.Blank.ZERO, trouble.Blank.NO_DATA])
def test_lost_profiling_is_absent_not_zero(make: Make, how: trouble.Blank) -> None:
    """After an Xid 31 or beside another profiler all metrics are blank: no series, while the rest goes on."""
    driver = make(gpu_model="H100-SXM")
    trouble.alter(driver.devices, 87, call=UTILIZATION)
    trouble.blank_profiling(driver.devices, 0, how)
    for tier in ("core", "fabric"):
        reader = driver.reader(tier)
        driver.read(reader)
        row = driver.read(reader)[0]

        assert set() == ACTIVITY & names(row)
        assert 0.87 == values(row)[("utilization_ratio", ())]


def test_an_idle_device_is_idle_not_blank(make: Make) -> None:
    """Zero activity with no kernel running is a measurement."""
    driver = make(gpu_model="H100-SXM")
    reader = driver.reader("core")
    first = driver.read(reader)[0]
    second = driver.read(reader)[0]

    assert set() == ACTIVITY & names(first)
    assert 0.0 == values(second)[("sm_active_ratio", ())]


def test_a_failed_call_that_is_no_answer_is_tried_again_soon(make: Make) -> None:
    """An error that passes is a gap of seconds, not the end of the series."""
    driver = make()
    reader = driver.reader()
    driver.read(reader)
    trouble.fail_call(driver.devices, 10, call="nvmlDeviceGetPowerUsage")
    gap = driver.read(reader)[0]
    trouble.take_away_rules(driver.devices)
    later = driver.read(reader, after=6)[0]

    assert "power_watts" not in names(gap)
    assert "power_watts" in names(later)


def test_a_lost_device_keeps_its_identity(make: Make) -> None:
    """It is down with the reason, as what it was before; the other goes on and it returns by itself."""
    driver = make(gpus=2)
    reader = driver.reader()
    uuid = driver.read(reader, 1)[0]["uuid"]
    trouble.lose(driver.devices, 1)
    [gone] = driver.read(reader, 1)
    [other] = driver.read(reader, 0)
    trouble.lose(driver.devices, 1, lost=False)
    [back] = driver.read(reader, 1)

    assert (False, "gpu_lost", uuid) == (gone["up"], gone["reason"], gone["uuid"])
    assert other["up"]
    assert (True, uuid) == (back["up"], back["uuid"])


def test_unknown_errors_everywhere_are_no_fault_of_a_device(make: Make) -> None:
    """When access was taken away, every call fails alike: the session is at fault."""
    driver = make(gpus=2)
    reader = driver.reader()
    trouble.void_handles(driver.devices)
    rows = [driver.read(reader, index)[0] for index in range(2)]

    assert all_unknown(rows)
    assert not all_unknown([{**rows[0], "up": True, "code": 0}, rows[1]])


def test_an_error_of_the_session_ends_the_reading(make: Make) -> None:
    """A library that is no longer initialised is not taken for lost devices."""
    driver = make()
    reader = driver.reader()
    driver.read(reader)
    driver.library.check("nvmlShutdown")

    with pytest.raises(Error, match="uninitialized"):
        driver.read(reader)


# counters, states


def test_counters_do_not_fall_within_a_boot(make: Make) -> None:
    """Over cycles with traffic, errors and a counter that wraps, no counter of any device falls."""
    driver = make(gpu_model="H100-SXM")
    reader = driver.reader("deep")
    trouble.wrap_counters(driver.devices, 0, 32)
    before = values(driver.read(reader)[0])
    for _ in range(6):
        with driver.state() as state:
            device = state.devices[0]
            device.pcie_tx_bytes += 3_000_000_000
            device.nvlink_tx_bytes += 9_000_000_000
            device.ecc_dram[0] += 3
            device.pcie_replays += 1
            device.energy_uj += 10**9
            del device
        after = values(driver.read(reader, after=30)[0])
        fell = {
            key for key, value in after.items() if QUANTITIES[key[0]].counter and value < before.get(key, 0)
        }
        assert set() == fell
        assert {key for key in before if QUANTITIES[key[0]].counter} <= set(after)
        before = after
    assert 6 * 3_000_000_000 == before[("pcie_transmit_bytes_total", ())]


def test_a_reset_counter_that_wraps_adds_nothing(make: Make) -> None:
    """A fall that no wrap explains is a reset: what came before is not lost, nothing is invented."""
    driver = make()
    reader = driver.reader()
    key = ("pcie_transmit_bytes_total", ())
    with driver.state() as state:
        state.devices[0].pcie_tx_bytes = 2**45
    driver.read(reader)
    with driver.state() as state:
        state.devices[0].pcie_tx_bytes = 5
    assert 0.0 == values(driver.read(reader)[0])[key]
    with driver.state() as state:
        state.devices[0].pcie_tx_bytes = 1005
    assert 1000.0 == values(driver.read(reader)[0])[key]


def test_throttle_time_is_the_drivers_where_it_counts(make: Make) -> None:
    """hw_thermal comes from the driver's nanoseconds; display, which it does not count, from our readings."""
    driver = make()
    reader = driver.reader()
    driver.read(reader)
    with driver.state() as state:
        state.devices[0].throttle_since_ns = time.monotonic_ns()
        state.devices[0].throttle_reasons = 0x140
        state.devices[0].throttle_held_ns[6] += 7_000_000_000
    found = values(driver.read(reader, after=10)[0])

    assert (1.0, 1.0) == (
        found[("throttle_active", ("hw_thermal",))],
        found[("throttle_active", ("display",))],
    )
    assert 7.0 <= found[("throttle_seconds_total", ("hw_thermal",))] < 10.0
    assert (
        0.0 == found[("throttle_seconds_total", ("display",))] - 10.0
        or 10.0 == found[("throttle_seconds_total", ("display",))]
    )


def test_a_throttle_reason_keeps_its_way_of_counting(make: Make) -> None:
    """One failed read of the driver's counter is a gap, not a jump to our own count."""
    driver = make()
    reader = driver.reader()
    driver.read(reader)
    trouble.fail_call(driver.devices, 10, call=trouble.FIELD_VALUES, field=270)
    found = values(driver.read(reader)[0])

    assert ("throttle_active", ("hw_thermal",)) in found
    assert ("throttle_seconds_total", ("hw_thermal",)) not in found


@pytest.mark.parametrize(
    ("number", "action"),
    [(0, "none"), (1, "gpu_reset"), (2, "node_reboot"), (4, "drain_and_reset"), (7, "system_reboot")],
)
def test_recovery_action_is_a_state_set(make: Make, number: int, action: str) -> None:
    """Exactly the action that the driver wants is 1; without one only that there is none is told."""
    driver = make(gpu_model="H100-SXM")
    trouble.recovery_action(driver.devices, 0, number)
    states = {
        labels[0]: value
        for name, labels, value in driver.read(driver.reader("core"))[0]["values"]
        if name == "recovery_action"
    }

    assert {"none", action} == set(states)
    assert {action} == {name for name, value in states.items() if value == 1}


def test_fabric_health_is_told_by_condition(make: Make) -> None:
    """Each part of the health mask is a condition of its own; what the fabric does not judge is absent."""
    driver = make(gpu_model="B200")
    trouble.degrade_fabric(driver.devices, 0, 0b01 | 0b10 << 4 | 5 << 8)
    found = values(driver.read(driver.reader())[0])
    conditions = {labels[0]: value for (name, labels), value in found.items() if name == "fabric_condition"}

    assert {"degraded_bandwidth": 1.0, "route_unhealthy": 0.0} == conditions
    assert 1.0 == found[("fabric_misconfigured", ("insufficient_nvlinks",))]
    assert 1.0 == found[("fabric_health", ("unhealthy",))]


def test_a_lost_link_is_seen_in_the_count(make: Make) -> None:
    """Links that the device has and links that are up are told, and which one is down."""
    driver = make(gpu_model="H100-SXM")
    trouble.link_down(driver.devices, 0, 4)
    found = values(driver.read(driver.reader())[0])

    assert (18.0, 17.0) == (found[("nvlinks", ())], found[("nvlinks_active", ())])
    assert ["4"] == [
        labels[0] for (name, labels), value in found.items() if name == "nvlink_active" and value == 0
    ]


# numbers


def _target(**how: Any) -> Target:
    quantity = Quantity("x", False, (), how.pop("unit", ""), "X.", "core", False, most=how.pop("most", None))
    return Target(quantity, field("X", 1, **how), ())


@pytest.mark.parametrize(
    ("how", "raw", "expected"),
    [
        ({"decode": "ber", "unit": "ratio"}, 0x30B, 3e-11),
        ({"decode": "ber", "unit": "ratio"}, 0xF0F, 15e-15),
        ({"decode": "signed", "unit": "celsius"}, 0xFFFFFFF9, -7.0),
        ({"decode": "signed", "unit": "celsius"}, 12, 12.0),
        ({"decode": 0.01, "unit": "ratio"}, 101.0, 1.0),
        ({"decode": 1e-9, "unit": "seconds"}, 2_500_000_000, 2.5),
    ],
)
def test_forms_of_numbers(how: dict[str, Any], raw: float, expected: float) -> None:
    """Bit error rates, signed temperatures, percentages that are rounded up, nanoseconds."""
    [(_, _, value)] = _target(**how).rows(raw, 0.0)

    assert pytest.approx(expected) == value


@pytest.mark.parametrize(
    ("how", "raw", "error"),
    [
        ({"unit": "hertz"}, 1e12, GarbageError),
        ({"unit": "celsius"}, -3, GarbageError),
        ({"unit": "celsius"}, math.inf, GarbageError),
        ({"most": 15}, 32, GarbageError),
        ({"states": ("a", "b")}, 2, GarbageError),
        ({"states": (None, "b")}, 0, BlankError),
        ({"decode": "bits:2:3"}, 0b0000, BlankError),
        ({}, 0xFFFFFFFF, BlankError),
    ],
)
def test_numbers_that_are_none(how: dict[str, Any], raw: float, error: type[Exception]) -> None:
    """What cannot be is garbage, what the driver does not say is blank."""
    with pytest.raises(error):
        _target(**how).rows(raw, 0.0)


# MIG


@pytest.mark.parametrize(
    ("slices", "compute", "memory_mib", "board_mib", "media", "name"),
    [
        (1, 1, 9856, 81559, False, "1g.10gb"),
        (1, 1, 9856, 81559, True, "1g.10gb+me"),
        (3, 3, 40448, 81559, False, "3g.40gb"),
        (3, 1, 40448, 81559, False, "1c.3g.40gb"),
        (7, 7, 80896, 81559, True, "7g.80gb"),
        (1, 1, 4864, 40536, False, "1g.5gb"),
        (2, 2, 35840, 143771, False, "2g.35gb"),
    ],
)
def test_profile_names(
    slices: int, compute: int, memory_mib: int, board_mib: int, media: bool, name: str
) -> None:
    """A profile is called as NVIDIA calls it, from attributes alone."""
    assert name == profile_name(slices, compute, memory_mib << 20, board_mib << 20, media)


def test_mig_instances_are_devices_and_the_board_is_told_once(make: Make) -> None:
    """Instances carry memory, activity and processes; power, energy and temperature are the board's alone."""
    driver = make(gpu_model="H100-SXM", mig_profiles=("3g.40gb", "1g.10gb"))
    reader = driver.reader()
    driver.read(reader)
    board, *instances = driver.read(reader)

    assert ["3g.40gb", "1g.10gb"] == [row["info"]["profile"] for row in instances]
    assert all(row["uuid"].startswith("MIG-") and row["mig"] for row in instances)
    assert {0} == {row["index"] for row in instances}
    per_board = {"power_watts", "energy_joules_total", "temperature_celsius", "ecc_errors_total", "nvlinks"}
    assert per_board <= names(board)
    for row in instances:
        assert set() == per_board & names(row)
        assert {"memory_used_bytes", "memory_total_bytes", "sm_active_ratio", "mig_sms"} <= names(row)
    assert "utilization_ratio" not in names(board)


def test_mig_instances_come_and_go(make: Make) -> None:
    """After a change new instances are told and old ones are not, without a new child."""
    driver = make(gpu_model="H100-SXM", mig_profiles=("3g.40gb", "3g.40gb"))
    reader = driver.reader()
    before = driver.read(reader)
    trouble.reconfigure_mig(driver.devices, 0, ("1g.10gb",))
    reader.mig_changed(0)
    after = driver.read(reader)
    trouble.reconfigure_mig(driver.devices, 0, ())
    reader.mig_changed(0)
    off = driver.read(reader)

    assert ["", "3g.40gb", "3g.40gb"] == [row["info"].get("profile", "") for row in before]
    assert ["", "1g.10gb"] == [row["info"].get("profile", "") for row in after]
    assert not {row["uuid"] for row in after[1:]} & {row["uuid"] for row in before[1:]}
    assert 1 == len(off)


# sleep


def test_a_suspended_device_is_not_woken(make: Make) -> None:
    """Its state is read from the kernel first; while it sleeps the driver is not asked about it at all."""
    driver = make(gpus=2)
    driver.places.sysfs = str(driver.paths.run_dir / "sys")
    with driver.state() as state:
        buses = [state.devices[at].pci_bus for at in range(2)]
    for bus in buses:
        function = Path(driver.places.sysfs) / f"bus/pci/devices/0000:{bus:02x}:00.0"
        (function / "power").mkdir(parents=True)
        (function / "vendor").write_text("0x10de\n")
        (function / "class").write_text("0x030200\n")
        (function / "power/runtime_status").write_text("suspended\n" if bus == buses[1] else "active\n")
    # The driver would not return from a call to the sleeper.
    trouble.fail_call(driver.devices, 15, gpu=1)
    reader = driver.reader()
    awake, asleep = driver.read(reader, 0)[0], driver.read(reader, 1)[0]

    assert "power_watts" in names(awake)
    assert (True, [], True) == (asleep["up"], asleep["values"], asleep["suspended"])
