"""Ports on the loopback address: the documented ones where they are free, others where not."""

from __future__ import annotations

import socket
from collections.abc import Sequence

LOOPBACK = "127.0.0.1"
EXPORTER, REMEDIATOR, PROMETHEUS, ALERTMANAGER = 9836, 9837, 9090, 9093


def free(port: int) -> bool:
    """Tell whether a server could listen on *port* now (0 asks for any)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections linger in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose(wanted: Sequence[int]) -> list[int]:
    """Return one port per wish, all different: the wish itself (0: any) when it is free, else another."""
    chosen: list[int] = []
    held: list[socket.socket] = []
    try:
        for port in wanted:
            if port and port not in chosen and free(port):
                chosen.append(port)
                continue
            # Held until all are chosen, so that the kernel does not hand one out twice.
            holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.append(holder)
            holder.bind((LOOPBACK, 0))
            chosen.append(int(holder.getsockname()[1]))
    finally:
        for holder in held:
            holder.close()
    return chosen


def exporter_wishes(nodes: int) -> list[int]:
    """Return the wished ports of *nodes* exporters: 9836, then 9838 on, since 9837 is the remediator's."""
    return [EXPORTER, *range(REMEDIATOR + 1, REMEDIATOR + nodes)]
