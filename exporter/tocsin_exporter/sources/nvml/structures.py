"""
The structures that NVML fills, and which function fills which: tables.

The layouts are nvidia-ml-py's. Its classes are not used as they are: they turn each text into `str` when it is
read, which raises on what a broken board writes there.
"""

from __future__ import annotations

from ctypes import Structure, c_uint, c_uint8, c_uint64, c_void_p
from typing import Any

import pynvml

__all__ = ["RESULTS", "VERSIONS", "EventData", "MemoryLimits", "Process", "ProcessSample"]


def _layout(name: str, **other: Any) -> type[Structure]:
    """Return the structure of that name in nvidia-ml-py; *other* are members to be read as another type."""
    fields = [(member, other.get(member, kind)) for member, kind in getattr(pynvml, name)._fields_]
    return type(name, (Structure,), {"_fields_": fields})


Utilization = _layout("c_nvmlUtilization_t")
Memory = _layout("c_nvmlMemory_t")
Memory2 = _layout("c_nvmlMemory_v2_t")
Bar1 = _layout("c_nvmlBAR1Memory_t")
Temperature = _layout("c_nvmlTemperature_v1_t")
Margin = _layout("c_nvmlMarginTemperature_v1_t")
PciInfo = _layout("nvmlPciInfo_t")
Repair = _layout("c_nvmlRepairStatus_t")
Unrepairable = _layout("c_nvmlUnrepairableMemory_v1_t")
Histogram = _layout("c_nvmlRowRemapperHistogramValues")
BankRemaps = _layout("c_nvmlEccBankRemapperStatus_v1_t")
Sram = _layout("c_nvmlEccSramErrorStatus_v1_t")
Fabric2 = _layout("c_nvmlGpuFabricInfo_v2_t")
Fabric3 = _layout("c_nvmlGpuFabricInfo_v3_t")
AdaptiveTgp = _layout("c_nvmlAdaptiveTgpModeInfo_v1_t")
DramEncryption = _layout("c_nvmlDramEncryptionInfo_t")
ClockMonitors = _layout("nvmlClkMonStatus_t")
Attributes = _layout("c_nvmlDeviceAttributes")
Process = _layout("c_nvmlProcessInfo_v3_t")
ProcessSample = _layout("c_nvmlProcessUtilizationSample_t")
MemoryLimits = _layout("c_nvmlGetMemoryLimits_v1_t")
GpmSupport = _layout("c_nvmlGpmSupport_t")
EventData = _layout("c_nvmlEventData_t", device=c_void_p)
# One byte each, which nvidia-ml-py takes for characters.
_PLACES = dict.fromkeys(("slotNumber", "trayIndex", "hostId", "peerType", "moduleId"), c_uint8)
Platform = _layout("c_nvmlPlatformInfo_v2_t", **_PLACES)

# Functions with other results than one number, and the version word that a structure begins with.
# A name may have a form after a slash: the same function with another structure or sensor.
RESULTS: dict[str, tuple[Any, ...]] = {
    "nvmlDeviceGetUtilizationRates": (Utilization,),
    "nvmlDeviceGetMemoryInfo": (Memory,),
    "nvmlDeviceGetMemoryInfo_v2": (Memory2,),
    "nvmlDeviceGetConfComputeProtectedMemoryUsage": (Memory,),
    "nvmlDeviceGetBAR1MemoryInfo": (Bar1,),
    "nvmlDeviceGetTemperatureV/0": (Temperature,),
    "nvmlDeviceGetTemperatureV/1": (Temperature,),
    "nvmlDeviceGetMarginTemperature": (Margin,),
    "nvmlDeviceGetPciInfo_v3": (PciInfo,),
    "nvmlDeviceGetRepairStatus": (Repair,),
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": (Unrepairable,),
    "nvmlDeviceGetRowRemapperHistogram": (Histogram,),
    "nvmlDeviceGetBankRemapperStatus_v1": (BankRemaps,),
    "nvmlDeviceGetSramEccErrorStatus": (Sram,),
    "nvmlDeviceGetGpuFabricInfoV/3": (Fabric3,),
    "nvmlDeviceGetGpuFabricInfoV/2": (Fabric2,),
    "nvmlDeviceGetAdaptiveTgpModeInfo_v1": (AdaptiveTgp,),
    "nvmlDeviceGetDramEncryptionMode": (DramEncryption, DramEncryption),
    "nvmlDeviceGetClkMonStatus": (ClockMonitors,),
    "nvmlDeviceGetAttributes_v2": (Attributes,),
    "nvmlDeviceGetPlatformInfo": (Platform,),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": (PciInfo,),
    "nvmlGpmQueryDeviceSupport": (GpmSupport,),
    "nvmlDeviceGetRemappedRows": (c_uint,) * 4,
    "nvmlDeviceGetEncoderUtilization": (c_uint, c_uint),
    "nvmlDeviceGetDecoderUtilization": (c_uint, c_uint),
    "nvmlDeviceGetJpgUtilization": (c_uint, c_uint),
    "nvmlDeviceGetOfaUtilization": (c_uint, c_uint),
    "nvmlDeviceGetEccMode": (c_uint, c_uint),
    "nvmlDeviceGetMigMode": (c_uint, c_uint),
    "nvmlDeviceGetGspFirmwareMode": (c_uint, c_uint),
    "nvmlDeviceGetCudaComputeCapability": (c_uint, c_uint),
    "nvmlDeviceGetTotalEnergyConsumption": (c_uint64,),
    "nvmlDeviceGetCurrentClocksEventReasons": (c_uint64,),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (c_uint64,),
    "nvmlDeviceGetMemoryErrorCounter": (c_uint64,),
    "nvmlDeviceGetTotalEccErrors": (c_uint64,),
    "nvmlDeviceGetNvLinkErrorCounter": (c_uint64,),
    "nvmlDeviceGetSupportedEventTypes": (c_uint64,),
    "nvmlDeviceGetMigDeviceHandleByIndex": (c_void_p,),
    "nvmlDeviceGetHandleByIndex_v2": (c_void_p,),
}
VERSIONS = {
    "nvmlDeviceGetMemoryInfo_v2": 2, "nvmlDeviceGetTemperatureV/0": 1, "nvmlDeviceGetTemperatureV/1": 1, "nvmlDeviceGetMarginTemperature": 1,
    "nvmlDeviceGetRepairStatus": 1, "nvmlDeviceGetUnrepairableMemoryFlag_v1": 1, "nvmlDeviceGetSramEccErrorStatus": 1,
    "nvmlDeviceGetGpuFabricInfoV/3": 3, "nvmlDeviceGetGpuFabricInfoV/2": 2, "nvmlDeviceGetDramEncryptionMode": 1, "nvmlDeviceGetPlatformInfo": 2,
}  # fmt: skip
