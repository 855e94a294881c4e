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
        beat = nvml_shared()->created_ns;
    if (beat < device->idle_since_ns)
        beat = device->idle_since_ns;
    return now > beat ? now - beat : 0;
}

unsigned nvml_power_mw(const struct sim_device *device)
{
    return nvml_running(device) ? device->power_mw : nvml_shared()->profile.power_idle_mw;
}

uint64_t nvml_energy_uj(const struct sim_device *device)
{
    /* Nobody's clock accounts for the time since the last heartbeat yet; the next one books at least this much. */
    return sim_load(&device->energy_uj) +
           (uint64_t)((double)since_heartbeat(device) * nvml_shared()->profile.power_idle_mw / 1e6);
}

double nvml_temperature(const struct sim_device *device)
{
    const struct sim_profile *profile = &nvml_shared()->profile;
    double idle = 30.0 + 35.0 * profile->power_idle_mw / profile->power_limit_mw + device->heat_celsius;
    if (nvml_running(device))
        return device->temperature_c;
    return idle + (device->temperature_c - idle) * exp(-(double)since_heartbeat(device) / 1e9 / 20.0);
}

unsigned nvml_sm_clock(const struct sim_device *device)
{
    const struct sim_profile *profile = &nvml_shared()->profile;
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

/* ---- activity ---- */

typedef struct { unsigned gpu, memory; } nvmlUtilization_t;

static unsigned gpu_percent(const struct sim_device *device)
{
    return nvml_running(device) ? (device->utilization_permille + 5) / 10 : 0;
}

static unsigned memory_percent(const struct sim_device *device)
{
    return nvml_running(device) ? (device->memory_permille + 5) / 10 : 0;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *rates)
{
    ON_ANY(handle, rates);
    /* nvml.h: not on GPUs with MIG, nor on their instances. */
    SUPPORTED_IF(!instance && !device->mig_mode[0]);
    rates->gpu = (unsigned)VALUE(device, gpu_percent(device));
    rates->memory = (unsigned)VALUE(device, memory_percent(device));
    return NVML_SUCCESS;
}

#define CODEC_CALL(name)                                                               \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *utilization, unsigned *period_us) \
    {                                                                                  \
        ON_DEVICE(device, utilization && period_us);                                   \
        SUPPORTED_IF(!device->mig_mode[0]);                                            \
        *utilization = (unsigned)VALUE(device, 0);                                     \
        *period_us = 167000;                                                           \
        return NVML_SUCCESS;                                                           \
    }
CODEC_CALL(nvmlDeviceGetEncoderUtilization)
CODEC_CALL(nvmlDeviceGetDecoderUtilization)
CODEC_CALL(nvmlDeviceGetJpgUtilization)
CODEC_CALL(nvmlDeviceGetOfaUtilization)

typedef struct { unsigned long long timestamp; union { double d; unsigned ui; unsigned long long ull; } value; } nvmlSample_t;
#define SAMPLES 100
#define SAMPLE_US 167000ull

/* Types: 0 power, 1 GPU, 2 memory, 3 encoder, 4 decoder, 5 SM clock, 6 memory clock, 7 module power. The driver's buffer holds
 * SAMPLES of them; all say what is now, since the accounts keep no past. */
API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned what, unsigned long long seen, unsigned *type,
                                      unsigned *count, nvmlSample_t *samples)
{
    ON_DEVICE(device, type && count);
    unsigned values[] = {nvml_power_mw(device), gpu_percent(device), memory_percent(device), 0, 0, nvml_sm_clock(device),
                         PROFILE.memory_clock_mhz};
    SUPPORTED_IF(what < sizeof values / sizeof values[0] && !(device->mig_mode[0] && what >= 1 && what <= 4));
    *type = 1; /* unsigned */
    if (!samples) {
        *count = SAMPLES;
        return NVML_SUCCESS;
    }
    unsigned long long last = sim_now_ns() / 1000 / SAMPLE_US;
    unsigned found = 0, room = *count < SAMPLES ? *count : SAMPLES;
    for (unsigned long long tick = last > room ? last - room + 1 : 0; tick <= last && found < room; tick++) {
        if (tick * SAMPLE_US <= seen)
            continue;
        samples[found].timestamp = tick * SAMPLE_US;
        samples[found].value.ull = 0;
        samples[found++].value.ui = (unsigned)VALUE(device, values[what]);
    }
    *count = found;
    return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* ---- memory ---- */

typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
#define RESERVED_BYTES (650ull << 20)

static void memory_of(const char *call, struct sim_device *device, const struct sim_instance *instance, nvmlMemory_v2_t *memory)
{
    memory->total = instance ? instance->memory_bytes : PROFILE.memory_bytes;
    /* The driver's own part is the GPU's; an instance's share of it is small. */
    memory->reserved = instance ? 0 : RESERVED_BYTES;
    memory->used = nvml_value(call, device, nvml_used_memory(device, instance));
    unsigned long long room = memory->total - memory->reserved;
    memory->free = room > memory->used ? room - memory->used : 0;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    nvmlMemory_v2_t all;
    ON_ANY(handle, memory);
    memory_of(__func__, device, instance, &all);
    *memory = (nvmlMemory_t){.total = all.total, .free = all.free, .used = all.reserved + all.used};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    ON_ANY(handle, memory);
    if (memory->version != VERSION_OF(*memory, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory_of(__func__, device, instance, memory);
    return NVML_SUCCESS;
}

typedef struct { unsigned long long total, free, used; } nvmlBAR1Memory_t;

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t *memory)
{
    ON_ANY(handle, memory);
    memory->total = instance ? PROFILE.bar1_bytes / 8 * instance->memory_slices : PROFILE.bar1_bytes;
    memory->used = VALUE(device, 2ull << 20);
    memory->free = memory->total > memory->used ? memory->total - memory->used : 0;
    return NVML_SUCCESS;
}

/* ---- clocks: 0 graphics, 1 SM, 2 memory, 3 video ---- */

static unsigned clock_of(const struct sim_device *device, unsigned type, int highest)
{
    const struct sim_profile *profile = &PROFILE;
    if (type == 2)
        return profile->memory_clock_mhz;
    if (type == 3)
        return highest ? profile->video_clock_max_mhz
                       : profile->video_clock_max_mhz * nvml_sm_clock(device) / profile->sm_clock_max_mhz;
    return highest ? profile->sm_clock_max_mhz : nvml_sm_clock(device);
}

#define CLOCK_CALL(name, highest, supported)                                           \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned type, unsigned *mhz)           \
    {                                                                                  \
        ON_DEVICE(device, mhz);                                                        \
        if (type > 3)                                                                  \
            return NVML_ERROR_INVALID_ARGUMENT;                                        \
        SUPPORTED_IF(supported);                                                       \
        *mhz = (unsigned)VALUE(device, clock_of(device, type, highest));               \
        return NVML_SUCCESS;                                                           \
    }
CLOCK_CALL(nvmlDeviceGetClockInfo, 0, 1)
CLOCK_CALL(nvmlDeviceGetMaxClockInfo, 1, 1)
CLOCK_CALL(nvmlDeviceGetMaxCustomerBoostClock, 1, 1)
/* Application clocks: of graphics and memory, until Blackwell. */
CLOCK_CALL(nvmlDeviceGetApplicationsClock, 1, PROFILE.architecture < BLACKWELL && (type == 0 || type == 2))
CLOCK_CALL(nvmlDeviceGetDefaultApplicationsClock, 1, PROFILE.architecture < BLACKWELL && (type == 0 || type == 2))

API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned id, unsigned *mhz)
{
    ON_DEVICE(device, mhz);
    if (id > 3 || type > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = (unsigned)VALUE(device, clock_of(device, type, id != 0));
    return NVML_SUCCESS;
}

NUMBER_CALL(nvmlDeviceGetPerformanceState, PROFILE.nvlink_links || nvml_running(device) ? 0 : 8)
NUMBER_CALL(nvmlDeviceGetPowerState, PROFILE.nvlink_links || nvml_running(device) ? 0 : 8)
NUMBER_CALL(nvmlDeviceGetPowerUsage, nvml_power_mw(device))

API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
    ON_DEVICE(device, millijoules);
    *millijoules = VALUE(device, nvml_energy_uj(device) / 1000);
    return NVML_SUCCESS;
}

/* ---- temperature ---- */

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
    ON_DEVICE(device, celsius);
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = (unsigned)VALUE(device, nvml_temperature(device) + 0.5);
    return NVML_SUCCESS;
}

