/* NVML: life cycle, enumeration, handles of GPUs and MIG devices. */
#define _GNU_SOURCE
#include "nvml_sim.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_node *node;
static unsigned references;
static uint64_t session;

/* What a MIG device's handle points at: which instance, of which configuration. */
struct mig_handle {
    uint32_t generation; /* + 1; 0: never handed out */
};
static struct mig_handle mig_handles[SIM_MAX_DEVICES][SIM_MAX_INSTANCES];

static void pause_briefly(void)
{
    struct timespec pause = {.tv_nsec = 20000000};
    nanosleep(&pause, NULL);
}

/* The real calls sit in an ioctl while the driver hangs: the caller is blocked, its process can be killed. */
static void wait_while(const uint32_t *flag)
{
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE))
        pause_briefly();
}

struct sim_node *nvml_shared(void) { return node; }

int nvml_session_valid(void)
{
    return __atomic_load_n(&node->session, __ATOMIC_ACQUIRE) == session;
}

unsigned nvml_index_of(const struct sim_device *device) { return (unsigned)(device - node->devices); }

static nvmlReturn_t enter(const char *call, unsigned device)
{
    if (!__atomic_load_n(&references, __ATOMIC_ACQUIRE))
        return NVML_ERROR_UNINITIALIZED;
    wait_while(&node->hang);
    if (!nvml_session_valid())
        return NVML_ERROR_UNKNOWN;
    return nvml_rules_call(node, call, device);
}

nvmlReturn_t nvml_enter(const char *call) { return enter(call, SIM_ANY); }

/* Which device and instance a handle means: 0 when it is none. */
static int resolve(nvmlDevice_t handle, struct sim_device **device, struct sim_instance **instance)
{
    const struct mig_handle *mig = (const struct mig_handle *)(const void *)handle;
    *instance = NULL;
    if (handle >= node->devices && handle < node->devices + node->device_count) {
        *device = handle;
        return 1;
    }
    if (mig < &mig_handles[0][0] || mig > &mig_handles[SIM_MAX_DEVICES - 1][SIM_MAX_INSTANCES - 1])
        return 0;
    size_t at = (size_t)(mig - &mig_handles[0][0]);
    *device = &node->devices[at / SIM_MAX_INSTANCES];
    *instance = &(*device)->instances[at % SIM_MAX_INSTANCES];
    return mig->generation == (*device)->instance_generation + 1 && at % SIM_MAX_INSTANCES < (*device)->instance_count;
}

