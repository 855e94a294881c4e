// The one shape of a family alert: labels from the family table, the same four annotations.
function(config, families) {
  local base(family) = families[family],

  // `verdict` overrides the table's; an inconclusive row carries no side.
  family(family, expr, summary, description, evidence, verdict=null, hold=null):: {
    alert: 'Tocsin' + family,
    expr: expr,
    [if hold != null then 'for']: hold,
    keep_firing_for: config.keepFiringFor,
    labels: {
      family: family,
      verdict: if verdict == null then base(family).verdict else verdict,
      [if verdict != 'inconclusive' then 'side']: base(family).side,
      layer: base(family).layer,
      severity: 'info',
      order: std.toString(base(family).order),
      tier: base(family).tier,
    },
    annotations: {
      summary: summary,
      description: description,
      evidence: evidence,
      runbook_url: '%s/runbooks/%s' % [config.runbookBaseUrl, family],
    },
  },
}
