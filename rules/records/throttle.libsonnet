// Seconds for which a recognised reason held a loaded GPU's clock down, by rank.
function(config, s) {
  local d = import '../lib/duration.libsonnet',
  local reasons = 'rank!="", reason=~"%s"' % config.throttleReasons,

  local held(window) = {
    record: 'tocsin_rank:throttled_seconds:increase' + window,
    // The largest reason, not the sum: one cause often sets several bits.
    expr: |||
      max by (%(subject)s) (increase(%(seconds)s[%(window)s]))
      and on (%(subject)s)
      max by (%(subject)s) (avg_over_time(%(load)s[1m])) > %(least)g
    ||| % {
      subject: s.subject,
      window: window,
      seconds: s.raw('tocsin_job_gpu_throttle_seconds_total', reasons),
      load: s.raw('tocsin_job_gpu_utilization_ratio', 'rank!=""'),
      least: config.throttleMinUtilization,
    },
  },

  rules: [
    held('1m'),
    held('5m'),
    {
      // Held down while the windows of the comparison and a minute more were filled: slow for a known reason.
      record: 'tocsin_rank:throttled_lately:bool',
      expr: std.join('or\n', [
        |||
          (
            max by (%(subject)s) (max_over_time(%(active)s[%(window)ds])) > 0
            and on (%(job)s)
            tocsin_job:activity_tier:info{average="%(tier)s"}
          )
        ||| % {
          subject: s.subject,
          job: s.job,
          active: s.raw('tocsin_job_gpu_throttle_active', reasons),
          window: d.seconds(tier.average) + d.seconds(tier.persist) + 60,
          tier: tier.average,
        }
        for tier in config.activityTiers
      ]),
    },
  ],
}
