/* The driver API's hot calls under their real names and signatures.
 *
 * Built with -fno-omit-frame-pointer -fno-shrink-wrap -fcf-protection=none, so that the hot functions begin
 * with `push %rbp`: the kernel emulates a push under a uprobe (0.5 us), other first instructions are single-stepped
 * (10 us). Only a few trivial getters, which nobody probes, begin otherwise.
 */
#define _GNU_SOURCE
#include "cuda_sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"), noinline))
/* A call and its per-thread default stream variant. Two functions, not an alias: probes on both would count one call
 * twice if they shared an address. For the same reason no exported function calls another. */
#define BOTH(name, parameters, arguments)                                  \
    API CUresult name parameters { return name##_impl arguments; }         \
    API CUresult name##_ptsz parameters { return name##_impl arguments; }

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct function *CUfunction;
typedef struct module *CUmodule;
typedef struct graph *CUgraph;
typedef struct graph *CUgraphExec;

struct context { CUdevice device; };
struct event { uint64_t sequence; };
struct module { int unused; };
struct function { const struct kernel_shares *shares; };
struct launch { const struct kernel_shares *shares; double nominal_ns; };
struct graph { unsigned count; struct launch launches[256]; };
typedef struct CUlaunchConfig {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

/* What a kernel of this name keeps busy; the first row whose name begins the kernel's name wins, the last row is any
 * other kernel. Together a training step's kernels give SM 0.9, tensor 0.6, DRAM 0.5. */
static const struct kernel_shares KERNELS[] = {
    {.name = "gemm", .sm = 0.92, .occupancy = 0.35, .tensor = 0.70, .fp32 = 0.05, .dram = 0.45},
    {.name = "attention", .sm = 0.90, .occupancy = 0.40, .tensor = 0.55, .fp32 = 0.15, .dram = 0.45},
    {.name = "optimizer", .sm = 0.82, .occupancy = 0.60, .tensor = 0.0, .fp32 = 0.25, .dram = 0.85},
    {.name = "", .sm = 0.80, .occupancy = 0.55, .tensor = 0.0, .fp32 = 0.20, .dram = 0.70},
};

static struct context primary;
static CUcontext current;
static struct stream legacy_stream;
static struct module module_handle;
static struct function functions[sizeof KERNELS / sizeof KERNELS[0]];
static int initialised;
static __thread CUgraph capturing;

struct stream *stream_of(void *handle)
{
    /* 0, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are not pointers. */
    return (uintptr_t)handle <= 2 ? &legacy_stream : handle;
}

API CUresult cuInit(unsigned flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_load();
    initialised = result == CUDA_SUCCESS;
    return result;
}

API CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = initialised ? (int)device_node()->profile.cuda_version : 12080;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *count)
{
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = device_visible_count();
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_index_of(ordinal) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!name || length < 1 || device_index_of(device) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    strncpy(name, device_node()->profile.name, (size_t)length - 1);
    name[length - 1] = 0;
    return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_open(device);
    if (result == CUDA_SUCCESS) {
        primary.device = device;
        *context = &primary;
    }
    return result;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    return retain(context, device);
}

API CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    CUresult result = retain(context, device);
    if (result == CUDA_SUCCESS)
        current = *context;
    return result;
}

API CUresult cuCtxSetCurrent(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = current;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize(void)
{
    return device_is_open() ? device_wait(device_last_sequence()) : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuCtxDestroy_v2(CUcontext context)
{
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return device_is_open() ? device_wait(device_last_sequence()) : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    if (!module || !image)
        return CUDA_ERROR_INVALID_VALUE;
    *module = &module_handle;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (!function || !module || !name)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned row = 0;
    while (strncmp(name, KERNELS[row].name, strlen(KERNELS[row].name)) != 0)
        row++;
    functions[row].shares = &KERNELS[row];
    *function = &functions[row];
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, unsigned x, unsigned y, unsigned z, CUstream stream)
{
    if (!function || !function->shares)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!x || !y || !z)
        return CUDA_ERROR_INVALID_VALUE;
    double nominal = (double)x * (double)y * (double)z * SIM_NS_PER_BLOCK;
    if (capturing) {
        if (capturing->count == sizeof capturing->launches / sizeof capturing->launches[0])
            return CUDA_ERROR_OUT_OF_MEMORY;
        capturing->launches[capturing->count++] = (struct launch){.shares = function->shares, .nominal_ns = nominal};
        return CUDA_SUCCESS;
    }
    struct work work = {.kind = WORK_KERNEL, .nominal_ns = nominal, .shares = function->shares};
    return device_enqueue(stream_of(stream), &work);
}

static CUresult cuLaunchKernel_impl(CUfunction function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
                            unsigned blockY, unsigned blockZ, unsigned shared, CUstream stream, void **params, void **extra)
{
    (void)shared, (void)params, (void)extra;
    if (!blockX || !blockY || !blockZ)
        return CUDA_ERROR_INVALID_VALUE;
    return launch(function, gridX, gridY, gridZ, stream);
}
BOTH(cuLaunchKernel, (CUfunction function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX, unsigned blockY, unsigned blockZ, unsigned shared, CUstream stream, void **params, void **extra), (function, gridX, gridY, gridZ, blockX, blockY, blockZ, shared, stream, params, extra))

static CUresult cuLaunchKernelEx_impl(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    (void)params, (void)extra;
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    return launch(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->hStream);
}
BOTH(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **params, void **extra), (config, function, params, extra))

