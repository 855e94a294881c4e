// The bundle: files of rule groups. Two groups, because a chain within a group costs nothing
// and each step from one group to the next costs an interval.
(import 'config.libsonnet') + {
  local config = self._config,
  local families = import 'families.libsonnet',
  local s = (import 'lib/select.libsonnet')(config),
  local j = (import 'lib/joins.libsonnet')(s),
  local a = (import 'lib/alert.libsonnet')(config, families),

  local ranks = (import 'records/ranks.libsonnet')(config, s),
  local evidence = (import 'records/evidence.libsonnet')(config, s),
  local training = (import 'records/training.libsonnet')(config, s),
  local activity = (import 'records/activity.libsonnet')(config, s, j),
  local throttle = (import 'records/throttle.libsonnet')(config, s),
  local pcie = (import 'records/pcie.libsonnet')(config, s, j),
  local events = (import 'records/events.libsonnet')(config, s, j),
  local verdict = (import 'records/verdict.libsonnet')(config, families, s),

  local deadRank = (import 'alerts/DeadRank.libsonnet')(config, s, a),
  local failSlowGpu = (import 'alerts/FailSlowGpu.libsonnet')(config, s, a),
  local gpuThrottled = (import 'alerts/GpuThrottled.libsonnet')(config, s, a),
  local lossDivergence = (import 'alerts/LossDivergence.libsonnet')(config, s, a),
  local evidenceMissing = (import 'alerts/EvidenceMissing.libsonnet')(config, s),
  local paging = (import 'alerts/Verdict.libsonnet')(config),

  local group(name, interval, rules) = {
    name: name,
    [if interval != '' then 'interval']: interval,
    rules: rules,
  },

  families:: families,

  // File name to rule file.
  prometheusRules:: {
    'tocsin-events.yaml': {
      groups: [
        group(
          'tocsin-events',
          config.eventInterval,
          ranks.rules
          + evidence.rules
          + events.rules
          + deadRank.rules
          + verdict.rules
          + paging.rules
          + evidenceMissing.rules,
        ),
      ],
    },
    'tocsin-patterns.yaml': {
      groups: [
        group(
          'tocsin-patterns',
          config.patternInterval,
          training.rules
          + activity.rules
          + throttle.rules
          + pcie.rules
          + lossDivergence.records
          + gpuThrottled.rules
          + failSlowGpu.rules
          + lossDivergence.rules,
        ),
      ],
    },
  },
}