typedef struct { unsigned version, sensor; int celsius; } nvmlTemperature_t;

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    ON_DEVICE(device, temperature);
    if (temperature->version != VERSION_OF(*temperature, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (temperature->sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    temperature->celsius = (int)VALUE(device, nvml_temperature(device) + 0.5);
    return NVML_SUCCESS;
}

typedef struct { unsigned version; int celsius; } nvmlMarginTemperature_t;

API nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin)
{
    ON_DEVICE(device, margin);
    if (margin->version != VERSION_OF(*margin, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SUPPORTED_IF(PROFILE.tlimit);
    margin->celsius = (int)VALUE(device, (int64_t)PROFILE.temperature_max - (int64_t)(nvml_temperature(device) + 0.5));
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *celsius)
{
    ON_DEVICE(device, celsius);
    const unsigned values[] = {PROFILE.temperature_shutdown, PROFILE.temperature_slowdown, PROFILE.temperature_memory_max,
                               PROFILE.temperature_max};
    if (threshold > 7)
        return NVML_ERROR_INVALID_ARGUMENT;
    SUPPORTED_IF(threshold < sizeof values / sizeof values[0] && values[threshold]);
    *celsius = (unsigned)VALUE(device, values[threshold]);
    return NVML_SUCCESS;
}

/* ---- why the clock is held down ---- */

static unsigned long long reasons(const struct sim_device *device)
{
    unsigned long long bits = device->throttle_reasons;
    return bits || (nvml_running(device) && device->utilization_permille) ? bits : IDLE_REASON;
}

#define REASONS_CALL(name, value)                                                      \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned long long *bits)               \
    {                                                                                  \
        ON_DEVICE(device, bits);                                                       \
        *bits = VALUE(device, value);                                                  \
        return NVML_SUCCESS;                                                           \
    }
REASONS_CALL(nvmlDeviceGetCurrentClocksEventReasons, reasons(device))
REASONS_CALL(nvmlDeviceGetCurrentClocksThrottleReasons, reasons(device))
REASONS_CALL(nvmlDeviceGetSupportedClocksEventReasons, (1ull << SIM_REASONS) - 1)
REASONS_CALL(nvmlDeviceGetSupportedClocksThrottleReasons, (1ull << SIM_REASONS) - 1)

typedef struct { unsigned long long referenceTime, violationTime; } nvmlViolationTime_t;

API nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy, nvmlViolationTime_t *time)
{
    ON_DEVICE(device, time);
    if (policy > 11)
        return NVML_ERROR_INVALID_ARGUMENT;
    SUPPORTED_IF(policy <= 2);
    time->referenceTime = sim_now_ns() / 1000;
    time->violationTime = VALUE(device, policy == 0   ? nvml_throttle_ns(device, 2)
                                        : policy == 1 ? nvml_throttle_ns(device, 5) + nvml_throttle_ns(device, 6)
                                                      : nvml_throttle_ns(device, 4));
    return NVML_SUCCESS;
}
