function(config, s, a) {
  rules: [
    a.family(
      'GpuThrottled',
      |||
        (
          tocsin_rank:throttled_seconds:increase1m >= %(minute)g
          and on (%(subject)s)
          tocsin_rank:activity:relative > %(effect)g
          and on (%(job)s)
          tocsin_job:comparable:bool
        )
        or
        (
          tocsin_rank:throttled_seconds:increase5m >= %(long)g
          and on (%(subject)s)
          tocsin_rank:throttled_seconds:increase1m >= %(minute)g
        )
      ||| % {
        minute: config.throttleSecondsPerMinute,
        long: config.throttleSecondsPer5m,
        effect: config.throttleEffectRatio,
        subject: s.subject,
        job: s.job,
      },
      "A GPU's clock is held down",
      'The clock of GPU {{ $labels.gpu }} on {{ $labels.node }} (rank {{ $labels.rank }} of {{ $labels.job_id }}) is held down for heat, a hardware slowdown or a power brake, while it is under load.',
      'tocsin_job_gpu_throttle_active{job_id="{{ $labels.job_id }}", rank="{{ $labels.rank }}", %s} == 1' % config.exporterSelector,
    ),
  ],
}
