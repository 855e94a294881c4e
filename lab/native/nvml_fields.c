/* NVML field values: one number per id and scope, with a result of its own each. */
#define _GNU_SOURCE
#include "nvml_sim.h"

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; int si; } value;
} nvmlFieldValue_t;

/* A counter that is only so many bits wide. */
static uint64_t wrapped(const struct sim_device *device, uint64_t bytes)
{
    unsigned bits = device->pcie_counter_bits;
    return bits && bits < 64 ? bytes & ((1ull << bits) - 1) : bytes;
}

/* Power and energy by scope: 0 the GPU, 1 the module, 2 memory; nothing else is told apart here. */
static int power(const struct sim_device *device, unsigned id, unsigned scope, uint64_t *value, unsigned *type)
{
    const struct sim_profile *profile = &PROFILE;
    *type = VALUE_UNSIGNED;
    if (scope == 1 && profile->architecture < BLACKWELL)
        return 0; /* the module is the GPU: nothing more is measured */
    if (scope > 2 || (scope == 2 && (profile->architecture < HOPPER || (id != 185 && id != 186))))
        return 0;
    double share = scope == 1 ? 1.0 : scope == 2 ? 0.12 : 1.0;
    switch (id) {
    case 185: *value = (uint64_t)(nvml_power_mw(device) * share); return profile->power_average;
    case 186: *value = (uint64_t)(nvml_power_mw(device) * share); return 1;
    case 187: *value = profile->power_min_mw; return 1;
    case 188: case 189: *value = profile->power_limit_mw; return 1;
    case 190: case 192: *value = device->power_limit_mw; return 1;
    case 191: *type = VALUE_UNSIGNED_LONG_LONG; *value = nvml_energy_uj(device) / 1000; return profile->architecture >= HOPPER;
    default: return 0;
    }
}

/* ids 3 to 28 by location; Ampere and newer tell totals and device memory apart, nothing finer. */
static int ecc(const struct sim_device *device, unsigned id, uint64_t *value)
{
    unsigned type, window;
    int dram_alone = 0;
    if (id <= 6) {
        type = (id - 3) & 1;
        window = id >= 5;
    } else if (id == 11 || id == 12 || id == 22 || id == 23) {
        type = id == 12 || id == 23;
        window = id >= 22;
        dram_alone = 1;
    } else {
        return 0;
    }
    if (window == 0 && nvml_mig_active(device))
        return 0;
    *value = nvml_ecc_dram(device, type, window) + (dram_alone ? 0 : nvml_ecc_sram(device, type, window));
    return 1;
}

/* Margins to the hottest the GPU may work at; negative beyond it. */
static int margin(unsigned id, uint64_t *value, unsigned *type)
{
    const struct sim_profile *profile = &PROFILE;
    int limits[] = {(int)profile->temperature_shutdown, (int)profile->temperature_slowdown, 0, 0};
    *type = VALUE_SIGNED;
    *value = (uint64_t)(int64_t)(id <= 194 ? (int)profile->temperature_max - limits[id - 193] : 0);
    return profile->tlimit && (id != 195 || profile->temperature_memory_max);
}

/* GB200's circuit; the lifetime is what wears. */
static int power_smoothing(unsigned id, uint64_t *value, unsigned *type)
{
    *type = VALUE_UNSIGNED;
    *value = id == 256 ? 90 : id == 257 ? 30 : id == 258 ? 100 : id == 259 ? 5 : 0;
    return PROFILE.power_smoothing && id <= 259;
}

