/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Structures, configuration and maps. sources/bpf/layout.py mirrors the structures; a size that
 * differs is refused at load.
 */
#ifndef TOCSIN_MAPS_H
#define TOCSIN_MAPS_H

#include "kernel.h"

#define SLOTS 512
#define OPS 32
#define BUCKETS 12
#define BOUNDS (BUCKETS - 1)
#define COMMS 17
#define OTHER_COMM (COMMS - 1)
#define CHUNK 2048
#define MAX_CHUNKS 8
#define MAX_STEPS 16
#define SECOND 1000000000ULL

/* The cookie of an attachment: what the symbol means. */
#define COOKIE_OP(c) ((__u32)(c) & (OPS - 1))
#define COOKIE_COUNT(c) (((c) >> 8) & 0xf)
#define COOKIE_TYPE(c) (((c) >> 12) & 0xf)
#define COOKIE_COMM(c) (((c) >> 16) & 0xf)
#define COOKIE_WAITS (1ULL << 24)
#define COOKIE_ENDS_COMM (1ULL << 25)

#define NO_COOKIE (~0ULL)

struct op_stat {
	__u64 calls;
	__u64 errors;
	__u64 bytes;
	__u64 last_ns;
};

struct histogram {
	__u64 sum_ns;
	__u64 buckets[BUCKETS];
};

struct rank_stat {
	struct op_stat ops[OPS];
	struct histogram wait;
	struct histogram gap;
	__u64 comm_calls[COMMS];
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

/* Written by the loader before the programs are loaded. A global, not static: clang 14 places
 * static ones where libbpf 1.1 cannot set them. */
struct config {
	__u64 constant_cookie;
	__u64 launch_limit; /* calls per second and rank */
	__u64 output_limit; /* bytes per second and rank */
	__u64 pidns_dev;    /* of the exporter's pid namespace; ino 0: the initial one */
	__u64 pidns_ino;
	__u64 wait_bounds[BOUNDS];
	__u64 gap_bounds[BOUNDS];
};

const volatile struct config config = {
	.constant_cookie = NO_COOKIE,
	.launch_limit = 250000,
	.output_limit = 1 << 20,
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct target);
} targets SEC(".maps");

/* Mapped into the exporter's memory: a collection costs no system call. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct rank_stat);
} ranks SEC(".maps");

/* Least recently used: threads and calls that never return must not fill these. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u64);
} launches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct inflight_key);
	__type(value, __u64);
} inflight SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct comm_key);
	__type(value, __u64);
} comms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct output);
} scratch SEC(".maps");

#endif
