/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * What the probes of CUDA and NCCL do, whoever loads them. Before this file stand: abi.h, LOOKUP, UPDATE and
 * DELETE on the maps `targets`, `ranks`, `launches`, `in_flight` and `comms`, CONFIG(field), and REG_ARG1..7.
 */
#ifndef TOCSIN_BODIES_H
#define TOCSIN_BODIES_H

static __always_inline __u64 current_pid_tgid(void)
{
	struct bpf_pidns_info {
		__u32 pid;
		__u32 tgid;
	} info = {};

	if (CONFIG(pidns_ino) == 0)
		return bpf_get_current_pid_tgid();
	if (bpf_get_ns_current_pid_tgid(CONFIG(pidns_dev), CONFIG(pidns_ino), (void *)&info, sizeof(info)))
		return 0;
	return (__u64)info.tgid << 32 | info.pid;
}

static __always_inline struct target *find_target(__u64 pid_tgid)
{
	__u32 tgid = pid_tgid >> 32;

	return LOOKUP(targets, tgid);
}

static __always_inline struct rank_stat *stat_of(const struct target *target)
{
	__u32 slot = target->slot;

	return LOOKUP(ranks, slot);
}

static __always_inline struct rank_stat *current_stat(__u64 *pid_tgid)
{
	struct target *target;

	*pid_tgid = current_pid_tgid();
	target = find_target(*pid_tgid);
	return target ? stat_of(target) : 0;
}

static __always_inline void add(__u64 *counter, __u64 amount)
{
	__sync_fetch_and_add(counter, amount);
}

static __always_inline void observe(struct histogram *h, const volatile __u64 *bounds, __u64 ns)
{
	__u32 i;

#pragma unroll
	for (i = 0; i < BOUNDS; i++)
		if (ns <= bounds[i])
			break;
	if (i >= BUCKETS)
		return;
	add(&h->buckets[i], 1);
	add(&h->sum_ns, ns);
}

/* Each load is fenced: clang would merge them into one through a computed pointer, which the
 * verifier refuses for a context. */
static __always_inline __u64 argument(struct pt_regs *ctx, __u32 number)
{
	__u64 value = 0;

	switch (number) {
	case 1:
		value = REG_ARG1(ctx);
		barrier_var(value);
		break;
	case 2:
		value = REG_ARG2(ctx);
		barrier_var(value);
		break;
	case 3:
		value = REG_ARG3(ctx);
		barrier_var(value);
		break;
	case 4:
		value = REG_ARG4(ctx);
		barrier_var(value);
		break;
	case 5:
		value = REG_ARG5(ctx);
		barrier_var(value);
		break;
	case 6:
		value = REG_ARG6(ctx);
		barrier_var(value);
		break;
	case 7:
#ifdef REG_ARG7
		value = REG_ARG7(ctx);
		barrier_var(value);
#else
		value = REG_SP(ctx);
		barrier_var(value);
		/* Past the return address; the probe sits before anything is pushed. */
		if (bpf_probe_read_user(&value, sizeof(value), (void *)(value + 8)))
			value = 0;
#endif
		break;
	}
	return value;
}

static __always_inline struct op_stat *op_of(struct rank_stat *stat, __u64 cookie)
{
	__u32 op = COOKIE_OP(cookie);

	/* Keeps the bound where the verifier sees it. */
	barrier_var(op);
	return &stat->ops[op < OPS ? op : 0];
}

static __always_inline void touch(struct op_stat *op, __u64 now)
{
	add(&op->calls, 1);
	op->last_ns = now;
}

/* Kernel launches: entry only, since the return probe would double the cost of the hottest call. Above the
 * limit they are counted all the same; only their gaps are left out. */
static __always_inline int launch_entered(struct pt_regs *ctx, __u64 cookie)
{
	__u64 pid_tgid, now, *last;
	struct rank_stat *stat = current_stat(&pid_tgid);

	(void)ctx;
	if (!stat)
		return 0;
	now = bpf_ktime_get_ns();
	touch(op_of(stat, cookie), now);
	if (now - stat->launch_window_ns > SECOND) {
		stat->launch_window_ns = now;
		stat->launch_window_calls = 0;
	}
	if (stat->launch_window_calls++ >= CONFIG(launch_limit)) {
		add(&stat->drop_rate_guard, 1);
		return 0;
	}
	last = LOOKUP(launches, pid_tgid);
	if (last) {
		observe(&stat->gap, CONFIG(gap_bounds), now - *last);
		*last = now;
	} else if (UPDATE(launches, pid_tgid, now)) {
		add(&stat->drop_map_full, 1);
	}
	return 0;
}

