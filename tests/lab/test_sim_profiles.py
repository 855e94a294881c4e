"""Each GPU model answers what its board answers, and says NOT_SUPPORTED to the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tocsin_lab.errors import TargetError
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import create_node
from tocsin_lab.sim.profiles import MIG_PROFILES, PROFILES

Script = Callable[..., Any]

HEAD = """
import json, time, pynvml as n
def code(call, *arguments):
    try:
        call(*arguments)
        return 0
    except n.NVMLError as error:
        return error.value
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def value(field, scope=0):
    f = n.nvmlDeviceGetFieldValues(h, [(field, scope)])[0]
    if f.nvmlReturn:
        return f"error {f.nvmlReturn}"
    return [f.value.dVal, f.value.uiVal, f.value.ulVal, f.value.ullVal, f.value.sllVal,
    f.value.siVal][f.valueType]
"""

# What all have; what comes with NVLink, the legacy counters that succeed with 0 among them; what Hopper adds.
_ALL = "1-6 11-12 22-23 74-81 83 94-95 142-145 169 269-271"
_LINKS = "32-59 82 84-91 96-119 132-141 146-147 164-167"
_HOPPER = f"{_ALL} {_LINKS} 148-163 173-199 230"
_FIELDS = {
    "A100-SXM": f"{_ALL} {_LINKS} 148-163 184 186-190 192 197-199",
    "H100-SXM": _HOPPER,
    "H200-SXM": _HOPPER,
    "B200": f"{_ALL} {_LINKS} 173-199 230 201-204 206-215 219-222 235-259 289-296",
    "L40S": f"{_ALL} 173-190 192-194 196-199",
}
_GPM = "1-13 20-21 30-36 40-46 50 60-97 170-174 248-296"

# What a call returns: 0 success, 3 not supported, 13 newer than the driver.
_CALLS = {
    "nvmlDeviceGetUtilizationRates": dict.fromkeys(PROFILES, 0),
    "nvmlDeviceGetEncoderUtilization": dict.fromkeys(PROFILES, 0),
    "nvmlDeviceGetJpgUtilization": dict.fromkeys(PROFILES, 0),
    "nvmlDeviceGetOfaUtilization": dict.fromkeys(PROFILES, 0),
    "nvmlDeviceGetBAR1MemoryInfo": dict.fromkeys(PROFILES, 0),
    "nvmlDeviceGetRemappedRows": dict.fromkeys(PROFILES, 0),
    "nvmlDeviceGetRowRemapperHistogram": dict.fromkeys(PROFILES, 0),
    "nvmlDeviceGetGspFirmwareVersion": dict.fromkeys(PROFILES, 0),
    "nvmlDeviceGetInforomImageVersion": dict.fromkeys(PROFILES, 0),
    "nvmlDeviceGetPowerManagementLimitConstraints": dict.fromkeys(PROFILES, 0),
    "nvmlDeviceGetClkMonStatus": dict.fromkeys(PROFILES, 0),
    "nvmlDeviceGetDramEncryptionMode": {**dict.fromkeys(PROFILES, 3), "B200": 0},
    "nvmlDeviceGetRemappedRows_v2": dict.fromkeys(PROFILES, 13),
    "nvmlDeviceGetFanSpeed": dict.fromkeys(PROFILES, 3),
    "nvmlDeviceGetRetiredPagesPendingStatus": dict.fromkeys(PROFILES, 3),
    "nvmlDeviceGetMemoryLimits_v1": dict.fromkeys(PROFILES, 13),
    "nvmlDeviceGetMarginTemperature": {**dict.fromkeys(PROFILES, 0), "A100-SXM": 3},
    "nvmlDeviceGetRepairStatus": {**dict.fromkeys(PROFILES, 0), "A100-SXM": 3, "L40S": 3},
    "nvmlDeviceGetGpuFabricInfoV": {**dict.fromkeys(PROFILES, 0), "A100-SXM": 3, "L40S": 3},
    "nvmlDeviceGetMigMode": {**dict.fromkeys(PROFILES, 0), "L40S": 3},
    "nvmlDeviceGetNvLinkState": {**dict.fromkeys(PROFILES, 0), "L40S": 3},
    "nvmlDeviceGetNvLinkErrorCounter": {**dict.fromkeys(PROFILES, 0), "B200": 3, "L40S": 3},
    "nvmlDeviceGetApplicationsClock": {**dict.fromkeys(PROFILES, 0), "B200": 3},
}


def expand(ranges: str) -> list[int]:
    """``1-3 5`` is 1, 2, 3, 5."""
    found: list[int] = []
    for part in ranges.split():
        low, _, high = part.partition("-")
        found.extend(range(int(low), int(high or low) + 1))
    return sorted(found)


@pytest.fixture
def node(tmp_path: Path) -> Callable[..., Path]:
    """Create a node of one GPU of a model; its shared state."""

    def create(model: str, **more: Any) -> Path:
        return create_node(tmp_path, "n", gpus=1, hcas=0, gpu_model=model, **more).devices

    return create


@pytest.mark.parametrize("model", sorted(PROFILES))
def test_a_model_supports_what_its_board_does(
    script: Script, node: Callable[..., Path], model: str
) -> None:
    """Field ids, GPM metric ids and calls of each model are those of the table, no more and no fewer."""
    got = script(
        HEAD
        + f"""
