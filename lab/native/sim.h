/* Shared state of the simulated node and of a job on it.
 *
 * Two kinds of files are mapped by every process that takes part:
 *   devices.shm  struct sim_node, one per simulated node: what its GPUs are, which causes act on them, what they did;
 *   job.shm      struct sim_job, one per job: recipe, ranks, communicators.
 * Both begin with a magic, a layout version and their size; a mismatch is refused, never guessed around.
 * lab/tocsin_lab/sim/layout.py mirrors the structures; `sim-layout` prints sizes and offsets so that a test compares them.
 *
 * Every field is naturally aligned and at most 8 bytes wide where several processes write it, so that plain loads and
 * stores do not tear; counters are added to atomically. Times are CLOCK_MONOTONIC nanoseconds: one kernel, one clock.
 */
#ifndef TOCSIN_SIM_H
#define TOCSIN_SIM_H

#include <stddef.h>
#include <stdint.h>

#define SIM_LAYOUT_VERSION 2u
#define SIM_NODE_MAGIC 0x31454e4353435430ull
#define SIM_JOB_MAGIC 0x31424f4a53435430ull

#define SIM_MAX_DEVICES 16
#define SIM_MAX_PROCESSES 32
#define SIM_MAX_LINKS 18
#define SIM_MAX_INSTANCES 7
#define SIM_MAX_RULES 32
#define SIM_MAX_EVENTS 256
#define SIM_PCIE_ERRORS 11
#define SIM_MAX_RANKS 64
#define SIM_MAX_COMMS 8
#define SIM_REASONS 9
#define SIM_ID_BYTES 128

/* A rank is at most one collective ahead of another, so four arrival times per rank are enough. */
#define SIM_ARRIVALS 4

/* Nominal device work of one thread block: grid x * y * z blocks keep a healthy device busy for that many of these. */
#define SIM_NS_PER_BLOCK 1000.0

/* A device whose clock did not tick for this long has no process: it is idle. */
#define SIM_STALE_NS 1000000000ull

enum sim_process_kind { SIM_COMPUTE, SIM_GRAPHICS, SIM_MPS };

struct sim_process {
    int32_t pid; /* 0: free */
    uint32_t kind;
    uint64_t start_ticks; /* field 22 of /proc/PID/stat: tells a reused pid */
    uint64_t memory_bytes;
    uint32_t instance; /* of the device's MIG instances, from 1; 0: the whole device */
    uint32_t reserved;
};

/* What an NVLink port counts, in the order of `counts`. The first five are those of Ampere and Hopper. */
enum sim_link_count {
    SIM_LINK_REPLAY,
    SIM_LINK_RECOVERY,
    SIM_LINK_CRC_FLIT,
    SIM_LINK_CRC_DATA,
    SIM_LINK_ECC_DATA,
    SIM_LINK_MALFORMED,
    SIM_LINK_OVERRUN,
    SIM_LINK_RECEIVE,
    SIM_LINK_REMOTE,
    SIM_LINK_GENERAL,
    SIM_LINK_INTEGRITY,
    SIM_LINK_DISCARDS,
    SIM_LINK_RECOVERED,
    SIM_LINK_UNRECOVERED,
    SIM_LINK_EFFECTIVE,
    SIM_LINK_SYMBOL,
    SIM_LINK_RAW_LANE0,
    SIM_LINK_RAW_LANE1,
    SIM_LINK_RETRIES,
    SIM_LINK_COUNTS
};

struct sim_link {
    uint32_t down;
    uint32_t remote_link;
    uint64_t down_tx_bytes; /* the counters of a link that is down stand still: where */
    uint64_t down_rx_bytes;
    uint64_t counts[SIM_LINK_COUNTS];
    double rate; /* per second, of each kind in `rate_mask`, since `rate_since_ns` */
    uint64_t rate_mask;
    uint64_t rate_since_ns;
};

