// Links that run below what both of their ends can, or below what the fleet's other devices of the
// model do. An idle GPU lowers its link to save power, so a GPU is judged under load alone.
function(config, s, j) {
  local device = s.list(['node', 'gpu', 'gpu_uuid']),
  local kin = s.list(['model', 'quantity']),
  local port = s.list(['node', 'pci', 'role']),

  local over(function_, metric, by) =
    'max by (%s) (%s_over_time(%s[%s]))' % [by, function_, s.raw(metric), config.pcieLoadWindow],

  // The best that the link has shown in the window: one sample of a link that trains up is enough to clear it.
  local best(quantity) = {
    record: 'tocsin_gpu:pcie_link:best',
    labels: { quantity: quantity },
    expr: j.withModel(
      |||
        %(best)s
        and on (%(device)s)
        tocsin_gpu:loaded:bool
      ||| % { best: over('max', 'tocsin_gpu_pcie_link_' + quantity, device), device: device },
      s.raw('tocsin_gpu_info', 'mig=""'),
    ),
  },

  local belowMaximum(quantity) = {
    record: 'tocsin_gpu:pcie_link_degraded:bool',
    labels: { quantity: quantity, reference: 'maximum' },
    expr: |||
      (
        tocsin_gpu:pcie_link:best{quantity="%(quantity)s"}
        < on (%(device)s) group_left ()
        max by (%(device)s) (%(most)s)
      ) * 0 + 1
    ||| % {
      quantity: quantity,
      device: device,
      most: s.raw('tocsin_gpu_pcie_link_%s_max' % quantity),
    },
  },

  // Adapters and switches keep their link at full speed when idle.
  local otherBelowMaximum(quantity) = {
    record: 'tocsin_node:pcie_link_degraded:bool',
    labels: { quantity: quantity, reference: 'maximum' },
    expr: |||
      (
        (
          %(best)s
          <
          max by (%(port)s) (%(most)s)
        ) * 0 + 1
      )
      * on (%(address)s) group_left (kind, device)
      max by (%(address)s, kind, device) (%(info)s)
    ||| % {
      best: over('max', 'tocsin_pcie_link_' + quantity, port),
      port: port,
      most: s.raw('tocsin_pcie_link_%s_max' % quantity),
      address: s.list(['node', 'pci']),
      info: s.raw('tocsin_pcie_info', 'kind!="gpu"'),
    },
  },

  rules: [
    {
      // Busy at every sample of the window, so that none of them shows an idle link.
      record: 'tocsin_gpu:loaded:bool',
      expr: |||
        (
          %(activity)s > %(least)g
          or
          %(utilization)s > %(least)g
        ) * 0 + 1
      ||| % {
        activity: over('min', 'tocsin_gpu_sm_active_ratio', device),
        utilization: over('min', 'tocsin_gpu_utilization_ratio', device),
        least: config.pcieMinLoad,
      },
    },
    best('generation'),
    best('width'),
    {
      // What nearly all loaded devices of a model have; their median then is their most frequent value.
      record: 'tocsin_model:pcie_link:mode',
      expr: |||
        quantile by (%(kin)s) (0.5, tocsin_gpu:pcie_link:best)
        and
        max by (%(kin)s) (count_values by (%(kin)s) ("value", tocsin_gpu:pcie_link:best))
          >= %(share)g * count by (%(kin)s) (tocsin_gpu:pcie_link:best)
        and
        count by (%(kin)s) (tocsin_gpu:pcie_link:best) >= %(least)d
      ||| % { kin: kin, share: config.pcieFleetShare, least: config.pcieFleetMinDevices },
    },
    belowMaximum('generation'),
    belowMaximum('width'),
    {
      record: 'tocsin_gpu:pcie_link_degraded:bool',
      labels: { reference: 'fleet' },
      expr: |||
        (
          tocsin_gpu:pcie_link:best
          < on (%(kin)s) group_left ()
          tocsin_model:pcie_link:mode
        ) * 0 + 1
      ||| % { kin: kin },
    },
    otherBelowMaximum('generation'),
    otherBelowMaximum('width'),
  ],
}