arguments = {{"nvmlDeviceGetNvLinkState": (0,), "nvmlDeviceGetNvLinkErrorCounter": (0, 0),
  "nvmlDeviceGetApplicationsClock": (0,), "nvmlDeviceGetGpuFabricInfoV": (n.c_nvmlGpuFabricInfo_v3_t(),),
  "nvmlDeviceGetMemoryLimits_v1": (n.c_nvmlGetMemoryLimits_v1_t(),),
  "nvmlDeviceGetRemappedRows_v2": (n.byref(n.c_nvmlRemappedRowsInfo_v2_t()),)}}
arguments["nvmlDeviceGetGpuFabricInfoV"] = (n.byref(arguments["nvmlDeviceGetGpuFabricInfoV"][0]),)
fields = n.nvmlDeviceGetFieldValues(h, [(number, 0) for number in range(1, 308)])
metrics = []
if n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice:
    a, b = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
    n.nvmlGpmSampleGet(h, a); time.sleep(0.02); n.nvmlGpmSampleGet(h, b)
    g = n.c_nvmlGpmMetricsGet_t()
    g.version, g.sample1, g.sample2, g.numMetrics = 1, a, b, 476
    for at in range(476):
        g.metrics[at].metricId = at + 1
    n.nvmlGpmMetricsGet(g)
    metrics = [m.metricId for m in g.metrics[:476] if m.nvmlReturn == 0]
print(json.dumps({{"fields": [f.fieldId for f in fields if f.nvmlReturn == 0],
  "refused": sorted({{f.nvmlReturn for f in fields}} - {{0}}), "metrics": metrics,
  "calls": {{name: code(getattr(n, name), h, *arguments.get(name, ())) for name in {sorted(_CALLS)!r}}}}}))
""",
        node(model),
    )

    assert got["fields"] == expand(_FIELDS[model])
    assert got["refused"] == [3]
    assert got["metrics"] == (expand(_GPM) if PROFILES[model].gpm else [])
    assert got["calls"] == {name: by_model[model] for name, by_model in sorted(_CALLS.items())}


@pytest.mark.parametrize(
    ("model", "links", "speed", "version"),
    [("A100-SXM", 12, 25000, 4), ("H100-SXM", 18, 26562, 6), ("H200-SXM", 18, 26562, 6), ("B200", 18,
    53125, 7)],
)
def test_links_are_those_of_the_board(
    script: Script, node: Callable[..., Path], model: str, links: int, speed: int, version: int
) -> None:
    """As many active links as the board has lead to a switch; the next one is an invalid argument (2)."""
    got = script(
        HEAD
        + f"""