nvmlReturn_t nvml_enter_any(const char *call, nvmlDevice_t handle, struct sim_device **device,
                            struct sim_instance **instance)
{
    *device = NULL;
    *instance = NULL;
    int known = __atomic_load_n(&references, __ATOMIC_ACQUIRE) && resolve(handle, device, instance);
    nvmlReturn_t result = enter(call, known ? nvml_index_of(*device) : SIM_ANY);
    if (result != NVML_SUCCESS)
        return result;
    if (!known)
        return NVML_ERROR_INVALID_ARGUMENT;
    wait_while(&(*device)->hang);
    return (*device)->lost || (*device)->absent ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvml_enter_device(const char *call, nvmlDevice_t device)
{
    struct sim_device *found;
    struct sim_instance *instance;
    nvmlReturn_t result = nvml_enter_any(call, device, &found, &instance);
    return result == NVML_SUCCESS && instance ? NVML_ERROR_INVALID_ARGUMENT : result;
}

int nvml_mig_active(const struct sim_device *device) { return device->mig_mode[0] && device->instance_count; }

unsigned nvml_driver_major(void)
{
    unsigned major = 0;
    return sscanf(node->profile.driver, "%u", &major) == 1 ? major : 0;
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

static nvmlReturn_t initialise(const char *call)
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
        wait_while(&node->init_hang);
        wait_while(&node->hang);
        result = node->init_code ? node->init_code : nvml_rules_call(node, call, SIM_ANY);
        if (result == NVML_SUCCESS) {
            if (!references)
                session = __atomic_load_n(&node->session, __ATOMIC_ACQUIRE);
            __atomic_fetch_add(&references, 1, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return initialise(__func__); }
API nvmlReturn_t nvmlInit_v2(void) { return initialise(__func__); }
API nvmlReturn_t nvmlInit(void) { return initialise(__func__); }

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
    ON_NODE(buffer);
    return nvml_text(PROFILE.driver, buffer, length);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *buffer, unsigned length)
{
    char text[48];
    ON_NODE(buffer);
    snprintf(text, sizeof text, "%u.%.31s", PROFILE.cuda_version / 1000, PROFILE.driver);
    return nvml_text(text, buffer, length);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ON_NODE(version);
    *version = (int)PROFILE.cuda_version;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    ON_NODE(version);
    *version = (int)PROFILE.cuda_version;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[64], text[256] = "";
    ON_NODE(name);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    return got ? nvml_text(text, name, length) : NVML_ERROR_NOT_FOUND;
}

/* The index-th device that the driver counts. */
static struct sim_device *counted(unsigned index)
{
    for (unsigned i = 0; i < node->device_count; i++)
        if (!node->devices[i].absent && index-- == 0)
            return &node->devices[i];
    return NULL;
}

static unsigned count(void)
{
    unsigned devices = 0;
    while (counted(devices))
        devices++;
    return devices;
}

static unsigned index_of(const struct sim_device *device)
{
    unsigned before = 0;
    for (const struct sim_device *other = node->devices; other < device; other++)
        before += !other->absent;
    return before;
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *devices)
{
    ON_NODE(devices);
    *devices = count();
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned *devices)
{
    ON_NODE(devices);
    *devices = count();
    return NVML_SUCCESS;
}

static nvmlReturn_t give(const char *call, struct sim_device *found, nvmlDevice_t *device)
{
    if (!device)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvml_rules_call(node, call, nvml_index_of(found));
    if (result != NVML_SUCCESS)
        return result;
    /* A lost device gives no handle either: nvidia-smi then cannot determine it. */
    if (found->lost)
        return NVML_ERROR_GPU_IS_LOST;
    *device = found;
    return NVML_SUCCESS;
}

/* Rules are applied to the device that is found, so that a call may fail for one device alone. */
#define ON_LOOKUP(wanted)                                                              \
    do {                                                                               \
        if (!__atomic_load_n(&references, __ATOMIC_ACQUIRE))                           \
            return NVML_ERROR_UNINITIALIZED;                                           \
        wait_while(&node->hang);                                                       \
        if (!nvml_session_valid())                                                     \
            return NVML_ERROR_UNKNOWN;                                                 \
        if (!(wanted))                                                                 \
            return NVML_ERROR_INVALID_ARGUMENT;                                        \
    } while (0)

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    ON_LOOKUP(1);
    struct sim_device *found = counted(index);
    return found ? give(__func__, found, device) : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    ON_LOOKUP(1);
    struct sim_device *found = counted(index);
    return found ? give(__func__, found, device) : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t mig_handle(struct sim_device *device, unsigned at, nvmlDevice_t *handle)
{
    if (!handle)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct mig_handle *mig = &mig_handles[nvml_index_of(device)][at];
    mig->generation = device->instance_generation + 1;
    *handle = (nvmlDevice_t)(void *)mig;
    return NVML_SUCCESS;
}

static nvmlReturn_t by_uuid(const char *call, const char *uuid, nvmlDevice_t *device)
{
    for (unsigned i = 0; i < node->device_count; i++) {
        struct sim_device *candidate = &node->devices[i];
        if (candidate->absent)
            continue;
        if (strcmp(candidate->uuid, uuid) == 0)
            return give(call, candidate, device);
        for (unsigned at = 0; at < candidate->instance_count; at++)
            if (candidate->mig_mode[0] && strcmp(candidate->instances[at].uuid, uuid) == 0)
                return mig_handle(candidate, at, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ON_LOOKUP(uuid);
    return by_uuid(__func__, uuid, device);
}

typedef struct { unsigned version, type; char text[41]; } nvmlUUID_t;

API nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    ON_LOOKUP(uuid);
    if (uuid->version != VERSION_OF(*uuid, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return uuid->type == 1 ? by_uuid(__func__, uuid->text, device) : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    ON_LOOKUP(serial);
    for (unsigned i = 0; i < node->device_count; i++)
        if (!node->devices[i].absent && strcmp(node->devices[i].serial, serial) == 0)
            return give(__func__, &node->devices[i], device);
    return NVML_ERROR_NOT_FOUND;
}

void nvml_bus_id(const struct sim_device *device, char *text, size_t length, int domain_digits)
{
    snprintf(text, length, "%0*X:%02X:%02X.0", domain_digits, device->pci_domain, device->pci_bus, device->pci_device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *wanted, nvmlDevice_t *device)
{
    ON_LOOKUP(wanted);
    for (unsigned i = 0; i < node->device_count; i++) {
        char lengthy[32], brief[32];
        if (node->devices[i].absent)
            continue;
        nvml_bus_id(&node->devices[i], lengthy, sizeof lengthy, 8);
        nvml_bus_id(&node->devices[i], brief, sizeof brief, 4);
        if (strcasecmp(lengthy, wanted) == 0 || strcasecmp(brief, wanted) == 0)
            return give(__func__, &node->devices[i], device);
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t pci_info(const struct sim_device *device, nvmlPciInfo_t *info)
{
    memset(info, 0, sizeof *info);
    nvml_bus_id(device, info->busIdLegacy, sizeof info->busIdLegacy, 4);
    nvml_bus_id(device, info->busId, sizeof info->busId, 8);
    info->domain = device->pci_domain;
    info->bus = device->pci_bus;
    info->device = device->pci_device;
    info->pciDeviceId = PROFILE.pci_device_id;
    info->pciSubSystemId = PROFILE.pci_subsystem_id;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    ON_DEVICE(device, info);
    return pci_info(device, info);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    ON_DEVICE(device, info);
    return pci_info(device, info);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *buffer, unsigned length)
{
    ON_ANY(handle, buffer);
    return nvml_text(instance ? instance->uuid : device->uuid, buffer, length);
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *buffer, unsigned length)
{
    char text[96];
    ON_ANY(handle, buffer);
    if (!instance)
        return nvml_text(PROFILE.name, buffer, length);
    snprintf(text, sizeof text, "%s MIG %s", PROFILE.name, instance->profile);
    return nvml_text(text, buffer, length);
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned *out)
{
    ON_ANY(handle, out);
    *out = instance ? (unsigned)(instance - device->instances) : index_of(device);
    return NVML_SUCCESS;
}

/* ---- MIG devices ---- */

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ON_DEVICE(device, current && pending);
    SUPPORTED_IF(PROFILE.mig_slices);
    *current = device->mig_mode[0];
    *pending = device->mig_mode[1];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *out)
{
    ON_DEVICE(device, out);
    *out = PROFILE.mig_slices;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *handle)
{
    ON_DEVICE(device, handle);
    SUPPORTED_IF(PROFILE.mig_slices && device->mig_mode[0]);
    if (index >= PROFILE.mig_slices)
        return NVML_ERROR_INVALID_ARGUMENT;
    return index < device->instance_count ? mig_handle(device, index, handle) : NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned *out)
{
    ON_ANY(handle, out);
    *out = instance != NULL;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t *parent)
{
    ON_ANY(handle, parent);
    if (!instance)
        return NVML_ERROR_INVALID_ARGUMENT;
    *parent = device;
    return NVML_SUCCESS;
}

#define INSTANCE_CALL(name, value)                                                     \
    API nvmlReturn_t name(nvmlDevice_t handle, unsigned *out)                          \
    {                                                                                  \
        ON_ANY(handle, out);                                                           \
        if (!instance)                                                                 \
            return NVML_ERROR_INVALID_ARGUMENT;                                        \
        *out = value;                                                                  \
        return NVML_SUCCESS;                                                           \
    }
INSTANCE_CALL(nvmlDeviceGetGpuInstanceId, instance->gpu_instance)
INSTANCE_CALL(nvmlDeviceGetComputeInstanceId, instance->compute_instance)

typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes)
{
    ON_ANY(handle, attributes);
    SUPPORTED_IF(instance);
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = instance->multiprocessors,
        .sharedCopyEngineCount = instance->engines,
        .sharedDecoderCount = instance->engines,
        .sharedJpegCount = instance->engines,
        .sharedOfaCount = instance->slices == 7,
        .gpuInstanceSliceCount = instance->slices,
        .computeInstanceSliceCount = instance->slices,
        .memorySizeMB = instance->memory_bytes >> 20,
    };
    return NVML_SUCCESS;
}
