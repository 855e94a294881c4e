// The dashboards, by file name. They read the rules' config, so that selectors agree.
(import '../rules/config.libsonnet') + {
  local config = self._config,
  local p = import 'lib/panel.libsonnet',
  local b = (import 'lib/board.libsonnet')(config),

  grafanaDashboards:: {
    'tocsin-job.json': (import 'boards/job.libsonnet')(config, p, b).dashboard,
    'tocsin-fleet.json': (import 'boards/fleet.libsonnet')(config, p, b).dashboard,
  },
}
