/* NVML: life cycle, enumeration, identity, and the questions about a device that do not depend on what it does. */
#define _GNU_SOURCE
#include "nvml_sim.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_node *node;
static unsigned references;

/* The real calls sit in an ioctl while the driver hangs: the caller is blocked, its process can be killed. */
static void wait_for_driver(const struct sim_node *of)
{
    struct timespec pause = {.tv_nsec = 20000000};
    while (__atomic_load_n(&of->hang, __ATOMIC_ACQUIRE))
        nanosleep(&pause, NULL);
}

struct sim_node *nvml_node(void)
{
    if (!__atomic_load_n(&references, __ATOMIC_ACQUIRE))
        return NULL;
    wait_for_driver(node);
    return node;
}

nvmlReturn_t nvml_device(nvmlDevice_t device)
{
    struct sim_node *of = nvml_node();
    if (!of)
        return NVML_ERROR_UNINITIALIZED;
    if (device < of->devices || device >= of->devices + of->device_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    return device->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvml_text(const char *text, char *buffer, unsigned length)
{
    if (!buffer)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t initialise(void)
{
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!node) {
        const char *reason = "";
        node = sim_map_node(&reason);
        if (!node)
            result = strstr(reason, "layout") ? NVML_ERROR_LIB_RM_VERSION_MISMATCH : NVML_ERROR_DRIVER_NOT_LOADED;
    }
    if (node) {
        wait_for_driver(node);
        __atomic_fetch_add(&references, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return initialise(); }
API nvmlReturn_t nvmlInit_v2(void) { return initialise(); }
API nvmlReturn_t nvmlInit(void) { return initialise(); }

API nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (references)
        __atomic_fetch_sub(&references, 1, __ATOMIC_RELEASE);
    else
        result = NVML_ERROR_UNINITIALIZED;
    pthread_mutex_unlock(&lock);
    return result;
}

API const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires reset", "The operating system has blocked the request.", "Driver/library version mismatch",
        "GPU access currently in use", "Insufficient Memory", "No data", "VGPU ECC not supported", "Insufficient Resources",
        "Frequency not supported", "Argument version mismatch", "Deprecated function", "System not ready", "GPU not found",
        "Invalid state"};
    return result >= 0 && result < (int)(sizeof texts / sizeof texts[0]) ? texts[result] : "Unknown Error";
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *buffer, unsigned length)
{
    struct sim_node *of = nvml_node();
    return of ? nvml_text(of->profile.driver, buffer, length) : NVML_ERROR_UNINITIALIZED;
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *buffer, unsigned length)
{
    char text[48] = "12.";
    struct sim_node *of = nvml_node();
    if (!of)
        return NVML_ERROR_UNINITIALIZED;
    strncat(text, of->profile.driver, sizeof text - 4);
    return nvml_text(text, buffer, length);
}

static nvmlReturn_t cuda_version(int *version)
{
    struct sim_node *of = nvml_node();
    if (!of)
        return NVML_ERROR_UNINITIALIZED;
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = (int)of->profile.cuda_version;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return cuda_version(version); }
API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return cuda_version(version); }

API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[64], text[256] = "";
    if (!nvml_node())
        return NVML_ERROR_UNINITIALIZED;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    return got ? nvml_text(text, name, length) : NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t count(unsigned *devices)
{
    struct sim_node *of = nvml_node();
    if (!of)
        return NVML_ERROR_UNINITIALIZED;
    if (!devices)
        return NVML_ERROR_INVALID_ARGUMENT;
    *devices = of->device_count;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned *devices) { return count(devices); }
API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *devices) { return count(devices); }

static nvmlReturn_t give(struct sim_device *found, nvmlDevice_t *device)
{
    if (!device)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* A lost device gives no handle either: nvidia-smi then cannot determine it. */
    if (found->lost)
        return NVML_ERROR_GPU_IS_LOST;
    *device = found;
    return NVML_SUCCESS;
}

static nvmlReturn_t by_index(unsigned index, nvmlDevice_t *device)
{
    struct sim_node *of = nvml_node();
    if (!of)
        return NVML_ERROR_UNINITIALIZED;
    return index < of->device_count ? give(&of->devices[index], device) : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) { return by_index(index, device); }
API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) { return by_index(index, device); }

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct sim_node *of = nvml_node();
    if (!of)
        return NVML_ERROR_UNINITIALIZED;
    for (unsigned i = 0; uuid && i < of->device_count; i++)
        if (strcmp(of->devices[i].uuid, uuid) == 0)
            return give(&of->devices[i], device);
    return uuid ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    struct sim_node *of = nvml_node();
    if (!of)
        return NVML_ERROR_UNINITIALIZED;
    for (unsigned i = 0; serial && i < of->device_count; i++)
        if (strcmp(of->devices[i].serial, serial) == 0)
            return give(&of->devices[i], device);
    return serial ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
}

