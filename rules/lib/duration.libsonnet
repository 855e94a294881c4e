// Prometheus durations as seconds, for arithmetic beside the same value in a range selector.
{
  local units = { s: 1, m: 60, h: 3600, d: 86400 },
  seconds(text)::
    local unit = std.substr(text, std.length(text) - 1, 1);
    local digits = std.substr(text, 0, std.length(text) - 1);
    if std.objectHas(units, unit) && std.length(digits) > 0
    then std.parseInt(digits) * units[unit]
    else error 'config: %s is not a duration of one unit (s, m, h, d)' % text,
}
