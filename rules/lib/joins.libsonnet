// Joins go through these: the side that lends labels is reduced to the join labels first, so
// that a second exporter of a node cannot make the match ambiguous.
function(s) {
  // `expr` (per node and gpu) with the device's model, empty where nobody tells it.
  withModel(expr, info): |||
    (
      (%(expr)s)
        * on (%(device)s) group_left (model)
      max by (%(device)s, model) (%(info)s)
    )
    or
    ((%(expr)s) unless on (%(device)s) (%(info)s))
  ||| % { expr: expr, info: info, device: s.device },

  // `expr` (per rank and node) with the device the rank holds, without where that is unknown.
  withDevice(expr): |||
    (
      (%(expr)s)
        * on (%(by)s) group_left (gpu, gpu_uuid)
      tocsin_rank:device:info
    )
    or
    ((%(expr)s) unless on (%(by)s) tocsin_rank:device:info)
  ||| % { expr: expr, by: s.rankNode },
}