print(json.dumps({{"count": value(91), "switched": value(147), "speed": value(164, {links - 1}),
  "version": [value(166, 3), n.nvmlDeviceGetNvLinkVersion(h, 3)],
  "states": [n.nvmlDeviceGetNvLinkState(h, at) for at in range({links})],
  "beyond": [code(n.nvmlDeviceGetNvLinkState, h, {links}), value(165, {links})],
  "p2p": n.nvmlDeviceGetNvLinkCapability(h, 0, 0), "type": n.nvmlDeviceGetNvLinkRemoteDeviceType(h, 0),
  "remote": n.nvmlDeviceGetNvLinkRemotePciInfo(h, 1).busId}}))
""",
        node(model),
    )

    assert got == {
        "count": links,
        "switched": links,
        "speed": speed,
        "version": [version, version],
        "states": [1] * links,
        "beyond": [2, "error 2"],
        "p2p": 1,
        "type": 2,
        "remote": "00000000:06:00.0",
    }


def test_limits_margins_and_versions(script: Script, node: Callable[..., Path]) -> None:
    """Limits lie beyond the hottest working point (negative); versions are texts of the driver."""
    got = script(
        HEAD
        + """
m = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
print(json.dumps({"tlimits": [value(at) for at in (193, 194, 195, 196)],
  "margin": 0 < n.nvmlDeviceGetMarginTemperature(h) < 87,
  "shutdown": n.nvmlDeviceGetTemperatureThreshold(h, 0), "limits": [value(at) for at in (187, 188, 190)],
  "constraints": n.nvmlDeviceGetPowerManagementLimitConstraints(h),
  "gsp": str(n.nvmlDeviceGetGspFirmwareVersion(h)), "mode": n.nvmlDeviceGetGspFirmwareMode(h),
  "inforom": [n.nvmlDeviceGetInforomImageVersion(h), str(n.nvmlDeviceGetInforomVersion(h, 1))],
  "object": code(n.nvmlDeviceGetInforomVersion, h, 2),
  "memory": m.total - m.free - m.used == m.reserved, "scopes": [value(186, 1), value(186, 3)],
  "uuid": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUIDV(n.nvmlDeviceGetUUID(h).encode(), 1)),
  "samples": len(n.nvmlDeviceGetSamples(h, 0, 0)[1]),
  "events": n.nvmlDeviceGetSupportedEventTypes(h) & 0x8008}))
""",
        node("H100-SXM"),
    )

    assert got == {
        "tlimits": [-8, -2, 0, 0],
        "margin": True,
        "shutdown": 95,
        "limits": [200000, 700000, 700000],
        "constraints": [200000, 700000],
        "gsp": "b'570.172.08'",
        "mode": [1, 1],
        "inforom": ["G520.0200.00.05", "7.16"],
        "object": 3,
        "memory": True,
        "scopes": ["error 3", "error 3"],
        "uuid": 0,
        "samples": 100,
        "events": 0x8008,
    }


def test_a_newer_driver_brings_its_calls(script: Script, node: Callable[..., Path]) -> None:
    """With driver 615 memory limits can be read and set, and the remapper tells what is not active yet."""
    devices = node("B200", driver="615.10.01")
    with Node(devices) as mapped:
        mapped.state.devices[0].remap_pending = 1
    got = script(
        HEAD
        + """
