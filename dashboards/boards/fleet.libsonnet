// All jobs and nodes: where a verdict stands, what is slow, what is not seen.
function(config, p, b) {
  local q = (import '../queries/fleet.libsonnet')(config),
  local t = p.target,
  local columns = { job_id: 'Job', family: 'Family', verdict: 'Verdict', side: 'Side', layer: 'Layer', severity: 'Severity', rank: 'Rank', node: 'Node', gpu: 'GPU' },
  local yesNo(yes, no) = [{ type: 'value', options: { '0': { text: no, color: 'red', index: 0 }, '1': { text: yes, color: 'green', index: 1 } } }],
  local none = [['green', null], ['orange', 1]],

  dashboard: b.dashboard(
    'tocsin-fleet',
    'Tocsin / Fleet',
    'All jobs and nodes: verdicts, slow jobs, devices and missing evidence.',
    ['fleet'],
    [b.datasource] + b.cluster,
    q.verdicts,
    [
      {
        title: 'Jobs',
        height: 4,
        panels: [
          p.stat('Jobs', 'Jobs with a living rank.', [t(q.jobs, instant=true)], 'none'),
          p.stat('With a verdict', 'Jobs that something holds back.', [t(q.jobsWithVerdict, instant=true)], 'none', thresholds=[['green', null], ['red', 1]]),
          p.stat('Ranks alive', 'Living ranks of those declared.', [t(q.ranks, 'alive', instant=true), t(q.ranksExpected, 'declared', instant=true)], 'none', text='value_and_name'),
          p.stat('GPUs', 'Seen, held by a job, and without an answer of the driver.', [t(q.gpus, 'seen', instant=true), t(q.gpusOwned, 'held', instant=true), t(q.gpusSilent, 'silent', instant=true)], 'none', text='value_and_name'),
          p.stat('Exporters', 'Answering, and not.', [t(q.exporters, 'answer', instant=true), t(q.exportersDown, 'down', instant=true)], 'none', text='value_and_name'),
          p.stat('Ports not active', 'Fabric ports whose state is not ACTIVE; unused ones count too.', [t(q.portsInactive, instant=true)], 'none', thresholds=none),
        ],
      },
      {
        title: '',
        height: 7,
        panels: [
          p.table('Verdicts', 'One row per job.', [t(q.verdicts, instant=true, format='table')], columns, ['job_id', 'family', 'verdict', 'side', 'layer', 'severity', 'rank', 'node', 'gpu'], noValue='no verdict') { w:: 12 },
          p.timeseries('Verdicts over time', 'Whose they are.', [t(q.verdictsBySide, '{{verdict}}')], 'none', stack=true) { w:: 4 },
          p.timeseries('Step length over baseline', 'Above 1 the job takes longer than in the quicker quarter of its last hour.', [t(q.stepSlowdown, '{{job_id}}')], 'none') { w:: 4 },
          p.timeseries('Since the last step', 'By job.', [t(q.sinceProgress, '{{job_id}}')], 's') { w:: 4 },
        ],
      },
      {
        title: 'Devices',
        height: 8,
        panels: [
          p.timeseries('SM active', 'Mean over the GPUs of a node.', [t(q.activity, '{{node}}')], 'percentunit', max=1),
          p.timeseries('Utilisation', 'Busy is not the same as working: a waiting GPU is busy too.', [t(q.utilization, '{{node}}')], 'percentunit', max=1),
          p.timeseries('Power', 'Sum over the GPUs of a node.', [t(q.power, '{{node}}')], 'watt'),
          p.timeseries('Hottest GPU', 'Core temperature.', [t(q.temperature, '{{node}}')], 'celsius'),
        ],
      },
      {
        title: '',
        height: 7,
        panels: [
          p.timeseries('GPUs held down', 'By node and reason, without the software power cap.', [t(q.throttled, '{{node}} · {{reason}}')], 'none'),
          p.timeseries('Xid events', 'By node and class.', [t(q.xids, '{{node}} · {{class}}')], 'none'),
          p.timeseries('Fabric, sent', 'By node.', [t(q.transmit, '{{node}}')], 'Bps'),
        ],
      },
      {
        title: 'Hosts and evidence',
        height: 8,
        panels: [
          p.stateTimeline('Evidence by node and layer', 'Where it is red, nothing can be cleared.', [t(q.evidence, '{{node}} · {{layer}}')], yesNo('complete', 'missing'), [['red', null], ['green', 1]]) { w:: 9 },
          p.timeseries('Pressure', 'Share of time in which something waited, by resource.', [t(q.pressure, '{{node}} · {{resource}}')], 'percentunit') { w:: 5 },
          p.timeseries('Memory used', 'Share of the host memory.', [t(q.memory, '{{node}}')], 'percentunit', max=1) { w:: 5 },
          p.timeseries('Kills for lack of memory', 'Per hour.', [t(q.oomKills, '{{node}}')], 'none') { w:: 5 },
        ],
      },
    ],
    links=[{ type: 'dashboards', title: 'Tocsin', tags: ['tocsin'], asDropdown: false, includeVars: true, keepTime: true, icon: 'external link', targetBlank: false }],
  ),
}
