/* NVML GPM: the difference of two samples of the device clock's accounts. Hopper and newer only. */
#include "nvml_sim.h"

#include <stdlib.h>
#include <string.h>

struct sample {
    const struct sim_device *device;
    const struct sim_instance *instance;
    uint64_t at_ns;
    uint64_t busy, sm, occupancy, tensor, fp32, dram, pcie_tx, pcie_rx;
    uint64_t link_rx[SIM_MAX_LINKS], link_tx[SIM_MAX_LINKS];
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


API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t handle, nvmlGpmSupport_t *support)
{
    ON_ANY(handle, support);
    (void)instance;
    if (support->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = PROFILE.gpm;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    ON_NODE(sample);
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

#define TAKE(from)                                                                     \
    do {                                                                               \
        sample->busy = sim_load(&(from)->busy_ns);                                     \
        sample->sm = sim_load(&(from)->sm_ns);                                         \
        sample->occupancy = sim_load(&(from)->occupancy_ns);                           \
        sample->tensor = sim_load(&(from)->tensor_ns);                                 \
        sample->fp32 = sim_load(&(from)->fp32_ns);                                     \
        sample->dram = sim_load(&(from)->dram_ns);                                     \
        sample->pcie_tx = sim_load(&(from)->pcie_tx_bytes);                            \
        sample->pcie_rx = sim_load(&(from)->pcie_rx_bytes);                            \
    } while (0)

API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    ON_DEVICE(device, sample);
    SUPPORTED_IF(PROFILE.gpm);
    memset(sample, 0, sizeof *sample);
    sample->device = device;
    sample->at_ns = sim_now_ns();
    TAKE(device);
    for (unsigned link = 0; link < PROFILE.nvlink_links; link++) {
        sample->link_rx[link] = nvml_link_bytes(device, link, 0);
        sample->link_tx[link] = nvml_link_bytes(device, link, 1);
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned gpu_instance, nvmlGpmSample_t sample)
{
    ON_DEVICE(device, sample);
    SUPPORTED_IF(PROFILE.gpm && device->mig_mode[0]);
    for (unsigned at = 0; at < device->instance_count; at++) {
        const struct sim_instance *instance = &device->instances[at];
        if (instance->gpu_instance != gpu_instance)
            continue;
        memset(sample, 0, sizeof *sample);
        sample->device = device;
        sample->instance = instance;
        sample->at_ns = sim_now_ns();
        TAKE(instance);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlGpmQueryIfStreamingEnabled(nvmlDevice_t device, unsigned *state)
{
    ON_DEVICE(device, state);
    SUPPORTED_IF(PROFILE.gpm);
    *state = 0;
    return NVML_SUCCESS;
}

/* A counter that was reset between the samples has no difference. */
static double grown(uint64_t from, uint64_t to) { return to > from ? (double)(to - from) : 0.0; }

static double percent(uint64_t from, uint64_t to, double ns)
{
    double value = 100.0 * grown(from, to) / ns;
    /* Slices that straddle a sample are booked at their end: never report more than there was time for. */
    return value > 100.0 ? 100.0 : value;
}

#define ANSWER(number, label, measure) do { *value = (number); *name = label; *unit = measure; return 1; } while (0)

/* Per-link ids: receive and transmit alternate, and the links beyond the eighteenth have other ranges. */
static int link_metric(unsigned id, const struct sample *a, const struct sample *b, double mib_per_s, double *value,
                       const char **name, const char **unit)
{
    int rate = id >= 62 && id <= 97, total = id >= 261 && id <= 404;
    if (!rate && !total)
        return 0;
    unsigned at = id - (rate ? 62 : 261), link = at / 2;
    if (link >= PROFILE.nvlink_links || b->instance)
        return 0;
    const uint64_t *from = at % 2 ? a->link_tx : a->link_rx, *to = at % 2 ? b->link_tx : b->link_rx;
    if (total)
        ANSWER((double)to[link], "NVLink bytes", "B");
    ANSWER(grown(from[link], to[link]) * mib_per_s, "NVLink", "MiB/s");
}

/* Counters since the driver was loaded, in cycles of the highest SM clock. */
static int cumulative(unsigned id, const struct sample *b, double *value, const char **name, const char **unit)
{
    double cycles = PROFILE.sm_clock_max_mhz / 1000.0;
    uint64_t start = nvml_shared()->created_ns > b->device->idle_since_ns ? nvml_shared()->created_ns : b->device->idle_since_ns;
    switch (id) {
    case 248: ANSWER(grown(start, b->at_ns) * cycles, "SM cycles elapsed", "cycles");
    case 249: ANSWER((double)b->sm * cycles, "SM cycles active", "cycles");
    case 250: case 252: ANSWER((double)b->tensor * cycles, "MMA cycles", "cycles");
    case 257: ANSWER((double)b->sm * 0.15 * cycles, "INT cycles", "cycles");
    case 259: ANSWER((double)b->fp32 * cycles, "FP32 cycles", "cycles");
    case 251: case 253: case 254: case 258: case 260: ANSWER(0.0, "pipe cycles", "cycles");
    case 255: ANSWER((double)b->pcie_tx, "PCIe TX", "B");
    case 256: ANSWER((double)b->pcie_rx, "PCIe RX", "B");
    default: return 0;
    }
}

static int metric(unsigned id, const struct sample *a, const struct sample *b, double *value, const char **name,
                  const char **unit)
{
    double ns = (double)(b->at_ns - a->at_ns), mib_per_s = 1e9 / ns / 1048576.0, rx = 0.0, tx = 0.0;
    switch (id) {
    case 1: ANSWER(percent(a->busy, b->busy, ns), "Graphics", "%");
    case 2: ANSWER(percent(a->sm, b->sm, ns), "SM Active", "%");
    case 3: ANSWER(percent(a->occupancy, b->occupancy, ns), "SM Occupancy", "%");
    case 4: ANSWER(0.15 * percent(a->sm, b->sm, ns), "Integer", "%");
    case 5: case 7: ANSWER(percent(a->tensor, b->tensor, ns), "Tensor", "%");
    case 6: case 8: case 9: case 11: case 13: ANSWER(0.0, "Pipe", "%");
    case 10: ANSWER(percent(a->dram, b->dram, ns), "DRAM", "%");
    case 12: ANSWER(percent(a->fp32, b->fp32, ns), "FP32", "%");
    case 20: ANSWER(grown(a->pcie_tx, b->pcie_tx) * mib_per_s, "PCIe TX", "MiB/s");
    case 21: ANSWER(grown(a->pcie_rx, b->pcie_rx) * mib_per_s, "PCIe RX", "MiB/s");
    default: break;
    }
    if ((id >= 30 && id <= 36) || (id >= 40 && id <= 46) || id == 50)
        ANSWER(0.0, "Codec", "%"); /* seven decoders, seven JPEG engines, one optical flow */
    if (id == 60 || id == 61) {
        if (b->instance)
            return 0;
        for (unsigned link = 0; link < PROFILE.nvlink_links; link++) {
            rx += grown(a->link_rx[link], b->link_rx[link]);
            tx += grown(a->link_tx[link], b->link_tx[link]);
        }
        ANSWER((id == 60 ? rx : tx) * mib_per_s, "NVLink", "MiB/s");
    }
    if (id == 170)
        ANSWER(ns * PROFILE.sm_clock_max_mhz / 1000.0, "Context switch cycles", "cycles");
    if (id >= 171 && id <= 174)
        ANSWER(0.0, "Context switch", id == 174 ? "%" : "");
    return link_metric(id, a, b, mib_per_s, value, name, unit) || cumulative(id, b, value, name, unit);
}

API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    ON_NODE(get);
    if (!get->sample1 || !get->sample2 || get->numMetrics > MAX_METRICS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (get->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct sample *a = get->sample1, *b = get->sample2;
    if (!b->device || a->device != b->device || a->instance != b->instance || a->at_ns >= b->at_ns)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned index = nvml_index_of(b->device);
    for (unsigned i = 0; i < get->numMetrics; i++) {
        nvmlGpmMetric_t *out = &get->metrics[i];
        double value = 0.0;
        uint64_t bits = 0;
        int replaced, batch;
        int known = metric(out->metricId, a, b, &value, &out->metricInfo.shortName, &out->metricInfo.unit);
        nvmlReturn_t code = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        if (known && b->device->gpm_blank == 1)
            value = 0.0;
        if (known && b->device->gpm_blank == 2)
            code = NVML_ERROR_NO_DATA;
        nvmlReturn_t ruled = nvml_rules_field(nvml_shared(), __func__, index, out->metricId, SIM_ANY, &bits, &replaced, &batch);
        if (batch)
            return ruled;
        if (replaced)
            memcpy(&value, &bits, sizeof value);
        out->nvmlReturn = ruled != NVML_SUCCESS ? ruled : replaced ? NVML_SUCCESS : code;
        out->value = out->nvmlReturn == NVML_SUCCESS ? value : 0.0;
    }
    return NVML_SUCCESS;
}
