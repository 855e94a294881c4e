// One row per family that the bundle holds: what its verdict says and when it must be there.
// `order` ranks causes before symptoms (lower wins). `clears` are the layers that must have
// complete evidence before the family may say `job`. `severity` is that of TocsinVerdict;
// family alerts themselves are context and always `info`. `deadline` is at a 5 s scrape.
{
  DeadRank: {
    order: 40,
    verdict: 'job',
    side: 'yours',
    layer: 'workload',
    tier: 'event',
    severity: 'critical',
    clears: ['device', 'host'],
    deadline: '30s',
  },
  GpuThrottled: {
    order: 50,
    verdict: 'infrastructure',
    side: 'below',
    layer: 'device',
    tier: 'pattern',
    severity: 'warning',
    clears: [],
    deadline: 'max(90s, 10 steps) when it slows the job, else 6m',
  },
  FailSlowGpu: {
    order: 55,
    verdict: 'infrastructure',
    side: 'below',
    layer: 'device',
    tier: 'pattern',
    severity: 'warning',
    clears: [],
    deadline: 'max(90s, 10 steps)',
  },
  LossDivergence: {
    order: 80,
    verdict: 'job',
    side: 'yours',
    layer: 'workload',
    tier: 'pattern',
    severity: 'critical',
    clears: ['device', 'host'],
    deadline: '50 steps + 60s',
  },
}
