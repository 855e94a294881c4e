"""Each way in which the simulated driver can fail shows at the caller as it does with the real one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tocsin_lab.errors import TargetError
from tocsin_lab.sim import trouble
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import create_node

Script = Callable[..., Any]

_HEAD = """
import json, time, pynvml as n
from pathlib import Path
from tocsin_lab.sim import trouble
def code(call, *arguments):
    try:
        call(*arguments)
        return 0
    except n.NVMLError as error:
        return error.value
def value(field, scope=0):
    f = n.nvmlDeviceGetFieldValues(h, [(field, scope)])[0]
    if f.nvmlReturn:
        return f"error {f.nvmlReturn}"
    return [f.value.dVal, f.value.uiVal, f.value.ulVal, f.value.ullVal, f.value.sllVal,
    f.value.siVal][f.valueType]
"""
_INIT = _HEAD + "n.nvmlInit()\nh = n.nvmlDeviceGetHandleByIndex(0)\n"


def _blocked(sim_lib: Path, devices: Path, text: str, release: Callable[[], None]) -> str:
    """Run a script that must block until ``release``; returns what it prints then."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(sim_lib), "TOCSIN_SIM_DEVICES": str(devices)}
    with subprocess.Popen(
        [sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "before\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.4)
        release()
        assert child.wait(20) == 0
        return child.stdout.read().strip()


@pytest.mark.parametrize(
    ("begin", "end", "call"),
    [
        pytest.param(
            lambda path: trouble.hang(path, 0),
            lambda path: trouble.hang(path, 0, stuck=False),
            "n.nvmlDeviceGetPowerUsage(h)",
            id="one GPU",
        ),
        pytest.param(
            lambda path: trouble.hang_call(path, trouble.FIELD_VALUES),
            trouble.take_away_rules,
            "n.nvmlDeviceGetFieldValues(h, [83])",
            id="field values",
        ),
        pytest.param(
            lambda path: trouble.hang_call(path, trouble.FIELD_VALUES, field=230),
            trouble.take_away_rules,
            "n.nvmlDeviceGetFieldValues(h, [83, 230])",
            id="one field",
        ),
    ],
)
def test_what_hangs_hangs_alone(
    sim_lib: Path, devices: Path, begin: Callable[[Path], None], end: Callable[[Path], None], call: str
) -> None:
    """The call blocks, the other GPU and other calls answer; it goes on when released."""
    begin(devices)
    text = (
        _INIT
        + """
other = n.nvmlDeviceGetHandleByIndex(1)
n.nvmlDeviceGetUUID(other)
n.nvmlDeviceGetPowerUsage(other)
print("before", flush=True)
"""
        + call
        + "\nprint('after')"
    )

    assert _blocked(sim_lib, devices, text, lambda: end(devices)) == "after"


def test_initialisation_hangs(sim_lib: Path, devices: Path) -> None:
    """nvmlInit blocks until the driver comes to itself."""
    trouble.hang_init(devices)
    text = "import pynvml as n\nprint('before', flush=True)\nn.nvmlInit()\nprint(n.nvmlDeviceGetCount())"

    assert _blocked(sim_lib, devices, text, lambda: trouble.hang_init(devices, stuck=False)) == "2"


@pytest.mark.parametrize("number", [4, 9, 18])
def test_initialisation_fails(script: Script, devices: Path, number: int) -> None:
    """No permission, no driver, another version: the code; afterwards the same process can initialise."""
    trouble.fail_init(devices, number)
    got = script(
        _HEAD
        + f"""
first = code(n.nvmlInit)
trouble.fail_init(Path({str(devices)!r}), 0)
print(json.dumps([first, code(n.nvmlInit), n.nvmlDeviceGetCount()]))
""",
        devices,
    )

    assert got == [number, 0, 2]


def test_a_removed_gpu_leaves_the_count_and_moves_the_others_up(script: Script, devices: Path) -> None:
    """It is neither counted nor found; the next GPU takes its index and keeps minor number and UUID."""
    trouble.remove(devices, 0)
    with Node(devices) as node:
        uuids = [node.state.devices[at].uuid.decode() for at in range(2)]
    got = script(
        _INIT
        + f"""
print(json.dumps([n.nvmlDeviceGetCount(), n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetIndex(h),
  n.nvmlDeviceGetMinorNumber(h), code(n.nvmlDeviceGetHandleByUUID, {uuids[0]!r}),
  code(n.nvmlDeviceGetHandleByIndex, 1)]))
""",
        devices,
    )

    assert got == [1, uuids[1], 0, 1, 6, 2]


def test_a_gpu_that_is_lost_under_way_fails_every_call_on_it(script: Script, devices: Path) -> None:
    """A handle from before answers GPU_IS_LOST (15) to every call; the other GPU answers."""
    got = script(
        _INIT
        + f"""
trouble.lose(Path({str(devices)!r}), 0)
print(json.dumps([code(n.nvmlDeviceGetPowerUsage, h), code(n.nvmlDeviceGetFanSpeed, h),
  code(n.nvmlDeviceGetFieldValues, h, [83]), code(n.nvmlDeviceGetPowerUsage,
  n.nvmlDeviceGetHandleByIndex(1))]))
""",
        devices,
    )

    assert got == [15, 15, 15, 0]


def test_void_handles_need_another_initialisation(script: Script, devices: Path) -> None:
    """Every call is UNKNOWN (999) until the library is shut down and initialised again."""
    got = script(
        _INIT
        + f"""
trouble.void_handles(Path({str(devices)!r}))
failed = [code(n.nvmlDeviceGetCount), code(n.nvmlDeviceGetPowerUsage, h),
  code(n.nvmlDeviceGetHandleByIndex, 0)]
n.nvmlShutdown()
n.nvmlInit()
print(json.dumps([failed, code(n.nvmlDeviceGetPowerUsage, n.nvmlDeviceGetHandleByIndex(0))]))
""",
        devices,
    )

    assert got == [[999, 999, 999], 0]


def test_slow_calls_take_their_time(script: Script, devices: Path) -> None:
    """A slow call takes at least what it was given, a slow field delays its batch, others do not wait."""
    trouble.slow_call(devices, 0.15, "nvmlDeviceGetPowerUsage", gpu=0)
    trouble.slow_call(devices, 0.15, trouble.FIELD_VALUES, field=82)
    got = script(
        _INIT
        + """
def seconds(call, *arguments):
    start = time.monotonic(); call(*arguments); return time.monotonic() - start
other = n.nvmlDeviceGetHandleByIndex(1)
slow = [seconds(n.nvmlDeviceGetPowerUsage, h), seconds(n.nvmlDeviceGetFieldValues, h, [83, 82])]
fast = [seconds(n.nvmlDeviceGetPowerUsage, other), seconds(n.nvmlDeviceGetFieldValues, h, [83])]
print(json.dumps([min(slow), max(fast) < min(slow)]))
""",
        devices,
    )

    assert got[0] >= 0.15
    assert got[1]


def test_one_bad_field_fails_alone_or_takes_the_batch(script: Script, devices: Path) -> None:
    """Its own nvmlReturn is the code and the others answer; or the call fails when the field is in it."""
    trouble.fail_call(devices, 999, trouble.FIELD_VALUES, field=82)
    trouble.fail_call(devices, 3, trouble.FIELD_VALUES, field=138, scope=5)
    trouble.fail_call(devices, 2, trouble.FIELD_VALUES, field=147, whole=True)
    got = script(
        _INIT
        + """
f = n.nvmlDeviceGetFieldValues(h, [83, 82, (138, 4), (138, 5)])
print(json.dumps([[x.nvmlReturn for x in f], code(n.nvmlDeviceGetFieldValues, h, [83, 147]),
  code(n.nvmlDeviceGetFieldValues, h, [83])]))
""",
        devices,
    )

    assert got == [[0, 999, 0, 3], 2, 0]


def test_sentinels_and_garbage_come_as_success(script: Script, devices: Path) -> None:
    """Fields, calls and metrics report what was asked for, also where the model supports nothing."""
    trouble.alter(devices, trouble.SENTINELS["uint32"], field=82)
    trouble.alter(devices, trouble.SENTINELS["blank64_not_supported"], field=83)
    trouble.alter(devices, -1, field=193)
    trouble.alter(devices, 10**12, "nvmlDeviceGetPowerUsage")
    trouble.alter(devices, trouble.SENTINELS["uint32"], "nvmlDeviceGetUtilizationRates")
    trouble.alter(devices, 1e300, trouble.GPM_METRICS, field=2)
    trouble.alter(devices, float("nan"), trouble.GPM_METRICS, field=10)
    got = script(
        _INIT
        + """
a, b = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
n.nvmlGpmSampleGet(h, a); time.sleep(0.02); n.nvmlGpmSampleGet(h, b)
g = n.c_nvmlGpmMetricsGet_t()
g.version, g.sample1, g.sample2, g.numMetrics = 1, a, b, 3
for at, number in enumerate((2, 10, 1)):
    g.metrics[at].metricId = number
n.nvmlGpmMetricsGet(g)
rates = n.nvmlDeviceGetUtilizationRates(h)
print(json.dumps([value(82), value(83), value(193), n.nvmlDeviceGetPowerUsage(h), rates.gpu, rates.memory,
  g.metrics[0].value, str(g.metrics[1].value), g.metrics[2].value]))
""",
        devices,
    )

    assert got == [2**32 - 1, 0x7FFFFFFFFFFFFFF2, -1, 10**12 % 2**32, 2**32 - 1, 2**32 - 1, 1e300,
    "nan", 0.0]


@pytest.mark.parametrize(
    ("how", "expected"), [(trouble.Blank.ZERO, [0, 0.0]), (trouble.Blank.NO_DATA, [21, 0.0])]
)
def test_blank_profiling(script: Script, devices: Path, how: trouble.Blank, expected: list[float]) -> None:
    """The sample and the call succeed; each metric says 0, or NO_DATA (21), of a device that works."""
    trouble.blank_profiling(devices, 0, how)
    got = script(
        _INIT
        + """
from tocsin_lab.job.driver import Device
d = Device()
a, b = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
n.nvmlGpmSampleGet(h, a)
d.launch(d.function("gemm_bf16"), 100000); d.synchronize()
n.nvmlGpmSampleGet(h, b)
g = n.c_nvmlGpmMetricsGet_t()
g.version, g.sample1, g.sample2, g.numMetrics = 1, a, b, 1
g.metrics[0].metricId = 1
n.nvmlGpmMetricsGet(g)
print(json.dumps([g.metrics[0].nvmlReturn, g.metrics[0].value]))
""",
        devices,
    )

    assert got == expected


def test_ecc_counts_by_rate_and_keeps_lifetime_over_a_reload(script: Script, devices: Path) -> None:
    """A reload sets volatile counts to 0, lifetime ones go on; a rate that ended stays booked."""
    trouble.count_ecc(devices, 0, corrected=7, uncorrected=1, memory="sram")
    trouble.count_ecc(devices, 0, rates=(1000.0, 0.0))
    time.sleep(0.1)
    trouble.count_ecc(devices, 0, rates=(0.0, 0.0))
    text = (
        _INIT
        + """
status = n.c_nvmlEccSramErrorStatus_v1_t()
import os
if os.geteuid() == 0:
    n.nvmlDeviceGetSramEccErrorStatus(h, n.byref(status))
print(json.dumps([value(3), value(5), value(11), n.nvmlDeviceGetMemoryErrorCounter(h, 1, 1, 7),
  n.nvmlDeviceGetMemoryErrorCounter(h, 1, 0, 7), status.aggregateUncSecDed if os.geteuid() == 0 else 1]))
"""
    )
    before = script(text, devices)
    trouble.reload_driver(devices)
    after = script(text, devices)

    assert before[0] == before[1] >= 100
    assert before[0] - before[2] == 7
    assert before[3:] == [1, 1, 1]
    assert after == [0, before[1], 0, 1, 0, 1]


def test_a_reload_begins_energy_and_traffic_anew(script: Script, devices: Path) -> None:
    """What counts since the driver was loaded falls; a counter wraps where it is narrow."""
    with Node(devices) as node:
        device = node.state.devices[0]
        device.energy_uj, device.pcie_tx_bytes, device.nvlink_tx_bytes = 10**12, 5 << 32, 18 << 30
        device.pcie_rx_bytes, device.pcie_replays = (5 << 32) + 9, 4
        del device
    trouble.wrap_counters(devices, 0, 32)
    text = _INIT + "print(json.dumps([value(at, 3) for at in (83, 197, 198, 138, 94)]))"
    energy, *traffic = script(text, devices)
    trouble.reload_driver(devices)
    again = script(text, devices)

    assert energy >= 10**9
    assert traffic == [0, 9, 1 << 20, 4]
    assert again[0] < energy
    assert again[1:] == [0, 0, 0, 0]


def test_hopper_links_count_errors_and_go_down(script: Script, devices: Path) -> None:
    """Counter and per-link fields count; the legacy ids say 0; a link that is down stands still."""
    trouble.link_errors(devices, 0, 3, 1000.0, ("replay", "crc_flit"))
    with Node(devices) as node:
        node.state.devices[0].nvlink_rx_bytes = 18 << 20
    trouble.link_down(devices, 0, 5)
    with Node(devices) as node:
        node.state.devices[0].nvlink_rx_bytes = 36 << 20
    time.sleep(0.05)
    got = script(
        _INIT
        + """
count = n.nvmlDeviceGetNvLinkErrorCounter
legacy = [f.value.ullVal for f in n.nvmlDeviceGetFieldValues(h, [*range(32, 60), *range(96, 120)])]
print(json.dumps([count(h, 3, 0) > 0, count(h, 3, 2) > 0, count(h, 3, 1), count(h, 2, 0), value(161,
  3) > 0, max(legacy),
  n.nvmlDeviceGetNvLinkState(h, 5), value(165, 5), value(147), value(139, 5), value(139, 4), value(139,
  2**32 - 1)]))
""",
        devices,
    )

    assert got == [True, True, 0, 0, True, 0, 0, 0, 17, 1024, 2048, 17 * 2048 + 1024]


def test_blackwell_links_count_by_fields(script: Script, tmp_path: Path) -> None:
    """Errors, FEC bins and traffic are per link; a bit error rate without errors is 15e-254."""
    devices = create_node(tmp_path, "b", gpus=1, hcas=0, gpu_model="B200").devices
    with Node(devices) as node:
        node.state.devices[0].nvlink_rx_bytes = 18 << 20
    trouble.link_errors(devices, 0, 2, 4250.0, ("symbol", "effective", "receive", "raw_lane0"))
    time.sleep(0.05)
    got = script(
        _INIT
        + """
def ber(field, link):
    bits = value(field, link)
    return [bits >> 8 & 15, bits & 255]
print(json.dumps([value(204, 2), value(203, 2), value(208, 2) > 0, value(208, 1), value(221, 2) > 0,
  ber(222, 1), ber(222, 2),
  ber(293, 1), value(236, 2) > 0, value(250, 2) > 0, value(235, 1), value(236, 1), value(213, 2)]))
""",
        devices,
    )

    assert got == [1 << 20, 4096, True, 0, True, [15, 254], [1, 8], [3, 11], True, True, 16384, 0, 0]


def test_events_reach_the_sets_that_asked(script: Script, devices: Path) -> None:
    """Xids come once and in order, from the registration on; then the wait times out (10)."""
    trouble.emit(devices, 0, trouble.EVENT_XID, 13)
    got = script(
        _INIT
        + f"""
path = Path({str(devices)!r})
other = n.nvmlDeviceGetHandleByIndex(1)
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(h, n.nvmlEventTypeXidCriticalError, events)
trouble.emit(path, 0, trouble.EVENT_XID, 31)
trouble.emit(path, 0, trouble.EVENT_DOUBLE_BIT)
trouble.emit(path, 1, trouble.EVENT_XID, 48)
trouble.emit(path, 0, trouble.EVENT_XID, 94, (2, 0))
def wait(ms):
    e = n.nvmlEventSetWait_v2(events, ms)
    return [e.eventType, e.eventData, e.gpuInstanceId, e.computeInstanceId, n.nvmlDeviceGetIndex(e.device)]
seen = [wait(500), wait(500)]
start = time.monotonic()
none = code(n.nvmlEventSetWait_v2, events, 120)
waited = time.monotonic() - start
trouble.lose(path, 0)
lost = code(n.nvmlEventSetWait_v2, events, 5000)
n.nvmlEventSetFree(events)
bad = code(n.nvmlDeviceRegisterEvents, other, 1 << 40, n.nvmlEventSetCreate())
print(json.dumps([seen, none, waited >= 0.12, lost, bad]))
""",
        devices,
    )
    none = 2**32 - 1

    assert got == [[[8, 31, none, none, 0], [8, 94, 2, 0, 0]], 10, True, 15, 3]


def test_an_event_wakes_who_waits_and_a_hang_blocks_it(sim_lib: Path, devices: Path) -> None:
    """A wait that the driver's hang has caught gives its event when the hang is over."""
    text = (
        _INIT
        + """
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(h, n.nvmlEventTypeXidCriticalError, events)
print("before", flush=True)
print(n.nvmlEventSetWait_v2(events, 30000).eventData)
"""
    )

    def release() -> None:
        trouble.hang(devices)
        trouble.emit(devices, 0, trouble.EVENT_XID, 79)
        time.sleep(0.2)
        trouble.hang(devices, stuck=False)

    assert _blocked(sim_lib, devices, text, release) == "79"


def test_recovery_action_and_fabric_health(script: Script, devices: Path) -> None:
    """Field 230 follows and an event tells it; the health mask and summary are those that were set."""
    got = script(
        _INIT
        + f"""
path = Path({str(devices)!r})
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(h, n.nvmlEventTypeGpuRecoveryAction, events)
def fabric():
    info = n.c_nvmlGpuFabricInfo_v3_t()
    n.nvmlDeviceGetGpuFabricInfoV(h, n.byref(info))
    return [info.state, info.healthMask & 3, info.healthSummary]
before = [value(230), fabric()]
trouble.recovery_action(path, 0, 1)
trouble.degrade_fabric(path, 0, 0x51A9)
print(json.dumps([before, value(230), n.nvmlEventSetWait_v2(events, 500).eventData, fabric()]))
""",
        devices,
    )

    assert got == [[0, [3, 2, 1]], 1, 1, [3, 1, 2]]


def test_processes_by_kind_and_share(script: Script, devices: Path) -> None:
    """Compute, graphics and MPS processes have lists of their own."""
    for kind, memory in (("compute", 1 << 30), ("compute", 2 << 30), ("graphics", 1 << 28), ("mps",
    1 << 29)):
        trouble.place_process(devices, 0, os.getpid(), memory, kind)
    got = script(
        _INIT
        + """
def sizes(call):
    return [p.usedGpuMemory >> 20 for p in call(h)]
detail = n.nvmlDeviceGetRunningProcessDetailList(h, n.nvmlProcessDetailList_v1, n.NVML_PROCESS_MODE_ALL)
print(json.dumps([sizes(n.nvmlDeviceGetComputeRunningProcesses),
  sizes(n.nvmlDeviceGetGraphicsRunningProcesses),
  sizes(n.nvmlDeviceGetMPSComputeRunningProcesses), [p.usedGpuMemory >> 20 for p in detail],
  n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).used >> 20,
  code(n.nvmlDeviceGetProcessUtilization, h, 0)]))
""",
        devices,
    )

    assert got == [[1024, 2048], [256], [512], [1024, 2048, 256, 512], 3840, 6]
    trouble.end_process(devices, 0, os.getpid())
    with pytest.raises(TargetError, match="pid 0"):
        trouble.place_process(devices, 0, 0)


def test_rules_are_bounded_and_taken_away(devices: Path) -> None:
    """The thirty-third rule is refused; taking away by kind leaves the others."""
    trouble.slow_call(devices, 0.1)
    for _ in range(31):
        trouble.alter(devices, 1, field=82)
    with pytest.raises(TargetError, match="32 rules"):
        trouble.alter(devices, 1, field=83)
    trouble.take_away_rules(devices, trouble.Rule.VALUE)

    assert [rule["kind"] for rule in trouble.rules(devices)] == [trouble.Rule.SLOW]


def test_utilisation_by_process_is_told_once_per_sample(script: Script, devices: Path) -> None:
    """A busy process has its share with a time; asked again from that time on, there is nothing yet (6)."""
    got = script(
        _INIT
        + """
import os
from tocsin_lab.job.driver import Device
d = Device()
for _ in range(12):
    d.launch(d.function("gemm_bf16"), 100000)
d.synchronize()
samples = n.nvmlDeviceGetProcessUtilization(h, 0)
infos = n.nvmlDeviceGetProcessesUtilizationInfo(h, 0)
print(json.dumps([[s.pid == os.getpid() for s in samples], samples[0].smUtil > 50, infos[0].smUtil > 50,
  code(n.nvmlDeviceGetProcessUtilization, h, samples[0].timeStamp + 10**9)]))
""",
        devices,
    )

    assert got == [[True], True, True, 6]