static CUresult cuLaunchCooperativeKernel_impl(CUfunction function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
                                       unsigned blockY, unsigned blockZ, unsigned shared, CUstream stream, void **params)
{
    return cuLaunchKernel_impl(function, gridX, gridY, gridZ, blockX, blockY, blockZ, shared, stream, params, NULL);
}
BOTH(cuLaunchCooperativeKernel, (CUfunction function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX, unsigned blockY, unsigned blockZ, unsigned shared, CUstream stream, void **params), (function, gridX, gridY, gridZ, blockX, blockY, blockZ, shared, stream, params))

API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    (void)stream, (void)mode;
    if (capturing)
        return CUDA_ERROR_INVALID_VALUE;
    capturing = calloc(1, sizeof *capturing);
    return capturing ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    (void)stream;
    if (!graph || !capturing)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = capturing;
    capturing = NULL;
    return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    if (!exec || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    *exec = malloc(sizeof **exec);
    if (!*exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(*exec, graph, sizeof **exec);
    return CUDA_SUCCESS;
}

static CUresult cuGraphLaunch_impl(CUgraphExec exec, CUstream stream)
{
    if (!exec)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
        struct work work = {.kind = WORK_KERNEL, .nominal_ns = exec->launches[i].nominal_ns, .shares = exec->launches[i].shares};
        result = device_enqueue(stream_of(stream), &work);
    }
    return result;
}
BOTH(cuGraphLaunch, (CUgraphExec exec, CUstream stream), (exec, stream))

API CUresult cuGraphDestroy(CUgraph graph)
{
    free(graph);
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    free(exec);
    return CUDA_SUCCESS;
}

static CUresult create_stream(CUstream *stream)
{
    if (!stream)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_is_open())
        return CUDA_ERROR_INVALID_CONTEXT;
    *stream = calloc(1, sizeof **stream);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    return create_stream(stream);
}

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    return create_stream(stream);
}

API CUresult cuStreamDestroy_v2(CUstream stream)
{
    if ((uintptr_t)stream <= 2)
        return CUDA_ERROR_INVALID_HANDLE;
    free(stream);
    return CUDA_SUCCESS;
}

static CUresult cuStreamSynchronize_impl(CUstream stream)
{
    return device_is_open() ? device_wait(device_stream_last(stream_of(stream))) : CUDA_ERROR_INVALID_CONTEXT;
}
BOTH(cuStreamSynchronize, (CUstream stream), (stream))

static CUresult cuStreamQuery_impl(CUstream stream)
{
    return device_is_open() ? device_query(device_stream_last(stream_of(stream))) : CUDA_ERROR_INVALID_CONTEXT;
}
BOTH(cuStreamQuery, (CUstream stream), (stream))

static CUresult cuStreamWaitEvent_impl(CUstream stream, CUevent event, unsigned flags)
{
    /* One queue in order: whatever the event waits for comes before what this stream gets next. */
    (void)stream, (void)flags;
    return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
BOTH(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), (stream, event, flags))

API CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    if (!event)
        return CUDA_ERROR_INVALID_VALUE;
    *event = calloc(1, sizeof **event);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuEventDestroy_v2(CUevent event)
{
    free(event);
    return CUDA_SUCCESS;
}

static CUresult cuEventRecord_impl(CUevent event, CUstream stream)
{
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    event->sequence = device_stream_last(stream_of(stream));
    return CUDA_SUCCESS;
}
BOTH(cuEventRecord, (CUevent event, CUstream stream), (event, stream))

