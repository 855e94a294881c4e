function(config, s, a) {
  // Ahead of the peers for most of the samples, now as well, and nothing recognised explains it.
  local ahead(record, ratio) = |||
    (
      %(tiers)s
    )
    and on (%(subject)s)
    %(record)s > %(ratio)g
    and on (%(job)s)
    tocsin_job:comparable:bool
    unless on (%(subject)s)
    tocsin_rank:throttled_lately:bool
  ||| % {
    tiers: std.join('or\n', [
      |||
        (
          quantile_over_time(%(rest)g, %(record)s[%(persist)s]) > %(ratio)g
          and on (%(job)s)
          tocsin_job:activity_tier:info{average="%(average)s"}
        )
      ||| % {
        rest: 1 - config.failSlowShare,
        record: record,
        persist: tier.persist,
        average: tier.average,
        ratio: ratio,
        job: s.job,
      }
      for tier in config.activityTiers
    ]),
    record: record,
    ratio: ratio,
    subject: s.subject,
    job: s.job,
  },
  local evidence(record) = record + '{job_id="{{ $labels.job_id }}"}',

  rules: [
    a.family(
      'FailSlowGpu',
      |||
        %(ahead)sand on (%(subject)s)
        (
          tocsin_rank:tensor:relative - 1
          < on (%(subject)s)
          %(part)g * (tocsin_rank:activity:relative - 1)
        )
      ||| % {
        ahead: ahead('tocsin_rank:activity:relative', config.failSlowRatio),
        subject: s.subject,
        part: config.failSlowTensorPart,
      },
      'One GPU is persistently slower than its peers',
      'GPU {{ $labels.gpu }} on {{ $labels.node }} (rank {{ $labels.rank }} of {{ $labels.job_id }}) is busy while the other ranks wait, without doing more work and without a recognised throttle reason.',
      evidence('tocsin_rank:activity:relative'),
    ),
    a.family(
      'FailSlowGpu',
      |||
        %(sm)sunless on (%(subject)s)
        tocsin_rank:tensor:relative
        or
        %(power)sunless on (%(subject)s)
        tocsin_rank:activity:relative
      ||| % {
        sm: ahead('tocsin_rank:activity:relative', config.failSlowRatio),
        power: ahead('tocsin_rank:power:relative', config.failSlowPowerRatio),
        subject: s.subject,
      },
      'One rank is persistently busier than its peers, slow GPU or uneven work',
      'GPU {{ $labels.gpu }} on {{ $labels.node }} (rank {{ $labels.rank }} of {{ $labels.job_id }}) is busy while the other ranks wait. Tensor activity is not to be had here, so a slow GPU and a rank with more work look alike.',
      evidence('tocsin_rank:power:relative'),
      verdict='inconclusive',
    ),
  ],
}
