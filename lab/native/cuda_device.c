/* The device clock: one thread per process works the queue off as the hardware would.
 *
 * It runs on its own time. A piece of work begins when the one before it ended (or when it was enqueued) and ends
 * work / speed later; the thread then sleeps until the wall clock gets there. A thread that is woken late therefore
 * loses nothing: simulated throughput does not depend on how busy the machine is.
 */
#define _GNU_SOURCE
#include "cuda_sim.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

/* Causes take effect within one slice; more wake-ups would cost CPU and show nothing new. */
#define SLICE_NS 25000000ull
#define IDLE_TICK_NS 100000000ull
#define WINDOW_NS 1000000000ull
/* A process that was stopped for longer does not catch up: its device stood still. */
#define MAX_LAG_NS 2000000000ull
/* Of the die and its cooler: seconds rather than the minutes of a rack, so that a demonstration shows it. */
#define THERMAL_TAU_S 20.0
#define CONTEXT_BYTES (520ull << 20)
#define COLLECTIVE_SM 0.25 /* NCCL uses at most 32 of 132 SMs */
#define COLLECTIVE_DRAM 0.05
#define COPY_DRAM 0.05

static struct sim_node *node;
static struct sim_device *device;
static struct sim_process *process;
static struct sim_instance *instance; /* the MIG device that this process has; NULL: the whole GPU */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static struct work queue[QUEUE_DEPTH];
static unsigned queue_head, queue_length;
static uint64_t submitted, done;
static CUresult failure;

static uint64_t clock_ns; /* how far this device's time has come */
static struct {
    uint64_t start_ns;
    double busy, memory, energy_mw_ns;
} window;

struct sim_node *device_node(void) { return node; }
struct sim_device *device_state(void) { return device; }
int device_is_open(void) { return device != NULL; }

CUresult device_load(void)
{
    const char *reason;
    if (!node)
        node = sim_map_node(&reason);
    return node ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* The device and the MIG instance that an entry of CUDA_VISIBLE_DEVICES means; -1: none. */
static int entry_index(const char *entry, struct sim_instance **found)
{
    *found = NULL;
    if (strncmp(entry, "MIG-", 4) == 0) {
        for (int i = 0; i < (int)node->device_count; i++)
            for (unsigned at = 0; at < node->devices[i].instance_count; at++)
                if (strcasecmp(node->devices[i].instances[at].uuid, entry) == 0) {
                    *found = &node->devices[i].instances[at];
                    return i;
                }
        return -1;
    }
    if (strncmp(entry, "GPU-", 4) == 0) {
        for (int i = 0; i < (int)node->device_count; i++)
            if (strncasecmp(node->devices[i].uuid, entry, strlen(entry)) == 0)
                return i;
        return -1;
    }
    char *end;
    long number = strtol(entry, &end, 10);
    return end != entry && number >= 0 && number < (long)node->device_count ? (int)number : -1;
}

/* CUDA_VISIBLE_DEVICES holds indices, UUID prefixes or MIG UUIDs; the first unusable entry ends the list, as documented
 * by CUDA. */
static int visible(int visible_index, struct sim_instance **found)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    *found = NULL;
    if (!list)
        return visible_index >= 0 && visible_index < (int)node->device_count ? visible_index : -1;
    char text[1024];
    strncpy(text, list, sizeof text - 1);
    text[sizeof text - 1] = 0;
    char *rest = NULL;
    int at = 0;
    for (char *entry = strtok_r(text, ",", &rest); entry; entry = strtok_r(NULL, ",", &rest), at++) {
        int index = entry_index(entry, found);
        if (index < 0)
            return -1;
        if (at == visible_index)
            return index;
    }
    return -1;
}

int device_index_of(int visible_index)
{
    struct sim_instance *found;
    return visible(visible_index, &found);
}

int device_visible_count(void)
{
    int count = 0;
    while (count < SIM_MAX_DEVICES && device_index_of(count) >= 0)
        count++;
    return count;
}

static double heat_target(double power_mw)
{
    /* 30 degrees of coolant, 65 more at the power limit. */
    return 30.0 + 35.0 * power_mw / node->profile.power_limit_mw + device->heat_celsius;
}

static double dynamic_power(double full_mw)
{
    double clock = device->clock_fraction, idle = node->profile.power_idle_mw;
    /* A device held at its power cap draws the cap; one slowed for another reason draws less with the clock. */
    double scale = (device->throttle_reasons & 0x4) ? 1.0 : 0.2 + 0.8 * clock * clock;
    return idle + (full_mw - idle) * scale * (0.35 + 0.65 * device->speed_factor);
}

