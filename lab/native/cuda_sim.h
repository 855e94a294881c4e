/* Inside libcuda.so.1: the device clock's interface to the driver API functions. */
#ifndef TOCSIN_CUDA_SIM_H
#define TOCSIN_CUDA_SIM_H

#include "sim.h"

typedef int CUresult;
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_UNKNOWN = 999
};

/* As many pending launches as the hardware's channel takes before a launch blocks. */
#define QUEUE_DEPTH 1024

enum work_kind { WORK_KERNEL, WORK_COPY, WORK_COLLECTIVE };

/* What a kernel keeps busy while it runs on a healthy device. */
struct kernel_shares {
    const char *name;
    double sm;
    double occupancy;
    double tensor;
    double fp32;
    double dram;
};

struct stream {
    uint64_t last; /* sequence number of its last piece of work */
};

struct work {
    enum work_kind kind;
    uint64_t sequence;
    uint64_t enqueued_ns;
    double nominal_ns;                  /* kernel */
    const struct kernel_shares *shares; /* kernel */
    uint64_t bytes;                     /* copy */
    int to_device;                      /* copy; 0: to host, 1: to device, 2: within the device */
    struct sim_collective collective;
};

/* Open the device behind this process; starts its clock. */
CUresult device_open(int visible_index);
int device_visible_count(void);
int device_is_open(void);
struct sim_device *device_state(void);
struct sim_node *device_node(void);
CUresult device_load(void); /* map the node; CUDA_ERROR_NO_DEVICE without one */
CUresult device_enqueue(struct stream *stream, struct work *work);
CUresult device_wait(uint64_t sequence);
CUresult device_query(uint64_t sequence);
uint64_t device_last_sequence(void);
uint64_t device_stream_last(const struct stream *stream);
CUresult device_allocate(int64_t bytes); /* negative: frees */
uint64_t device_memory_used(void); /* of the GPU or MIG device */
uint64_t device_memory_total(void);
int device_index_of(int visible_index);
struct stream *stream_of(void *handle);

#endif
