"""
The structures that NVML fills, and which function fills which: tables.

The layouts are those of nvml.h; a test compares each with nvidia-ml-py.
"""

from __future__ import annotations

from ctypes import Structure, c_char, c_char_p, c_double, c_int, c_int64, c_uint, c_uint8, c_uint64, c_void_p
from typing import Any

__all__ = ["RESULTS", "STRUCTURES", "VERSIONS", "EventData", "FieldValue", "GpmMetric", "MemoryLimits", "Process", "ProcessSample"]


def _structure(name: str, *fields: tuple[str, Any]) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": list(fields)})


def _numbers(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


Utilization = _structure("Utilization", *_numbers(c_uint, "gpu memory"))
Memory = _structure("Memory", *_numbers(c_uint64, "total free used"))
Memory2 = _structure("Memory2", ("version", c_uint), *_numbers(c_uint64, "total reserved free used"))
Bar1 = _structure("Bar1", *_numbers(c_uint64, "bar1Total bar1Free bar1Used"))
Temperature = _structure("Temperature", ("version", c_uint), ("sensorType", c_uint), ("temperature", c_int))
Margin = _structure("Margin", ("version", c_uint), ("marginTemperature", c_int))
PciInfo = _structure(
    "PciInfo",
    ("busIdLegacy", c_char * 16),
    *_numbers(c_uint, "domain bus device pciDeviceId pciSubSystemId"),
    ("busId", c_char * 32),
)
Repair = _structure("Repair", *_numbers(c_uint, "version bChannelRepairPending bTpcRepairPending"))
Unrepairable = _structure("Unrepairable", *_numbers(c_uint, "version unrepairableMemory"))
Histogram = _structure("Histogram", *_numbers(c_uint, "max high partial low none"))
BankRemaps = _structure(
    "BankRemaps",
    *_numbers(c_uint, "activeRemappings inactiveRemappings bPending maxSpareGroupCount noSpareGroupCount"),
)
Sram = _structure(
    "Sram",
    ("version", c_uint),
    *_numbers(c_uint64, "aggregateUncParity aggregateUncSecDed aggregateCor volatileUncParity volatileUncSecDed volatileCor"),
    *_numbers(c_uint64, "aggregateUncBucketL2 aggregateUncBucketSm aggregateUncBucketPcie aggregateUncBucketMcu aggregateUncBucketOther"),
    ("bThresholdExceeded", c_uint),
)  # fmt: skip
_FABRIC2 = (
    ("version", c_uint),
    ("clusterUuid", c_uint8 * 16),
    *_numbers(c_uint, "status cliqueId state healthMask"),
)
Fabric2 = _structure("Fabric2", *_FABRIC2)
Fabric3 = _structure("Fabric3", *_FABRIC2, ("healthSummary", c_uint8))
AdaptiveTgp = _structure(
    "AdaptiveTgp",
    *_numbers(
        c_uint,
        "inBandEnableRequest featureAllowedByAdmin adminOverrideEnabled enablementStatus adjustedLimitMw",
    ),
)
DramEncryption = _structure("DramEncryption", *_numbers(c_uint, "version encryptionState"))
ClockFault = _structure("ClockFault", *_numbers(c_uint, "clkApiDomain clkDomainFaultMask"))
ClockMonitors = _structure(
    "ClockMonitors", *_numbers(c_uint, "bGlobalStatus clkMonListSize"), ("clkMonList", ClockFault * 32)
)
Attributes = _structure(
    "Attributes",
    *_numbers(c_uint, "multiprocessorCount sharedCopyEngineCount sharedDecoderCount sharedEncoderCount sharedJpegCount sharedOfaCount"),
    *_numbers(c_uint, "gpuInstanceSliceCount computeInstanceSliceCount"),
    ("memorySizeMB", c_uint64),
)  # fmt: skip
Process = _structure(
    "Process",
    ("pid", c_uint),
    ("usedGpuMemory", c_uint64),
    *_numbers(c_uint, "gpuInstanceId computeInstanceId"),
)
ProcessSample = _structure("ProcessSample", ("pid", c_uint), ("timeStamp", c_uint64), *_numbers(c_uint, "smUtil memUtil encUtil decUtil"))
MemoryLimits = _structure(
    "MemoryLimits", ("nameSpace", c_char_p), *_numbers(c_uint64, "softLimit hardLimit currentUsed")
)
GpmSupport = _structure("GpmSupport", *_numbers(c_uint, "version isSupportedDevice"))
EventData = _structure(
    "EventData",
    ("device", c_void_p),
    *_numbers(c_uint64, "eventType eventData"),
    *_numbers(c_uint, "gpuInstanceId computeInstanceId"),
)
Platform = _structure(
    "Platform", ("version", c_uint), ("ibGuid", c_char * 16), ("chassisSerialNumber", c_char * 16),
    *_numbers(c_uint8, "slotNumber trayIndex hostId peerType moduleId"),
)  # fmt: skip
# Read and written by position, so only their sizes matter here: see `fields` and `gpm`.
FieldValue = _structure(
    "FieldValue",
    *_numbers(c_uint, "fieldId scopeId"),
    *_numbers(c_int64, "timestamp latencyUsec"),
    *_numbers(c_uint, "valueType nvmlReturn"),
    ("value", c_uint64),
)
GpmMetric = _structure(
    "GpmMetric",
    *_numbers(c_uint, "metricId nvmlReturn"),
    ("value", c_double),
    *_numbers(c_char_p, "shortName longName unit"),
)

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

# Structure of this module -> its name in nvidia-ml-py.
STRUCTURES = {
    Utilization: "c_nvmlUtilization_t", Memory: "c_nvmlMemory_t", Memory2: "c_nvmlMemory_v2_t", Bar1: "c_nvmlBAR1Memory_t",
    Temperature: "c_nvmlTemperature_v1_t", Margin: "c_nvmlMarginTemperature_v1_t", PciInfo: "nvmlPciInfo_t", Repair: "c_nvmlRepairStatus_t",
    Unrepairable: "c_nvmlUnrepairableMemory_v1_t", Histogram: "c_nvmlRowRemapperHistogramValues", BankRemaps: "c_nvmlEccBankRemapperStatus_v1_t",
    Sram: "c_nvmlEccSramErrorStatus_v1_t", Fabric2: "c_nvmlGpuFabricInfo_v2_t", Fabric3: "c_nvmlGpuFabricInfo_v3_t",
    AdaptiveTgp: "c_nvmlAdaptiveTgpModeInfo_v1_t", DramEncryption: "c_nvmlDramEncryptionInfo_t", ClockMonitors: "nvmlClkMonStatus_t",
    Attributes: "c_nvmlDeviceAttributes", Process: "c_nvmlProcessInfo_v3_t", ProcessSample: "c_nvmlProcessUtilizationSample_t", MemoryLimits: "c_nvmlGetMemoryLimits_v1_t",
    GpmSupport: "c_nvmlGpmSupport_t", EventData: "c_nvmlEventData_t", Platform: "c_nvmlPlatformInfo_v2_t", FieldValue: "c_nvmlFieldValue_t",
    GpmMetric: "c_nvmlGpmMetric_t",
}  # fmt: skip
