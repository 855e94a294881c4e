/* libnccl.so.2: real names and signatures. A collective is a piece of device work that ends when the device of every
 * rank has reached it; the host never waits here, except while a communicator is being set up.
 */
#define _GNU_SOURCE
#include "sim.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default"), noinline))
#define NCCL_VERSION 22606 /* 2.26.6 */

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;
typedef void *cudaStream_t;
typedef struct { char internal[SIM_ID_BYTES]; } ncclUniqueId;

struct ncclComm {
    struct sim_comm *shared;
    int own; /* the shared part is this process's: a communicator of one rank without a job */
    int rank;
    int ranks;
    int fabric;
    int aborted;
    uint64_t sequence; /* collectives enqueued */
    uint32_t sends[SIM_MAX_RANKS];
    uint32_t receives[SIM_MAX_RANKS];
};
typedef struct ncclComm *ncclComm_t;

struct exchange { uint32_t peer; uint32_t number; int send; };
#define MAX_GROUP 128

struct pending {
    struct ncclComm *comm;
    uint64_t sequence; /* collective, 0: exchange */
    uint32_t bell;
    unsigned count;
    struct exchange exchanges[];
};

static __thread char last_error[256];
static __thread int group_depth;
static __thread struct { struct exchange exchange; struct ncclComm *comm; cudaStream_t stream; double bytes; } group[MAX_GROUP];
static __thread unsigned group_count;

static ncclResult_t fail(ncclResult_t code, const char *text)
{
    strncpy(last_error, text, sizeof last_error - 1);
    return code;
}

static void ring(struct sim_comm *shared)
{
    __atomic_fetch_add(&shared->doorbell, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &shared->doorbell, FUTEX_WAKE, SIM_MAX_RANKS, NULL, NULL, 0);
}

static void pending_arrive(void *context, uint64_t device_ns)
{
    struct pending *pending = context;
    struct sim_comm *shared = pending->comm->shared;
    unsigned rank = (unsigned)pending->comm->rank;
    if (pending->sequence) {
        shared->arrival_ns[rank][pending->sequence % SIM_ARRIVALS] = device_ns;
        __atomic_store_n(&shared->arrived[rank], pending->sequence, __ATOMIC_RELEASE);
    }
    for (unsigned i = 0; i < pending->count; i++) {
        const struct exchange *exchange = &pending->exchanges[i];
        uint32_t *counter = exchange->send ? &shared->sends[rank][exchange->peer] : &shared->receives[exchange->peer][rank];
        __atomic_store_n(counter, exchange->number, __ATOMIC_RELEASE);
    }
    ring(shared);
}

static int pending_ready(void *context, uint64_t *start_ns)
{
    struct pending *pending = context;
    struct ncclComm *comm = pending->comm;
    struct sim_comm *shared = comm->shared;
    if (__atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE))
        return -1;
    /* Read the bell before the counters: an arrival in between then ends the wait at once. */
    pending->bell = __atomic_load_n(&shared->doorbell, __ATOMIC_ACQUIRE);
    uint64_t last = *start_ns;
    for (unsigned rank = 0; pending->sequence && rank < shared->ranks; rank++) {
        if (__atomic_load_n(&shared->arrived[rank], __ATOMIC_ACQUIRE) < pending->sequence)
            return 0;
        uint64_t arrival = sim_load(&shared->arrival_ns[rank][pending->sequence % SIM_ARRIVALS]);
        last = arrival > last ? arrival : last;
    }
    for (unsigned i = 0; i < pending->count; i++) {
        const struct exchange *exchange = &pending->exchanges[i];
        unsigned rank = (unsigned)comm->rank;
        const uint32_t *other = exchange->send ? &shared->receives[rank][exchange->peer] : &shared->sends[exchange->peer][rank];
        if ((int32_t)(__atomic_load_n(other, __ATOMIC_ACQUIRE) - exchange->number) < 0)
            return 0;
    }
    if (!pending->sequence)
        last = sim_now_ns();
    *start_ns = last;
    return 1;
}

static void pending_wait(void *context, uint64_t until_ns)
{
    struct pending *pending = context;
    uint64_t now = sim_now_ns();
    if (until_ns <= now)
        return;
    struct timespec limit = {.tv_sec = (time_t)((until_ns - now) / 1000000000ull), .tv_nsec = (long)((until_ns - now) % 1000000000ull)};
    syscall(SYS_futex, &pending->comm->shared->doorbell, FUTEX_WAIT, pending->bell, &limit, NULL, 0);
}

