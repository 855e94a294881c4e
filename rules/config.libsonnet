// Every number and selector that a site may want to turn, each with the reason to turn it.
// Change one with `tocsin-bundle export DIR --set key=value`, or import mixin.libsonnet and
// override `_config`. Durations are Prometheus durations; the rest are plain numbers.
{
  _config:: {
    // Any pod that a Prometheus scrapes can expose our names. Only targets that match this
    // may accuse a job, so set it to the scrape job of your exporters and nothing wider.
    exporterSelector: 'job="tocsin-exporter"',

    // Kept beside job_id everywhere: two clusters hand out the same Slurm ids. Name the label
    // your Prometheus, Thanos or Mimir puts on every series; '' when there is none to keep.
    clusterLabel: 'cluster',

    // Where runbook_url points: the remediator serves its runbooks as pages. Put a name here
    // that the people on call can open from where they read alerts.
    runbookBaseUrl: 'http://127.0.0.1:9837',

    // '' follows the server's evaluation_interval, which should equal the scrape interval.
    // Above 500 nodes give the events 15s and the patterns 30s; each step costs that much delay.
    eventInterval: '',
    patternInterval: '',

    // How long an alert outlives its condition. Below 30s one lost scrape ends and restarts an
    // incident; above 4m a repaired fault is still shown five minutes later.
    keepFiringFor: '60s',

    // --- evidence ---------------------------------------------------------------------------
    // A collector is current when its last success is younger. Three collection intervals, but
    // the exporter never drops a series before 60 s; raise it when you collect every 30 s.
    evidenceFreshFor: '60s',
    // A longer gap can hide a throttled minute or a lost event, so it spoils a clearance.
    evidenceHole: '2m',
    // How far back a clearance looks. Shorter clears sooner after an outage of the exporter,
    // and clears jobs whose fault began before it.
    evidenceWindow: '15m',
    // A node counts to a job this long after its last rank there. Below the time a job may
    // hang unnoticed, a vanished node would stop being asked for its evidence.
    jobNodeMemory: '1h',
    // An exit stays known this long, although the exporter serves it for 15 minutes only.
    exitMemory: '1h',
    // EvidenceMissing waits this long: shorter than a rolling restart of exporters warns on
    // every upgrade.
    evidenceMissingFor: '2m',

    // --- DeadRank ---------------------------------------------------------------------------
    // Peers must outlive the rank by this much. Launchers end the rest of a failed job within
    // a few seconds; below 10 a crash that is being cleaned up is announced as a hang.
    deadRankPeersSurvive: 12,
    // An event of the device this many seconds before the exit may have caused it, so the job
    // is not blamed. Driver clean-up follows a fault within seconds; raise it for jobs that
    // catch the error and write a checkpoint before they end.
    deadRankDeviceEventBefore: 60,
    // Kernel-log time and exit time come from different clocks and threads.
    deadRankDeviceEventAfter: 10,
    // Xid classes and device events after which an exit is not the job's own. `application`
    // is its own fault and `info`, `sympathetic` only follow others.
    fatalEventClasses: 'reset|reboot|rma|contained|check|unknown|gpu_lost|ecc_uncorrected|row_remap|recovery_action',
    // A rank that left with status 0 is only missed when the others stop for longer than
    // this, or than hangSteps steps. Raise it for jobs with long evaluations.
    hangSeconds: 120,
    hangSteps: 5,

    // --- comparing ranks --------------------------------------------------------------------
    // Fewer than three peers have no majority: one of two differs from the other, always.
    minPeers: 3,
    // Start-up, compilation and the first steps load devices unevenly. Raise it for jobs that
    // compile for longer after their first step.
    warmUp: '60s',
    // Slow steps need long windows: `average` and `persist` together hold at least eight steps of
    // `maxStepSeconds`. `average` must span two scrapes. The last entry also judges jobs whose
    // step length nobody sees. Longer finds smaller faults and finds them later.
    activityTiers: [
      { average: '30s', persist: '60s', maxStepSeconds: 7.5 },
      { average: '40s', persist: '80s', maxStepSeconds: 15 },
      { average: '100s', persist: '240s', maxStepSeconds: 40 },
    ],
    // Below this median activity a job is idle or loading and its ranks are not compared.
    minMedianActivity: 0.05,
    // The job advances when its last step is younger than this, or than twice the usual gap
    // between the steps it prints. Lower mistakes sparse logs for stalls.
    progressSeconds: 30,
    // Or when a rank made an NCCL call this lately: logs may print every hundredth step only.
    progressNcclSeconds: 15,

    // --- FailSlowGpu ------------------------------------------------------------------------
    // Activity over the median of the peers. 1.12 is a GPU at about 0.82 of its speed in a job
    // that spends a tenth of its steps in transfers; a rank with uneven data stays below 1.10.
    failSlowRatio: 1.12,
    // The rank must be that far ahead in this share of the samples of `persist`. A straggler
    // that rotates, or one long burst, is ahead for a few samples and then is not.
    failSlowShare: 0.8,
    // A rank with more work has busier tensor pipes too, by as much as it is busier; a slow
    // GPU does the same work for longer. Above this part of its lead it is uneven work.
    failSlowTensorPart: 0.5,
    // Power tells less than SM activity, so its lead must be larger and the verdict stays open.
    failSlowPowerRatio: 1.15,

    // --- GpuThrottled -----------------------------------------------------------------------
    // Reasons that mean a fault. The software power cap is normal at full load, application
    // clocks are somebody's setting, sync boost follows another GPU.
    throttleReasons: 'sw_thermal|hw_thermal|hw_slowdown|hw_power_brake',
    // hw_slowdown is also set while a loaded device changes its power state, and any reason is
    // harmless on an idle one: utilisation over the last minute must exceed this.
    throttleMinUtilization: 0.3,
    // Throttled seconds within the last minute before a slow rank is explained by them.
    // Higher delays the verdict, lower believes a single poll.
    throttleSecondsPerMinute: 25,
    // The lead in activity from which peers count as waiting for the throttled rank.
    throttleEffectRatio: 1.06,
    // Without an effect on the job: throttled seconds within five minutes.
    throttleSecondsPer5m: 240,

    // --- PCIe links -------------------------------------------------------------------------
    // A GPU's link is judged when the GPU was busy at every sample of this window. It must hold
    // a few scrapes; longer spares jobs that pause often, and finds a slow link later.
    pcieLoadWindow: '1m',
    // Busy is above this, in SM activity or utilisation. A device that runs anything has its link
    // at full speed; at 0 an idle one, whose link is lowered to save power, would be accused.
    pcieMinLoad: 0.1,
    // The fleet's value counts when this share of the loaded devices of a model has it. Lower it and
    // the smaller half of a fleet with two kinds of servers is accused of what its slots cannot do.
    pcieFleetShare: 0.8,
    // Fewer devices of a model are no fleet: one slow link of four is a quarter of them.
    pcieFleetMinDevices: 8,

    // --- LossDivergence ---------------------------------------------------------------------
    // Even the lowest of the last 40 losses lies this many noise deviations above the best
    // mean. A healthy loss has it about one below, so 2 is a lasting rise of three to four.
    lossDivergenceSigmas: 2,
    // Least noise, as a share of the best mean: a loss printed without noise would diverge by
    // its own rounding.
    lossNoiseFloor: 0.005,
    // Non-finite losses since the process started. One or two can be a loss-scale search.
    nonfiniteLosses: 3,
  },
}
