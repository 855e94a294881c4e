// Label lists and selectors. Every raw series is read through `raw`, so that none can be
// read without config.exporterSelector.
function(config) {
  local list(names) = std.join(', ', (if config.clusterLabel == '' then [] else [config.clusterLabel]) + names),

  job: list(['job_id']),
  rank: list(['job_id', 'rank']),
  rankNode: list(['job_id', 'rank', 'node']),
  jobNode: list(['job_id', 'node']),
  node: list(['node']),
  device: list(['node', 'gpu']),
  subject: list(['job_id', 'rank', 'node', 'gpu', 'gpu_uuid']),
  list:: list,

  raw(name, matchers=''):: '%s{%s}' % [
    name,
    std.join(', ', [m for m in [config.exporterSelector, matchers] if m != '']),
  ],

  // Two exporters of one node, or one scraped twice, must not double a series.
  one(by, expr):: 'max by (%s) (%s)' % [by, expr],
}
