/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Counts CUDA driver and NCCL calls of known processes, hands over what they write to stdout
 * and stderr, and tells how they end. Everything is filtered by `targets`; nothing is counted
 * for a process that user space did not name.
 */
#include "maps.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline __u64 current_pid_tgid(void)
{
	struct bpf_pidns_info {
		__u32 pid;
		__u32 tgid;
	} info = {};

	if (config.pidns_ino == 0)
		return bpf_get_current_pid_tgid();
	if (bpf_get_ns_current_pid_tgid(config.pidns_dev, config.pidns_ino, (void *)&info, sizeof(info)))
		return 0;
	return (__u64)info.tgid << 32 | info.pid;
}

static __always_inline struct target *find_target(__u64 pid_tgid)
{
	__u32 tgid = pid_tgid >> 32;

	return bpf_map_lookup_elem(&targets, &tgid);
}

static __always_inline struct rank_stat *stat_of(const struct target *target)
{
	__u32 slot = target->slot;

	return bpf_map_lookup_elem(&ranks, &slot);
}

static __always_inline struct rank_stat *current_stat(__u64 *pid_tgid)
{
	struct target *target;

	*pid_tgid = current_pid_tgid();
	target = find_target(*pid_tgid);
	return target ? stat_of(target) : 0;
}

