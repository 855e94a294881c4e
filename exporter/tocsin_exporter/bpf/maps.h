/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Configuration and maps of the programs that libbpf loads.
 */
#ifndef TOCSIN_MAPS_H
#define TOCSIN_MAPS_H

#include "kernel.h"
#include "abi.h"

/* Written by the loader before the programs are loaded. A global, not static: clang 14 places
 * static ones where libbpf 1.1 cannot set them. */
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
	__type(value, struct inflight);
} in_flight SEC(".maps");

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
