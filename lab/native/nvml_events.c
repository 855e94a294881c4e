/* NVML event sets: what fault injection appended to the node's ring since a device was registered. */
#define _GNU_SOURCE
#include "nvml_sim.h"

#include <stdlib.h>
#include <time.h>

#define LOOK_NS 50000000ull

struct event_set {
    uint64_t wanted[SIM_MAX_DEVICES];
    uint64_t from[SIM_MAX_DEVICES]; /* events of a device count from its registration */
    uint64_t next;
};
typedef struct event_set *nvmlEventSet_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ON_NODE(set);
    *set = calloc(1, sizeof **set);
    if (!*set)
        return NVML_ERROR_MEMORY;
    (*set)->next = sim_load(&nvml_shared()->event_count);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ON_NODE(set);
    free(set);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    ON_DEVICE(device, set);
    SUPPORTED_IF((types & ~(unsigned long long)PROFILE.event_types) == 0);
    unsigned index = nvml_index_of(device);
    if (!set->wanted[index])
        set->from[index] = sim_load(&nvml_shared()->event_count);
    set->wanted[index] |= types;
    return NVML_SUCCESS;
}

/* The next event that the set asked for. The driver's queue is as long as the ring: what is overwritten is lost. */
static int take(nvmlEventSet_t set, nvmlEventData_t *data)
{
    struct sim_node *node = nvml_shared();
    uint64_t count = __atomic_load_n(&node->event_count, __ATOMIC_ACQUIRE);
    if (count > SIM_MAX_EVENTS && set->next < count - SIM_MAX_EVENTS)
        set->next = count - SIM_MAX_EVENTS;
    while (set->next < count) {
        uint64_t number = set->next++;
        const struct sim_event *event = &node->events[number % SIM_MAX_EVENTS];
        if (event->device >= node->device_count || !(set->wanted[event->device] & event->type) ||
            number < set->from[event->device])
            continue;
        *data = (nvmlEventData_t){.device = &node->devices[event->device], .eventType = event->type, .eventData = event->data,
                                  .gpuInstanceId = event->gpu_instance, .computeInstanceId = event->compute_instance};
        return 1;
    }
    return 0;
}

static int lost(const struct event_set *set)
{
    const struct sim_node *node = nvml_shared();
    for (unsigned i = 0; i < node->device_count; i++)
        if (set->wanted[i] && (node->devices[i].lost || node->devices[i].absent))
            return 1;
    return 0;
}

static nvmlReturn_t wait_for(const char *call, nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    uint64_t until = sim_now_ns() + (uint64_t)timeout_ms * 1000000ull;
    for (;;) {
        nvmlReturn_t result = nvml_enter(call); /* hangs with the driver, also in the middle of the wait */
        if (result != NVML_SUCCESS)
            return result;
        if (take(set, data))
            return NVML_SUCCESS;
        if (lost(set))
            return NVML_ERROR_GPU_IS_LOST;
        uint64_t now = sim_now_ns();
        if (now >= until)
            return NVML_ERROR_TIMEOUT;
        uint64_t left = until - now < LOOK_NS ? until - now : LOOK_NS;
        struct timespec pause = {.tv_nsec = (long)left};
        nanosleep(&pause, NULL);
    }
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    ON_NODE(set && data);
    return wait_for(__func__, set, data, timeout_ms);
}

/* The older form knows no instances. */
API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    nvmlEventData_t all;
    ON_NODE(set && data);
    nvmlReturn_t result = wait_for(__func__, set, &all, timeout_ms);
    if (result == NVML_SUCCESS) {
        data->device = all.device;
        data->eventType = all.eventType;
        data->eventData = all.eventData;
    }
    return result;
}