static __always_inline void begin(struct rank_stat *stat, __u64 pid_tgid, __u64 cookie, struct inflight *call)
{
	struct inflight_key key = {};

	key.pid_tgid = pid_tgid;
	key.op = COOKIE_OP(cookie);
	if (UPDATE(in_flight, key, *call))
		add(&stat->drop_map_full, 1);
}

/* Called at the return of a call that is timed; what it found at the entry is in `call`. */
static __always_inline int end(struct rank_stat *stat, __u64 pid_tgid, __u64 cookie, struct inflight *call)
{
	struct inflight_key key = {};
	struct inflight *found;

	key.pid_tgid = pid_tgid;
	key.op = COOKIE_OP(cookie);
	found = LOOKUP(in_flight, key);
	if (!found)
		return 0;
	*call = *found;
	DELETE(in_flight, key);
	return 1;
}

static __always_inline int call_entered(struct pt_regs *ctx, __u64 cookie)
{
	__u64 pid_tgid;
	struct rank_stat *stat = current_stat(&pid_tgid);
	struct inflight call = {};
	struct op_stat *op;

	if (!stat)
		return 0;
	op = op_of(stat, cookie);
	call.begin_ns = bpf_ktime_get_ns();
	/* At entry, so that a call that never returns is seen. */
	touch(op, call.begin_ns);
	if (COOKIE_COUNT(cookie))
		add(&op->bytes, argument(ctx, COOKIE_COUNT(cookie)));
	if (cookie & (COOKIE_WAITS | COOKIE_TIMED))
		begin(stat, pid_tgid, cookie, &call);
	return 0;
}

static __always_inline int call_left(struct pt_regs *ctx, __u64 cookie)
{
	__u64 pid_tgid, took;
	struct rank_stat *stat = current_stat(&pid_tgid);
	struct inflight call = {};
	struct op_stat *op;

	if (!stat)
		return 0;
	op = op_of(stat, cookie);
	if ((__u32)REG_RESULT(ctx) != 0) {
		add(&op->errors, 1);
		if ((cookie & COOKIE_ALLOCATES) && (__u32)REG_RESULT(ctx) == OUT_OF_MEMORY)
			add(&stat->alloc_failures, 1);
	}
	if (!(cookie & (COOKIE_WAITS | COOKIE_TIMED)) || !end(stat, pid_tgid, cookie, &call))
		return 0;
	took = bpf_ktime_get_ns() - call.begin_ns;
	add(&op->spent_ns, took);
	if (cookie & COOKIE_WAITS)
		observe(&stat->wait, CONFIG(wait_bounds), took);
	return 0;
}

static __always_inline __u64 new_comm(struct rank_stat *stat, struct comm_key *key, __u64 ranks, __u64 rank)
{
	__u64 index = __sync_fetch_and_add(&stat->comm_next, 1);

	if (index > OTHER_COMM)
		index = OTHER_COMM;
	if (UPDATE(comms, *key, index))
		add(&stat->drop_map_full, 1);
	if (index < OTHER_COMM) {
		stat->comms[index].ranks = ranks;
		stat->comms[index].rank = rank;
	}
	return index;
}

static __always_inline __u64 type_size(__u64 type)
{
	/* ncclDataType_t: int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 fp8 fp8 */
	switch (type) {
	case 0:
	case 1:
	case 10:
	case 11:
		return 1;
	case 6:
	case 9:
		return 2;
	case 2:
	case 3:
	case 7:
		return 4;
	case 4:
	case 5:
	case 8:
		return 8;
	}
	return 0;
}

static __always_inline __u64 payload(struct pt_regs *ctx, __u64 cookie, struct rank_stat *stat, struct op_stat *op)
{
	__u32 which = COOKIE_OP(cookie) - FIRST_PAYLOAD, class, type;
	__u64 bytes;

	type = argument(ctx, COOKIE_TYPE(cookie));
	bytes = argument(ctx, COOKIE_COUNT(cookie)) * type_size(type);
	add(&op->bytes, bytes);
#pragma unroll
	for (class = 0; class < SIZES - 1; class++)
		if (bytes <= CONFIG(size_bounds)[class])
			break;
	if (which < PAYLOADS && class < SIZES)
		add(&stat->sizes[which][class], 1);
	if (type >= OTHER_TYPE)
		type = OTHER_TYPE;
	barrier_var(type);
	if (type < TYPES) {
		add(&stat->types[type].calls, 1);
		add(&stat->types[type].bytes, bytes);
	}
	return bytes;
}

