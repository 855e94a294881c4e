// The one alert that pages. It does not linger: how long a verdict outlives its condition is the
// family alert's affair, and a row that a cause has taken over must go at once.
function(config) {
  rules: [
    {
      alert: 'TocsinVerdict',
      expr: 'tocsin_job:verdict:info',
      annotations: {
        summary: '{{ $labels.job_id }}: {{ $labels.family }}, {{ $labels.verdict }}',
        description: '{{ if eq $labels.verdict "job" }}The job itself{{ else if eq $labels.verdict "infrastructure" }}The infrastructure{{ else if eq $labels.verdict "neighbour" }}A neighbour{{ else }}Something that the evidence does not settle{{ end }} holds {{ $labels.job_id }} back: {{ $labels.family }}{{ if $labels.rank }}, rank {{ $labels.rank }}{{ end }}{{ if $labels.node }} on {{ $labels.node }}{{ end }}{{ if $labels.gpu }}, GPU {{ $labels.gpu }}{{ end }} (layer {{ $labels.layer }}{{ if $labels.side }}, {{ if eq $labels.side "yours" }}fix it on the node or in the job{{ else }}for the provider or the hardware team{{ end }}{{ end }}).',
        evidence: 'ALERTS{alertname="Tocsin{{ $labels.family }}", alertstate="firing", job_id="{{ $labels.job_id }}"}',
        runbook_url: config.runbookBaseUrl + '/runbooks/{{ $labels.family }}',
      },
    },
  ],
}