static __always_inline __u64 cookie_of(void *ctx)
{
	return config.constant_cookie == NO_COOKIE ? bpf_get_attach_cookie(ctx) : config.constant_cookie;
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

static __always_inline void touch(struct op_stat *op, __u64 now)
{
	add(&op->calls, 1);
	op->last_ns = now;
}

/* Kernel launches: entry only, since the return probe would double the cost of the hottest call. */
SEC("uprobe")
int launch_enter(struct pt_regs *ctx)
{
	__u64 pid_tgid, now, *last;
	struct rank_stat *stat = current_stat(&pid_tgid);

	if (!stat)
		return 0;
	now = bpf_ktime_get_ns();
	if (now - stat->launch_window_ns > SECOND) {
		stat->launch_window_ns = now;
		stat->launch_window_calls = 0;
	}
	if (stat->launch_window_calls++ >= config.launch_limit) {
		add(&stat->drop_rate_guard, 1);
		return 0;
	}
	touch(&stat->ops[COOKIE_OP(cookie_of(ctx))], now);
	last = bpf_map_lookup_elem(&launches, &pid_tgid);
	if (last) {
		observe(&stat->gap, config.gap_bounds, now - *last);
		*last = now;
	} else if (bpf_map_update_elem(&launches, &pid_tgid, &now, BPF_ANY)) {
		add(&stat->drop_map_full, 1);
	}
	return 0;
}

SEC("uprobe")
int call_enter(struct pt_regs *ctx)
{
	__u64 pid_tgid, now, cookie;
	struct rank_stat *stat = current_stat(&pid_tgid);
	struct inflight_key key = {};

	if (!stat)
		return 0;
	cookie = cookie_of(ctx);
	now = bpf_ktime_get_ns();
	/* At entry, so that a call that never returns is seen. */
	touch(&stat->ops[COOKIE_OP(cookie)], now);
	if (!(cookie & COOKIE_WAITS))
		return 0;
	key.pid_tgid = pid_tgid;
	key.op = COOKIE_OP(cookie);
	if (bpf_map_update_elem(&inflight, &key, &now, BPF_ANY))
		add(&stat->drop_map_full, 1);
	return 0;
}

SEC("uretprobe")
int call_leave(struct pt_regs *ctx)
{
	__u64 pid_tgid, cookie, *start;
	struct rank_stat *stat = current_stat(&pid_tgid);
	struct inflight_key key = {};

	if (!stat)
		return 0;
	cookie = cookie_of(ctx);
	if ((__u32)REG_RESULT(ctx) != 0)
		add(&stat->ops[COOKIE_OP(cookie)].errors, 1);
	if (!(cookie & COOKIE_WAITS))
		return 0;
	key.pid_tgid = pid_tgid;
	key.op = COOKIE_OP(cookie);
	start = bpf_map_lookup_elem(&inflight, &key);
	if (!start)
		return 0;
	observe(&stat->wait, config.wait_bounds, bpf_ktime_get_ns() - *start);
	bpf_map_delete_elem(&inflight, &key);
	return 0;
}

static __always_inline __u64 new_comm(struct rank_stat *stat, struct comm_key *key)
{
	__u64 index = __sync_fetch_and_add(&stat->comm_next, 1);

	if (index > OTHER_COMM)
		index = OTHER_COMM;
	if (bpf_map_update_elem(&comms, key, &index, BPF_ANY))
		add(&stat->drop_map_full, 1);
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

SEC("uprobe")
int nccl_enter(struct pt_regs *ctx)
{
	__u64 pid_tgid, cookie, index, *known;
	struct rank_stat *stat = current_stat(&pid_tgid);
	struct comm_key key = {};
	struct op_stat *op;

	if (!stat)
		return 0;
	cookie = cookie_of(ctx);
	op = &stat->ops[COOKIE_OP(cookie)];
	touch(op, bpf_ktime_get_ns());
	if (COOKIE_COUNT(cookie))
		add(&op->bytes, argument(ctx, COOKIE_COUNT(cookie)) *
					type_size((__u32)argument(ctx, COOKIE_TYPE(cookie))));
	if (!COOKIE_COMM(cookie))
		return 0;
	key.comm = argument(ctx, COOKIE_COMM(cookie));
	key.tgid = pid_tgid >> 32;
	if (!key.comm)
		return 0;
	if (cookie & COOKIE_ENDS_COMM) {
		/* The address may be given to the next communicator. */
		bpf_map_delete_elem(&comms, &key);
		return 0;
	}
	known = bpf_map_lookup_elem(&comms, &key);
	/* Created before the probe was there: counted from its first call on. */
	index = known ? *known : new_comm(stat, &key);
	if (index < COMMS)
		add(&stat->comm_calls[index], 1);
	return 0;
}

/* Communicator creation: the handle is known only after the call has stored it. */
SEC("uprobe")
int comm_enter(struct pt_regs *ctx)
{
	__u64 pid_tgid, cookie, out;
	struct rank_stat *stat = current_stat(&pid_tgid);
	struct inflight_key key = {};

	if (!stat)
		return 0;
	cookie = cookie_of(ctx);
	touch(&stat->ops[COOKIE_OP(cookie)], bpf_ktime_get_ns());
	out = argument(ctx, COOKIE_COMM(cookie));
	key.pid_tgid = pid_tgid;
	key.op = COOKIE_OP(cookie);
	if (bpf_map_update_elem(&inflight, &key, &out, BPF_ANY))
		add(&stat->drop_map_full, 1);
	return 0;
}

SEC("uretprobe")
int comm_leave(struct pt_regs *ctx)
{
	__u64 pid_tgid, cookie, comm = 0, *out;
	struct rank_stat *stat = current_stat(&pid_tgid);
	struct inflight_key key = {};
	struct comm_key made = {};

	if (!stat)
		return 0;
	cookie = cookie_of(ctx);
	key.pid_tgid = pid_tgid;
	key.op = COOKIE_OP(cookie);
	out = bpf_map_lookup_elem(&inflight, &key);
	if (!out)
		return 0;
	if ((__u32)REG_RESULT(ctx) != 0)
		add(&stat->ops[COOKIE_OP(cookie)].errors, 1);
	else if (!bpf_probe_read_user(&comm, sizeof(comm), (void *)*out) && comm) {
		made.comm = comm;
		made.tgid = pid_tgid >> 32;
		new_comm(stat, &made);
	}
	bpf_map_delete_elem(&inflight, &key);
	return 0;
}

/* Sends the next chunk of [from, from + size) and says how much that was; 0 when it cannot. */
static __always_inline __u32 send(struct rank_stat *stat, struct output *rec, __u64 from, __u64 size)
{
	__u32 n = size > CHUNK ? CHUNK : size;

	/* Keeps the bound where the verifier sees it. */
	barrier_var(n);
	if (n > CHUNK)
		n = CHUNK;
	if (stat->out_window_bytes >= config.output_limit)
		return 0;
	if (bpf_probe_read_user(rec->data, n, (void *)from))
		return 0;
	rec->head.len = n;
	if (bpf_ringbuf_output(&records, rec, sizeof(rec->head) + n, BPF_RB_NO_WAKEUP)) {
		add(&stat->drop_ring_full, 1);
		return 0;
	}
	stat->out_window_bytes += n;
	add(&stat->out_bytes, n);
	return n;
}

static __always_inline struct rank_stat *writer(unsigned long fd, struct output **rec)
{
	__u64 pid_tgid, now;
	struct target *target;
	struct rank_stat *stat;
	__u32 zero = 0;

	if (fd != 1 && fd != 2)
		return 0;
	pid_tgid = current_pid_tgid();
	target = find_target(pid_tgid);
	if (!target)
		return 0;
	stat = stat_of(target);
	*rec = bpf_map_lookup_elem(&scratch, &zero);
	if (!stat || !*rec)
		return 0;
	now = bpf_ktime_get_ns();
	if (now - stat->out_window_ns > SECOND) {
		stat->out_window_ns = now;
		stat->out_window_bytes = 0;
	}
	(*rec)->head.kind = RECORD_OUTPUT;
	(*rec)->head.tgid = pid_tgid >> 32;
	(*rec)->head.token = target->token;
	(*rec)->head.value = fd;
	(*rec)->head.time_ns = now;
	(*rec)->head.dropped = stat->out_dropped_bytes;
	return stat;
}

SEC("tp/syscalls/sys_enter_write")
int on_write(struct syscall_enter *ctx)
{
	struct output *rec;
	__u64 from = ctx->args[1], left = ctx->args[2];
	struct rank_stat *stat = writer(ctx->args[0], &rec);
	__u32 i, n;

	if (!stat)
		return 0;
	for (i = 0; i < MAX_CHUNKS && left; i++) {
		n = send(stat, rec, from, left);
		if (!n)
			break;
		from += n;
		left -= n;
	}
	if (left)
		add(&stat->out_dropped_bytes, left);
	return 0;
}

SEC("tp/syscalls/sys_enter_writev")
int on_writev(struct syscall_enter *ctx)
{
	struct user_iovec vec = {};
	struct output *rec;
	__u64 next = ctx->args[1], vectors = ctx->args[2];
	struct rank_stat *stat = writer(ctx->args[0], &rec);
	__u32 i, n;

	if (!stat)
		return 0;
	/* One loop over both vectors and chunks: two nested ones cost the verifier 0.3 s. */
	for (i = 0; i < MAX_STEPS; i++) {
		if (vec.len == 0) {
			if (vectors == 0)
				return 0;
			if (bpf_probe_read_user(&vec, sizeof(vec), (void *)next))
				return 0;
			next += sizeof(vec);
			vectors--;
			continue;
		}
		n = send(stat, rec, vec.base, vec.len);
		if (!n)
			break;
		vec.base += n;
		vec.len -= n;
	}
	if (vec.len)
		add(&stat->out_dropped_bytes, vec.len);
	return 0;
}

/* Raw, so that it needs no mounted tracefs. */
SEC("raw_tp/sched_process_exit")
int on_exit(void *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	__u64 pid_tgid = current_pid_tgid();
	struct target *target = find_target(pid_tgid);
	__u32 tgid = pid_tgid >> 32;
	struct rank_stat *stat;
	struct record rec = {};

	(void)ctx;
	/* The process ends with its last thread, which need not be its first one. */
	if (!target || BPF_CORE_READ(task, signal, live.counter) != 0)
		return 0;
	stat = stat_of(target);
	rec.kind = RECORD_EXIT;
	rec.tgid = tgid;
	rec.token = target->token;
	rec.time_ns = bpf_ktime_get_ns();
	/* As wait(2) reports it. */
	if (BPF_CORE_READ(task, signal, flags) & SIGNAL_GROUP_EXIT)
		rec.value = BPF_CORE_READ(task, signal, group_exit_code);
	else
		rec.value = BPF_CORE_READ(task, group_leader, exit_code);
	/* The pid may be given to a stranger; and of two last threads only one reports. */
	if (bpf_map_delete_elem(&targets, &tgid))
		return 0;
	if (bpf_ringbuf_output(&records, &rec, sizeof(rec), BPF_RB_NO_WAKEUP) && stat)
		add(&stat->drop_ring_full, 1);
	return 0;
}
