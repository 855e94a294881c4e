// What the Job dashboard asks. Recorded series first; raw ones where a person wants the detail.
function(config) {
  local cluster = if config.clusterLabel == '' then '' else '%s=~"$cluster", ' % config.clusterLabel,
  local job = '{%sjob_id="$job_id"}' % cluster,
  local raw(more='') = '{%s, %sjob_id="$job_id"%s}' % [config.exporterSelector, cluster, more],
  local rank = '%s by (rank, node, gpu) (%s)',

  verdict: 'tocsin_job:verdict:info' + job,
  contributors: 'tocsin_job:contributor:info' + job,
  evidenceComplete: 'max(tocsin_job:evidence_complete:bool%s)' % job,
  layerEvidence: 'min by (node, layer) (tocsin_job:layer_evidence:bool%s)' % job,

  step: 'max(tocsin_job:step:max%s)' % job,
  stepsPerSecond: 'max(tocsin_job:steps_per_second:rate1m%s)' % job,
  stepRecent: 'max(tocsin_job:step_seconds:recent%s)' % job,
  stepBaseline: 'max(tocsin_job:step_seconds:baseline%s)' % job,
  sinceProgress: 'max(tocsin_job:since_progress:seconds%s)' % job,
  ranksUp: 'max(tocsin_job:ranks_up:count%s)' % job,
  ranksExpected: 'max(tocsin_job:ranks_expected:max%s)' % job,

  loss: 'max(tocsin_training_loss%s)' % raw(),
  lossMean: 'max(tocsin_job:loss:mean%s)' % job,
  lossBest: 'max(tocsin_training_loss_best_mean%s)' % raw(),

  activity: rank % ['max', 'tocsin_rank:sm_active:avg1m' + job],
  tensor: rank % ['max', 'tocsin_rank:tensor_active:avg1m' + job],
  relative: rank % ['max', 'tocsin_rank:activity:relative' + job],
  power: rank % ['max', 'tocsin_job_gpu_power_watts' + raw()],
  clock: rank % ['max', 'tocsin_job_gpu_sm_clock_hertz' + raw()],
  temperature: rank % ['max', 'tocsin_job_gpu_temperature_celsius' + raw()],
  memory: rank % ['max', 'tocsin_job_gpu_memory_used_bytes' + raw()],
  throttled: 'max by (rank, node, gpu, reason) (tocsin_job_gpu_throttle_active%s)' % raw(', reason!="idle"'),
  xids: 'sum by (node, gpu, class) (max by (node, gpu, class) (tocsin_job_gpu_xid_errors_total%s))' % raw(),

  syncTime: 'max by (rank) (rate(tocsin_cuda_sync_seconds_sum%s[$__rate_interval]))' % raw(),
  launches: 'max by (rank) (rate(tocsin_cuda_calls_total%s[$__rate_interval]))' % raw(', op="launch"'),
  collectives: 'max by (rank) (rate(tocsin_nccl_calls_total%s[$__rate_interval]))' % raw(', op="all_reduce"'),
  payload: 'sum(rate(tocsin_nccl_bytes_total%s[$__rate_interval]))' % raw(),
  portTransmit: 'max by (node, port) (rate(tocsin_job_port_transmit_bytes_total%s[$__rate_interval]))' % raw(),

  rankUp: 'max by (rank) (tocsin_rank:up:max%s)' % job,
  cpu: 'max by (rank) (rate(tocsin_rank_cpu_seconds_total%s[$__rate_interval]))' % raw(),
  resident: 'max by (rank) (tocsin_rank_resident_memory_bytes%s)' % raw(),
  checkpoint: 'max(tocsin_training_last_checkpoint_step%s)' % raw(),
}
