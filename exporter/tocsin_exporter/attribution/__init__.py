"""Which job holds which device and port, and what happened meanwhile."""

from __future__ import annotations

from tocsin_exporter.attribution.ledger import Attribution
from tocsin_exporter.attribution.model import DeviceEvents, HeldDevice, HeldPort, Published, Who
from tocsin_exporter.attribution.table import EVENT_COUNTERS, WHOLE_READINGS

__all__ = [
    "EVENT_COUNTERS", "WHOLE_READINGS", "Attribution", "DeviceEvents", "HeldDevice", "HeldPort", "Published",
    "Who",
]  # fmt: skip
