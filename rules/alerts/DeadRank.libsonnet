function(config, s, a) {
  local cleared = |||
    tocsin_job:event:timestamp_seconds{family="DeadRank"}
    unless on (%(rank)s)
    tocsin_rank:exit_explained:bool
    and on (%(job)s)
    tocsin_job:evidence_complete:bool == 1
  ||| % { rank: s.rank, job: s.job },
  local how = '{{ if $labels.signal }}signal {{ $labels.signal }}{{ else if $labels.code }}exit code {{ $labels.code }}{{ else }}unknown cause{{ end }}',
  local evidence = 'tocsin_rank:last_exit:timestamp_seconds{job_id="{{ $labels.job_id }}", rank="{{ $labels.rank }}"}',

  rules: [
    a.family(
      'DeadRank',
      cleared,
      'A rank ended while its peers live on',
      'Rank {{ $labels.rank }} of {{ $labels.job_id }} on {{ $labels.node }} ended (' + how + ') and the other ranks wait for it. Devices and hosts of the job showed nothing that would explain it.',
      evidence,
    ),
    a.family(
      'DeadRank',
      |||
        tocsin_job:event:timestamp_seconds{family="DeadRank"}
        unless
        (
          %s)
      ||| % std.strReplace(cleared, '\n', '\n  '),
      'A rank ended while its peers live on, cause open',
      'Rank {{ $labels.rank }} of {{ $labels.job_id }} on {{ $labels.node }} ended (' + how + ') and the other ranks wait for it. A device fault or a kill for lack of memory stands beside it, or evidence is missing, so the cause is open.',
      evidence,
      verdict='inconclusive',
    ),
  ],
}
