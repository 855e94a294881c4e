/* NVML: errors of a device's memory and what became of the rows. */
#define _GNU_SOURCE
#include "nvml_sim.h"

#include <string.h>
#include <unistd.h>

/* nvmlMemoryLocation_t; Ampere and newer tell device memory and SRAM apart, nothing finer. */
enum { LOCATION_DRAM = 2, LOCATION_SRAM = 7, LOCATIONS = 8 };

static uint64_t since(uint64_t count, uint64_t base, unsigned window)
{
    return window ? count : count > base ? count - base : 0;
}

uint64_t nvml_ecc_dram(const struct sim_device *device, unsigned type, unsigned window)
{
    uint64_t count = device->ecc_dram[type], now = sim_now_ns();
    if (device->ecc_rate[type] > 0.0 && now > device->ecc_rate_since_ns)
        count += (uint64_t)(device->ecc_rate[type] * (double)(now - device->ecc_rate_since_ns) / 1e9);
    return since(count, device->ecc_dram_base[type], window);
}

uint64_t nvml_ecc_sram(const struct sim_device *device, unsigned type, unsigned window)
{
    return since(device->ecc_sram[type], device->ecc_sram_base[type], window);
}

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t handle, unsigned type, unsigned window, unsigned location,
                                                 unsigned long long *count)
{
    ON_ANY(handle, count);
    if (type > 1 || window > 1 || location >= LOCATIONS)
        return NVML_ERROR_INVALID_ARGUMENT;
    SUPPORTED_IF(location == LOCATION_DRAM || location == LOCATION_SRAM);
    if (instance) {
        /* nvml.h: per instance only uncorrectable volatile errors outside DRAM. */
        SUPPORTED_IF(type == 1 && window == 0 && location == LOCATION_SRAM);
        *count = VALUE(device, instance->sram_uncorrected);
        return NVML_SUCCESS;
    }
    /* … and volatile ones not of the whole device then. */
    SUPPORTED_IF(window == 1 || !nvml_mig_active(device));
    *count = VALUE(device, location == LOCATION_DRAM ? nvml_ecc_dram(device, type, window) : nvml_ecc_sram(device, type, window));
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned type, unsigned window, unsigned long long *count)
{
    ON_ANY(handle, count);
    if (type > 1 || window > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    SUPPORTED_IF(instance ? type == 1 && window == 0 : window == 1 || !nvml_mig_active(device));
    *count = VALUE(device, instance ? instance->sram_uncorrected
                                    : nvml_ecc_dram(device, type, window) + nvml_ecc_sram(device, type, window));
    return NVML_SUCCESS;
}

typedef struct {
    unsigned version;
    unsigned long long aggregateUncParity, aggregateUncSecDed, aggregateCor, volatileUncParity, volatileUncSecDed, volatileCor,
        aggregateUncBucketL2, aggregateUncBucketSm, aggregateUncBucketPcie, aggregateUncBucketMcu, aggregateUncBucketOther;
    unsigned bThresholdExceeded;
} nvmlEccSramErrorStatus_t;

API nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status)
{
    ON_DEVICE(device, status);
    if (status->version != VERSION_OF(*status, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SUPPORTED_IF(PROFILE.sram_status);
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    unsigned version = status->version;
    memset(status, 0, sizeof *status);
    status->version = version;
    status->aggregateUncSecDed = status->aggregateUncBucketL2 = nvml_ecc_sram(device, 1, 1);
    status->aggregateCor = nvml_ecc_sram(device, 0, 1);
    status->volatileUncSecDed = nvml_ecc_sram(device, 1, 0);
    status->volatileCor = nvml_ecc_sram(device, 0, 0);
    status->bThresholdExceeded = device->sram_threshold_exceeded;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                           unsigned *failed)
{
    ON_DEVICE(device, corrected && uncorrected && pending && failed);
    SUPPORTED_IF(PROFILE.remap_banks && !nvml_mig_active(device));
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
    SUPPORTED_IF(PROFILE.remap_banks && !nvml_mig_active(device));
    /* Each remapped row lies in a bank of its own, until all banks have given one; a failed remap found its bank used up. */
    unsigned rows = device->remapped_rows[0] + device->remapped_rows[1], failed = device->remap_failed ? 1 : 0;
    unsigned touched = rows > PROFILE.remap_banks - failed ? PROFILE.remap_banks - failed : rows;
    memset(values, 0, sizeof *values);
    values->none = failed;
    values->high = touched;
    values->max = PROFILE.remap_banks - failed - touched;
    return NVML_SUCCESS;
}

typedef struct { unsigned version, channel, tpc; } nvmlRepairStatus_t;

API nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *status)
{
    ON_DEVICE(device, status);
    if (status->version != VERSION_OF(*status, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SUPPORTED_IF(PROFILE.architecture >= HOPPER);
    status->channel = device->repair_pending[0];
    status->tpc = device->repair_pending[1];
    return NVML_SUCCESS;
}

typedef struct { unsigned version, flag; } nvmlUnrepairableMemory_v1_t;

API nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, nvmlUnrepairableMemory_v1_t *status)
{
    ON_DEVICE(device, status);
    if (nvml_driver_major() < 590) /* which release brought it is not documented: newer than 580 */
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (status->version != VERSION_OF(*status, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SUPPORTED_IF(PROFILE.architecture >= HOPPER);
    status->flag = device->unrepairable_memory;
    return NVML_SUCCESS;
}

/* From driver 615 on: what is remapped already and what waits for a reset; banks instead of rows on Blackwell. */
typedef struct { unsigned corrected, corrected_inactive, uncorrected, uncorrected_inactive, pending, failed; } nvmlRemappedRows_v2_t;

API nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRows_v2_t *rows)
{
    ON_DEVICE(device, rows);
    if (nvml_driver_major() < 615)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    SUPPORTED_IF(PROFILE.remap_banks && !nvml_mig_active(device));
    *rows = (nvmlRemappedRows_v2_t){.corrected = device->remapped_rows[0], .uncorrected = device->remapped_rows[1],
                                    .uncorrected_inactive = device->remap_pending, .pending = device->remap_pending,
                                    .failed = device->remap_failed};
    return NVML_SUCCESS;
}

typedef struct { unsigned active, inactive, pending, max_groups, no_groups; } nvmlBankRemapper_v1_t;

API nvmlReturn_t nvmlDeviceGetBankRemapperStatus_v1(nvmlDevice_t device, nvmlBankRemapper_v1_t *status)
{
    ON_DEVICE(device, status);
    if (nvml_driver_major() < 615)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    SUPPORTED_IF(PROFILE.architecture >= BLACKWELL && !nvml_mig_active(device));
    *status = (nvmlBankRemapper_v1_t){.max_groups = PROFILE.remap_banks};
    return NVML_SUCCESS;
}
