// The few panel types the dashboards use, in Grafana's dashboard schema 39 (Grafana 10.4 and newer).
// A panel names its queries; what they ask stands in queries/.
{
  local datasource = { type: 'prometheus', uid: '${datasource}' },

  target(expr, legend='', instant=false, format='time_series'):: {
    datasource: datasource,
    expr: expr,
    legendFormat: if legend == '' then '__auto' else legend,
    instant: instant,
    range: !instant,
    format: format,
  },

  local base(type, title, description, targets) = {
    type: type,
    title: title,
    description: description,
    datasource: datasource,
    targets: [targets[i] { refId: std.char(65 + i) } for i in std.range(0, std.length(targets) - 1)],
  },

  local steps(list) = { mode: 'absolute', steps: [{ color: s[0], value: s[1] } for s in list] },

  timeseries(title, description, targets, unit, max=null, min=0, stack=false):: base('timeseries', title, description, targets) {
    fieldConfig: {
      defaults: {
        unit: unit,
        [if min != null then 'min']: min,
        [if max != null then 'max']: max,
        custom: {
          drawStyle: 'line',
          lineWidth: 1,
          fillOpacity: if stack then 40 else 0,
          showPoints: 'never',
          spanNulls: false,
          stacking: { mode: if stack then 'normal' else 'none', group: 'A' },
        },
      },
      overrides: [],
    },
    options: {
      legend: { displayMode: 'list', placement: 'bottom', showLegend: true, calcs: [] },
      tooltip: { mode: 'multi', sort: 'desc' },
    },
  },

  stat(title, description, targets, unit, thresholds=[['green', null]], mappings=[], text='auto', noValue='–'):: base('stat', title, description, targets) {
    fieldConfig: {
      defaults: {
        unit: unit,
        noValue: noValue,
        mappings: mappings,
        thresholds: steps(thresholds),
      },
      overrides: [],
    },
    options: {
      colorMode: 'background',
      graphMode: 'none',
      justifyMode: 'auto',
      orientation: 'auto',
      textMode: text,
      reduceOptions: { calcs: ['lastNotNull'], fields: '', values: false },
    },
  },

  table(title, description, targets, columns, order, noValue=''):: base('table', title, description, targets) {
    fieldConfig: {
      defaults: { noValue: noValue, custom: { align: 'auto', cellOptions: { type: 'auto' } } },
      overrides: [],
    },
    options: { showHeader: true, cellHeight: 'sm' },
    transformations: [
      {
        id: 'organize',
        options: {
          excludeByName: { Time: true, Value: true, __name__: true },
          renameByName: columns,
          indexByName: { [order[i]]: i for i in std.range(0, std.length(order) - 1) },
        },
      },
    ],
  },

  stateTimeline(title, description, targets, mappings, thresholds):: base('state-timeline', title, description, targets) {
    fieldConfig: {
      defaults: {
        mappings: mappings,
        thresholds: steps(thresholds),
        color: { mode: 'thresholds' },
        custom: { fillOpacity: 70, lineWidth: 0 },
      },
      overrides: [],
    },
    options: { showValue: 'never', rowHeight: 0.9, mergeValues: true, legend: { showLegend: false, displayMode: 'list', placement: 'bottom' } },
  },
}
