"""A GPU cut into MIG devices answers as nvml.h says: per instance what is an instance's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tocsin_lab.sim import trouble
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import create_node

Script = Callable[..., Any]

_HEAD = """
import json, time, pynvml as n
def code(call, *arguments):
    try:
        call(*arguments)
        return 0
    except n.NVMLError as error:
        return error.value
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def mig(at):
    return n.nvmlDeviceGetMigDeviceHandleByIndex(h, at)
"""


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """A node of one H100 with two halves."""
    profiles = ("3g.40gb", "3g.40gb")
    return create_node(tmp_path, "n", gpus=1, hcas=0, mig_profiles=profiles).devices


def test_instances_have_handles_names_and_shares(script: Script, devices: Path) -> None:
    """Two handles with ids, UUIDs, attributes and memory of their own; the third does not exist (6)."""
    got = script(
        _HEAD
        + """
m = mig(1)
a = n.nvmlDeviceGetAttributes_v2(m)
print(json.dumps({"mode": n.nvmlDeviceGetMigMode(h), "most": n.nvmlDeviceGetMaxMigDeviceCount(h),
  "third": code(mig, 2), "beyond": code(mig, 7), "name": n.nvmlDeviceGetName(m),
  "uuids": len({n.nvmlDeviceGetUUID(x) for x in (h, mig(0), m)}), "uuid": n.nvmlDeviceGetUUID(m)[:4],
  "ids": [[n.nvmlDeviceGetGpuInstanceId(mig(at)),
  n.nvmlDeviceGetComputeInstanceId(mig(at))] for at in (0, 1)],
  "attributes": [a.gpuInstanceSliceCount, a.multiprocessorCount, a.memorySizeMB],
  "memory": n.nvmlDeviceGetMemoryInfo(m).total >> 20,
  "parent": n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m)) == n.nvmlDeviceGetUUID(h),
  "is": [n.nvmlDeviceIsMigDeviceHandle(x).value for x in (m, h)],
  "by_uuid": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(m)))}))
""",
        devices,
    )
    memory = got.pop("memory")

    assert got == {
        "mode": [1, 1],
        "most": 7,
        "third": 6,
        "beyond": 2,
        "name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "uuids": 3,
        "uuid": "MIG-",
        "ids": [[1, 0], [2, 0]],
        "attributes": [3, 60, memory],
        "parent": True,
        "is": [1, 0],
        "by_uuid": 1,
    }
    assert 39 << 10 <= memory <= 40 << 10


def test_what_mig_takes_away(script: Script, devices: Path) -> None:
    """Utilisation and remaps are NOT_SUPPORTED on the parent; an instance has no temperature (2)."""
    got = script(
        _HEAD
        + """
rates, rows = n.nvmlDeviceGetUtilizationRates, n.nvmlDeviceGetRemappedRows
errors = n.nvmlDeviceGetMemoryErrorCounter
print(json.dumps({"parent": [code(rates, h), code(rows, h), code(errors, h, 1, 0, 2), code(errors, h,
  1, 1, 2),
    code(n.nvmlDeviceGetDecoderUtilization, h), code(n.nvmlDeviceGetProcessUtilization, h, 0)],
  "fields": [f.nvmlReturn for f in n.nvmlDeviceGetFieldValues(h, [142, 4, 6, 83, 230])],
  "instance": [code(rates, mig(0)), code(n.nvmlDeviceGetTemperature, mig(0), 0), code(errors, mig(0),
  1, 0, 7),
    code(errors, mig(0), 1, 0, 2), code(n.nvmlDeviceGetFieldValues, mig(0), [83])],
  "gpu": [code(n.nvmlDeviceGetGpuInstanceId, h), code(n.nvmlDeviceGetTotalEnergyConsumption, h)]}))
