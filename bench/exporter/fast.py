"""
The exporter with a faster clock: ``fast.py SPEED READING_SECONDS PORT NODE TIER RUN_DIR LIBRARY``.

What ages (jobs, holdings, what ended) ages SPEED times as fast, and devices are read every READING_SECONDS
of real time, so that a day's life fits into minutes. Deadlines and pauses of the driver's child stay real.
Everything else is the exporter as it ships.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from pathlib import Path

from tocsin_exporter import memory
from tocsin_exporter.app import build
from tocsin_exporter.config import Config
from tocsin_exporter.metrics import Tier
from tocsin_exporter.web.server import MetricsServer
from tocsin_lab.sim.node import NodePaths
from tocsin_lab.stack.simulated import NODE_VARIABLE


def main() -> int:
    """Serve until SIGTERM."""
    memory.return_freed()
    speed, reading = float(sys.argv[1]), float(sys.argv[2])
    paths = NodePaths(Path(sys.argv[6]), sys.argv[4])
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    wall, monotonic = time.time(), time.monotonic()

    def passed() -> float:
        return speed * (time.monotonic() - monotonic)

    config = Config(
        listen=(("127.0.0.1", int(sys.argv[3])),),
        node=paths.name,
        sysfs=paths.sysfs,
        kmsg=paths.kmsg,
        state=paths.state / "exporter.json",
        nvml_library=Path(sys.argv[7]),
        interval=reading,
        only_env=(NODE_VARIABLE, str(paths.devices)),
        tier=Tier(sys.argv[5]),
    )
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    app = build(config, wall=lambda: wall + passed(), clock=lambda: monotonic + passed())
    server = MetricsServer(config.listen, app.registry, config.node, stats=app.web)
    server.start()
    try:
        app.start()
        memory.keep()
        done.wait()
    finally:
        server.stop()
        app.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