/* A MIG device: a GPU instance with one compute instance. Its accounts are shares of the instance, not of the GPU. */
struct sim_instance {
    char uuid[48];
    char profile[16]; /* 3g.40gb */
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t slices;
    uint32_t memory_slices;
    uint32_t multiprocessors;
    uint32_t engines; /* copy engines; a decoder each */
    uint64_t memory_bytes;
    uint64_t sram_uncorrected;
    uint64_t busy_ns;
    uint64_t sm_ns;
    uint64_t occupancy_ns;
    uint64_t tensor_ns;
    uint64_t fp32_ns;
    uint64_t dram_ns;
    uint64_t pcie_tx_bytes;
    uint64_t pcie_rx_bytes;
};

struct sim_device {
    /* what it is */
    char uuid[48];
    char serial[32];
    uint32_t minor;
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t numa_node;
    uint32_t hca; /* index of the nearest HCA */
    uint32_t absent; /* 1: the driver does not count it; the indices behind it move up */
    uint32_t hang;   /* 1: every call on this device blocks */
    /* causes: written by fault injection only */
    double speed_factor;   /* 1: healthy; 0.5: kernels take twice as long at an unchanged clock */
    double clock_fraction; /* 1: full SM clock; the device's speed follows it */
    double heat_celsius;   /* warmer than its power explains */
    uint64_t throttle_reasons;  /* NVML clock event reason bits */
    uint64_t throttle_since_ns; /* when they were set */
    uint64_t throttle_held_ns[SIM_REASONS]; /* per bit, of throttles that have ended */
    uint32_t lost;
    uint32_t recovery_action;
    uint32_t pcie_generation;
    uint32_t pcie_width;
    uint64_t pcie_replays;
    uint64_t pcie_recoveries; /* left L0 for recovery */
    uint64_t pcie_errors[SIM_PCIE_ERRORS]; /* field ids 173 to 183 */
    uint32_t pcie_counter_bits; /* the byte counters wrap at; 64: never */
    uint32_t gpm_blank;         /* 1: profiling says 0; 2: it says NO_DATA */
    uint32_t ecc_mode[2];       /* now, after a reset */
    uint64_t ecc_dram[2];       /* lifetime: corrected, uncorrected */
    uint64_t ecc_sram[2];
    uint64_t ecc_dram_base[2]; /* of which before the driver was loaded */
    uint64_t ecc_sram_base[2];
    double ecc_rate[2]; /* DRAM errors per second since `ecc_rate_since_ns`, on top */
    uint64_t ecc_rate_since_ns;
    uint32_t sram_threshold_exceeded;
    uint32_t unrepairable_memory;
    uint32_t remapped_rows[2]; /* corrected, uncorrected */
    uint32_t remap_pending;
    uint32_t remap_failed;
    uint32_t repair_pending[2]; /* channel, TPC */
    uint32_t power_limit_mw;
    uint32_t fabric_state; /* NVML_GPU_FABRIC_STATE_* */
    uint32_t fabric_status;
    uint32_t fabric_clique;
    uint32_t fabric_health_mask;
    uint32_t fabric_health_summary;
    uint64_t memory_soft_limit; /* 0: none */
    uint64_t memory_hard_limit;
    uint64_t idle_since_ns; /* energy of an idle device counts from here: when the driver was loaded again */
    uint32_t mig_mode[2];   /* now, after a reset */
    uint32_t instance_count;
    uint32_t instance_generation; /* goes up with each reconfiguration: handles of the old ones are void */
    struct sim_instance instances[SIM_MAX_INSTANCES];
    struct sim_link links[SIM_MAX_LINKS];
    /* accounts: written by the device clock only; *_ns counters are integrals of a share over time */
    uint64_t heartbeat_ns;
    uint64_t busy_ns;       /* a kernel is resident */
    uint64_t compute_ns;    /* in compute kernels */
    uint64_t collective_ns; /* in collectives, waiting or transferring */
    uint64_t transfer_ns;   /* of which transferring */
    uint64_t copy_ns;
    uint64_t idle_ns;
    uint64_t sm_ns;
    uint64_t occupancy_ns;
    uint64_t tensor_ns;
    uint64_t fp32_ns;
    uint64_t dram_ns;
    uint64_t energy_uj;
    uint64_t kernels;
    uint64_t collectives;
    uint64_t pcie_tx_bytes;
    uint64_t pcie_rx_bytes;
    uint64_t nvlink_tx_bytes;
    uint64_t nvlink_rx_bytes;
    uint64_t fabric_tx_bytes;
    uint64_t fabric_rx_bytes;
    /* the last sample period, as the driver reports it */
    double temperature_c;
    uint32_t utilization_permille;
    uint32_t memory_permille;
    uint32_t power_mw;
    uint32_t reserved;
    struct sim_process processes[SIM_MAX_PROCESSES];
};

