"""Series of jobs and ranks: life and death, training progress, CUDA and NCCL behaviour."""

from __future__ import annotations

from tocsin_exporter.metrics.family import JOB, RANK, Family, Kind, Tier

__all__ = ["FAMILIES"]

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# Twelve bounds at most. Waits run from a microsecond (queue already empty) to a stuck collective.
_WAIT_BUCKETS = (0.00001, 0.0001, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_GAP_BUCKETS = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0)

FAMILIES = (
    # jobs
    Family("tocsin_job_info", _G, (*JOB, "allocator", "inner_id", "user", "team", "name"), "", "Always 1: what the allocator says of the job."),
    Family("tocsin_job_nodes_expected", _G, JOB, "", "Nodes the job declares."),
    Family("tocsin_job_ranks_expected", _G, JOB, "", "Ranks the job declares (world size)."),
    Family("tocsin_job_start_timestamp_seconds", _G, JOB, "seconds", "Start of the job's oldest process on this node."),
    Family("tocsin_job_last_exit_timestamp_seconds", _G, (*RANK, "code", "signal"), "seconds", "When this rank's process last ended, with its exit code or the signal that ended it; served 15 minutes after."),
    Family("tocsin_job_last_step", _G, RANK, "", "Last training step seen of a rank that ended; served 15 minutes after."),
    # ranks
    Family("tocsin_rank_up", _G, RANK, "", "1 while the rank's process lives, 0 for 15 minutes after it ended."),
    Family("tocsin_rank_info", _G, (*RANK, "pid", "local_rank", "attempt", "framework"), "", "Always 1: the process of this rank."),
    Family("tocsin_rank_software_info", _G, (*RANK, "step", "container", "torch", "jax", "cuda", "cudnn", "nccl", "driver"), "", "Always 1: the allocator's step and the pod's container, and the versions that the rank has loaded, by its mapped files.", Tier.FABRIC),
    Family("tocsin_rank_start_timestamp_seconds", _G, RANK, "seconds", "Start of the rank's process."),
    Family("tocsin_rank_exits_total", _C, (*RANK, "kind"), "", "Ends of this rank's process: ok (exit 0), error (other exit codes), signal, unknown."),
    Family("tocsin_rank_cpu_seconds_total", _C, RANK, "seconds", "CPU time of the rank's process."),
    Family("tocsin_rank_resident_memory_bytes", _G, RANK, "bytes", "Resident memory of the rank's process."),
    # training, from the job's own output
    Family("tocsin_training_step", _G, RANK, "", "Last training step printed."),
    Family("tocsin_training_total_steps", _G, RANK, "", "Steps the run plans, where printed."),
    Family("tocsin_training_epoch", _G, RANK, "", "Last epoch printed."),
    Family("tocsin_training_loss", _G, RANK, "", "Last training loss printed (NaN and Inf as printed)."),
    Family("tocsin_training_loss_mean", _G, RANK, "", "Mean of the last 10 finite training losses; absent before there are 10."),
    Family("tocsin_training_loss_best_mean", _G, RANK, "", "Lowest value that the 10-loss mean has had in this attempt."),
    Family("tocsin_training_loss_noise", _G, RANK, "", "Robust deviation of the loss from one print to the next: 1.4826 x median |difference| / sqrt(2) over the last 200 prints."),
    Family("tocsin_training_loss_recent_min", _G, RANK, "", "Lowest of the last 40 training losses; absent before there are 40."),
    Family("tocsin_training_grad_norm", _G, RANK, "", "Last gradient norm printed."),
    Family("tocsin_training_learning_rate", _G, RANK, "", "Last learning rate printed."),
    Family("tocsin_training_step_seconds", _G, RANK, "seconds", "Mean seconds per step over the last 10 prints: as printed, else from the time between prints."),
    Family("tocsin_training_tokens_per_second", _G, RANK, "", "Throughput as printed."),
    Family("tocsin_training_data_wait_seconds", _G, RANK, "seconds", "Last wait for input of a step, as printed."),
    Family("tocsin_training_steps_total", _C, RANK, "", "Steps of progress seen since the process started (repeats after a resume count again)."),
    Family("tocsin_training_nonfinite_losses_total", _C, RANK, "", "Training losses printed as NaN or Inf."),
    Family("tocsin_training_skipped_steps_total", _C, RANK, "", "Steps skipped for overflow, as printed."),
    Family("tocsin_training_last_progress_timestamp_seconds", _G, RANK, "seconds", "When the step last advanced."),
    Family("tocsin_training_phase", _G, (*RANK, "phase"), "", "1 for the phase the output last announced: init, compile, train, eval, checkpoint, finished."),
    Family("tocsin_training_last_checkpoint_step", _G, RANK, "", "Step of the last checkpoint that completed."),
    Family("tocsin_training_last_checkpoint_timestamp_seconds", _G, RANK, "seconds", "When the last checkpoint completed."),
    Family("tocsin_training_checkpoint_seconds", _G, RANK, "seconds", "Duration of the last checkpoint."),
    Family("tocsin_training_events_total", _C, (*RANK, "event"), "", "Failure lines of the output by kind: oom, exception, nccl_error, watchdog_timeout."),
    Family("tocsin_training_output_lines_total", _C, RANK, "", "Lines of output seen."),
    Family("tocsin_training_output_dropped_bytes_total", _C, RANK, "bytes", "Output that was not seen because a buffer was full."),
    # CUDA and NCCL, by uprobe
    Family("tocsin_rank_probed", _G, (*RANK, "layer"), "", "1 when a library of the layer (cuda, nccl) that the rank has loaded is probed; 0 when it has none, or hides its functions (NCCL linked statically and stripped), or may not be probed."),
    Family("tocsin_cuda_calls_total", _C, (*RANK, "op"), "", "Calls by kind: launch, graph_launch, memcpy_h2d, memcpy_d2h, memcpy_d2d, memcpy_async (copies whose name tells no direction), memset, alloc, free, sync_stream, sync_event, sync_context, module_load of the driver; sync_device of the runtime, each of which is a sync_context too."),
    Family("tocsin_cuda_errors_total", _C, (*RANK, "op"), "", "Calls that returned an error, for the kinds whose return is probed (all but launches)."),
    Family("tocsin_cuda_bytes_total", _C, (*RANK, "op"), "bytes", "Bytes asked for by copies and allocations; copies of arrays and in two or three dimensions are not in it."),
    Family("tocsin_cuda_call_seconds_total", _C, (*RANK, "op"), "seconds", "Time in synchronising calls, allocations and loads of modules (about 1 us per call is the probe's own)."),
    Family("tocsin_cuda_alloc_failures_total", _C, RANK, "", "Allocations for which the device had no memory. Frameworks free their caches and try again, so a few are harmless."),
    Family("tocsin_cuda_sync_seconds", _H, RANK, "seconds", "Time in synchronising calls on streams, events and contexts (about 1 us of it is the probe's own).", buckets=_WAIT_BUCKETS),
    Family("tocsin_cuda_launch_gap_seconds", _H, RANK, "seconds", "Time between one launch and the next on a host thread.", buckets=_GAP_BUCKETS),
    Family("tocsin_cuda_last_call_timestamp_seconds", _G, RANK, "seconds", "When the rank last made a probed CUDA call."),
    Family("tocsin_nccl_calls_total", _C, (*RANK, "op"), "", "NCCL calls by kind: all_reduce, all_gather, reduce_scatter, broadcast, reduce, send, recv, all_to_all, gather, scatter, group_end, comm_init, comm_split, comm_finalize, comm_destroy, comm_abort, async_error (looks at a communicator's state)."),
    Family("tocsin_nccl_errors_total", _C, (*RANK, "op"), "", "NCCL calls that returned an error: transfer (all that move data), group_end, comm_init, comm_split, comm_finalize, comm_destroy, comm_abort; of async_error the looks that found one, so one error counts as often as it is looked at."),
    Family("tocsin_nccl_bytes_total", _C, (*RANK, "op"), "bytes", "Payload bytes handed to NCCL calls: their count times the size of their type."),
    Family("tocsin_nccl_sized_calls_total", _C, (*RANK, "op", "size"), "", "NCCL calls by the class of their payload, named by its upper bound: 4KiB, 64KiB, 1MiB, 16MiB, 256MiB, larger; present from a class's first call."),
    Family("tocsin_nccl_type_bytes_total", _C, (*RANK, "type"), "bytes", "Payload bytes of NCCL calls by data type; present from a type's first call."),
    Family("tocsin_nccl_communicator_info", _G, (*RANK, "comm", "ranks", "rank_in_comm"), "", "Always 1: size of a communicator and this rank's place in it, where its creation was seen and tells them."),
    Family("tocsin_nccl_communicator_calls_total", _C, (*RANK, "comm"), "", "Collective calls per communicator, by order of its creation (0 to 15, then other): the rank with the fewest is behind."),
    Family("tocsin_nccl_communicator_bytes_total", _C, (*RANK, "comm"), "bytes", "Payload bytes per communicator."),
    Family("tocsin_nccl_communicator_last_call_timestamp_seconds", _G, (*RANK, "comm"), "seconds", "When the rank last called a communicator."),
    Family("tocsin_nccl_last_call_timestamp_seconds", _G, RANK, "seconds", "When the rank last made an NCCL call; looks at a communicator's state (async_error) are none."),
    Family("tocsin_rank_probe_drops_total", _C, (*RANK, "source"), "", "Events of this rank that the probes could not count: map_full, ring_full, rate_guard."),
)
