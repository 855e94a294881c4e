// One job: what the verdict says, whether it advances, how its ranks compare, what was seen.
function(config, p, b) {
  local q = (import '../queries/job.libsonnet')(config),
  local t = p.target,
  local perRank = 'rank {{rank}} · {{node}}/{{gpu}}',
  local verdictColumns = { job_id: 'Job', family: 'Family', verdict: 'Verdict', side: 'Side', layer: 'Layer', severity: 'Severity', rank: 'Rank', node: 'Node', gpu: 'GPU', gpu_uuid: 'UUID' },
  local yesNo(yes, no) = [{ type: 'value', options: { '0': { text: no, color: 'red', index: 0 }, '1': { text: yes, color: 'green', index: 1 } } }],

  dashboard: b.dashboard(
    'tocsin-job',
    'Tocsin / Job',
    'Is it the job or the infrastructure: one job, its verdict and the evidence.',
    ['job'],
    [b.datasource] + b.cluster + [
      b.variable('job_id', 'Job', 'label_values(tocsin_job:ranks_up:count%s, job_id)' % (if config.clusterLabel == '' then '' else '{%s=~"$cluster"}' % config.clusterLabel)),
    ],
    q.verdict,
    [
      {
        title: 'Verdict',
        height: 5,
        panels: [
          p.table('Verdict', 'The one row that pages; empty while nothing is wrong.', [t(q.verdict, instant=true, format='table')], verdictColumns, ['family', 'verdict', 'side', 'layer', 'severity', 'rank', 'node', 'gpu', 'gpu_uuid'], noValue='no verdict') { w:: 12 },
          p.table('Contributors', 'Other families that fire for this job; the verdict outranks them.', [t(q.contributors, instant=true, format='table')], verdictColumns, ['family', 'verdict', 'layer'], noValue='none') { w:: 6 },
          p.stat('Evidence', 'Whether devices and hosts of all nodes were seen without a gap. Only then may the job be blamed.', [t(q.evidenceComplete, instant=true)], 'none', mappings=yesNo('complete', 'incomplete')) { w:: 3 },
          p.stat('Ranks alive', 'Living ranks of those declared.', [t(q.ranksUp, 'alive', instant=true), t(q.ranksExpected, 'declared', instant=true)], 'none', text='value_and_name') { w:: 3 },
        ],
      },
      {
        title: 'Progress',
        height: 7,
        panels: [
          p.stat('Step', 'Last step printed, and the step of the last checkpoint.', [t(q.step, 'step', instant=true), t(q.checkpoint, 'checkpoint', instant=true)], 'none', text='value_and_name') { w:: 4 },
          p.timeseries('Steps per second', 'Steps of progress over the last minute.', [t(q.stepsPerSecond, 'steps/s')], 'short') { w:: 5 },
          p.timeseries('Seconds per step', 'Recent length against the quicker quarter of the last hour.', [t(q.stepRecent, 'recent'), t(q.stepBaseline, 'baseline')], 's') { w:: 5 },
          p.timeseries('Since the last step', 'Grows without bound in a hang.', [t(q.sinceProgress, 'since progress')], 's') { w:: 5 },
          p.timeseries('Loss', 'As printed, its mean over ten prints and the best mean of this attempt.', [t(q.loss, 'loss'), t(q.lossMean, 'mean'), t(q.lossBest, 'best mean')], 'none', min=null) { w:: 5 },
        ],
      },
      {
        title: 'Ranks compared',
        height: 8,
        panels: [
          p.timeseries('Activity over the median of the peers', 'The rank that stays above 1 never waits: the others wait for it.', [t(q.relative, perRank)], 'none', min=null),
          p.timeseries('SM active', 'One-minute average. Waiting in a collective still keeps a quarter of the SMs busy.', [t(q.activity, perRank)], 'percentunit', max=1),
          p.timeseries('Tensor active', 'One-minute average. Equal work shows equal tensor activity, on a slow GPU too.', [t(q.tensor, perRank)], 'percentunit', max=1),
        ],
      },
      {
        title: '',
        height: 8,
        panels: [
          p.timeseries('Time in synchronising calls', 'Share of a second each rank spends waiting for its device.', [t(q.syncTime, 'rank {{rank}}')], 'percentunit'),
          p.timeseries('Kernel launches', 'Launches per second, by rank.', [t(q.launches, 'rank {{rank}}')], 'ops'),
          p.timeseries('All-reduce calls', 'Calls per second, by rank: the rank with the fewest is behind.', [t(q.collectives, 'rank {{rank}}')], 'ops'),
        ],
      },
      {
        title: 'Devices while the job holds them',
        height: 8,
        panels: [
          p.timeseries('Power', 'Board power by rank.', [t(q.power, perRank)], 'watt'),
          p.timeseries('SM clock', 'A clock below its peers has a reason beside it, or a fault.', [t(q.clock, perRank)], 'hertz'),
          p.timeseries('Temperature', 'Core temperature by rank.', [t(q.temperature, perRank)], 'celsius'),
          p.timeseries('Device memory', 'In use, by rank.', [t(q.memory, perRank)], 'bytes'),
        ],
      },
      {
        title: '',
        height: 7,
        panels: [
          p.timeseries('Clock held down', '1 while a reason holds the clock down. The software power cap is normal at full load.', [t(q.throttled, 'rank {{rank}} · {{reason}}')], 'none', max=1),
          p.timeseries('Xid events', 'Kernel-log events by class, since the job holds the device.', [t(q.xids, '{{node}}/{{gpu}} · {{class}}')], 'none'),
          p.timeseries('Fabric, sent', 'Bytes per second by port the job holds.', [t(q.portTransmit, '{{node}} · {{port}}')], 'Bps'),
          p.timeseries('NCCL payload', 'Bytes handed to collectives per second, all ranks.', [t(q.payload, 'payload')], 'Bps'),
        ],
      },
      {
        title: 'Processes and evidence',
        height: 7,
        panels: [
          p.stateTimeline('Ranks', 'Alive or not.', [t(q.rankUp, 'rank {{rank}}')], yesNo('alive', 'ended'), [['red', null], ['green', 1]]),
          p.timeseries('CPU', 'Cores used, by rank.', [t(q.cpu, 'rank {{rank}}')], 'short'),
          p.timeseries('Resident memory', 'By rank.', [t(q.resident, 'rank {{rank}}')], 'bytes'),
          p.stateTimeline('Evidence by node and layer', 'Where it is red, nothing can be cleared.', [t(q.layerEvidence, '{{node}} · {{layer}}')], yesNo('complete', 'missing'), [['red', null], ['green', 1]]),
        ],
      },
    ],
    links=[{ type: 'dashboards', title: 'Tocsin', tags: ['tocsin'], asDropdown: false, includeVars: true, keepTime: true, icon: 'external link', targetBlank: false }],
  ),
}
