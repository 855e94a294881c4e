// A dashboard out of rows of panels: ids, places and variables are given here, so that a board
// only says what stands beside what.
function(config) {
  local columns = 24,
  local cluster = config.clusterLabel,

  datasource:: {
    name: 'datasource',
    label: 'Data source',
    type: 'datasource',
    query: 'prometheus',
    current: {},
    hide: 0,
    refresh: 1,
    regex: '',
    options: [],
    multi: false,
    includeAll: false,
  },

  variable(name, label, query, multi=false, all=false):: {
    name: name,
    label: label,
    type: 'query',
    datasource: { type: 'prometheus', uid: '${datasource}' },
    definition: query,
    query: { query: query, refId: name },
    current: {},
    hide: 0,
    refresh: 2,
    regex: '',
    sort: 1,
    options: [],
    multi: multi,
    includeAll: all,
    [if all then 'allValue']: '.*',
  },

  // Sites without a cluster label see an empty variable that matches what has none.
  cluster:: if cluster == '' then [] else [
    self.variable('cluster', 'Cluster', 'label_values(tocsin_node:exporter_seen:info, %s)' % cluster, all=true),
  ],

  dashboard(uid, title, description, tags, variables, verdicts, rows, links=[]):: {
    // Each row: {title, height, panels}; panels of a row share its width evenly, or by `w`.
    local placed = std.foldl(
      function(state, row)
        local header = row.title != '';
        local top = state.y + (if header then 1 else 0);
        local width = std.floor(columns / std.length(row.panels));
        local sized = [panel { w:: if std.objectHasAll(panel, 'w') then panel.w else width } for panel in row.panels];
        local lefts = [std.foldl(function(sum, j) sum + sized[j].w, std.range(0, i - 1), 0) for i in std.range(0, std.length(sized) - 1)];
        {
          y: top + row.height,
          id: state.id + (if header then 1 else 0) + std.length(sized),
          panels: state.panels
                  + (if header then [{
                       type: 'row',
                       title: row.title,
                       collapsed: false,
                       panels: [],
                       id: state.id,
                       gridPos: { x: 0, y: state.y, w: columns, h: 1 },
                     }] else [])
                  + [
                    sized[i] {
                      id: state.id + (if header then 1 else 0) + i,
                      gridPos: { x: lefts[i], y: top, w: sized[i].w, h: row.height },
                    }
                    for i in std.range(0, std.length(sized) - 1)
                  ],
        },
      rows,
      { y: 0, id: 1, panels: [] },
    ),
    uid: uid,
    title: title,
    description: description,
    tags: ['tocsin'] + tags,
    schemaVersion: 39,
    version: 1,
    editable: true,
    graphTooltip: 1,
    refresh: '10s',
    time: { from: 'now-30m', to: 'now' },
    timezone: 'browser',
    templating: { list: variables },
    annotations: {
      list: [
        {
          name: 'Verdicts',
          datasource: { type: 'prometheus', uid: '${datasource}' },
          enable: true,
          iconColor: 'red',
          expr: verdicts,
          titleFormat: '{{family}}: {{verdict}}',
          textFormat: '{{job_id}} rank {{rank}} {{node}} GPU {{gpu}}',
          tagKeys: 'family,layer',
        },
      ],
    },
    links: links,
    panels: placed.panels,
  },
}
