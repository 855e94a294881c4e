"""
A ledger that is fed one kernel event after the other until it is killed: ``python ledger_crash.py STATE``.

It prints the sequence of the event and the count that it would serve, each on a line. The log has all events
from the start: it goes on behind the cursor in the state.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tocsin_exporter.attribution import Attribution
from tocsin_exporter.identity.assigned import Assignment
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.identity.resolver import Holder
from tocsin_exporter.kmsg.parse import Event
from tocsin_exporter.sources.kmsg import KernelEvent
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.model import Device, NvmlReading
from tocsin_exporter.state import StateFile

ADDRESS = "0000:10:00.0"
RAW = ("row_remaps_total", ("uncorrected",))
# One event per step; a step takes a millisecond of real time.
STEP = 0.001


class Who:
    """One job that outlives every exporter."""

    def living(self) -> tuple[ProcessIdentity, ...]:
        """Return the job's process."""
        return (ProcessIdentity(1, 1, 0.0, "slurm/a", "0", "slurm"),)

    def assigned(self) -> tuple[Assignment, ...]:
        """Return nothing."""
        return ()

    def holder_of(self, pid: int) -> Holder | None:
        """Return the job."""
        return Holder("slurm/a", "0")


def main(path: Path) -> None:
    """Feed events and readings until the end comes from outside."""
    began = float((path.parent / "began").read_text())
    # The clock runs a hundred times faster, so that the pause after a restart costs no test time.
    def passed() -> float:
        return (time.time() - began) * 100

    ledger = Attribution(
        Who(), StateFile(path), ErrorCounter(), boot_id="b", log_identity=lambda: "log",
        wall=lambda: 1e6 + passed(), clock=passed,
    )  # fmt: skip
    sequence = ledger.cursor
    while True:
        # The log's end: an event for each step that has passed since the start.
        last = int((time.time() - began) / STEP)
        xid = Event("xid", 1, {"code": 48, "pci": ADDRESS, "class": "reset"})
        batch = [KernelEvent(xid, 1e6 + number * STEP * 100) for number in range(sequence + 1, last + 1)]
        sequence = last
        ledger.on_events(batch, sequence)
        device = Device("0", "GPU-a", pci=ADDRESS, counters={RAW: float(sequence)}, pids=(1,))
        ledger.on_reading(NvmlReading(0.0, (device,)))
        served = ledger.published()
        for held in served.devices:
            device_count = served.events[0].xid["reset"]
            print(sequence, device_count, held.xid["reset"], int(held.counters.get(RAW, 0)), flush=True)
        time.sleep(STEP)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