static void publish(void)
{
    double elapsed = (double)(clock_ns - window.start_ns);
    if (elapsed < (double)WINDOW_NS)
        return;
    double power = window.energy_mw_ns / elapsed;
    device->utilization_permille = (uint32_t)(1000.0 * window.busy / elapsed + 0.5);
    device->memory_permille = (uint32_t)(1000.0 * window.memory / elapsed + 0.5);
    device->power_mw = (uint32_t)power;
    double approach = 1.0 - exp(-elapsed / 1e9 / THERMAL_TAU_S);
    device->temperature_c += (heat_target(power) - device->temperature_c) * approach;
    window.start_ns = clock_ns;
    window.busy = window.memory = window.energy_mw_ns = 0.0;
}

/* Let device time pass until `until` in a state described by shares of that time. */
static void spend(uint64_t until, uint64_t *state, double busy, const struct kernel_shares *shares, double power_mw)
{
    if (until <= clock_ns)
        return;
    double ns = (double)(until - clock_ns);
    if (instance) {
        sim_add(&instance->busy_ns, (uint64_t)(busy * ns));
        sim_add(&instance->sm_ns, (uint64_t)(shares->sm * ns));
        sim_add(&instance->occupancy_ns, (uint64_t)(shares->occupancy * ns));
        sim_add(&instance->tensor_ns, (uint64_t)(shares->tensor * ns));
        sim_add(&instance->fp32_ns, (uint64_t)(shares->fp32 * ns));
        sim_add(&instance->dram_ns, (uint64_t)(shares->dram * ns));
    }
    /* What an instance does is its share of what the GPU does; the processes of the others book theirs. */
    double part = instance ? (double)instance->slices / node->profile.mig_slices : 1.0, whole = part * ns;
    sim_add(state, until - clock_ns);
    sim_add(&device->busy_ns, (uint64_t)(busy * whole));
    sim_add(&device->sm_ns, (uint64_t)(shares->sm * whole));
    sim_add(&device->occupancy_ns, (uint64_t)(shares->occupancy * whole));
    sim_add(&device->tensor_ns, (uint64_t)(shares->tensor * whole));
    sim_add(&device->fp32_ns, (uint64_t)(shares->fp32 * whole));
    sim_add(&device->dram_ns, (uint64_t)(shares->dram * whole));
    sim_add(&device->energy_uj, (uint64_t)(power_mw * whole / 1e6));
    window.busy += busy * ns;
    window.memory += shares->dram * ns;
    window.energy_mw_ns += power_mw * ns;
    clock_ns = until;
    __atomic_store_n(&device->heartbeat_ns, sim_now_ns(), __ATOMIC_RELAXED);
    publish();
}

static void sleep_until(uint64_t ns)
{
    struct timespec at = {.tv_sec = (time_t)(ns / 1000000000ull), .tv_nsec = (long)(ns % 1000000000ull)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
    }
}

static const struct kernel_shares nothing = {.name = "nothing"};
static const struct kernel_shares waiting = {.name = "collective", .sm = COLLECTIVE_SM, .occupancy = 0.1, .dram = COLLECTIVE_DRAM};
static const struct kernel_shares copying = {.name = "copy", .dram = COPY_DRAM};

static void rest(uint64_t until)
{
    spend(until, &device->idle_ns, 0.0, &nothing, node->profile.power_idle_mw);
}

static void catch_up(void)
{
    uint64_t now = sim_now_ns();
    if (now > clock_ns + MAX_LAG_NS)
        rest(now);
}

static CUresult run_kernel(const struct work *work)
{
    double remaining = work->nominal_ns;
    while (remaining > 0.0) {
        if (device->lost)
            return CUDA_ERROR_UNKNOWN;
        double slow = device->speed_factor, clock = device->clock_fraction;
        double speed = slow * clock;
        if (!(speed > 0.001))
            speed = 0.001;
        double slice = remaining / speed;
        if (slice > (double)SLICE_NS)
            slice = (double)SLICE_NS;
        uint64_t until = clock_ns + (uint64_t)slice + 1;
        sleep_until(until);
        struct kernel_shares shares = *work->shares;
        /* The pipes are fed more slowly while the SMs stay occupied. A lower clock leaves shares of cycles alone, but
         * memory keeps its clock and so idles more. */
        shares.tensor *= slow;
        shares.fp32 *= slow;
        shares.dram *= speed;
        spend(until, &device->compute_ns, 1.0, &shares, dynamic_power(node->profile.power_compute_mw));
        remaining -= slice * speed;
    }
    sim_add(&device->kernels, 1);
    return CUDA_SUCCESS;
}