/* 1 when the field is answered; otherwise it is not supported here. */
static int field(const struct sim_device *device, unsigned id, unsigned scope, uint64_t *value, unsigned *type)
{
    const struct sim_profile *profile = &PROFILE;
    int remaps = profile->remap_banks && !nvml_mig_active(device);
    *type = VALUE_UNSIGNED_LONG_LONG;
    if (id >= 3 && id <= 28)
        return ecc(device, id, value);
    if (id >= 173 && id <= 183) {
        *type = VALUE_UNSIGNED;
        *value = device->pcie_errors[id - 173];
        return profile->pcie_error_counters;
    }
    if ((id >= 185 && id <= 192))
        return power(device, id, scope, value, type);
    if (id >= 193 && id <= 196)
        return margin(id, value, type);
    if ((id >= 251 && id <= 268) || (id >= 275 && id <= 288) || id == 300)
        return power_smoothing(id, value, type);
    switch (id) {
    case 74: *value = nvml_throttle_ns(device, 2); return 1;
    case 75: *value = nvml_throttle_ns(device, 5) + nvml_throttle_ns(device, 6); return 1;
    case 76: *value = nvml_throttle_ns(device, 4); return 1;
    case 77: case 79: *value = 0; return 1;
    case 78: *value = sim_load(&device->idle_ns); return 1;
    case 80: *value = nvml_throttle_ns(device, 1); return 1;
    case 81: *value = 0; return 1;
    case 83: *value = nvml_energy_uj(device) / 1000; return 1;
    case 197: *value = wrapped(device, sim_load(&device->pcie_tx_bytes)); return 1;
    case 198: *value = wrapped(device, sim_load(&device->pcie_rx_bytes)); return 1;
    case 269: *value = nvml_throttle_ns(device, 5); return 1;
    case 270: *value = nvml_throttle_ns(device, 6); return 1;
    case 271: *value = nvml_throttle_ns(device, 7); return 1;
    default: break;
    }
    *type = VALUE_UNSIGNED;
    switch (id) {
    case 1: case 2: *value = device->ecc_mode[id - 1]; return 1;
    case 82: *value = (uint64_t)(nvml_temperature(device) + 9.5); return profile->temperature_memory_max != 0;
    case 94: *value = device->pcie_replays & 0xffffffffu; return 1;
    case 95: *value = device->pcie_replays >> 32; return 1;
    case 142: *value = device->remapped_rows[0]; return remaps;
    case 143: *value = device->remapped_rows[1]; return remaps;
    case 144: *value = device->remap_pending; return remaps;
    case 145: *value = device->remap_failed; return remaps;
    case 169: *value = device->pcie_recoveries; return 1;
    case 184: *value = profile->architecture >= HOPPER && profile->mig_slices; return 1;
    case 199: *value = profile->mig_slices != 0; return 1;
    case 230: *value = device->recovery_action; return profile->recovery_action;
    /* Newer than the drivers of these boards' profiles; there from 590 on. */
    case 301: *value = 0; return remaps && nvml_driver_major() >= 590;
    case 302: *value = device->remap_pending ? 1 : 0; return remaps && nvml_driver_major() >= 590;
    case 303: case 304: case 306: case 307: *value = 0; return profile->architecture >= BLACKWELL && nvml_driver_major() >= 615;
    case 305: *value = profile->remap_banks; return profile->architecture >= BLACKWELL && nvml_driver_major() >= 615;
    default: return 0;
    }
}

static void put(nvmlFieldValue_t *out, uint64_t value)
{
    out->value.ull = 0;
    if (out->valueType == VALUE_UNSIGNED)
        out->value.ui = (unsigned)value;
    else if (out->valueType == VALUE_SIGNED)
        out->value.si = (int)value;
    else
        out->value.ull = value;
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ON_DEVICE(device, values && count >= 1);
    const struct sim_node *node = nvml_shared();
    unsigned index = nvml_index_of(device);
    for (int i = 0; i < count; i++) {
        nvmlFieldValue_t *out = &values[i];
        uint64_t value = 0, before = sim_now_ns();
        nvmlReturn_t code = NVML_SUCCESS;
        int replaced, batch;
        out->value.ull = 0;
        if (!nvml_link_field(device, out->fieldId, out->scopeId, &value, &out->valueType, &code) &&
            !field(device, out->fieldId, out->scopeId, &value, &out->valueType))
            code = NVML_ERROR_NOT_SUPPORTED;
        nvmlReturn_t ruled = nvml_rules_field(node, __func__, index, out->fieldId, out->scopeId, &value, &replaced, &batch);
        if (batch)
            return ruled;
        out->nvmlReturn = ruled != NVML_SUCCESS ? ruled : replaced ? NVML_SUCCESS : code;
        if (out->nvmlReturn == NVML_SUCCESS)
            put(out, value);
        out->timestamp = (long long)(sim_now_ns() / 1000);
        out->latencyUsec = (long long)((sim_now_ns() - before) / 1000);
    }
    return NVML_SUCCESS;
}
