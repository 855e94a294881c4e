"""What the tables of quantities say about counting: which counters count events, and who is told of them."""

from __future__ import annotations

from functools import cache

from tocsin_exporter.attribution.holding import Key
from tocsin_exporter.sources.nvml.quantities import QUANTITIES

__all__ = [
    "EVENT_COUNTERS", "FOLLOWED", "HELD", "PORT_FOLLOWED", "WHOLE", "WHOLE_READINGS", "event_class",
    "is_event",
]  # fmt: skip

# Counters of devices to follow: True where they count events.
FOLLOWED: dict[str, bool] = {
    row.name: bool(row.event) for row in QUANTITIES.values() if row.counter and (row.held or row.event)
}
# Those told again per holder.
HELD = frozenset(row.name for row in QUANTITIES.values() if row.counter and row.held)
# Those of a whole GPU that every holder of one of its MIG instances is told as well: what happens to the GPU
# happens to all of them, and so does the time it spends in a state. An amount (energy, traffic) is not told:
# nobody knows whose share is which.
WHOLE = frozenset(
    row.name
    for row in QUANTITIES.values()
    if row.counter and row.held and (row.event or row.unit == "seconds")
)
# The same of its readings: states, clocks and temperatures are those of every instance, shares are nobody's.
WHOLE_READINGS = frozenset(
    row.name
    for row in QUANTITIES.values()
    if not row.counter and row.held and row.unit in ("", "hertz", "celsius")
)
# Counters of ports: failures are events, traffic is an amount.
PORT_FOLLOWED = {"receive_bytes_total": False, "transmit_bytes_total": False, "errors_total": True}

# Counts of these stay true without a new reading, and outlive the holder for a while.
EVENT_COUNTERS = frozenset(
    name for table in (FOLLOWED, PORT_FOLLOWED) for name, event in table.items() if event
)


def is_event(key: Key) -> bool:
    """Say whether a counter counts events."""
    return key[0] in EVENT_COUNTERS


@cache
def event_class(key: Key) -> str:
    """Return the class under which the time of a device counter's last event is told, "" when it is not."""
    row = QUANTITIES[key[0]]
    return str(row.timed).format_map(dict(zip(row.labels, key[1], strict=False))) if row.timed else ""
