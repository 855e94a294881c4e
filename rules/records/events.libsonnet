// When each event family's cause happened, in kernel time. The alerts and the choice of the
// verdict read these: an alert knows when it began to fire, an event when it happened.
function(config, s, j) {
  rules: [
    {
      // A rank ended and is not back, while peers that already lived at that time still do. Peers that came
      // later belong to a restart, and those that end within seconds to a job that ends as a whole. Several
      // ranks that were asked to end are a job on its way out, which is only missed when it stays that way.
      record: 'tocsin_rank:missed:timestamp_seconds',
      expr: |||
        (
          (
            tocsin_rank:last_exit:timestamp_seconds{signal=~".+", signal!~"%(asked)s"}
            or
            tocsin_rank:last_exit:timestamp_seconds{code!~"0||%(askedCodes)s"}
            or
            (
              (
                tocsin_rank:last_exit:timestamp_seconds{signal=~"%(asked)s"}
                or
                tocsin_rank:last_exit:timestamp_seconds{code=~"%(askedCodes)s"}
              )
              unless on (%(job)s)
              (
                count by (%(job)s) (
                  (
                    tocsin_rank:last_exit:timestamp_seconds{signal=~"%(asked)s"}
                    or
                    tocsin_rank:last_exit:timestamp_seconds{code=~"%(askedCodes)s"}
                  )
                  and on (%(rank)s)
                  tocsin_rank:up:max == 0
                ) > 1
              )
            )
          )
          < time() - %(survive)d
          or
          (
            (
              tocsin_rank:last_exit:timestamp_seconds{signal="", code=~"0|"}
              or
              tocsin_rank:last_exit:timestamp_seconds{signal=~"%(asked)s"}
              or
              tocsin_rank:last_exit:timestamp_seconds{code=~"%(askedCodes)s"}
            )
            and on (%(job)s)
            tocsin_job:since_progress:seconds > %(hang)d
            and on (%(job)s)
            (
              tocsin_job:since_progress:seconds > %(steps)g * tocsin_job:step_seconds:recent
              or
              tocsin_job:since_progress:seconds unless on (%(job)s) tocsin_job:step_seconds:recent
            )
            unless on (%(job)s)
            max by (%(job)s) (%(finished)s == 1)
          )
        )
        > on (%(job)s) group_left ()
        min by (%(job)s) (tocsin_rank:start:timestamp_seconds)
        and on (%(rank)s)
        (
          tocsin_rank:up:max == 0
          or on (%(rank)s)
          (
            tocsin_rank:last_exit:timestamp_seconds < time() - %(served)d
            unless on (%(rank)s)
            max_over_time(tocsin_rank:up:max[5m]) == 1
            and on (%(node)s)
            max by (%(node)s) (%(exporter)s)
          )
        )
      ||| % {
        job: s.job,
        rank: s.rank,
        node: s.node,
        // Interrupt and termination, as signals and as the exit codes that shells and handlers make of them.
        asked: '2|15',
        askedCodes: '130|143',
        // Shortly before the exporter forgets the rank.
        served: 840,
        survive: config.deadRankPeersSurvive,
        hang: config.hangSeconds,
        steps: config.hangSteps,
        finished: s.raw('tocsin_training_phase', 'phase="finished"'),
        exporter: s.raw('tocsin_exporter_info'),
      },
    },
    {
      record: 'tocsin_job:event:timestamp_seconds',
      labels: { family: 'DeadRank' },
      expr: j.withDevice('tocsin_rank:missed:timestamp_seconds'),
    },
    {
      // Ranks that ended right after a fault of a device of theirs, or beside a kill for lack of memory.
      record: 'tocsin_rank:exit_explained:bool',
      expr: |||
        (
          tocsin_rank:last_exit:timestamp_seconds
            - on (%(jobNode)s) group_left ()
          max by (%(jobNode)s) (%(event)s > 0)
          >= -%(after)d <= %(before)d
        ) * 0 + 1
        or
        (
          tocsin_rank:last_exit:timestamp_seconds{signal=~"9|SIGKILL|KILL"}
          and on (%(node)s)
          (
            max by (%(node)s) (max_over_time(%(oom)s[%(memory)s]))
            > on (%(node)s)
            max by (%(node)s) (min_over_time(%(oom)s[%(memory)s]))
          )
        ) * 0 + 1
      ||| % {
        jobNode: s.jobNode,
        node: s.node,
        before: config.deadRankDeviceEventBefore,
        after: config.deadRankDeviceEventAfter,
        memory: config.exitMemory,
        event: s.raw('tocsin_job_gpu_event_timestamp_seconds', 'class=~"%s"' % config.fatalEventClasses),
        oom: s.raw('tocsin_host_oom_kills_total'),
      },
    },
  ],
}
