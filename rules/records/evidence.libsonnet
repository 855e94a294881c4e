// What the nodes could have told: per node and layer, then per job. A `job` verdict is only
// given where this says that nothing was hidden.
function(config, s) {
  local d = import '../lib/duration.libsonnet',
  local fresh = d.seconds(config.evidenceFreshFor),
  local hole = d.seconds(config.evidenceHole),
  local window = d.seconds(config.evidenceWindow),

  local layers = {
    device: ['gpu', 'gpu_events'],
    fabric: ['fabric'],
    host: ['host'],
    workload: ['cuda', 'nccl', 'output', 'exits', 'identity'],
  },
  local names = std.objectFields(layers),
  // Layers that some family must rule out before it says `job`.
  local clearing = 'device|host',

  local reporting(layer, age) =
    'count by (%(node)s) (tocsin_node:collector_age:seconds{collector=~"%(collectors)s"} < %(age)d) >= %(count)d'
    % {
      node: s.node,
      collectors: std.join('|', layers[layer]),
      age: age,
      count: std.length(layers[layer]),
    },

  rules: [
    {
      record: 'tocsin_node:exporter_seen:info',
      expr: |||
        max by (%s) (last_over_time(%s[%s])) * 0 + 1
      ||| % [s.node, s.raw('tocsin_exporter_info'), config.jobNodeMemory],
    },
    {
      // Over 5 minutes, so that an exporter that went away grows older instead of vanishing.
      record: 'tocsin_node:collector_age:seconds',
      expr: |||
        time() - max by (%s) (last_over_time(%s[5m]))
      ||| % [
        s.list(['node', 'collector']),
        s.raw('tocsin_collector_last_success_timestamp_seconds'),
      ],
    },
    {
      record: 'tocsin_job:node:info',
      expr: |||
        max by (%(jobNode)s) (last_over_time(%(up)s[%(memory)s])) * 0 + 1
        and on (%(job)s)
        tocsin_rank:up:max
      ||| % {
        jobNode: s.jobNode,
        job: s.job,
        up: s.raw('tocsin_rank_up'),
        memory: config.jobNodeMemory,
      },
    },
  ] + std.flattenArrays([
    [
      {
        record: 'tocsin_node:layer_fresh:bool',
        labels: { layer: layer },
        expr: |||
          (%(now)s) * 0 + 1
          or
          tocsin_node:exporter_seen:info * 0
        ||| % { now: reporting(layer, fresh) },
      },
      {
        // Since when the layer has been seen without a hole; 0 while there is one. The value is carried from
        // one evaluation to the next, so a pause of the rules themselves starts it anew.
        record: 'tocsin_node:layer_seen_since:timestamp_seconds',
        labels: { layer: layer },
        expr: |||
          (
            (
              max by (%(node)s) (last_over_time(tocsin_node:layer_seen_since:timestamp_seconds{layer="%(layer)s"}[%(hole)s]) > 0)
              or
              tocsin_node:exporter_seen:info * time()
            )
            and on (%(node)s)
            (%(now)s)
          )
          or
          tocsin_node:exporter_seen:info * 0
        ||| % { node: s.node, layer: layer, hole: config.evidenceHole, now: reporting(layer, hole) },
      },
      {
        record: 'tocsin_job:layer_evidence:bool',
        labels: { layer: layer },
        expr: |||
          (
            tocsin_job:node:info
              * on (%(node)s) group_left ()
            max by (%(node)s) (tocsin_node:layer_fresh:bool{layer="%(layer)s"})
          )
          * on (%(jobNode)s)
          (
            0 < bool (
              tocsin_job:node:info
                * on (%(node)s) group_left ()
              max by (%(node)s) (tocsin_node:layer_seen_since:timestamp_seconds{layer="%(layer)s"})
            )
          )
          * on (%(jobNode)s)
          (
            (
              tocsin_job:node:info
                * on (%(node)s) group_left ()
              max by (%(node)s) (tocsin_node:layer_seen_since:timestamp_seconds{layer="%(layer)s"})
            )
            <= bool on (%(job)s) group_left ()
            (clamp_min(tocsin_job:start:timestamp_seconds, time() - %(window)d) + %(hole)d)
          )
        ||| % {
          node: s.node,
          job: s.job,
          jobNode: s.jobNode,
          layer: layer,
          window: window,
          hole: hole,
        },
      },
    ]
    for layer in names
  ]) + [
    {
      record: 'tocsin_node:evidence_complete:bool',
      expr: |||
        min by (%(by)s) (tocsin_job:layer_evidence:bool)
        or
        tocsin_node:layer_fresh:bool
      ||| % { by: s.list(['node', 'layer']) },
    },
    {
      // Nodes: all that reported a rank lately and as many as the job declares. Counts that fell between
      // two holders belong to nobody, so they could have been this job's.
      record: 'tocsin_job:evidence_complete:bool',
      expr: |||
        min by (%(job)s) (tocsin_job:layer_evidence:bool{layer=~"%(clearing)s"})
        unless on (%(job)s)
        (
          count by (%(job)s) (tocsin_job:node:info)
          < on (%(job)s)
          max by (%(job)s) (%(expected)s)
        )
        unless on (%(job)s)
        (
          tocsin_job:node:info
          and on (%(node)s)
          max by (%(node)s) (increase(%(unattributed)s[%(window)s])) > 0
        )
        or
        max by (%(job)s) (tocsin_job:node:info) * 0
      ||| % {
        job: s.job,
        node: s.node,
        clearing: clearing,
        window: config.evidenceWindow,
        expected: s.raw('tocsin_job_nodes_expected'),
        unattributed: s.raw('tocsin_exporter_unattributed_increments_total'),
      },
    },
  ] + [
    {
      // What the failing collectors say themselves.
      record: 'tocsin_node:evidence_missing:info',
      labels: { layer: layer },
      expr: |||
        max by (%s) (%s)
      ||| % [
        s.list(['node', 'collector', 'reason']),
        s.raw('tocsin_collector_error_info', 'collector=~"%s"' % std.join('|', layers[layer])),
      ],
    }
    for layer in names
  ] + std.flattenArrays([
    [
      {
        record: 'tocsin_job:evidence_missing:info',
        labels: { layer: layer, reason: 'stale' },
        expr: |||
          (tocsin_job:layer_evidence:bool{layer="%(layer)s"} == 0) * 0 + 1
          and on (%(node)s)
          (tocsin_node:layer_fresh:bool{layer="%(layer)s"} == 0)
        ||| % { layer: layer, node: s.node },
      },
      {
        record: 'tocsin_job:evidence_missing:info',
        labels: { layer: layer, reason: 'hole' },
        expr: |||
          (tocsin_job:layer_evidence:bool{layer="%(layer)s"} == 0) * 0 + 1
          and on (%(node)s)
          (tocsin_node:layer_fresh:bool{layer="%(layer)s"} == 1)
        ||| % { layer: layer, node: s.node },
      },
    ]
    for layer in names
  ]) + [
    {
      record: 'tocsin_job:evidence_missing:info',
      labels: { layer: 'host', reason: 'node_unseen' },
      expr: |||
        (
          count by (%(job)s) (tocsin_job:node:info)
          < on (%(job)s)
          max by (%(job)s) (%(expected)s)
        ) * 0 + 1
      ||| % { job: s.job, expected: s.raw('tocsin_job_nodes_expected') },
    },
    {
      record: 'tocsin_job:evidence_missing:info',
      labels: { layer: 'device', reason: 'unattributed' },
      expr: |||
        tocsin_job:node:info
        and on (%(node)s)
        max by (%(node)s) (increase(%(unattributed)s[%(window)s])) > 0
      ||| % {
        node: s.node,
        window: config.evidenceWindow,
        unattributed: s.raw('tocsin_exporter_unattributed_increments_total'),
      },
    },
  ],
}
