"""Series of a rank's life and death, and of its host side: CPUs, memory, waits, workers."""

from __future__ import annotations

from tocsin_exporter.metrics.family import RANK, Family, Kind, Tier

__all__ = ["FAMILIES", "MOST_HOST_SERIES"]

_C, _G = Kind.COUNTER, Kind.GAUGE

# What the host side of one rank may cost at most, all tiers.
MOST_HOST_SERIES = 48

FAMILIES = (
    # life and death
    Family("tocsin_rank_restarts_total", _C, RANK, "", "Times this rank's process was started again after it had ended."),
    Family("tocsin_rank_core_dumps_total", _C, RANK, "", "Ends of this rank's process that left a core dump."),
    Family("tocsin_rank_oom_kills_total", _C, (*RANK, "scope"), "", "Kills of this rank's process or of its children for lack of memory, by the kernel log: of a control group's (cgroup) or of the host's (global)."),
    Family("tocsin_rank_oom_kill_timestamp_seconds", _G, (*RANK, "scope"), "seconds", "Kernel time of the rank's last kill for lack of memory."),
    Family("tocsin_rank_zombie_since_timestamp_seconds", _G, RANK, "seconds", "Since when the ended process of this rank has waited for its parent to take its status."),
    Family("tocsin_rank_left_over_processes", _G, RANK, "", "Child processes of the rank that live on after it."),
    Family("tocsin_job_last_steps", _G, RANK, "", "Steps of progress that a rank that ended had made in its last attempt; served 15 minutes after."),
    Family("tocsin_job_last_checkpoint_step", _G, RANK, "", "Step of the last checkpoint of a rank that ended; served 15 minutes after."),
    Family("tocsin_job_last_loss", _G, RANK, "", "Last training loss of a rank that ended; served 15 minutes after."),
    Family("tocsin_job_last_loss_mean", _G, RANK, "", "Mean of the last 10 finite training losses of a rank that ended; served 15 minutes after."),
    Family("tocsin_job_last_loss_best_mean", _G, RANK, "", "Lowest value that the 10-loss mean had in the attempt that ended; served 15 minutes after."),
    Family("tocsin_job_last_loss_noise", _G, RANK, "", "Robust deviation of the loss (`tocsin_training_loss_noise`) of a rank that ended; served 15 minutes after."),
    Family("tocsin_job_last_learning_rate", _G, RANK, "", "Last learning rate of a rank that ended; served 15 minutes after."),
    Family("tocsin_job_last_nonfinite_losses", _G, RANK, "", "Training losses that a rank that ended had printed as NaN or Inf; served 15 minutes after."),
    # what it does now
    Family("tocsin_rank_processes", _G, (*RANK, "state"), "", "The rank's process and its children by state: running, sleeping, blocked (in the kernel, deaf to signals), stopped (by a signal), traced (by a debugger), zombie.", Tier.FABRIC),
    Family("tocsin_rank_blocked_since_timestamp_seconds", _G, (*RANK, "process", "where"), "seconds", "Since when at the latest a thread of the rank (rank) or of a child (worker) has been blocked without having run; the longest one, with the kernel's function where it waits."),
    Family("tocsin_rank_blocked_seconds_total", _C, RANK, "seconds", "Time that the rank's threads were blocked, estimated from how many were at each reading."),
    Family("tocsin_rank_stopped_since_timestamp_seconds", _G, (*RANK, "state"), "seconds", "Since when the rank's process has been stopped by a signal (stopped) or by a debugger (traced)."),
    Family("tocsin_rank_last_run_timestamp_seconds", _G, RANK, "seconds", "When a thread of the rank was last found to have been on a CPU since the reading before."),
    Family("tocsin_rank_core_dumping", _G, RANK, "", "1 while the kernel writes the rank's core dump: it is dead already, and still holds what it had."),
    Family("tocsin_rank_threads", _G, RANK, "", "Threads of the rank's process.", Tier.FABRIC),
    # where it may run, and where it does
    Family("tocsin_rank_cpus_allowed", _G, RANK, "", "CPUs that the rank's first thread may run on."),
    Family("tocsin_rank_cpu_local_ratio", _G, RANK, "ratio", "Share of the allowed CPUs that lie beside the rank's GPUs; absent where the GPUs or their place are not known."),
    Family("tocsin_rank_ran_local_ratio", _G, RANK, "ratio", "Share of the threads that ran since the last reading whose last CPU lies beside the rank's GPUs."),
    Family("tocsin_rank_memory_local_ratio", _G, RANK, "ratio", "Share of the memory of the rank's control group that lies beside its GPUs; absent where ranks share a group."),
    Family("tocsin_rank_memory_nodes_local_ratio", _G, RANK, "ratio", "Share of the memory nodes that the rank takes from, by its policy and cpuset, that lie beside its GPUs."),
    Family("tocsin_rank_memory_policy_info", _G, (*RANK, "policy", "nodes"), "", "Always 1: by which rule the rank's memory is placed (default, local, bind, prefer, prefer_many, interleave, weighted_interleave), and on which nodes.", Tier.FABRIC),
    Family("tocsin_rank_last_cpu", _G, RANK, "", "The CPU that the rank's first thread last ran on.", Tier.DEEP),
    # what it waits for
    Family("tocsin_rank_run_wait_seconds_total", _C, RANK, "seconds", "Time that the rank's threads were ready and waited for a CPU."),
    Family("tocsin_rank_first_thread_run_wait_seconds_total", _C, RANK, "seconds", "Time that the rank's first thread, which mostly launches kernels, was ready and waited for a CPU."),
    Family("tocsin_rank_timeslices_total", _C, RANK, "", "Times that a thread of the rank was put on a CPU.", Tier.DEEP),
    Family("tocsin_rank_context_switches_total", _C, (*RANK, "kind"), "", "Times that the rank's first thread left its CPU: to wait (voluntary), or pushed aside (involuntary).", Tier.FABRIC),
    Family("tocsin_rank_io_wait_seconds_total", _C, RANK, "seconds", "Time that the rank's threads waited for block I/O; absent without delay accounting."),
    Family("tocsin_rank_major_faults_total", _C, RANK, "", "Page faults of the rank's process that had to read."),
    Family("tocsin_rank_open_files", _G, RANK, "", "Files that the rank's process has open.", Tier.FABRIC),
    Family("tocsin_rank_open_files_limit", _G, RANK, "", "Files that it may have open.", Tier.FABRIC),
    # its control groups, which ranks of a job may share: not to be summed over ranks
    Family("tocsin_rank_cpu_quota", _G, RANK, "", "CPUs that the tightest control group around the rank may use."),
    Family("tocsin_rank_cpu_periods_total", _C, RANK, "", "Accounting periods of the control groups around the rank that have a CPU quota; shared by the ranks of a group.", Tier.FABRIC),
    Family("tocsin_rank_cpu_throttled_periods_total", _C, RANK, "", "Periods in which such a group had used up its quota; shared by the ranks of a group."),
    Family("tocsin_rank_cpu_throttled_seconds_total", _C, RANK, "seconds", "Time that such groups were kept from running; shared by the ranks of a group."),
    Family("tocsin_rank_cgroup_memory_bytes", _G, RANK, "bytes", "Memory in use in the control group around the rank with the least limit, else in its own; shared by the ranks of a group."),
    Family("tocsin_rank_cgroup_memory_limit_bytes", _G, RANK, "bytes", "That limit; absent without one."),
    Family("tocsin_rank_cgroup_memory_limit_hits_total", _C, RANK, "", "Times that this group came up against its limit."),
    Family("tocsin_rank_cgroup_ooms_total", _C, RANK, "", "Times that this group, or one inside it, ran out of memory at its own limit and not at that of a group around it; control groups of version two."),
    Family("tocsin_rank_cgroup_pressure_seconds_total", _C, (*RANK, "resource"), "seconds", "Time in which some task of the rank's own control group (version two) waited for the resource: cpu, memory, io.", Tier.FABRIC),
    Family("tocsin_rank_cgroup_oom_kills_total", _C, RANK, "", "Kills for lack of memory in the rank's own control group; shared by the ranks of a group."),
    # who works for it
    Family("tocsin_rank_workers", _G, RANK, "", "Child processes of the rank without a GPU context: data loaders, mostly."),
    Family("tocsin_rank_worker_cpu_seconds_total", _C, RANK, "seconds", "CPU time of those, as seen at the readings."),
    Family("tocsin_rank_worker_run_wait_seconds_total", _C, RANK, "seconds", "Time that their first threads were ready and waited for a CPU."),
    Family("tocsin_rank_worker_io_wait_seconds_total", _C, RANK, "seconds", "Time that their first threads waited for block I/O; absent without delay accounting."),
    Family("tocsin_rank_worker_blocked_seconds_total", _C, RANK, "seconds", "Time that they were blocked, estimated from how many were at each reading."),
    Family("tocsin_rank_worker_resident_memory_bytes", _G, RANK, "bytes", "Resident memory of those; what they share with the rank counts again in each."),
)