static void pending_release(void *context)
{
    free(context);
}

static ncclResult_t enqueue(struct pending *pending, double bytes, cudaStream_t stream)
{
    struct sim_collective collective = {
        .context = pending,
        .arrive = pending_arrive,
        .ready = pending_ready,
        .wait = pending_wait,
        .release = pending_release,
        .transfer_bytes = bytes,
        .fabric = (uint32_t)pending->comm->fabric,
    };
    return sim_cuda_enqueue_collective(stream, &collective) == 0 ? ncclSuccess : fail(ncclUnhandledCudaError, "the device failed");
}

static double type_bytes(ncclDataType_t type)
{
    static const double sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < (int)(sizeof sizes / sizeof sizes[0]) ? sizes[type] : 0.0;
}

/* `share` is what one rank moves over its slowest link, in units of count. */
static ncclResult_t collective(ncclComm_t comm, size_t count, ncclDataType_t type, double share, cudaStream_t stream)
{
    if (!comm || type_bytes(type) == 0.0)
        return fail(ncclInvalidArgument, "communicator or data type is invalid");
    struct pending *pending = calloc(1, sizeof *pending);
    if (!pending)
        return fail(ncclSystemError, "out of memory");
    pending->comm = comm;
    pending->sequence = ++comm->sequence;
    return enqueue(pending, (double)count * type_bytes(type) * share, stream);
}

API ncclResult_t ncclGetVersion(int *version)
{
    if (!version)
        return fail(ncclInvalidArgument, "version is NULL");
    *version = NCCL_VERSION;
    return ncclSuccess;
}

API const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage", "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (unsigned)result < sizeof texts / sizeof texts[0] ? texts[result] : "unknown result code";
}

API const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error;
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    if (!id)
        return fail(ncclInvalidArgument, "id is NULL");
    memset(id, 0, sizeof *id);
    const char *reason;
    struct sim_job *job = sim_map_job(&reason);
    uint64_t number = sim_now_ns() << 8;
    if (job) {
        uint64_t slot = __atomic_fetch_add(&job->next_comm, 1, __ATOMIC_RELAXED) % SIM_MAX_COMMS;
        number = (number & ~0xffull) | slot;
        memset(&job->comms[slot], 0, sizeof job->comms[slot]);
        __atomic_store_n(&job->comms[slot].id, number, __ATOMIC_RELEASE);
    }
    memcpy(id->internal, &number, sizeof number);
    return ncclSuccess;
}

static uint32_t node_hash(void)
{
    const char *name = getenv("TOCSIN_LAB_NODE");
    uint32_t hash = 2166136261u;
    for (; name && *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

API ncclResult_t ncclCommInitRank(ncclComm_t *out, int ranks, ncclUniqueId id, int rank)
{
    if (!out || ranks < 1 || ranks > SIM_MAX_RANKS || rank < 0 || rank >= ranks)
        return fail(ncclInvalidArgument, "rank or number of ranks is out of range");
    uint64_t number;
    memcpy(&number, id.internal, sizeof number);
    const char *reason;
    struct sim_job *job = sim_map_job(&reason);
    struct sim_comm *shared = NULL;
    int own = 0;
    if (job && (number & 0xff) < SIM_MAX_COMMS && job->comms[number & 0xff].id == number) {
        shared = &job->comms[number & 0xff];
    } else if (ranks == 1) {
        shared = calloc(1, sizeof *shared);
        own = 1;
    }
    struct ncclComm *comm = shared ? calloc(1, sizeof *comm) : NULL;
    if (!comm)
        return fail(ncclSystemError, "no rank with this id can be reached");
    shared->node[rank] = node_hash();
    __atomic_store_n(&shared->ranks, (uint32_t)ranks, __ATOMIC_RELEASE);
    __atomic_fetch_or(&shared->joined, 1ull << rank, __ATOMIC_ACQ_REL);
    uint64_t all = ranks == 64 ? ~0ull : (1ull << ranks) - 1;
    struct timespec pause = {.tv_nsec = 5000000};
    while ((__atomic_load_n(&shared->joined, __ATOMIC_ACQUIRE) & all) != all)
        nanosleep(&pause, NULL);
    comm->shared = shared;
    comm->own = own;
    comm->rank = rank;
    comm->ranks = ranks;
    for (int other = 0; other < ranks; other++)
        comm->fabric |= shared->node[other] != shared->node[rank];
    *out = comm;
    return ncclSuccess;
}

API ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    return comm ? ncclSuccess : fail(ncclInvalidArgument, "communicator is NULL");
}

API ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    /* Work that was enqueued may still refer to it; a process has few communicators, so the memory stays. */
    return comm ? ncclSuccess : fail(ncclInvalidArgument, "communicator is NULL");
}

API ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!comm)
        return fail(ncclInvalidArgument, "communicator is NULL");
    __atomic_store_n(&comm->aborted, 1, __ATOMIC_RELEASE);
    ring(comm->shared);
    return ncclSuccess;
}

API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    if (!comm || !result)
        return fail(ncclInvalidArgument, "communicator or result is NULL");
    *result = ncclSuccess;
    return ncclSuccess;
}

API ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    if (!comm || !count)
        return fail(ncclInvalidArgument, "communicator or count is NULL");
    *count = comm->ranks;
    return ncclSuccess;
}

API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    if (!comm || !rank)
        return fail(ncclInvalidArgument, "communicator or rank is NULL");
    *rank = comm->rank;
    return ncclSuccess;
}

#define RING(comm) ((comm) ? (double)((comm)->ranks - 1) / (double)(comm)->ranks : 0.0)

API ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    (void)send, (void)receive, (void)op;
    return collective(comm, count, type, 2.0 * RING(comm), stream);
}

API ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream)
{
    (void)send, (void)receive;
    return collective(comm, count, type, comm ? comm->ranks - 1.0 : 0.0, stream);
}

API ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   ncclComm_t comm, cudaStream_t stream)
{
    (void)send, (void)receive, (void)op;
    return collective(comm, count, type, comm ? comm->ranks - 1.0 : 0.0, stream);
}

static ncclResult_t rooted(size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)
{
    if (comm && (root < 0 || root >= comm->ranks))
        return fail(ncclInvalidArgument, "root is out of range");
    return collective(comm, count, type, 1.0, stream);
}

API ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                               cudaStream_t stream)
{
    (void)send, (void)receive;
    return rooted(count, type, root, comm, stream);
}

API ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)
{
    (void)buffer;
    return rooted(count, type, root, comm, stream);
}

API ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                            ncclComm_t comm, cudaStream_t stream)
{
    (void)send, (void)receive, (void)op;
    return rooted(count, type, root, comm, stream);
}

API ncclResult_t ncclGroupStart(void)
{
    group_depth++;
    return ncclSuccess;
}

static ncclResult_t end_group(void)
{
    if (group_depth == 0)
        return fail(ncclInvalidUsage, "group end without start");
    if (--group_depth > 0 || group_count == 0)
        return ncclSuccess;
    /* Sends and receives of one group run as one kernel: in sequence two ranks that both send first would wait for ever. */
    ncclResult_t result = ncclSuccess;
    for (unsigned first = 0; first < group_count && result == ncclSuccess; ) {
        unsigned end = first;
        double bytes = 0.0;
        while (end < group_count && group[end].comm == group[first].comm && group[end].stream == group[first].stream)
            bytes += group[end++].bytes;
        struct pending *pending = calloc(1, sizeof *pending + (end - first) * sizeof pending->exchanges[0]);
        if (!pending) {
            result = fail(ncclSystemError, "out of memory");
            break;
        }
        pending->comm = group[first].comm;
        pending->count = end - first;
        for (unsigned i = first; i < end; i++)
            pending->exchanges[i - first] = group[i].exchange;
        result = enqueue(pending, bytes, group[first].stream);
        first = end;
    }
    group_count = 0;
    return result;
}

API ncclResult_t ncclGroupEnd(void)
{
    return end_group();
}

static ncclResult_t exchange(int send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    if (!comm || peer < 0 || peer >= comm->ranks || type_bytes(type) == 0.0)
        return fail(ncclInvalidArgument, "communicator, peer or data type is invalid");
    if (group_count == MAX_GROUP)
        return fail(ncclInvalidUsage, "more operations in a group than the stand-in takes");
    group_depth++;
    uint32_t number = send ? ++comm->sends[peer] : ++comm->receives[peer];
    group[group_count].exchange = (struct exchange){.peer = (uint32_t)peer, .number = number, .send = send};
    group[group_count].comm = comm;
    group[group_count].stream = stream;
    group[group_count++].bytes = (double)count * type_bytes(type);
    return end_group();
}

API ncclResult_t ncclSend(const void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    (void)buffer;
    return exchange(1, count, type, peer, comm, stream);
}

API ncclResult_t ncclRecv(void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    (void)buffer;
    return exchange(0, count, type, peer, comm, stream);
}
