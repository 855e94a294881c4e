"""The simulated NVML answers the unmodified pynvml module as the real library would."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tocsin_lab import faults
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import NodePaths, create_node

Script = Callable[..., Any]

_HEAD = """
import json, pynvml as n
def code(call, *arguments):
    try:
        call(*arguments)
        return 0
    except n.NVMLError as error:
        return error.value
"""


def test_identity_and_limits(script: Script, devices: Path) -> None:
    """Name, UUID, PCI address, versions and limits are those of the profile, in NVML's own forms."""
    got = script(
        _HEAD
        + """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(1)
pci = n.nvmlDeviceGetPciInfo(h)
print(json.dumps({"count": n.nvmlDeviceGetCount(),
  "name": n.nvmlDeviceGetName(h), "uuid": n.nvmlDeviceGetUUID(h),
  "pci": pci.busId, "legacy": pci.busIdLegacy, "id": pci.pciDeviceId,
  "minor": n.nvmlDeviceGetMinorNumber(h),
  "driver": n.nvmlSystemGetDriverVersion(), "nvml": n.nvmlSystemGetNVMLVersion(),
  "cuda": n.nvmlSystemGetCudaDriverVersion_v2(),
  "cc": n.nvmlDeviceGetCudaComputeCapability(h), "limit": n.nvmlDeviceGetEnforcedPowerLimit(h),
  "by_uuid": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h))),
  "by_pci": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(pci.busId)),
  "memory": n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).total, "mig": n.nvmlDeviceGetMigMode(h),
  "pcie": [n.nvmlDeviceGetCurrPcieLinkGeneration(h), n.nvmlDeviceGetMaxPcieLinkWidth(h)]}))
""",
        devices,
    )
    uuid = got.pop("uuid")

    assert len("GPU-") + 36 == len(uuid)
    assert uuid.startswith("GPU-")
    assert got == {
        "count": 2,
        "name": "NVIDIA H100 80GB HBM3",
        "pci": "00000000:43:00.0",
        "legacy": "0000:43:00.0",
        "id": 0x233010DE,
        "minor": 1,
        "driver": "570.172.08",
        "nvml": "12.570.172.08",
        "cuda": 12080,
        "cc": [9, 0],
        "limit": 700000,
        "by_uuid": 1,
        "by_pci": 1,
        "memory": 81559 << 20,
        "mig": [0, 0],
        "pcie": [5, 16],
    }


def test_unsupported_calls_and_fields_say_so_one_by_one(script: Script, devices: Path) -> None:
    """A fan on an SXM board is NOT_SUPPORTED (3); one unknown field does not spoil the others."""
    got = script(
        _HEAD
        + """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
fields = n.nvmlDeviceGetFieldValues(h, [82, 60, (185, 0), 230])
print(json.dumps({"fan": code(n.nvmlDeviceGetFanSpeed, h), "bad": code(n.nvmlDeviceGetHandleByIndex, 9),
  "fields": [f.nvmlReturn for f in fields], "power": fields[2].value.uiVal}))
""",
        devices,
    )

    assert got == {"fan": 3, "bad": 2, "fields": [0, 3, 0, 0], "power": 72000}


def test_every_function_pynvml_looks_up_exists(script: Script, devices: Path) -> None:
    """No call of the module ends in FUNCTION_NOT_FOUND: unsupported ones answer for themselves."""
    missing = script(
        _HEAD
        + """
import inspect, re
names = set(re.findall(r'_nvmlGetFunctionPointer\\("(nvml\\w+)"\\)', inspect.getsource(n)))
n.nvmlInit()
print(json.dumps([len(names), sorted(name for name in names if not hasattr(n.nvmlLib, name))]))
""",
        devices,
    )

    assert missing[0] > 300
    assert missing[1] == []


def test_no_node_is_a_missing_driver(script: Script, devices: Path, tmp_path: Path) -> None:
    """Initialisation fails with DRIVER_NOT_LOADED (9), other calls with UNINITIALIZED (1)."""
    text = _HEAD + "print(json.dumps([code(n.nvmlInit), code(n.nvmlDeviceGetCount)]))"

    assert [9, 1] == script(text, tmp_path / "none.shm")


def test_gpm_is_absent_before_hopper(script: Script, tmp_path: Path) -> None:
    """An A100 has no GPM: the query says 0 and a sample is NOT_SUPPORTED."""
    paths = create_node(tmp_path, "old", gpus=1, hcas=0, gpu_model="A100-SXM")
    got = script(
        _HEAD
        + """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
s = n.nvmlGpmSampleAlloc()
print(json.dumps([n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice, code(n.nvmlGpmSampleGet, h, s),
  n.nvmlDeviceGetFieldValues(h, [230])[0].nvmlReturn]))
""",
        paths.devices,
    )

    assert got == [0, 3, 3]


