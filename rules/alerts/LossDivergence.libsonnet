function(config, s, a) {
  local diverging = |||
    (
      tocsin_job:loss_excess:sigmas > %(sigmas)g
      or
      max by (%(job)s) (%(count)s >= %(least)d and %(count)s offset 2m < %(count)s)
      or
      max by (%(job)s) (
        %(count)s >= %(least)d
        and
        (%(loss)s != %(loss)s or abs(%(loss)s) == Inf)
      )
    )
    and on (%(job)s)
    tocsin_job:ranks_up:count
  ||| % {
    job: s.job,
    sigmas: config.lossDivergenceSigmas,
    least: config.nonfiniteLosses,
    count: s.raw('tocsin_training_nonfinite_losses_total'),
    loss: s.raw('tocsin_training_loss'),
  },

  // Anything that a device did to this job, or that held it down, within the window.
  local suspect = |||
    max by (%(job)s) (
      %(event)s > time() - %(window)d
      or
      %(ecc)s > 0
      or
      %(remap)s > 0
      or
      increase(%(held)s[%(windowText)s]) > %(minute)g
    )
  ||| % {
    job: s.job,
    window: (import '../lib/duration.libsonnet').seconds(config.evidenceWindow),
    windowText: config.evidenceWindow,
    minute: config.throttleSecondsPerMinute,
    event: s.raw('tocsin_job_gpu_event_timestamp_seconds', 'class!~"info|sympathetic|ecc_corrected"'),
    ecc: s.raw('tocsin_job_gpu_ecc_errors_total', 'severity="uncorrected"'),
    remap: s.raw('tocsin_job_gpu_row_remaps_total', 'severity="uncorrected"'),
    held: s.raw('tocsin_job_gpu_throttle_seconds_total', 'reason=~"%s"' % config.throttleReasons),
  },

  local cleared = |||
    tocsin_job:diverging:value
    and on (%(job)s)
    tocsin_job:evidence_complete:bool == 1
    unless on (%(job)s)
    tocsin_job:devices_suspect:bool
  ||| % { job: s.job },
  local evidence = 'tocsin_job:loss_excess:sigmas{job_id="{{ $labels.job_id }}"}',

  records: [
    { record: 'tocsin_job:diverging:value', expr: diverging },
    { record: 'tocsin_job:devices_suspect:bool', expr: '(%s) * 0 + 1' % suspect },
  ],

  rules: [
    a.family(
      'LossDivergence',
      cleared,
      'The loss diverges and the hardware is cleared',
      'The loss of {{ $labels.job_id }} has left its best level for good or is no longer finite. All devices and hosts of the job were seen without a gap and showed nothing.',
      evidence,
    ),
    a.family(
      'LossDivergence',
      |||
        tocsin_job:diverging:value
        unless
        (
          %s)
      ||| % std.strReplace(cleared, '\n', '\n  '),
      'The loss diverges, hardware not cleared',
      'The loss of {{ $labels.job_id }} has left its best level for good or is no longer finite. A device was not quiet, or evidence is missing, so the hardware is not cleared.',
      evidence,
      verdict='inconclusive',
    ),
  ],
}
