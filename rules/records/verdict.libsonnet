// One row per job out of the family alerts that fire: least order, then the earliest event, then
// the name, then the rank. A later cause takes the row over and never adds a second one.
function(config, families, s) {
  local labels = s.list(['job_id', 'family', 'verdict', 'side', 'layer', 'order', 'tier', 'rank', 'node', 'gpu', 'gpu_uuid']),
  local names = std.set(std.objectFields(families)),
  local orders = std.set([families[name].order for name in names]),
  local severities = std.set([families[name].severity for name in names]),
  // TocsinVerdict carries the same labels and would keep itself alive.
  local firing = 'alertname=~"Tocsin.+", alertname!="TocsinVerdict", family=~".+", order=~".+", job_id=~".+"',

  // Families in alphabetical order, so that the position stands for the name.
  local position(name) = std.find(name, names)[0],

  local severity(expr, level) =
    'label_replace(%s, "severity", "%s", "family", "%s")' % [
      expr,
      level,
      std.join('|', [name for name in names if families[name].severity == level]),
    ],

  rules: [
    {
      // Each firing family with the time of its event, or the time it began.
      record: 'tocsin_job:candidate:timestamp_seconds',
      expr: |||
        (
          min by (%(labels)s) (
            ALERTS_FOR_STATE{%(firing)s}
            and ignoring (alertstate)
            ALERTS{alertstate="firing", %(firing)s}
          ) * 0
            + on (%(event)s) group_left ()
          min by (%(event)s) (last_over_time(tocsin_job:event:timestamp_seconds[5m]))
        )
        or
        min by (%(labels)s) (
          ALERTS_FOR_STATE{%(firing)s}
          and ignoring (alertstate)
          ALERTS{alertstate="firing", %(firing)s}
        )
      ||| % {
        labels: labels,
        firing: firing,
        event: s.list(['job_id', 'family', 'rank', 'node']),
      },
    },
    {
      // Order first: an order is worth more than any time of this century or the next.
      record: 'tocsin_job:candidate:score',
      expr: std.join('or\n', [
        |||
          tocsin_job:candidate:timestamp_seconds{order="%d"} + %de10
        ||| % [order, order]
        for order in orders
      ]),
    },
    {
      record: 'tocsin_job:candidate:leading',
      expr: |||
        tocsin_job:candidate:score
        == on (%(job)s) group_left ()
        min by (%(job)s) (tocsin_job:candidate:score)
      ||| % { job: s.job },
    },
    {
      // Rows that are equal so far: by name, then by rank, then the cautious verdict. histogram_quantile is
      // the one function that reads a number from a label. bottomk keeps a single row whatever comes.
      record: 'tocsin_job:verdict:info',
      expr: std.foldl(
        severity,
        severities,
        |||
          bottomk by (%(job)s) (
            1,
            (
              %(names)s
            )
            +
            (
              histogram_quantile(
                1,
                label_replace(tocsin_job:candidate:leading{rank=~"[0-9]+"} * 0 + 1, "le", "$1", "rank", "(.+)")
                or
                label_replace(tocsin_job:candidate:leading{rank=~"[0-9]+"} * 0 + 1, "le", "+Inf", "rank", ".+")
              ) * 2
              or
              tocsin_job:candidate:leading * 0
            )
            +
            (
              tocsin_job:candidate:leading{verdict="inconclusive"} * 0
              or
              tocsin_job:candidate:leading * 0 + 1
            )
          ) * 0 + 1
        ||| % {
          job: s.job,
          names: std.join(
            '  or\n  ',
            ['tocsin_job:candidate:leading{family="%s"} * 0 + %d\n' % [name, position(name) * 1e9] for name in names]
          ),
        }
      ),
    },
    {
      record: 'tocsin_job:contributor:info',
      expr: |||
        max by (%(by)s) (tocsin_job:candidate:timestamp_seconds) * 0 + 1
        unless on (%(family)s)
        tocsin_job:verdict:info
      ||| % {
        by: s.list(['job_id', 'family', 'verdict', 'side', 'layer', 'order', 'tier']),
        family: s.list(['job_id', 'family']),
      },
    },
  ],
}
