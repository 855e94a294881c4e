// What each rank's device does, and how that compares with the peers of its job on the same
// model. A device that waits in a collective stays busy with idle pipes, so the one that never
// waits stands out by its SM activity, and by its power where activity is not to be had.
function(config, s, j) {
  local d = import '../lib/duration.libsonnet',
  local tiers = config.activityTiers,

  local averaged(metric, window) =
    j.withModel(
      |||
        max by (%(subject)s) (
          avg_over_time(%(metric)s[%(window)s])
          and
          %(metric)s
        )
      ||| % { subject: s.subject, metric: s.raw(metric, 'rank!=""'), window: window },
      s.raw('tocsin_gpu_info'),
    ),

  // The average over the window that suits the job's steps.
  local tiered(record, metric) = {
    record: record,
    expr: std.join('or\n', [
      |||
        (
          %(average)s
          and on (%(job)s)
          tocsin_job:activity_tier:info{average="%(window)s"}
        )
      ||| % { average: averaged(metric, tier.average), job: s.job, window: tier.average }
      for tier in tiers
    ]),
  },

  local relative(record, of, floor) = {
    record: record,
    expr: |||
      max by (%(subject)s) (
        %(of)s
          / on (%(peers)s) group_left ()
        (
          quantile by (%(peers)s) (0.5, %(of)s) > %(floor)g
          and
          count by (%(peers)s) (%(of)s) > %(minimum)d
        )
      )
    ||| % {
      subject: s.subject,
      peers: s.list(['job_id', 'model']),
      of: of,
      floor: floor,
      minimum: config.minPeers,
    },
  },

  rules: [
    {
      // The windows that together hold at least eight steps of the job.
      record: 'tocsin_job:activity_tier:info',
      labels: { average: tiers[i].average },
      expr:
        |||
          (tocsin_job:step_seconds:recent > %(above)g <= %(most)g) * 0 + 1
        ||| % {
          above: if i == 0 then -1 else tiers[i - 1].maxStepSeconds,
          most: tiers[i].maxStepSeconds,
        } + if i == std.length(tiers) - 1 then |||
          or
          (tocsin_job:ranks_up:count * 0 + 1 unless on (%(job)s) tocsin_job:step_seconds:recent)
        ||| % { job: s.job } else '',
    }
    for i in std.range(0, std.length(tiers) - 1)
  ] + [
    { record: 'tocsin_rank:sm_active:avg1m', expr: averaged('tocsin_job_gpu_sm_active_ratio', '1m') },
    { record: 'tocsin_rank:tensor_active:avg1m', expr: averaged('tocsin_job_gpu_tensor_active_ratio', '1m') },
    tiered('tocsin_rank:sm_active:tier', 'tocsin_job_gpu_sm_active_ratio'),
    tiered('tocsin_rank:tensor_active:tier', 'tocsin_job_gpu_tensor_active_ratio'),
    tiered('tocsin_rank:power_watts:tier', 'tocsin_job_gpu_power_watts'),
    relative('tocsin_rank:activity:relative', 'tocsin_rank:sm_active:tier', config.minMedianActivity),
    relative('tocsin_rank:tensor:relative', 'tocsin_rank:tensor_active:tier', 0.01),
    relative('tocsin_rank:power:relative', 'tocsin_rank:power_watts:tier', 1),
    {
      // Ranks may be compared once all of them are older than warm-up and windows, so that no
      // window holds another process or the start of this one.
      record: 'tocsin_job:comparable:bool',
      expr: std.join('or\n', [
        |||
          (
            time() - max by (%(job)s) (tocsin_rank:start:timestamp_seconds) > %(age)d
            and on (%(job)s)
            tocsin_job:activity_tier:info{average="%(window)s"}
            and on (%(job)s)
            tocsin_job:advancing:bool
          ) * 0 + 1
        ||| % {
          job: s.job,
          age: d.seconds(config.warmUp) + d.seconds(tier.average) + d.seconds(tier.persist),
          window: tier.average,
        }
        for tier in tiers
      ]),
    },
  ],
}
