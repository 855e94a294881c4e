"""
The web surface: everything that leaves the exporter leaves it here, and nothing here changes state.

::

    server      one loop does all the socket work of all connections; it never waits for one of them
    connection  what one connection is doing, and until when it may
    http        the head of a request and of an answer      negotiation   text or OpenMetrics, packed or not
    pages       which path is answered with what            rendering     makes scrapes, one at a time
    webconfig   the Prometheus web configuration file       tls           that file as an `ssl` context
    auth        passwords, within a bounded share of a CPU  reload        reads it all again when it changes
    stats       what of this is shown as series

`http.server` is not used: it takes a thread for each connection, so that whoever opens connections decides
how many threads the node agent has, and it costs 9 MiB more than the modules that this package imports
(`asyncio`: 10 MiB). What needs `ssl`, `yaml` or `bcrypt` is imported only when the file asks for it.
"""
