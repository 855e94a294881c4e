/* NVML: what a device does. Read from the accounts of the device clock that runs in the rank's process. */
#define _GNU_SOURCE
#include "nvml_sim.h"

#include <math.h>
#include <string.h>

#define IDLE_REASON 0x1ull

int nvml_running(const struct sim_device *device)
{
    uint64_t beat = sim_load(&device->heartbeat_ns);
    return beat && sim_now_ns() - beat < SIM_STALE_NS;
}

static uint64_t since_heartbeat(const struct sim_device *device)
{
    uint64_t beat = sim_load(&device->heartbeat_ns), now = sim_now_ns();
    if (!beat)
        beat = nvml_node()->created_ns;
    return now > beat ? now - beat : 0;
}

unsigned nvml_power_mw(const struct sim_device *device)
{
    return nvml_running(device) ? device->power_mw : nvml_node()->profile.power_idle_mw;
}

uint64_t nvml_energy_uj(const struct sim_device *device)
{
    /* Nobody's clock accounts for the time since the last heartbeat yet; the next one books at least this much. */
    return sim_load(&device->energy_uj) +
           (uint64_t)((double)since_heartbeat(device) * nvml_node()->profile.power_idle_mw / 1e6);
}

double nvml_temperature(const struct sim_device *device)
{
    const struct sim_profile *profile = &nvml_node()->profile;
    double idle = 30.0 + 35.0 * profile->power_idle_mw / profile->power_limit_mw + device->heat_celsius;
    if (nvml_running(device))
        return device->temperature_c;
    return idle + (device->temperature_c - idle) * exp(-(double)since_heartbeat(device) / 1e9 / 20.0);
}

unsigned nvml_sm_clock(const struct sim_device *device)
{
    const struct sim_profile *profile = &nvml_node()->profile;
    double full = nvml_running(device) ? profile->sm_clock_max_mhz : profile->sm_clock_idle_mhz;
    double held = profile->sm_clock_max_mhz * device->clock_fraction;
    return (unsigned)((full < held ? full : held) + 0.5);
}

uint64_t nvml_throttle_ns(const struct sim_device *device, unsigned bit)
{
    uint64_t held = device->throttle_held_ns[bit], now = sim_now_ns();
    if ((device->throttle_reasons >> bit & 1) && now > device->throttle_since_ns)
        held += now - device->throttle_since_ns;
    return held;
}

typedef struct { unsigned gpu, memory; } nvmlUtilization_t;

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    ON_DEVICE(device, rates);
    int running = nvml_running(device);
    rates->gpu = running ? (device->utilization_permille + 5) / 10 : 0;
    rates->memory = running ? (device->memory_permille + 5) / 10 : 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t codec(nvmlDevice_t device, unsigned *utilization, unsigned *period_us)
{
    ON_DEVICE(device, utilization && period_us);
    *utilization = 0;
    *period_us = 167000;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *share, unsigned *period_us)
{
    return codec(device, share, period_us);
}

static uint64_t used_memory(const struct sim_device *device)
{
    uint64_t used = 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++)
        if (sim_process_alive(&device->processes[i]))
            used += device->processes[i].memory_bytes;
    return used;
}

typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
#define RESERVED_BYTES (650ull << 20)

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ON_DEVICE(device, memory);
    memory->total = nvml_node()->profile.memory_bytes;
    memory->used = RESERVED_BYTES + used_memory(device);
    memory->free = memory->total > memory->used ? memory->total - memory->used : 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ON_DEVICE(device, memory);
    if (memory->version != (sizeof *memory | 2u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = nvml_node()->profile.memory_bytes;
    memory->reserved = RESERVED_BYTES;
    memory->used = used_memory(device);
    memory->free = memory->total - memory->reserved > memory->used ? memory->total - memory->reserved - memory->used : 0;
    return NVML_SUCCESS;
}

typedef struct { unsigned long long total, free, used; } nvmlBAR1Memory_t;

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    ON_DEVICE(device, memory);
    memory->total = 128ull << 30;
    memory->used = 2ull << 20;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

/* clock types: 0 graphics, 1 SM, 2 memory, 3 video */
static nvmlReturn_t clock_of(nvmlDevice_t device, unsigned type, int highest, unsigned *mhz)
{
    ON_DEVICE(device, mhz);
    const struct sim_profile *profile = &nvml_node()->profile;
    if (type > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (type == 2)
        *mhz = profile->memory_clock_mhz;
    else
        *mhz = highest ? profile->sm_clock_max_mhz : nvml_sm_clock(device);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) { return clock_of(device, type, 0, mhz); }
API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) { return clock_of(device, type, 1, mhz); }
API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz) { return clock_of(device, type, 1, mhz); }
API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned id, unsigned *mhz)
{
    return id > 3 ? NVML_ERROR_INVALID_ARGUMENT : clock_of(device, type, id != 0, mhz);
}

API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
    ON_DEVICE(device, millijoules);
    *millijoules = nvml_energy_uj(device) / 1000;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
    ON_DEVICE(device, celsius);
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = (unsigned)(nvml_temperature(device) + 0.5);
    return NVML_SUCCESS;
}

typedef struct { unsigned version, sensor; int celsius; } nvmlTemperature_t;

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    ON_DEVICE(device, temperature);
    if (temperature->version != (sizeof *temperature | 1u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (temperature->sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    temperature->celsius = (int)(nvml_temperature(device) + 0.5);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *celsius)
{
    static const unsigned values[] = {92, 89, 95, 87}; /* shutdown, slowdown, memory, GPU */
    ON_DEVICE(device, celsius);
    if (threshold >= sizeof values / sizeof values[0])
        return NVML_ERROR_NOT_SUPPORTED;
    *celsius = values[threshold];
    return NVML_SUCCESS;
}

static nvmlReturn_t reasons(nvmlDevice_t device, unsigned long long *bits)
{
    ON_DEVICE(device, bits);
    *bits = device->throttle_reasons;
    if (!*bits && (!nvml_running(device) || device->utilization_permille == 0))
        *bits = IDLE_REASON;
    return NVML_SUCCESS;
}

static nvmlReturn_t supported_reasons(nvmlDevice_t device, unsigned long long *bits)
{
    ON_DEVICE(device, bits);
    *bits = (1ull << SIM_REASONS) - 1;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *bits) { return reasons(device, bits); }
API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *bits) { return reasons(device, bits); }
API nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *bits) { return supported_reasons(device, bits); }
API nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *bits) { return supported_reasons(device, bits); }

/* memory locations: 2 device memory, 7 SRAM; the others are not told apart on these devices */
API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned type, unsigned window, unsigned location,
                                                 unsigned long long *count)
{
    ON_DEVICE(device, count);
    if (type > 1 || window > 1 || location > 7)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (location != 2 && location != 7)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = location == 2 ? device->ecc_dram[type] : device->ecc_sram[type];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned window, unsigned long long *count)
{
    ON_DEVICE(device, count);
    if (type > 1 || window > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = device->ecc_dram[type] + device->ecc_sram[type];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                           unsigned *failed)
{
    ON_DEVICE(device, corrected && uncorrected && pending && failed);
    *corrected = device->remapped_rows[0];
    *uncorrected = device->remapped_rows[1];
    *pending = device->remap_pending;
    *failed = device->remap_failed;
    return NVML_SUCCESS;
}

typedef struct { unsigned max, high, partial, low, none; } nvmlRowRemapperHistogramValues_t;

API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    ON_DEVICE(device, values);
    memset(values, 0, sizeof *values);
    values->max = 640 - device->remapped_rows[1];
    values->high = device->remapped_rows[1];
    return NVML_SUCCESS;
}

typedef struct { unsigned long long referenceTime, violationTime; } nvmlViolationTime_t;

API nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy, nvmlViolationTime_t *time)
{
    ON_DEVICE(device, time);
    if (policy > 1)
        return NVML_ERROR_NOT_SUPPORTED;
    time->referenceTime = sim_now_ns() / 1000;
    time->violationTime = policy == 0 ? nvml_throttle_ns(device, 2) : nvml_throttle_ns(device, 5) + nvml_throttle_ns(device, 6);
    return NVML_SUCCESS;
}

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    ON_DEVICE(device, count);
    unsigned found = 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *process = &device->processes[i];
        if (!sim_process_alive(process))
            continue;
        if (infos && found < *count)
            infos[found] = (nvmlProcessInfo_t){.pid = (unsigned)process->pid, .usedGpuMemory = process->memory_bytes,
                                               .gpuInstanceId = ~0u, .computeInstanceId = ~0u};
        found++;
    }
    nvmlReturn_t result = found > (infos ? *count : 0) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    *count = found;
    return result;
}

static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned *count)
{
    ON_DEVICE(device, count);
    *count = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    (void)infos;
    return no_processes(device, count);
}

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    (void)infos;
    return no_processes(device, count);
}

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; int si; } value;
} nvmlFieldValue_t;
enum { VALUE_UNSIGNED = 1, VALUE_UNSIGNED_LONG_LONG = 3 };

static int field(const struct sim_device *device, unsigned id, unsigned long long *value, unsigned *type)
{
    const struct sim_profile *profile = &nvml_node()->profile;
    *type = VALUE_UNSIGNED_LONG_LONG;
    switch (id) {
    case 1: case 2: *type = VALUE_UNSIGNED; *value = 1; return 1; /* ECC mode now, after reset */
    case 3: case 5: *value = device->ecc_dram[0] + device->ecc_sram[0]; return 1;
    case 4: case 6: *value = device->ecc_dram[1] + device->ecc_sram[1]; return 1;
    case 74: *value = nvml_throttle_ns(device, 2); return 1;
    case 75: *value = nvml_throttle_ns(device, 5) + nvml_throttle_ns(device, 6); return 1;
    case 82: *type = VALUE_UNSIGNED; *value = (unsigned long long)(nvml_temperature(device) + 9.5); return 1; /* memory */
    case 83: case 191: *value = nvml_energy_uj(device) / 1000; return 1;
    case 94: *type = VALUE_UNSIGNED; *value = device->pcie_replays; return 1;
    case 95: *type = VALUE_UNSIGNED; *value = 0; return 1;
    case 142: *type = VALUE_UNSIGNED; *value = device->remapped_rows[0]; return 1;
    case 143: *type = VALUE_UNSIGNED; *value = device->remapped_rows[1]; return 1;
    case 144: *type = VALUE_UNSIGNED; *value = device->remap_pending; return 1;
    case 145: *type = VALUE_UNSIGNED; *value = device->remap_failed; return 1;
    case 185: case 186: *type = VALUE_UNSIGNED; *value = nvml_power_mw(device); return 1;
    case 187: *type = VALUE_UNSIGNED; *value = 200000; return 1;
    case 188: case 189: case 190: case 192: *type = VALUE_UNSIGNED; *value = profile->power_limit_mw; return 1;
    case 197: *value = sim_load(&device->pcie_tx_bytes); return 1;
    case 198: *value = sim_load(&device->pcie_rx_bytes); return 1;
    case 230: *type = VALUE_UNSIGNED; *value = device->recovery_action; return profile->gpm; /* Hopper and newer */
    case 269: *value = nvml_throttle_ns(device, 5); return 1;
    case 270: *value = nvml_throttle_ns(device, 6); return 1;
    case 271: *value = nvml_throttle_ns(device, 7); return 1;
    default: return 0;
    }
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ON_DEVICE(device, values && count >= 1);
    for (int i = 0; i < count; i++) {
        unsigned long long value = 0;
        values[i].timestamp = (long long)(sim_now_ns() / 1000);
        values[i].latencyUsec = 20;
        values[i].nvmlReturn = field(device, values[i].fieldId, &value, &values[i].valueType) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[i].value.ull = value;
    }
    return NVML_SUCCESS;
}
