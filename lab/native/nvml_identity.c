/* NVML: what a device is: versions, limits, modes, places. */
#define _GNU_SOURCE
#include "nvml_sim.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TEXT_CALL(name, text)                                                          \
    API nvmlReturn_t name(nvmlDevice_t device, char *buffer, unsigned length)          \
    {                                                                                  \
        ON_DEVICE(device, buffer);                                                     \
        return nvml_text(text, buffer, length);                                        \
    }
TEXT_CALL(nvmlDeviceGetSerial, device->serial)
TEXT_CALL(nvmlDeviceGetVbiosVersion, PROFILE.vbios)
TEXT_CALL(nvmlDeviceGetBoardPartNumber, PROFILE.part_number)
TEXT_CALL(nvmlDeviceGetInforomImageVersion, PROFILE.inforom)

NUMBER_CALL(nvmlDeviceGetMinorNumber, device->minor)
NUMBER_CALL(nvmlDeviceGetModuleId, device->minor + 1)
NUMBER_CALL(nvmlDeviceGetBoardId, device->pci_bus << 8)
NUMBER_CALL(nvmlDeviceGetMultiGpuBoard, 0)
NUMBER_CALL(nvmlDeviceGetBrand, 14) /* NVIDIA */
NUMBER_CALL(nvmlDeviceGetArchitecture, PROFILE.architecture)
NUMBER_CALL(nvmlDeviceGetNumGpuCores, PROFILE.cores)
NUMBER_CALL(nvmlDeviceGetMemoryBusWidth, PROFILE.memory_bus_bits)
NUMBER_CALL(nvmlDeviceGetNumaNodeId, device->numa_node)
NUMBER_CALL(nvmlDeviceGetPersistenceMode, 1)
NUMBER_CALL(nvmlDeviceGetComputeMode, 0)
NUMBER_CALL(nvmlDeviceGetDisplayMode, 0)
NUMBER_CALL(nvmlDeviceGetDisplayActive, 0)
NUMBER_CALL(nvmlDeviceGetVirtualizationMode, 0)
NUMBER_CALL(nvmlDeviceGetAccountingMode, 0)
NUMBER_CALL(nvmlDeviceGetAccountingBufferSize, 4000)
NUMBER_CALL(nvmlDeviceGetPowerSource, 0) /* AC */
NUMBER_CALL(nvmlDeviceGetPowerManagementMode, 1)
NUMBER_CALL(nvmlDeviceGetNumFans, 0)
NUMBER_CALL(nvmlDeviceGetInforomConfigurationChecksum, 0x5eed0000u + device->minor)
NUMBER_CALL(nvmlDeviceGetEnforcedPowerLimit, device->power_limit_mw)
NUMBER_CALL(nvmlDeviceGetPowerManagementLimit, device->power_limit_mw)
NUMBER_CALL(nvmlDeviceGetPowerManagementDefaultLimit, PROFILE.power_limit_mw)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkGeneration, device->pcie_generation)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkWidth, device->pcie_width)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkGeneration, PROFILE.pcie_generation_max)
NUMBER_CALL(nvmlDeviceGetGpuMaxPcieLinkGeneration, PROFILE.pcie_generation_max)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkWidth, PROFILE.pcie_width_max)
NUMBER_CALL(nvmlDeviceGetPcieLinkMaxSpeed, PROFILE.pcie_generation_max) /* the enumeration counts as generations do */
NUMBER_CALL(nvmlDeviceGetPcieReplayCounter, device->pcie_replays)

API nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned *mbps)
{
    static const unsigned speeds[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
    ON_DEVICE(device, mbps);
    *mbps = (unsigned)VALUE(device, device->pcie_generation < 7 ? speeds[device->pcie_generation] : 0);
    return NVML_SUCCESS;
}

/* The real call watches the link for 20 ms; so does this one, for whoever measures what it costs. */
API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kb_per_second)
{
    struct timespec watch = {.tv_nsec = 20000000};
    ON_DEVICE(device, kb_per_second);
    if (counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    const uint64_t *bytes = counter == 0 ? &device->pcie_tx_bytes : &device->pcie_rx_bytes;
    uint64_t before = sim_load(bytes);
    nanosleep(&watch, NULL);
    *kb_per_second = (unsigned)VALUE(device, (sim_load(bytes) - before) * 50 / 1000);
    return NVML_SUCCESS;
}

/* Objects: 0 OEM, 1 ECC, 2 power, 3 data store. */
API nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, unsigned object, char *buffer, unsigned length)
{
    ON_DEVICE(device, buffer);
    if (object > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    SUPPORTED_IF(object < 2);
    return nvml_text(object == 0 ? "2.1" : "7.16", buffer, length);
}

API nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device)
{
    struct timespec reads = {.tv_nsec = 50000000};
    ON_DEVICE(device, 1);
    nanosleep(&reads, NULL);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    ON_DEVICE(device, version);
    return nvml_text(PROFILE.driver, version, 64);
}

API nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned *enabled, unsigned *by_default)
{
    ON_DEVICE(device, enabled && by_default);
    *enabled = *by_default = 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ON_DEVICE(device, major && minor);
    *major = (int)PROFILE.compute_major;
    *minor = (int)PROFILE.compute_minor;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *lowest, unsigned *highest)
{
    ON_DEVICE(device, lowest && highest);
    *lowest = PROFILE.power_min_mw;
    *highest = PROFILE.power_limit_mw;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ON_DEVICE(device, current && pending);
    *current = device->ecc_mode[0];
    *pending = device->ecc_mode[1];
    return NVML_SUCCESS;
}

NUMBER_CALL(nvmlDeviceGetDefaultEccMode, 1)

/* Restricted: 0 application clocks, 1 boosted clocks. */
API nvmlReturn_t nvmlDeviceGetAPIRestriction(nvmlDevice_t device, unsigned what, unsigned *restricted)
{
    ON_DEVICE(device, restricted);
    if (what > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    SUPPORTED_IF(what == 0);
    *restricted = 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    ON_DEVICE(device, types);
    *types = PROFILE.event_types;
    return NVML_SUCCESS;
}

/* ---- memory limits: from driver 615 on; before it the library has no such function ---- */

typedef struct { const char *name_space; unsigned long long soft, hard; } nvmlSetMemoryLimits_v1_t;
typedef struct { const char *name_space; unsigned long long soft, hard, used; } nvmlGetMemoryLimits_v1_t;
#define NO_LIMIT (~0ull)

API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    ON_DEVICE(device, limits);
    if (nvml_driver_major() < 615)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    limits->soft = device->memory_soft_limit ? device->memory_soft_limit : NO_LIMIT;
    limits->hard = device->memory_hard_limit ? device->memory_hard_limit : NO_LIMIT;
    limits->used = VALUE(device, nvml_used_memory(device, NULL));
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    ON_DEVICE(device, limits);
    if (nvml_driver_major() < 615)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    device->memory_soft_limit = limits->soft == NO_LIMIT ? 0 : limits->soft;
    device->memory_hard_limit = limits->hard == NO_LIMIT ? 0 : limits->hard;
    return NVML_SUCCESS;
}

/* ---- topology: as the node's PCIe tree has it, two devices below a switch ---- */

static unsigned ancestor(const struct sim_device *one, const struct sim_device *other)
{
    if (one == other)
        return 0; /* internal */
    if (nvml_index_of(one) / 2 == nvml_index_of(other) / 2)
        return 10; /* a single switch */
    return one->numa_node == other->numa_node ? 40 : 50; /* NUMA node, system */
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned *level)
{
    ON_DEVICE(device, level);
    ON_DEVICE(other, level);
    *level = ancestor(device, other);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count, nvmlDevice_t *found)
{
    ON_DEVICE(device, count);
    unsigned near = 0;
    for (unsigned i = 0; i < nvml_shared()->device_count; i++) {
        struct sim_device *other = &nvml_shared()->devices[i];
        if (other == device || other->absent || ancestor(device, other) != level)
            continue;
        if (found && near < *count)
            found[near] = other;
        near++;
    }
    if (!found || near < *count)
        *count = near;
    return NVML_SUCCESS;
}

