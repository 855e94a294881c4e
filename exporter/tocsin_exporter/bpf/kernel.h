/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 *
 * The few kernel types that the programs touch, so that building needs neither kernel headers
 * nor a BTF dump. CO-RE relocates the fields against the running kernel's BTF at load time;
 * register layouts are the ones of the user-space ABI and never move.
 */
#ifndef TOCSIN_KERNEL_H
#define TOCSIN_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_F_MMAPABLE = 1U << 10 };
enum { BPF_RB_NO_WAKEUP = 1 };

#ifdef __TARGET_ARCH_x86
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8;
	unsigned long ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#define REG_ARG1(c) ((c)->di)
#define REG_ARG2(c) ((c)->si)
#define REG_ARG3(c) ((c)->dx)
#define REG_ARG4(c) ((c)->cx)
#define REG_ARG5(c) ((c)->r8)
#define REG_ARG6(c) ((c)->r9)
#define REG_RESULT(c) ((c)->ax)
#define REG_SP(c) ((c)->sp)
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	unsigned long regs[31], sp, pc, pstate;
};
#define REG_ARG1(c) ((c)->regs[0])
#define REG_ARG2(c) ((c)->regs[1])
#define REG_ARG3(c) ((c)->regs[2])
#define REG_ARG4(c) ((c)->regs[3])
#define REG_ARG5(c) ((c)->regs[4])
#define REG_ARG6(c) ((c)->regs[5])
#define REG_ARG7(c) ((c)->regs[6])
#define REG_RESULT(c) ((c)->regs[0])
#else
#error "build with -D__TARGET_ARCH_x86 or -D__TARGET_ARCH_arm64"
#endif

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define RELOCATED __attribute__((preserve_access_index))

typedef struct {
	int counter;
} RELOCATED atomic_t;

struct signal_struct {
	atomic_t live;
	int group_exit_code;
	unsigned int flags;
} RELOCATED;

struct task_struct {
	int exit_code;
	struct task_struct *group_leader;
	struct signal_struct *signal;
} RELOCATED;

/* include/linux/sched/signal.h; unchanged since it exists. */
#define SIGNAL_GROUP_EXIT 0x4

/* Argument block of the syscall tracepoints (events/syscalls/sys_enter_write/format). */
struct syscall_enter {
	__u64 common;
	long number;
	unsigned long args[6];
};

struct user_iovec {
	__u64 base;
	__u64 len;
};

#endif
