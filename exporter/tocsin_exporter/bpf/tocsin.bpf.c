/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * Counts CUDA driver and NCCL calls of known processes, hands over what they write to stdout
 * and stderr, and tells how they end. Everything is filtered by `targets`; nothing is counted
 * for a process that user space did not name.
 */
#include "maps.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define LOOKUP(map, key) bpf_map_lookup_elem(&(map), &(key))
#define UPDATE(map, key, value) bpf_map_update_elem(&(map), &(key), &(value), BPF_ANY)
#define DELETE(map, key) bpf_map_delete_elem(&(map), &(key))
#define CONFIG(field) (config.field)

#include "bodies.h"

static __always_inline __u64 cookie_of(void *ctx)
{
	return config.constant_cookie == NO_COOKIE ? bpf_get_attach_cookie(ctx) : config.constant_cookie;
}

#define PROBE(section, name, body)                \
	SEC(section)                              \
	int name(struct pt_regs *ctx)             \
	{                                         \
		return body(ctx, cookie_of(ctx)); \
	}

PROBE("uprobe", launch_enter, launch_entered)
PROBE("uprobe", call_enter, call_entered)
PROBE("uretprobe", call_leave, call_left)
PROBE("uprobe", nccl_enter, nccl_entered)
PROBE("uretprobe", nccl_leave, nccl_left)
PROBE("uprobe", comm_enter, comm_entered)
PROBE("uretprobe", comm_leave, comm_left)
PROBE("uprobe", async_enter, async_entered)
PROBE("uretprobe", async_leave, async_left)

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