API CUresult cuEventSynchronize(CUevent event)
{
    return event ? device_wait(event->sequence) : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuEventQuery(CUevent event)
{
    return event ? device_query(event->sequence) : CUDA_ERROR_INVALID_HANDLE;
}

/* Device memory is accounted, not backed: what is copied to the host leaves the buffer as it was. */
#define MAX_ALLOCATIONS 4096
static struct { CUdeviceptr address; size_t bytes; } allocations[MAX_ALLOCATIONS];
static pthread_mutex_t allocation_lock = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr next_address = 0x7f0000000000ull;

static CUresult allocate(CUdeviceptr *address, size_t bytes)
{
    if (!address || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&allocation_lock);
    for (int i = 0; i < MAX_ALLOCATIONS; i++) {
        if (allocations[i].address)
            continue;
        result = device_allocate((int64_t)bytes);
        if (result == CUDA_SUCCESS) {
            *address = allocations[i].address = next_address;
            allocations[i].bytes = bytes;
            next_address += (bytes + 0x1fffff) & ~0x1fffffull;
        }
        break;
    }
    pthread_mutex_unlock(&allocation_lock);
    return result;
}

static CUresult release(CUdeviceptr address)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&allocation_lock);
    for (int i = 0; address && i < MAX_ALLOCATIONS; i++) {
        if (allocations[i].address != address)
            continue;
        result = device_allocate(-(int64_t)allocations[i].bytes);
        allocations[i].address = 0;
        break;
    }
    pthread_mutex_unlock(&allocation_lock);
    return result;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    return allocate(address, bytes);
}

API CUresult cuMemFree_v2(CUdeviceptr address)
{
    return release(address);
}

static CUresult cuMemAllocAsync_impl(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    (void)stream;
    return allocate(address, bytes);
}
BOTH(cuMemAllocAsync, (CUdeviceptr *address, size_t bytes, CUstream stream), (address, bytes, stream))

static CUresult cuMemFreeAsync_impl(CUdeviceptr address, CUstream stream)
{
    (void)stream;
    return release(address);
}
BOTH(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), (address, stream))

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    if (!free_bytes || !total_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_is_open())
        return CUDA_ERROR_INVALID_CONTEXT;
    *total_bytes = device_memory_total();
    uint64_t used = device_memory_used();
    *free_bytes = *total_bytes > used ? *total_bytes - used : 0;
    return CUDA_SUCCESS;
}

static CUresult copy(size_t bytes, int to_device, CUstream stream, int wait)
{
    struct work work = {.kind = WORK_COPY, .bytes = bytes, .to_device = to_device};
    struct stream *target = stream_of(stream);
    CUresult result = device_enqueue(target, &work);
    return result == CUDA_SUCCESS && wait ? device_wait(target->last) : result;
}

API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    return to && from ? copy(bytes, 1, NULL, 1) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    return to && from ? copy(bytes, 0, NULL, 1) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return to && from ? copy(bytes, 2, NULL, 0) : CUDA_ERROR_INVALID_VALUE;
}
static CUresult cuMemcpyHtoDAsync_v2_impl(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return to && from ? copy(bytes, 1, stream, 0) : CUDA_ERROR_INVALID_VALUE;
}
BOTH(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), (to, from, bytes, stream))
static CUresult cuMemcpyDtoHAsync_v2_impl(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return to && from ? copy(bytes, 0, stream, 0) : CUDA_ERROR_INVALID_VALUE;
}
BOTH(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream))
static CUresult cuMemcpyDtoDAsync_v2_impl(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return to && from ? copy(bytes, 2, stream, 0) : CUDA_ERROR_INVALID_VALUE;
}
BOTH(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream))
static CUresult cuMemcpyAsync_impl(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    /* Unified addressing: device addresses are the ones handed out above. */
    int to_device = to >= 0x7f0000000000ull && to < next_address, from_device = from >= 0x7f0000000000ull && from < next_address;
    return copy(bytes, to_device && from_device ? 2 : to_device, stream, 0);
}
BOTH(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream))
API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    CUresult result = cuMemcpyAsync_impl(to, from, bytes, NULL);
    return result == CUDA_SUCCESS ? device_wait(legacy_stream.last) : result;
}

API CUresult cuGetErrorName(CUresult error, const char **text)
{
    static const struct { CUresult code; const char *name; } names[] = {
        {CUDA_SUCCESS, "CUDA_SUCCESS"}, {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"}, {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"}, {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"}, {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY"},
        {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN"},
    };
    for (unsigned i = 0; text && i < sizeof names / sizeof names[0]; i++)
        if (names[i].code == error) {
            *text = names[i].name;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

API int sim_cuda_enqueue_collective(void *stream, const struct sim_collective *collective)
{
    struct work work = {.kind = WORK_COLLECTIVE, .collective = *collective};
    CUresult result = device_enqueue(stream_of(stream), &work);
    if (result != CUDA_SUCCESS)
        collective->release(collective->context);
    return result;
}