before, after = n.c_nvmlGetMemoryLimits_v1_t(), n.c_nvmlGetMemoryLimits_v1_t()
n.nvmlDeviceGetMemoryLimits_v1(h, before)
wanted = n.c_nvmlSetMemoryLimits_v1_t()
wanted.softLimit, wanted.hardLimit = 1 << 30, n.NVML_DEVICE_MEMORY_LIMIT_MAX
rows, banks = n.c_nvmlRemappedRowsInfo_v2_t(), n.c_nvmlEccBankRemapperStatus_v1_t()
n.nvmlDeviceGetRemappedRows_v2(h, n.byref(rows))
n.nvmlDeviceGetBankRemapperStatus_v1(h, n.byref(banks))
fabric, platform = n.c_nvmlGpuFabricInfo_v4_t(), n.c_nvmlPlatformInfo_v2_t()
n.nvmlDeviceGetGpuFabricInfo_v4(h, n.byref(fabric))
n.nvmlDeviceGetPlatformInfo(h, n.byref(platform))
set_code = code(n.nvmlDeviceSetMemoryLimits_v1, h, wanted)
n.nvmlDeviceGetMemoryLimits_v1(h, after)
import os
print(json.dumps({"driver": n.nvmlSystemGetDriverVersion(), "unlimited": before.softLimit == 2**64 - 1,
  "set": set_code, "soft": after.softLimit if os.geteuid() == 0 else 1 << 30, "root": os.geteuid() == 0,
  "fields": [value(301), value(302), value(307)], "rows": [rows.uncActiveRemaps, rows.uncInactiveRemaps],
  "banks": banks.histogram.maxSpareGroupCount, "fabric": [fabric.numCliques, fabric.state, fabric.healthMask],
  "module": ord(platform.moduleId)}))
""",
        devices,
    )

    assert got["driver"] == "615.10.01"
    assert got["unlimited"]
    assert got["set"] == (0 if got["root"] else 4)
    assert got["soft"] == 1 << 30
    assert got["fields"] == [0, 1, 0]
    assert (got["rows"], got["banks"], got["module"]) == ([0, 1], 4096, 1)
    assert got["fabric"] == [1, 3, 0x51AA]


def test_topology_follows_the_pcie_tree(script: Script, tmp_path: Path) -> None:
    """Two GPUs share a switch (10), others the NUMA node (40) or the system (50); NVLink joins all."""
    devices = create_node(tmp_path, "n", gpus=4, hcas=0).devices
    got = script(
        HEAD
        + """
all = [n.nvmlDeviceGetHandleByIndex(at) for at in range(4)]
print(json.dumps([[n.nvmlDeviceGetTopologyCommonAncestor(h, other) for other in all],
  [n.nvmlDeviceGetIndex(other) for other in n.nvmlDeviceGetTopologyNearestGpus(h, 10)],
  n.nvmlDeviceGetP2PStatus(h, all[3], 2), n.nvmlDeviceGetMemoryAffinity(all[3], 1, 0)[0]]))
""",
        devices,
    )

    assert got == [[0, 10, 50, 50], [1], 0, 2]


def test_mig_profiles_are_refused_when_they_do_not_fit(node: Callable[..., Path]) -> None:
    """A profile of another model, more than seven slices, and MIG on a board without it are errors."""
    for model, profiles, reason in (
        ("H100-SXM", ("3g.71gb",), "H100-SXM has 1g.10gb"),
        ("H100-SXM", ("4g.40gb", "4g.40gb"), "7 slices"),
        ("L40S", ("1g.10gb",), "it has no MIG"),
    ):
        with pytest.raises(TargetError, match=reason):
            node(model, mig_profiles=profiles)


def test_names_of_mig_profiles_say_their_memory() -> None:
    """Each name's slices and gigabytes follow from the board's memory, rounded as tools round."""
    for model, profiles in MIG_PROFILES.items():
        board = -(-PROFILES[model].memory_bytes // (1 << 30))
        for name, profile in profiles.items():
            slices, gigabytes = name.split("g.")
            assert int(slices) == profile.slices
            share = profile.memory_slices / 8 * board
            assert abs(int(gigabytes.removesuffix("gb")) - share) <= 0.5, (model, name)