struct sim_profile {
    char name[64]; /* as NVML prints it */
    char driver[32];
    char vbios[32];
    char part_number[32];
    char inforom[32];
    uint32_t cuda_version; /* 12080: 12.8 */
    uint32_t architecture; /* NVML_DEVICE_ARCH_* */
    uint32_t compute_major;
    uint32_t compute_minor;
    uint32_t cores;
    uint32_t multiprocessors;
    uint32_t gpm; /* 1: Hopper and newer */
    uint32_t sm_clock_max_mhz;
    uint32_t sm_clock_idle_mhz;
    uint32_t memory_clock_mhz;
    uint32_t video_clock_max_mhz;
    uint32_t memory_bus_bits;
    uint32_t power_limit_mw;
    uint32_t power_min_mw;
    uint32_t power_idle_mw;
    uint32_t power_compute_mw;
    uint32_t power_collective_mw;
    uint32_t pcie_generation_max;
    uint32_t pcie_width_max;
    uint32_t pci_device_id;    /* device << 16 | vendor, as NVML packs it */
    uint32_t pci_subsystem_id;
    uint32_t nvlink_links;
    uint32_t nvlink_version; /* NVML_NVLINK_VERSION_* */
    uint32_t nvlink_mbps;    /* of a link and direction, as field 164 says it */
    uint32_t temperature_shutdown;
    uint32_t temperature_slowdown;
    uint32_t temperature_max;
    uint32_t temperature_memory_max; /* 0: no sensor */
    uint32_t tlimit;                 /* 1: margins instead of thresholds (Ada and newer) */
    uint32_t remap_banks;
    uint32_t mig_slices; /* 0: no MIG */
    uint32_t fabric;
    uint32_t recovery_action;
    uint32_t power_average;
    uint32_t pcie_error_counters;
    uint32_t sram_status;
    uint32_t power_smoothing;
    uint32_t event_types;
    uint32_t reserved;
    uint64_t memory_bytes;
    uint64_t bar1_bytes;
    double nvlink_bytes_per_second;
    double fabric_bytes_per_second;
    double pcie_bytes_per_second;
};

#define SIM_ANY 0xffffffffu

enum sim_rule_kind {
    SIM_RULE_NONE,
    SIM_RULE_HANG,  /* blocks as long as the rule stands */
    SIM_RULE_SLOW,  /* takes `value` nanoseconds more */
    SIM_RULE_ERROR, /* returns `code`; with a field: that field does, the others answer */
    SIM_RULE_BATCH, /* the whole call returns `code` when the field is among those asked for */
    SIM_RULE_VALUE  /* succeeds with `value` instead of the truth */
};

/* One way in which the driver misbehaves: which call, on which device, for which field. */
struct sim_rule {
    uint32_t kind;
    uint32_t device; /* or SIM_ANY */
    uint32_t field;  /* field id, or GPM metric id; 0: the call itself */
    uint32_t scope;  /* the field's scopeId, or SIM_ANY */
    int32_t code;    /* an nvmlReturn_t */
    uint32_t reserved;
    uint64_t value;
    char call[64]; /* nvmlDeviceGetFieldValues; empty: every call */
};

struct sim_event {
    uint64_t type; /* nvmlEventType* */
    uint64_t data; /* the Xid, for an Xid */
    uint32_t device;
    uint32_t gpu_instance; /* SIM_ANY: none */
    uint32_t compute_instance;
    uint32_t reserved;
};

