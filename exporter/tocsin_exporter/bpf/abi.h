/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * What user space and the programs share: structures, cookies, configuration. No map and no way of
 * attaching is assumed. sources/bpf/layout.py mirrors the structures; a size that differs is refused at load.
 */
#ifndef TOCSIN_ABI_H
#define TOCSIN_ABI_H

#define SLOTS 512
#define OPS 48
#define BUCKETS 12
#define BOUNDS (BUCKETS - 1)
#define COMMS 17
#define OTHER_COMM (COMMS - 1)
/* Calls with a payload: the first PAYLOADS operations of NCCL, which stand from FIRST_PAYLOAD on. */
#define FIRST_PAYLOAD 20
#define PAYLOADS 10
#define SIZES 6
#define TYPES 13
#define OTHER_TYPE (TYPES - 1)
#define CHUNK 2048
#define MAX_CHUNKS 8
#define MAX_STEPS 16
#define SECOND 1000000000ULL
#define OUT_OF_MEMORY 2    /* CUDA_ERROR_OUT_OF_MEMORY */
#define NCCL_IN_PROGRESS 7 /* the call goes on without its caller */

/* The cookie of an attachment: what the symbol means. Numbers of arguments count from 1; 0 is none. */
#define COOKIE_OP(c) ((__u32)(c) & 0x3f)
#define COOKIE_COUNT(c) (((c) >> 8) & 0xf)  /* of elements, or of bytes without a type */
#define COOKIE_TYPE(c) (((c) >> 12) & 0xf)  /* ncclDataType_t */
#define COOKIE_COMM(c) (((c) >> 16) & 0xf)  /* the communicator, or where a new one is stored */
#define COOKIE_RANKS(c) (((c) >> 20) & 0xf) /* how many ranks a new communicator has */
#define COOKIE_RANK(c) (((c) >> 24) & 0xf)  /* which of them this is */
#define COOKIE_WAITS (1ULL << 28)           /* the call waits for the device: into the histogram */
#define COOKIE_TIMED (1ULL << 29)           /* its duration is summed */
#define COOKIE_ENDS_COMM (1ULL << 30)
#define COOKIE_ALLOCATES (1ULL << 31)

#define NO_COOKIE (~0ULL)

struct op_stat {
	__u64 calls;
	__u64 errors;
	__u64 bytes;
	__u64 last_ns;
	__u64 spent_ns;
};

struct histogram {
	__u64 sum_ns;
	__u64 buckets[BUCKETS];
};

struct amount {
	__u64 calls;
	__u64 bytes;
};

struct comm_stat {
	__u64 calls;
	__u64 bytes;
	__u64 last_ns;
	__u64 ranks; /* 0 while not known */
	__u64 rank;
};

struct rank_stat {
	struct op_stat ops[OPS];
	struct histogram wait;
	struct histogram gap;
	__u64 sizes[PAYLOADS][SIZES];
	struct amount types[TYPES];
	struct comm_stat comms[COMMS];
	__u64 alloc_failures;
	__u64 drop_map_full;
	__u64 drop_ring_full;
	__u64 drop_rate_guard;
	__u64 out_bytes;
	__u64 out_dropped_bytes;
	__u64 launch_window_ns;
	__u64 launch_window_calls;
	__u64 out_window_ns;
	__u64 out_window_bytes;
	__u64 comm_next;
};

struct target {
	__u32 slot;
	__u32 token;
};

struct inflight_key {
	__u64 pid_tgid;
	__u64 op;
};

/* A call that has not returned: when it began; where it stores a communicator, and what is known of that. */
struct inflight {
	__u64 begin_ns;
	__u64 out;
	__u64 ranks;
	__u64 rank;
};

struct comm_key {
	__u64 comm;
	__u64 tgid;
};

enum record_kind { RECORD_OUTPUT = 1, RECORD_EXIT = 2 };

struct record {
	__u32 kind;
	__u32 tgid;
	__u32 token;
	__s32 value; /* file descriptor, or exit code in wait(2) form */
	__u64 time_ns;
	__u32 len;
	__u32 dropped; /* bytes of output lost so far, so that a line is not joined over a gap */
};

struct output {
	struct record head;
	char data[CHUNK];
};

struct config {
	__u64 constant_cookie;
	__u64 launch_limit; /* launches per second and rank whose gaps are measured */
	__u64 output_limit; /* bytes per second and rank */
	__u64 pidns_dev;    /* of the exporter's pid namespace; ino 0: the initial one */
	__u64 pidns_ino;
	__u64 wait_bounds[BOUNDS];
	__u64 gap_bounds[BOUNDS];
	__u64 size_bounds[SIZES - 1];
};

#endif