static CUresult run_copy(const struct work *work)
{
    if (device->lost)
        return CUDA_ERROR_UNKNOWN;
    double rate = work->to_device == 2 ? 1.5e12 : node->profile.pcie_bytes_per_second;
    uint64_t until = clock_ns + (uint64_t)((double)work->bytes / rate * 1e9) + 1;
    sleep_until(until);
    /* Copy engines are not kernels: the driver's utilisation does not count them. */
    spend(until, &device->copy_ns, 0.0, &copying, dynamic_power(node->profile.power_collective_mw));
    if (work->to_device == 1) {
        sim_add(&device->pcie_rx_bytes, work->bytes);
        if (instance)
            sim_add(&instance->pcie_rx_bytes, work->bytes);
    } else if (work->to_device == 0) {
        sim_add(&device->pcie_tx_bytes, work->bytes);
        if (instance)
            sim_add(&instance->pcie_tx_bytes, work->bytes);
    }
    return CUDA_SUCCESS;
}

static void hold(uint64_t until)
{
    spend(until, &device->collective_ns, 1.0, &waiting, dynamic_power(node->profile.power_collective_mw));
}

static CUresult run_collective(const struct work *work)
{
    const struct sim_collective *collective = &work->collective;
    uint64_t start = clock_ns;
    collective->arrive(collective->context, clock_ns);
    int ready;
    while ((ready = collective->ready(collective->context, &start)) == 0) {
        if (device->lost)
            return CUDA_ERROR_UNKNOWN;
        collective->wait(collective->context, sim_now_ns() + 4 * SLICE_NS);
        hold(sim_now_ns());
    }
    if (ready < 0)
        return CUDA_SUCCESS; /* aborted: the kernel ends without a result */
    double rate = collective->fabric ? node->profile.fabric_bytes_per_second : node->profile.nvlink_bytes_per_second;
    uint64_t duration = (uint64_t)(collective->transfer_bytes / rate * 1e9) + 20000;
    uint64_t end = start + duration;
    while (clock_ns < end) {
        uint64_t until = end - clock_ns > SLICE_NS ? clock_ns + SLICE_NS : end;
        sleep_until(until);
        hold(until);
    }
    sim_add(&device->transfer_ns, duration);
    uint64_t bytes = (uint64_t)collective->transfer_bytes;
    if (collective->fabric) {
        sim_add(&device->fabric_tx_bytes, bytes);
        sim_add(&device->fabric_rx_bytes, bytes);
    } else if (node->profile.nvlink_links) {
        sim_add(&device->nvlink_tx_bytes, bytes);
        sim_add(&device->nvlink_rx_bytes, bytes);
    } else {
        sim_add(&device->pcie_tx_bytes, bytes);
        sim_add(&device->pcie_rx_bytes, bytes);
    }
    sim_add(&device->collectives, 1);
    return CUDA_SUCCESS;
}

