/* NVML GPM: the difference of two samples of the device clock's accounts. Hopper and newer only. */
#include "nvml_sim.h"

#include <stdlib.h>

struct sample {
    const struct sim_device *device;
    uint64_t at_ns;
    uint64_t busy, sm, occupancy, tensor, fp32, dram, pcie_tx, pcie_rx, nvlink_tx, nvlink_rx;
};
typedef struct sample *nvmlGpmSample_t;

typedef struct { unsigned version, isSupportedDevice; } nvmlGpmSupport_t;

typedef struct {
    unsigned metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct { const char *shortName, *longName, *unit; } metricInfo;
} nvmlGpmMetric_t;

typedef struct {
    unsigned version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[];
} nvmlGpmMetricsGet_t;
#define MAX_METRICS 477

API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    ON_DEVICE(device, support);
    if (support->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = nvml_node()->profile.gpm;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    if (!nvml_node())
        return NVML_ERROR_UNINITIALIZED;
    if (!sample)
        return NVML_ERROR_INVALID_ARGUMENT;
    *sample = calloc(1, sizeof **sample);
    return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    if (!sample)
        return NVML_ERROR_INVALID_ARGUMENT;
    free(sample);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    ON_DEVICE(device, sample);
    if (!nvml_node()->profile.gpm)
        return NVML_ERROR_NOT_SUPPORTED;
    sample->device = device;
    sample->at_ns = sim_now_ns();
    sample->busy = sim_load(&device->busy_ns);
    sample->sm = sim_load(&device->sm_ns);
    sample->occupancy = sim_load(&device->occupancy_ns);
    sample->tensor = sim_load(&device->tensor_ns);
    sample->fp32 = sim_load(&device->fp32_ns);
    sample->dram = sim_load(&device->dram_ns);
    sample->pcie_tx = sim_load(&device->pcie_tx_bytes);
    sample->pcie_rx = sim_load(&device->pcie_rx_bytes);
    sample->nvlink_tx = sim_load(&device->nvlink_tx_bytes);
    sample->nvlink_rx = sim_load(&device->nvlink_rx_bytes);
    return NVML_SUCCESS;
}

static double percent(uint64_t from, uint64_t to, double ns)
{
    double value = 100.0 * (double)(to - from) / ns;
    /* Slices that straddle a sample are booked at their end: never report more than there was time for. */
    return value > 100.0 ? 100.0 : value;
}

static void metric(nvmlGpmMetric_t *out, const struct sample *a, const struct sample *b, double ns)
{
    const double mib_per_s = 1e9 / ns / 1048576.0;
    out->nvmlReturn = NVML_SUCCESS;
    out->metricInfo.unit = "%";
    switch (out->metricId) {
    case 1: out->value = percent(a->busy, b->busy, ns); out->metricInfo.shortName = "Graphics"; break;
    case 2: out->value = percent(a->sm, b->sm, ns); out->metricInfo.shortName = "SM Active"; break;
    case 3: out->value = percent(a->occupancy, b->occupancy, ns); out->metricInfo.shortName = "SM Occupancy"; break;
    case 5: case 7: out->value = percent(a->tensor, b->tensor, ns); out->metricInfo.shortName = "Tensor"; break;
    case 4: case 6: case 8: case 9: case 11: case 13: out->value = 0.0; out->metricInfo.shortName = "Pipe"; break;
    case 10: out->value = percent(a->dram, b->dram, ns); out->metricInfo.shortName = "DRAM"; break;
    case 12: out->value = percent(a->fp32, b->fp32, ns); out->metricInfo.shortName = "FP32"; break;
    case 20: out->value = (double)(b->pcie_tx - a->pcie_tx) * mib_per_s; out->metricInfo.unit = "MiB/s"; break;
    case 21: out->value = (double)(b->pcie_rx - a->pcie_rx) * mib_per_s; out->metricInfo.unit = "MiB/s"; break;
    case 60: out->value = (double)(b->nvlink_rx - a->nvlink_rx) * mib_per_s; out->metricInfo.unit = "MiB/s"; break;
    case 61: out->value = (double)(b->nvlink_tx - a->nvlink_tx) * mib_per_s; out->metricInfo.unit = "MiB/s"; break;
    default: out->nvmlReturn = NVML_ERROR_NOT_SUPPORTED; break;
    }
}

API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    if (!nvml_node())
        return NVML_ERROR_UNINITIALIZED;
    if (!get || !get->sample1 || !get->sample2 || get->numMetrics > MAX_METRICS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (get->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct sample *a = get->sample1, *b = get->sample2;
    if (a->device != b->device || a->at_ns >= b->at_ns)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < get->numMetrics; i++)
        metric(&get->metrics[i], a, b, (double)(b->at_ns - a->at_ns));
    return NVML_SUCCESS;
}
