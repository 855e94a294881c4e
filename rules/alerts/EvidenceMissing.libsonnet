// Node-level: makes no job verdict, so it carries neither `verdict` nor `order`.
function(config, s) {
  local warning(layer, expr, description, evidence) = {
    alert: 'TocsinEvidenceMissing',
    expr: expr,
    'for': config.evidenceMissingFor,
    keep_firing_for: config.keepFiringFor,
    labels: {
      family: 'EvidenceMissing',
      [if layer != null then 'layer']: layer,
      severity: 'warning',
      tier: 'pattern',
    },
    annotations: {
      summary: 'A node hides what the rules need',
      description: description,
      evidence: evidence,
      runbook_url: '%s/runbooks/EvidenceMissing' % config.runbookBaseUrl,
    },
  },
  local down = |||
    max by (%(node)s) (
      max by (%(node)s, instance) (last_over_time(%(info)s[%(memory)s]))
        * on (%(instance)s) group_left ()
      max by (%(instance)s) (%(up)s == 0)
    )
  ||| % {
    node: s.node,
    instance: s.list(['instance']),
    up: s.raw('up'),
    info: s.raw('tocsin_exporter_info'),
    memory: config.jobNodeMemory,
  },

  rules: [
    warning(
      'platform',
      down,
      'The exporter of {{ $labels.node }} does not answer. Nothing on that node can be cleared or blamed meanwhile.',
      'up{%s} == 0' % config.exporterSelector,
    ),
    warning(
      null,
      // What an operator switched off, and what the node does not have, is known and needs no warning.
      |||
        (
          tocsin_node:layer_fresh:bool == 0
          unless on (%(node)s)
          (%(down)s)
        )
        unless on (%(node)s, layer)
        max by (%(node)s, layer) (tocsin_node:evidence_missing:info{reason=~"disabled|unsupported"})
      ||| % { node: s.node, down: down },
      'Layer {{ $labels.layer }} of {{ $labels.node }} is not fully seen. Jobs there get inconclusive answers where that layer must be ruled out.',
      'tocsin_collector_error_info{node="{{ $labels.node }}", %s}' % config.exporterSelector,
    ),
  ],
}