static __always_inline int nccl_entered(struct pt_regs *ctx, __u64 cookie)
{
	__u64 pid_tgid, now, index, bytes = 0, *known;
	struct rank_stat *stat = current_stat(&pid_tgid);
	struct comm_key key = {};
	struct op_stat *op;

	if (!stat)
		return 0;
	op = op_of(stat, cookie);
	now = bpf_ktime_get_ns();
	touch(op, now);
	if (COOKIE_COUNT(cookie))
		bytes = payload(ctx, cookie, stat, op);
	if (!COOKIE_COMM(cookie))
		return 0;
	key.comm = argument(ctx, COOKIE_COMM(cookie));
	key.tgid = pid_tgid >> 32;
	if (!key.comm)
		return 0;
	if (cookie & COOKIE_ENDS_COMM) {
		/* The address may be given to the next communicator. */
		DELETE(comms, key);
		return 0;
	}
	known = LOOKUP(comms, key);
	/* Created before the probe was there: counted from its first call on. */
	index = known ? *known : new_comm(stat, &key, 0, 0);
	if (index < COMMS) {
		add(&stat->comms[index].calls, 1);
		add(&stat->comms[index].bytes, bytes);
		stat->comms[index].last_ns = now;
	}
	return 0;
}

static __always_inline int nccl_left(struct pt_regs *ctx, __u64 cookie)
{
	__u64 pid_tgid;
	struct rank_stat *stat = current_stat(&pid_tgid);
	__u32 result = REG_RESULT(ctx);

	if (stat && result != 0 && result != NCCL_IN_PROGRESS)
		add(&op_of(stat, cookie)->errors, 1);
	return 0;
}

/* Communicator creation: the handle is known only after the call has stored it. */
static __always_inline int comm_entered(struct pt_regs *ctx, __u64 cookie)
{
	__u64 pid_tgid;
	struct rank_stat *stat = current_stat(&pid_tgid);
	struct inflight call = {};

	if (!stat)
		return 0;
	call.begin_ns = bpf_ktime_get_ns();
	touch(op_of(stat, cookie), call.begin_ns);
	call.out = argument(ctx, COOKIE_COMM(cookie));
	if (COOKIE_RANKS(cookie)) {
		call.ranks = (__u32)argument(ctx, COOKIE_RANKS(cookie));
		call.rank = (__u32)argument(ctx, COOKIE_RANK(cookie));
	}
	begin(stat, pid_tgid, cookie, &call);
	return 0;
}

static __always_inline int comm_left(struct pt_regs *ctx, __u64 cookie)
{
	__u64 pid_tgid, comm = 0;
	struct rank_stat *stat = current_stat(&pid_tgid);
	struct inflight call = {};
	struct comm_key made = {};
	struct op_stat *op;
	__u32 result = REG_RESULT(ctx);

	if (!stat || !end(stat, pid_tgid, cookie, &call))
		return 0;
	op = op_of(stat, cookie);
	add(&op->spent_ns, bpf_ktime_get_ns() - call.begin_ns);
	if (result != 0 && result != NCCL_IN_PROGRESS) {
		add(&op->errors, 1);
	} else if (!bpf_probe_read_user(&comm, sizeof(comm), (void *)call.out) && comm) {
		made.comm = comm;
		made.tgid = pid_tgid >> 32;
		new_comm(stat, &made, call.ranks, call.rank);
	}
	return 0;
}

/* An error that came later than its call: stored where the second argument points. */
static __always_inline int async_entered(struct pt_regs *ctx, __u64 cookie)
{
	__u64 pid_tgid;
	struct rank_stat *stat = current_stat(&pid_tgid);
	struct inflight call = {};

	if (!stat)
		return 0;
	call.begin_ns = bpf_ktime_get_ns();
	touch(op_of(stat, cookie), call.begin_ns);
	call.out = argument(ctx, COOKIE_COMM(cookie));
	begin(stat, pid_tgid, cookie, &call);
	return 0;
}

static __always_inline int async_left(struct pt_regs *ctx, __u64 cookie)
{
	__u64 pid_tgid;
	struct rank_stat *stat = current_stat(&pid_tgid);
	struct inflight call = {};
	__u32 said = 0;

	if (!stat || !end(stat, pid_tgid, cookie, &call) || REG_RESULT(ctx) != 0)
		return 0;
	if (!bpf_probe_read_user(&said, sizeof(said), (void *)call.out) && said != 0 && said != NCCL_IN_PROGRESS)
		add(&op_of(stat, cookie)->errors, 1);
	return 0;
}

#endif