def test_gpm_reports_what_the_device_did_between_two_samples(script: Script, devices: Path) -> None:
    """GEMM kernels give their shares of SMs and tensor pipes and full utilisation; then all idles."""
    got = script(
        _HEAD
        + """
import time
from tocsin_lab.job.driver import Device
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def metrics(a, b):
    m = n.c_nvmlGpmMetricsGet_t()
    m.version, m.sample1, m.sample2, m.numMetrics = 1, a, b, 4
    for at, number in enumerate((1, 2, 5, 300)):
        m.metrics[at].metricId = number
    n.nvmlGpmMetricsGet(m)
    return [round(m.metrics[at].value) for at in range(3)] + [m.metrics[3].nvmlReturn]
def sample():
    s = n.nvmlGpmSampleAlloc()
    n.nvmlGpmSampleGet(h, s)
    return s
d = Device()
gemm = d.function("gemm_bf16")
pids = [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)]
a = sample()
for _ in range(8):
    d.launch(gemm, 100000)
d.synchronize()
b = sample()
time.sleep(0.3)
c = sample()
import os
print(json.dumps([metrics(a, b), metrics(b, c), pids == [os.getpid()]]))
""",
        devices,
    )
    busy, idle, listed = got

    assert busy[0] >= 95
    assert 85 <= busy[1] <= 92
    assert 64 <= busy[2] <= 70
    assert busy[3] == 3
    assert idle[1] <= 10
    assert listed


def test_a_dead_process_leaves_an_idle_device(script: Script, devices: Path) -> None:
    """Once the process is gone it is not listed, and soon the device is idle and at its idle clock."""
    script(
        """
import json, os
from tocsin_lab.job.driver import Device
Device()
print(json.dumps(1), flush=True)
os._exit(0)
""",
        devices,
    )
    time.sleep(1.1)
    got = script(
        _HEAD
        + """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
print(json.dumps([n.nvmlDeviceGetComputeRunningProcesses(h), n.nvmlDeviceGetUtilizationRates(h).gpu,
  n.nvmlDeviceGetClockInfo(h, 1), n.nvmlDeviceGetCurrentClocksEventReasons(h)]))
""",
        devices,
    )

    assert got == [[], 0, 345, 1]


def test_a_hanging_driver_blocks_until_it_is_cleared(run_dir: Path, sim_lib: Path, devices: Path) -> None:
    """While it hangs a call does not return; the process can be killed; afterwards the same call answers."""
    text = "import pynvml as n\nn.nvmlInit()\nprint(n.nvmlDeviceGetCount(), flush=True)\n"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(sim_lib), "TOCSIN_SIM_DEVICES": str(devices)}
    faults.inject(run_dir, "driver_hang", node="gpu-001")
    with subprocess.Popen([sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE) as child:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.7)
        faults.clear(run_dir, "driver_hang", node="gpu-001")

        assert child.wait(10) == 0
        assert child.stdout is not None
        assert child.stdout.read() == b"2\n"


def test_a_lost_gpu_is_lost_alone(script: Script, run_dir: Path, devices: Path) -> None:
    """Its handle is refused with GPU_IS_LOST (15), its neighbour answers, the kernel log says Xid 79."""
    done = faults.inject(run_dir, "gpu_lost", node="gpu-001", gpu=1)
    got = script(
        _HEAD
        + """
n.nvmlInit()
by_index = n.nvmlDeviceGetHandleByIndex
print(json.dumps([n.nvmlDeviceGetCount(), code(by_index, 1), code(by_index, 0)]))
""",
        devices,
    )

    assert got == [2, 15, 0]
    assert ": 79, pid='<unknown>'" in done["done"]
    assert "NVRM: Xid (PCI:0000:43:00): 79," in NodePaths(run_dir, "gpu-001").kmsg.read_text()


def test_a_throttle_shows_in_clock_bits_and_time(script: Script, run_dir: Path, devices: Path) -> None:
    """Reason bits and the reason's nanosecond counter move together; the counter stays when cleared."""
    text = (
        _HEAD
        + """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
f = n.nvmlDeviceGetFieldValues(h, [270, 271])
print(json.dumps([n.nvmlDeviceGetCurrentClocksThrottleReasons(h), f[0].value.ullVal, f[1].value.ullVal]))
"""
    )
    faults.inject(run_dir, "throttle", node="gpu-001", gpu=0, magnitude=0.4, reason="power_brake")
    held = script(text, devices)
    faults.clear(run_dir, "throttle")
    after = script(text, devices)
    with Node(devices) as node:
        fraction = node.state.devices[0].clock_fraction

    assert held[0] == 0x88
    assert held[1] == 0
    assert held[2] > 0
    assert after[0] == 0x1
    assert after[2] >= held[2]
    assert fraction == 1.0
