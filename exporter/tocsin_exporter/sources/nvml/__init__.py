"""
Devices as the driver shows them.

`quantities` says what is read and how, in the words of `reads`. In the child process `child` serves
requests, `reader` reads devices by a `plan` of `calls`, `fields` and `gpm` samples, `throttle`, `processes`,
`nvlink` and `mig` do what the table alone cannot say, and `driver_events` waits for events. In the exporter
`source` watches the child.
"""