""",
        devices,
    )

    assert got == {
        "parent": [3, 3, 3, 0, 3, 3],
        "fields": [3, 3, 0, 0, 0],
        "instance": [3, 2, 0, 3, 2],
        "gpu": [2, 0],
    }


def test_a_process_is_on_its_instance(script: Script, devices: Path) -> None:
    """The parent lists it with the instance's ids, its instance too, the other does not."""
    trouble.place_process(devices, 0, os.getpid(), memory_bytes=3 << 30, instance=1)
    trouble.place_process(devices, 0, os.getpid(), memory_bytes=1 << 30, kind="mps", instance=0)
    got = script(
        _HEAD
        + """
def rows(call, handle):
    return [[p.usedGpuMemory >> 30, p.gpuInstanceId, p.computeInstanceId] for p in call(handle)]
compute, mps = n.nvmlDeviceGetComputeRunningProcesses, n.nvmlDeviceGetMPSComputeRunningProcesses
print(json.dumps([rows(compute, h), rows(compute, mig(0)), rows(compute, mig(1)), rows(mps, h),
  n.nvmlDeviceGetMemoryInfo(mig(1)).used >> 30]))
""",
        devices,
    )

    assert got == [[[3, 2, 0]], [], [[3, 2, 0]], [[1, 1, 0]], 3]


def test_a_rank_runs_on_the_instance_it_sees(script: Script, devices: Path) -> None:
    """CUDA_VISIBLE_DEVICES=MIG-… gives that instance: it is busy, the other is not, the GPU in part."""
    with Node(devices) as node:
        uuid = node.state.devices[0].instances[1].uuid.decode()
    got = script(
        _HEAD
        + """
import os
from tocsin_lab.job.driver import Device
def sample(instance):
    s = n.nvmlGpmSampleAlloc()
    n.nvmlGpmMigSampleGet(h, instance, s) if instance else n.nvmlGpmSampleGet(h, s)
    return s
def active(a, b):
    m = n.c_nvmlGpmMetricsGet_t()
    m.version, m.sample1, m.sample2, m.numMetrics = 1, a, b, 1
    m.metrics[0].metricId = 1
    n.nvmlGpmMetricsGet(m)
    return m.metrics[0].value
d = Device()
gemm = d.function("gemm_bf16")
d.launch(gemm, 20000); d.synchronize()
before = [sample(at) for at in (1, 2, 0)]
for _ in range(8):
    d.launch(gemm, 60000)
d.synchronize()
after = [sample(at) for at in (1, 2, 0)]
print(json.dumps([[round(active(a, b)) for a, b in zip(before, after)],
  [[p.pid == os.getpid(), p.gpuInstanceId] for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
  code(n.nvmlGpmMigSampleGet, h, 9, after[0])]))
""",
        devices,
        CUDA_VISIBLE_DEVICES=uuid,
    )
    (other, mine, whole), listed, missing = got

    assert other == 0
    assert mine >= 90
    assert abs(whole - mine * 3 / 7) <= 3
    assert listed == [[True, 2]]
    assert missing == 6


def test_a_reconfiguration_voids_the_old_handles(script: Script, devices: Path) -> None:
    """After another cut an old handle is an invalid argument (2), UUIDs are new, an event tells."""
    got = script(
        _HEAD
        + f"""
from pathlib import Path
from tocsin_lab.sim import trouble
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(h, n.nvmlEventMigConfigChange, events)
old = [mig(0), mig(1)]
uuid = n.nvmlDeviceGetUUID(old[0])
trouble.reconfigure_mig(Path({str(devices)!r}), 0, ("1g.10gb",) * 7)
event = n.nvmlEventSetWait_v2(events, 1000)
void = [code(n.nvmlDeviceGetUUID, one) for one in old]
print(json.dumps([void, event.eventType, n.nvmlDeviceGetUUID(mig(0)) == uuid,
  sorted(n.nvmlDeviceGetGpuInstanceId(mig(at)) for at in range(7))]))
""",
        devices,
    )

    assert got == [[2, 2], 0x100, False, [7, 8, 9, 10, 11, 12, 13]]
