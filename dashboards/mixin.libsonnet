// The dashboards, by file name.
(import '../rules/config.libsonnet') + {
  grafanaDashboards:: {},
}
