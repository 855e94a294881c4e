// Who lives, since when, on which device, and who ended how.
function(config, s) {
  rules: [
    {
      record: 'tocsin_rank:node_up:max',
      expr: s.one(s.rankNode, s.raw('tocsin_rank_up', 'rank!=""')),
    },
    {
      // A rank that moved leaves a 0 behind on its old node for 15 minutes.
      record: 'tocsin_rank:up:max',
      expr: 'max by (%s) (tocsin_rank:node_up:max)' % s.rank,
    },
    {
      record: 'tocsin_rank:start:timestamp_seconds',
      expr: |||
        max by (%(by)s) (%(start)s)
        and on (%(by)s)
        (tocsin_rank:node_up:max == 1)
      ||| % { by: s.rankNode, start: s.raw('tocsin_rank_start_timestamp_seconds', 'rank!=""') },
    },
    {
      // The last exit of each rank. The exporter forgets it after 15 minutes, a hung job does not end then.
      record: 'tocsin_rank:last_exit:timestamp_seconds',
      expr: |||
        max by (%(by)s, code, signal) (last_over_time(%(exit)s[%(memory)s]))
        == on (%(rank)s) group_left ()
        max by (%(rank)s) (last_over_time(%(exit)s[%(memory)s]))
      ||| % {
        by: s.rankNode,
        rank: s.rank,
        memory: config.exitMemory,
        exit: s.raw('tocsin_job_last_exit_timestamp_seconds', 'rank!=""'),
      },
    },
    {
      // The one device of a rank; ranks with several have no row. It is carried on after the process has
      // ended, or the labels of a dead rank would change 30 s later: from the last evaluation and not over a
      // range, which would also hold the device that the rank has left.
      record: 'tocsin_rank:device:info',
      expr: |||
        (
          max by (%(subject)s) (%(owner)s)
          and on (%(rankNode)s)
          (count by (%(rankNode)s) (max by (%(subject)s) (%(owner)s)) == 1)
        )
        or
        (
          (
            tocsin_rank:device:info
            unless on (%(rankNode)s)
            max by (%(rankNode)s) (%(owner)s)
          )
          and on (%(rankNode)s)
          (tocsin_rank:node_up:max or max by (%(rankNode)s) (tocsin_rank:last_exit:timestamp_seconds))
        )
      ||| % {
        subject: s.subject,
        rankNode: s.rankNode,
        owner: s.raw('tocsin_gpu_owner', 'rank!=""'),
      },
    },
    {
      record: 'tocsin_job:ranks_up:count',
      expr: 'count by (%s) (tocsin_rank:up:max == 1)' % s.job,
    },
    {
      record: 'tocsin_job:ranks_expected:max',
      expr: 'max by (%s) (%s)' % [s.job, s.raw('tocsin_job_ranks_expected')],
    },
    {
      record: 'tocsin_job:start:timestamp_seconds',
      expr: 'min by (%s) (%s)' % [s.job, s.raw('tocsin_job_start_timestamp_seconds')],
    },
    {
      // Jobs whose output nobody sees are judged by their last NCCL call.
      record: 'tocsin_job:since_progress:seconds',
      expr: |||
        time() - (
          max by (%(job)s) (max_over_time(%(step)s[15m]))
          or
          max by (%(job)s) (max_over_time(%(nccl)s[15m]))
        )
        and on (%(job)s)
        tocsin_job:ranks_up:count
      ||| % {
        job: s.job,
        step: s.raw('tocsin_training_last_progress_timestamp_seconds'),
        nccl: s.raw('tocsin_nccl_last_call_timestamp_seconds'),
      },
    },
  ],
}