struct sim_node {
    uint64_t magic;
    uint32_t version;
    uint32_t device_count;
    uint64_t size;
    uint64_t created_ns;
    char name[64];
    uint32_t hang; /* 1: every NVML call blocks until it is 0 again */
    uint32_t hca_count;
    uint32_t init_hang;
    int32_t init_code; /* an nvmlReturn_t: what nvmlInit returns */
    uint64_t session;  /* goes up when handles become void: calls fail with UNKNOWN until the next nvmlInit */
    uint64_t event_count; /* events ever; the last SIM_MAX_EVENTS are there */
    struct sim_event events[SIM_MAX_EVENTS];
    uint32_t rule_count; /* rules beyond it are not looked at */
    uint32_t reserved;
    struct sim_rule rules[SIM_MAX_RULES];
    struct sim_profile profile;
    struct sim_device devices[SIM_MAX_DEVICES];
};

/* What the training recipe does to the loss: a cause on the job's side. */
struct sim_recipe {
    double loss_drift; /* standard deviations of the loss noise per 100 steps; 0: the model learns */
    uint32_t nan_loss;
    uint32_t reserved;
};

struct sim_rendezvous {
    uint64_t attempt; /* attempt + 1 whose id this is; written last */
    uint8_t id[SIM_ID_BYTES];
};

struct sim_rank {
    int32_t pid;
    int32_t exit_request; /* code + 1: the rank's program ends with that code at its next step; 0: none */
    uint64_t step;
    uint64_t step_ns; /* when that step ended */
};

struct sim_comm {
    uint64_t id; /* 0: free */
    uint32_t ranks;
    uint32_t doorbell;      /* futex: rung at each arrival */
    uint64_t joined;        /* bit per rank */
    uint32_t node[SIM_MAX_RANKS]; /* hash of the node's name: tells whether the communicator spans nodes */
    uint64_t arrived[SIM_MAX_RANKS]; /* sequence number of the last collective this rank's device reached */
    uint64_t arrival_ns[SIM_MAX_RANKS][SIM_ARRIVALS];
    uint32_t sends[SIM_MAX_RANKS][SIM_MAX_RANKS]; /* [from][to], posted by the device of `from` */
    uint32_t receives[SIM_MAX_RANKS][SIM_MAX_RANKS]; /* [from][to], posted by the device of `to` */
};

struct sim_job {
    uint64_t magic;
    uint32_t version;
    uint32_t world_size;
    uint64_t size;
    uint64_t next_comm;
    struct sim_recipe recipe;
    struct sim_rendezvous rendezvous;
    struct sim_rank ranks[SIM_MAX_RANKS];
    struct sim_comm comms[SIM_MAX_COMMS];
};

/* ---- shared helpers (shm.c), linked into each library, not exported ---- */
uint64_t sim_now_ns(void);
uint64_t sim_start_ticks(int32_t pid); /* 0: no such process, or a zombie */
int sim_process_alive(const struct sim_process *process);
/* Map the file an environment variable names. NULL with *reason when unset, unreadable or of another layout. */
struct sim_node *sim_map_node(const char **reason);
struct sim_job *sim_map_job(const char **reason);

static inline void sim_add(uint64_t *counter, uint64_t amount)
{
    __atomic_fetch_add(counter, amount, __ATOMIC_RELAXED);
}

static inline uint64_t sim_load(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

/* ---- between the stand-ins of libcuda and libnccl ---- */
struct sim_collective {
    void *context;
    /* The device reached the collective at this time of its own clock. */
    void (*arrive)(void *context, uint64_t device_ns);
    /* 1 and when the last rank arrived; 0 while some are missing; -1 when the communicator was aborted. */
    int (*ready)(void *context, uint64_t *start_ns);
    /* Sleep until somebody arrives, at most until this time. */
    void (*wait)(void *context, uint64_t until_ns);
    void (*release)(void *context);
    double transfer_bytes; /* over the slowest link */
    uint32_t fabric;       /* 1: the slowest link is the fabric, 0: NVLink */
    uint32_t reserved;
};
/* Returns a CUresult. Owns the context from here on, also when it fails. */
int sim_cuda_enqueue_collective(void *stream, const struct sim_collective *collective);

#endif