/* Index: 0 read, 1 write, 2 NVLink, 3 atomics, 4 PCI. */
API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned index, unsigned *status)
{
    ON_DEVICE(device, status);
    ON_DEVICE(other, status);
    if (index > 4 || device == other)
        return NVML_ERROR_INVALID_ARGUMENT;
    *status = PROFILE.nvlink_links ? 0 : index == 2 ? 5 : 1; /* OK; not supported; chipset not supported */
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *set, unsigned scope)
{
    ON_DEVICE(device, set && words);
    if (scope > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(set, 0, words * sizeof *set);
    set[0] = 1ul << device->numa_node;
    return NVML_SUCCESS;
}

/* ---- the NVLink fabric ---- */

static void copy_uuid(unsigned char out[16])
{
    /* An NVSwitch board is no part of a cluster of its own: all zero, as fabric managers without a domain report it. */
    memset(out, 0, 16);
}

typedef struct { unsigned char uuid[16]; nvmlReturn_t status; unsigned clique, state; } nvmlGpuFabricInfo_t;
typedef struct {
    unsigned version;
    unsigned char uuid[16];
    nvmlReturn_t status;
    unsigned clique, state, health_mask;
    unsigned char health_summary; /* version 3 */
} nvmlGpuFabricInfoV_t;
#define FABRIC_V2 (0x02000000u | 36)
#define FABRIC_V3 (0x03000000u | 40)

API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    ON_DEVICE(device, info);
    SUPPORTED_IF(PROFILE.fabric);
    copy_uuid(info->uuid);
    info->status = (nvmlReturn_t)device->fabric_status;
    info->clique = device->fabric_clique;
    info->state = device->fabric_state;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    ON_DEVICE(device, info);
    SUPPORTED_IF(PROFILE.fabric);
    if (info->version != FABRIC_V2 && info->version != FABRIC_V3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    copy_uuid(info->uuid);
    info->status = (nvmlReturn_t)device->fabric_status;
    info->clique = device->fabric_clique;
    info->state = device->fabric_state;
    info->health_mask = (unsigned)VALUE(device, device->fabric_health_mask);
    if (info->version == FABRIC_V3)
        info->health_summary = (unsigned char)device->fabric_health_summary;
    return NVML_SUCCESS;
}

/* From driver 615 on, Blackwell: several cliques instead of one. */
typedef struct {
    unsigned char uuid[16];
    nvmlReturn_t status;
    struct { unsigned char type; unsigned id; } cliques[64];
    unsigned clique_count;
    unsigned char state;
    unsigned health_mask;
    unsigned char health_summary;
} nvmlGpuFabricInfo_v4_t;

API nvmlReturn_t nvmlDeviceGetGpuFabricInfo_v4(nvmlDevice_t device, nvmlGpuFabricInfo_v4_t *info)
{
    ON_DEVICE(device, info);
    if (nvml_driver_major() < 615)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    SUPPORTED_IF(PROFILE.fabric);
    memset(info, 0, sizeof *info);
    copy_uuid(info->uuid);
    info->status = (nvmlReturn_t)device->fabric_status;
    info->cliques[0].id = device->fabric_clique;
    info->clique_count = 1;
    info->state = (unsigned char)device->fabric_state;
    info->health_mask = (unsigned)VALUE(device, device->fabric_health_mask);
    info->health_summary = (unsigned char)device->fabric_health_summary;
    return NVML_SUCCESS;
}

/* Where in the rack, Blackwell and newer. On an eight-GPU board only the module differs. */
typedef struct {
    unsigned version;
    char guid[16], chassis[16];
    unsigned char slot, tray, host, peer, module;
} nvmlPlatformInfo_t;

API nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *info)
{
    ON_DEVICE(device, info);
    unsigned version = info->version;
    if (version != VERSION_OF(*info, 1) && version != VERSION_OF(*info, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SUPPORTED_IF(PROFILE.architecture >= BLACKWELL);
    memset(info, 0, sizeof *info);
    info->version = version;
    memcpy(info->chassis, "SIM-0000001", sizeof "SIM-0000001");
    info->slot = info->host = 1;
    info->peer = 1; /* through a switch */
    info->module = (unsigned char)(device->minor + 1);
    return NVML_SUCCESS;
}

typedef struct { unsigned version, state; } nvmlDramEncryptionInfo_t;

API nvmlReturn_t nvmlDeviceGetDramEncryptionMode(nvmlDevice_t device, nvmlDramEncryptionInfo_t *current,
                                                 nvmlDramEncryptionInfo_t *pending)
{
    ON_DEVICE(device, current && pending);
    if (current->version != VERSION_OF(*current, 1) || pending->version != VERSION_OF(*pending, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SUPPORTED_IF(PROFILE.architecture >= BLACKWELL);
    current->state = pending->state = 0;
    return NVML_SUCCESS;
}

/* Frequency monitors: no fault, unless a rule says so. */
typedef struct { unsigned status, count; struct { unsigned domain, faults; } list[32]; } nvmlClkMonStatus_t;

API nvmlReturn_t nvmlDeviceGetClkMonStatus(nvmlDevice_t device, nvmlClkMonStatus_t *monitors)
{
    ON_DEVICE(device, monitors);
    memset(monitors, 0, sizeof *monitors);
    monitors->status = (unsigned)VALUE(device, 0);
    return NVML_SUCCESS;
}
