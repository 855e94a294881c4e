"""From the ledger to what the collectors serve."""

from __future__ import annotations

from tocsin_exporter.attribution.devices import Devices
from tocsin_exporter.attribution.holding import served
from tocsin_exporter.attribution.holdings import Holdings
from tocsin_exporter.attribution.model import DeviceEvents, HeldDevice, HeldPort, Published
from tocsin_exporter.attribution.table import is_event

__all__ = ["publish"]


def publish(
    devices: Devices, held: Holdings, ports: Holdings, now: float, *, unattributed: int, unmatched: int
) -> Published:
    """Return copies of everything as it is at *now*, a steady time."""
    return Published(
        events=tuple(
            DeviceEvents(
                entry.gpu,
                entry.uuid,
                entry.mig,
                dict(entry.log.xid),
                dict(entry.log.codes),
                dict(entry.log.times),
            )
            for entry in devices.whole()
        ),
        devices=tuple(
            HeldDevice(
                gpu=entry.gpu,
                uuid=entry.uuid,
                mig=entry.mig,
                job_id=holding.job_id,
                rank=holding.rank,
                active=holding.active,
                owner=holding.accountable(now),
                counters=served(holding, now, is_event),
                xid=dict(holding.xid),
                times=dict(holding.times),
            )
            for holding in held
            if (entry := devices.entries.get(holding.subject)) is not None
        ),
        ports=tuple(
            HeldPort(
                holding.subject,
                holding.job_id,
                holding.active,
                holding.accountable(now),
                served(holding, now, is_event),
            )
            for holding in ports
        ),
        unattributed=unattributed,
        unmatched=unmatched,
    )
