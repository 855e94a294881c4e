// What the Fleet dashboard asks.
function(config) {
  local clusterOnly = if config.clusterLabel == '' then '' else '%s=~"$cluster"' % config.clusterLabel,
  local recorded = if clusterOnly == '' then '' else '{%s}' % clusterOnly,
  local raw(more='') = '{%s%s%s}' % [config.exporterSelector, if clusterOnly == '' then '' else ', ' + clusterOnly, more],
  local both = std.join(', ', [name for name in [config.clusterLabel, 'job_id'] if name != '']),

  verdicts: 'tocsin_job:verdict:info' + recorded,
  jobs: 'count(tocsin_job:ranks_up:count%s)' % recorded,
  jobsWithVerdict: 'count(tocsin_job:verdict:info%s) or vector(0)' % recorded,
  verdictsBySide: 'count by (verdict) (tocsin_job:verdict:info%s)' % recorded,
  ranks: 'sum(tocsin_job:ranks_up:count%s)' % recorded,
  ranksExpected: 'sum(tocsin_job:ranks_expected:max%s)' % recorded,

  gpus: 'count(max by (node, gpu) (tocsin_gpu_up%s))' % raw(),
  gpusSilent: 'count(max by (node, gpu) (tocsin_gpu_up%s) == 0) or vector(0)' % raw(),
  gpusOwned: 'count(max by (node, gpu) (tocsin_gpu_owner%s)) or vector(0)' % raw(),
  power: 'sum by (node) (max by (node, gpu) (tocsin_gpu_power_watts%s))' % raw(),
  activity: 'avg by (node) (max by (node, gpu) (tocsin_gpu_sm_active_ratio%s))' % raw(),
  utilization: 'avg by (node) (max by (node, gpu) (tocsin_gpu_utilization_ratio%s))' % raw(),
  temperature: 'max by (node) (tocsin_gpu_temperature_celsius%s)' % raw(),
  throttled: 'sum by (node, reason) (max by (node, gpu, reason) (tocsin_gpu_throttle_active%s))' % raw(', reason!~"idle|sw_power_cap"'),
  xids: 'sum by (node, class) (max by (node, gpu, class) (tocsin_gpu_xid_errors_total%s))' % raw(),

  stepSlowdown: 'max by (%s) (tocsin_job:step_seconds:recent%s / tocsin_job:step_seconds:baseline%s)' % [both, recorded, recorded],
  sinceProgress: 'max by (%s) (tocsin_job:since_progress:seconds%s)' % [both, recorded],

  evidence: 'min by (node, layer) (tocsin_node:evidence_complete:bool%s)' % recorded,
  exporters: 'count(max by (node) (tocsin_exporter_info%s))' % raw(),
  exportersDown: 'count(up%s == 0) or vector(0)' % '{%s}' % config.exporterSelector,
  portsInactive: 'count(max by (node, port) (tocsin_fabric_port_active%s) == 0) or vector(0)' % raw(),
  transmit: 'sum by (node) (max by (node, port) (rate(tocsin_fabric_transmit_bytes_total%s[$__rate_interval])))' % raw(),
  pressure: 'max by (node, resource) (rate(tocsin_host_pressure_seconds_total%s[$__rate_interval]))' % raw(', kind="some"'),
  memory: 'max by (node) (1 - tocsin_host_memory_available_bytes%s / tocsin_host_memory_total_bytes%s)' % [raw(), raw()],
  oomKills: 'sum by (node) (max by (node) (increase(tocsin_host_oom_kills_total%s[1h])))' % raw(),
}
