// How the job is doing, from what it prints itself.
function(config, s) {
  rules: [
    {
      // Often one rank prints for all. Where it has died, its last step is what a restart must pass.
      record: 'tocsin_job:step:max',
      expr: |||
        max by (%(job)s) (%(step)s)
        or
        max by (%(job)s) (%(last)s)
      ||| % { job: s.job, step: s.raw('tocsin_training_step'), last: s.raw('tocsin_job_last_step') },
    },
    {
      record: 'tocsin_job:steps_per_second:rate1m',
      expr: 'max by (%s) (rate(%s[1m]))' % [s.job, s.raw('tocsin_training_steps_total')],
    },
    {
      record: 'tocsin_job:step_seconds:recent',
      expr: 'max by (%s) (%s)' % [s.job, s.raw('tocsin_training_step_seconds')],
    },
    {
      // The quicker quarter of the last hour: a slow spell does not become the norm.
      record: 'tocsin_job:step_seconds:baseline',
      expr: 'quantile_over_time(0.25, tocsin_job:step_seconds:recent[1h])',
    },
    {
      record: 'tocsin_job:loss:mean',
      expr: 'avg by (%s) (%s)' % [s.job, s.raw('tocsin_training_loss_mean')],
    },
    {
      // How old the last step may get before the job counts as not advancing. Logs are sparse or dense, so
      // twice the usual gap (the median age is half of it), but never beyond the hang budget.
      record: 'tocsin_job:progress_limit:seconds',
      expr: |||
        clamp(4 * quantile_over_time(0.5, tocsin_job:since_progress:seconds[15m]), %d, %d)
      ||| % [config.progressSeconds, config.hangSeconds],
    },
    {
      // The job takes steps and announces no other phase. A phase that only rank 0 prints may
      // outlive what it announced, so it counts while no step is seen.
      record: 'tocsin_job:advancing:bool',
      expr: |||
        (
          (
            tocsin_job:since_progress:seconds <= tocsin_job:progress_limit:seconds
            or
            tocsin_job:since_progress:seconds and on (%(job)s)
            time() - max by (%(job)s) (%(nccl)s) < %(recent)d
          )
          unless on (%(job)s)
          (
            max by (%(job)s) (%(phase)s == 1)
            and on (%(job)s)
            tocsin_job:since_progress:seconds > 10
          )
        ) * 0 + 1
      ||| % {
        job: s.job,
        nccl: s.raw('tocsin_nccl_last_call_timestamp_seconds'),
        recent: config.progressNcclSeconds,
        phase: s.raw('tocsin_training_phase', 'phase=~"init|compile|eval|checkpoint|finished"'),
      },
    },
    {
      // How far even the lowest of the last 40 losses lies above the best mean, in deviations of the noise.
      record: 'tocsin_job:loss_excess:sigmas',
      expr: |||
        max by (%(job)s) (
          (
            max by (%(by)s) (%(recent)s)
            - on (%(by)s)
            max by (%(by)s) (%(best)s)
          )
          / on (%(by)s)
          (
            max by (%(by)s) (%(noise)s) > on (%(by)s) %(floor)g * abs(max by (%(by)s) (%(best)s))
            or
            %(floor)g * abs(max by (%(by)s) (%(best)s))
          )
        )
      ||| % {
        job: s.job,
        by: s.rankNode,
        recent: s.raw('tocsin_training_loss_recent_min'),
        best: s.raw('tocsin_training_loss_best_mean'),
        noise: s.raw('tocsin_training_loss_noise'),
        floor: config.lossNoiseFloor,
      },
    },
  ],
}