static void bus_id(const struct sim_device *device, char *text, size_t length, int domain_digits)
{
    snprintf(text, length, "%0*X:%02X:%02X.0", domain_digits, device->pci_domain, device->pci_bus, device->pci_device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *wanted, nvmlDevice_t *device)
{
    struct sim_node *of = nvml_node();
    if (!of)
        return NVML_ERROR_UNINITIALIZED;
    for (unsigned i = 0; wanted && i < of->device_count; i++) {
        char lengthy[32], brief[32];
        bus_id(&of->devices[i], lengthy, sizeof lengthy, 8);
        bus_id(&of->devices[i], brief, sizeof brief, 4);
        if (strcasecmp(lengthy, wanted) == 0 || strcasecmp(brief, wanted) == 0)
            return give(&of->devices[i], device);
    }
    return wanted ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
}

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

static nvmlReturn_t pci_info(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    ON_DEVICE(device, info);
    memset(info, 0, sizeof *info);
    bus_id(device, info->busIdLegacy, sizeof info->busIdLegacy, 4);
    bus_id(device, info->busId, sizeof info->busId, 8);
    info->domain = device->pci_domain;
    info->bus = device->pci_bus;
    info->device = device->pci_device;
    info->pciDeviceId = node->profile.pci_device_id;
    info->pciSubSystemId = node->profile.pci_subsystem_id;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) { return pci_info(device, info); }
API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *info) { return pci_info(device, info); }

#define TEXT_CALL(name, text)                                                          \
    API nvmlReturn_t name(nvmlDevice_t device, char *buffer, unsigned length)          \
    {                                                                                  \
        ON_DEVICE(device, buffer);                                                     \
        return nvml_text(text, buffer, length);                                        \
    }
TEXT_CALL(nvmlDeviceGetUUID, device->uuid)
TEXT_CALL(nvmlDeviceGetSerial, device->serial)
TEXT_CALL(nvmlDeviceGetName, node->profile.name)
TEXT_CALL(nvmlDeviceGetVbiosVersion, node->profile.vbios)
TEXT_CALL(nvmlDeviceGetBoardPartNumber, node->profile.part_number)

#define NUMBER_CALL(name, value)                                                       \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *out)                          \
    {                                                                                  \
        ON_DEVICE(device, out);                                                        \
        *out = (unsigned)(value);                                                      \
        return NVML_SUCCESS;                                                           \
    }
NUMBER_CALL(nvmlDeviceGetIndex, device - node->devices)
NUMBER_CALL(nvmlDeviceGetMinorNumber, device->minor)
NUMBER_CALL(nvmlDeviceGetModuleId, device->minor + 1)
NUMBER_CALL(nvmlDeviceGetBoardId, device->pci_bus << 8)
NUMBER_CALL(nvmlDeviceGetBrand, 14) /* NVIDIA */
NUMBER_CALL(nvmlDeviceGetArchitecture, node->profile.architecture)
NUMBER_CALL(nvmlDeviceGetNumGpuCores, node->profile.cores)
NUMBER_CALL(nvmlDeviceGetNumaNodeId, device->numa_node)
NUMBER_CALL(nvmlDeviceGetPersistenceMode, 1)
NUMBER_CALL(nvmlDeviceGetComputeMode, 0)
NUMBER_CALL(nvmlDeviceGetDisplayMode, 0)
NUMBER_CALL(nvmlDeviceGetDisplayActive, 0)
NUMBER_CALL(nvmlDeviceGetVirtualizationMode, 0)
NUMBER_CALL(nvmlDeviceGetMaxMigDeviceCount, 7)
NUMBER_CALL(nvmlDeviceIsMigDeviceHandle, 0)
NUMBER_CALL(nvmlDeviceGetEnforcedPowerLimit, node->profile.power_limit_mw)
NUMBER_CALL(nvmlDeviceGetPowerManagementLimit, node->profile.power_limit_mw)
NUMBER_CALL(nvmlDeviceGetPowerManagementDefaultLimit, node->profile.power_limit_mw)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkGeneration, device->pcie_generation)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkWidth, device->pcie_width)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkGeneration, node->profile.pcie_generation_max)
NUMBER_CALL(nvmlDeviceGetGpuMaxPcieLinkGeneration, node->profile.pcie_generation_max)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkWidth, node->profile.pcie_width_max)
NUMBER_CALL(nvmlDeviceGetPcieReplayCounter, device->pcie_replays)
NUMBER_CALL(nvmlDeviceGetPowerUsage, nvml_power_mw(device))
NUMBER_CALL(nvmlDeviceGetPerformanceState, 0)

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ON_DEVICE(device, major && minor);
    *major = (int)node->profile.compute_major;
    *minor = (int)node->profile.compute_minor;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *lowest, unsigned *highest)
{
    ON_DEVICE(device, lowest && highest);
    *lowest = 200000;
    *highest = node->profile.power_limit_mw;
    return NVML_SUCCESS;
}

static nvmlReturn_t two_modes(nvmlDevice_t device, unsigned *current, unsigned *pending, unsigned value)
{
    ON_DEVICE(device, current && pending);
    *current = *pending = value;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    return two_modes(device, current, pending, 0);
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    return two_modes(device, current, pending, 1);
}
