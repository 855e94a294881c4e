/* NVML: which processes use a device. */
#define _GNU_SOURCE
#include "nvml_sim.h"

#include <string.h>

static int on(const struct sim_process *process, const struct sim_device *device, const struct sim_instance *instance)
{
    return !instance || (process->instance && &device->instances[process->instance - 1] == instance);
}

uint64_t nvml_used_memory(const struct sim_device *device, const struct sim_instance *instance)
{
    uint64_t used = 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++)
        if (sim_process_alive(&device->processes[i]) && on(&device->processes[i], device, instance))
            used += device->processes[i].memory_bytes;
    return used;
}

/* The instance ids of a process; all ones without MIG. */
static void instance_ids(const struct sim_device *device, const struct sim_process *process, unsigned *gpu, unsigned *compute)
{
    *gpu = *compute = ~0u;
    if (process->instance && process->instance <= device->instance_count) {
        *gpu = device->instances[process->instance - 1].gpu_instance;
        *compute = device->instances[process->instance - 1].compute_instance;
    }
}

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

static nvmlReturn_t processes(const char *call, const struct sim_device *device, const struct sim_instance *instance,
                              uint32_t kind, unsigned *count, nvmlProcessInfo_t *infos)
{
    unsigned found = 0, room = infos ? *count : 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *process = &device->processes[i];
        if (process->kind != kind || !on(process, device, instance) || !sim_process_alive(process))
            continue;
        if (found < room) {
            infos[found] = (nvmlProcessInfo_t){.pid = (unsigned)process->pid,
                                               .usedGpuMemory = nvml_value(call, device, process->memory_bytes)};
            instance_ids(device, process, &infos[found].gpuInstanceId, &infos[found].computeInstanceId);
        }
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESSES_CALL(name, kind)                                                     \
    API nvmlReturn_t name(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *infos) \
    {                                                                                  \
        ON_ANY(handle, count);                                                         \
        return processes(__func__, device, instance, kind, count, infos);              \
    }
PROCESSES_CALL(nvmlDeviceGetComputeRunningProcesses_v2, SIM_COMPUTE)
PROCESSES_CALL(nvmlDeviceGetComputeRunningProcesses_v3, SIM_COMPUTE)
PROCESSES_CALL(nvmlDeviceGetGraphicsRunningProcesses_v2, SIM_GRAPHICS)
PROCESSES_CALL(nvmlDeviceGetGraphicsRunningProcesses_v3, SIM_GRAPHICS)
PROCESSES_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v2, SIM_MPS)
PROCESSES_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v3, SIM_MPS)

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_t;

typedef struct {
    unsigned version, mode, count;
    nvmlProcessDetail_t *details;
} nvmlProcessDetailList_t;

/* Modes are those of sim_process_kind; 3 means all. */
API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, nvmlProcessDetailList_t *list)
{
    ON_ANY(handle, list);
    if (list->version != VERSION_OF(*list, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (list->mode > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* Confidential computing's detail: Hopper brought it. */
    SUPPORTED_IF(PROFILE.architecture >= HOPPER);
    unsigned found = 0, room = list->details ? list->count : 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *process = &device->processes[i];
        if ((list->mode < 3 && process->kind != list->mode) || !on(process, device, instance) || !sim_process_alive(process))
            continue;
        if (found < room) {
            list->details[found] = (nvmlProcessDetail_t){.pid = (unsigned)process->pid,
                                                         .usedGpuMemory = process->memory_bytes,
                                                         .usedGpuCcProtectedMemory = 0};
            instance_ids(device, process, &list->details[found].gpuInstanceId, &list->details[found].computeInstanceId);
        }
        found++;
    }
    list->count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* ---- utilisation by process: the device's, shared out evenly ---- */

typedef struct {
    unsigned pid;
    unsigned long long timeStamp;
    unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned long long timeStamp;
    unsigned pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_t;

/* Samples newer than `seen` (microseconds); returns how many and fills at most `room`. */
static unsigned samples_since(const struct sim_device *device, unsigned long long seen, nvmlProcessUtilizationInfo_t *out,
                              unsigned room)
{
    unsigned alive = 0, found = 0;
    unsigned long long at = sim_load(&device->heartbeat_ns) / 1000;
    if (!nvml_running(device) || at <= seen)
        return 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++)
        alive += device->processes[i].kind != SIM_GRAPHICS && sim_process_alive(&device->processes[i]);
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *process = &device->processes[i];
        if (process->kind == SIM_GRAPHICS || !sim_process_alive(process))
            continue;
        if (found < room)
            out[found] = (nvmlProcessUtilizationInfo_t){.timeStamp = at, .pid = (unsigned)process->pid,
                                                        .smUtil = device->utilization_permille / 10 / alive,
                                                        .memUtil = device->memory_permille / 10 / alive};
        found++;
    }
    return found;
}

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count,
                                                 unsigned long long seen)
{
    nvmlProcessUtilizationInfo_t infos[SIM_MAX_PROCESSES];
    ON_DEVICE(device, count);
    SUPPORTED_IF(!device->mig_mode[0]);
    unsigned found = samples_since(device, seen, infos, SIM_MAX_PROCESSES);
    unsigned room = samples ? *count : 0;
    if (!found)
        return NVML_ERROR_NOT_FOUND;
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){.pid = infos[i].pid, .timeStamp = infos[i].timeStamp,
                                                      .smUtil = infos[i].smUtil, .memUtil = infos[i].memUtil};
    return NVML_SUCCESS;
}

typedef struct {
    unsigned version, count;
    unsigned long long seen;
    nvmlProcessUtilizationInfo_t *infos;
} nvmlProcessesUtilizationInfo_t;

API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *list)
{
    ON_DEVICE(device, list);
    if (list->version != VERSION_OF(*list, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SUPPORTED_IF(!device->mig_mode[0]);
    unsigned room = list->infos ? list->count : 0;
    unsigned found = samples_since(device, list->seen, list->infos, room);
    if (!found)
        return NVML_ERROR_NOT_FOUND;
    list->count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