static void *device_main(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (queue_length == 0) {
            uint64_t wake = sim_now_ns() + IDLE_TICK_NS;
            struct timespec at = {.tv_sec = (time_t)(wake / 1000000000ull), .tv_nsec = (long)(wake % 1000000000ull)};
            pthread_cond_timedwait(&changed, &lock, &at);
            if (queue_length == 0)
                rest(sim_now_ns());
        }
        struct work work = queue[queue_head];
        CUresult failed = failure;
        pthread_mutex_unlock(&lock);

        catch_up();
        rest(work.enqueued_ns);
        if (failed == CUDA_SUCCESS) {
            if (work.kind == WORK_KERNEL)
                failed = run_kernel(&work);
            else if (work.kind == WORK_COPY)
                failed = run_copy(&work);
            else
                failed = run_collective(&work);
        }
        if (work.kind == WORK_COLLECTIVE)
            work.collective.release(work.collective.context);

        pthread_mutex_lock(&lock);
        if (failed != CUDA_SUCCESS)
            failure = failed; /* sticky, as an error that destroyed the context is */
        queue_head = (queue_head + 1) % QUEUE_DEPTH;
        queue_length--;
        done = work.sequence;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

static void claim_process(void)
{
    int32_t pid = (int32_t)getpid();
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        struct sim_process *slot = &device->processes[i];
        int32_t holder = __atomic_load_n(&slot->pid, __ATOMIC_ACQUIRE);
        if (holder != 0 && sim_process_alive(slot))
            continue;
        if (!__atomic_compare_exchange_n(&slot->pid, &holder, -pid, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            continue;
        slot->start_ticks = sim_start_ticks(pid);
        slot->memory_bytes = CONTEXT_BYTES;
        slot->kind = SIM_COMPUTE;
        slot->instance = instance ? (uint32_t)(instance - device->instances) + 1 : 0;
        __atomic_store_n(&slot->pid, pid, __ATOMIC_RELEASE);
        process = slot;
        return;
    }
}

__attribute__((destructor)) static void release_process(void)
{
    if (process && process->pid == (int32_t)getpid())
        __atomic_store_n(&process->pid, 0, __ATOMIC_RELEASE);
}

CUresult device_open(int visible_index)
{
    static pthread_t thread;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!device) {
        struct sim_instance *found;
        int index = visible(visible_index, &found);
        if (index >= 0 && !found && node->devices[index].instance_count)
            found = &node->devices[index].instances[0]; /* a GPU in MIG mode gives its first instance */
        if (index < 0) {
            result = CUDA_ERROR_INVALID_DEVICE;
        } else if (node->devices[index].lost) {
            result = CUDA_ERROR_UNKNOWN;
        } else {
            device = &node->devices[index];
            instance = found;
            claim_process();
            clock_ns = window.start_ns = sim_now_ns();
            /* Nobody's clock ran since the last process: that time was idle. */
            uint64_t last = device->heartbeat_ns ? device->heartbeat_ns : node->created_ns;
            if (clock_ns > last)
                sim_add(&device->energy_uj, (uint64_t)((double)(clock_ns - last) * node->profile.power_idle_mw / 1e6));
            device->heartbeat_ns = clock_ns;
            pthread_condattr_t attributes;
            pthread_condattr_init(&attributes);
            pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
            pthread_cond_init(&changed, &attributes);
            pthread_condattr_destroy(&attributes);
            if (pthread_create(&thread, NULL, device_main, NULL) != 0) {
                device = NULL;
                result = CUDA_ERROR_UNKNOWN;
            }
        }
    } else if (device_index_of(visible_index) != (int)(device - node->devices)) {
        result = CUDA_ERROR_INVALID_DEVICE; /* one device per process here, as in one rank per GPU */
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult device_enqueue(struct stream *stream, struct work *work)
{
    if (!device)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    while (queue_length == QUEUE_DEPTH && failure == CUDA_SUCCESS)
        pthread_cond_wait(&changed, &lock);
    CUresult result = failure;
    if (result == CUDA_SUCCESS) {
        work->sequence = ++submitted;
        work->enqueued_ns = sim_now_ns();
        if (stream)
            stream->last = work->sequence;
        queue[(queue_head + queue_length++) % QUEUE_DEPTH] = *work;
        if (queue_length == 1)
            pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult device_wait(uint64_t sequence)
{
    pthread_mutex_lock(&lock);
    while (done < sequence)
        pthread_cond_wait(&changed, &lock);
    CUresult result = failure;
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult device_query(uint64_t sequence)
{
    pthread_mutex_lock(&lock);
    CUresult result = failure != CUDA_SUCCESS ? failure : done < sequence ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

uint64_t device_last_sequence(void)
{
    pthread_mutex_lock(&lock);
    uint64_t last = submitted;
    pthread_mutex_unlock(&lock);
    return last;
}

uint64_t device_stream_last(const struct stream *stream)
{
    pthread_mutex_lock(&lock);
    uint64_t last = stream->last;
    pthread_mutex_unlock(&lock);
    return last;
}

uint64_t device_memory_used(void)
{
    uint64_t used = 0;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        const struct sim_process *other = &device->processes[i];
        if (sim_process_alive(other) && (!instance || (process && other->instance == process->instance)))
            used += other->memory_bytes;
    }
    return used;
}

uint64_t device_memory_total(void)
{
    uint64_t total = instance ? instance->memory_bytes : node->profile.memory_bytes;
    return device->memory_hard_limit && device->memory_hard_limit < total ? device->memory_hard_limit : total;
}

CUresult device_allocate(int64_t bytes)
{
    if (!device)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes > 0 && device_memory_used() + (uint64_t)bytes > device_memory_total())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (process)
        sim_add(&process->memory_bytes, (uint64_t)bytes);
    return CUDA_SUCCESS;
}
