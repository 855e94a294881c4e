"""The exporter as a process of its own, on a simulated node."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import create_node

__all__ = ["Running"]


class Running:
    """The exporter of a simulated node with two GPUs, and the command that talks to it."""

    def __init__(self, root: Path, library: Path) -> None:
        self.paths = create_node(root, "gpu-001", gpus=2, hcas=0)
        self.socket = root / "control" / "socket"
        self.log = root / "exporter.log"
        self._library = library
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self, *, ready: bool = True) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        flags = (
            *("--web.listen-address", f"127.0.0.1:{self.port}", "--ebpf.backend", "off"),
            *("--nvml.library", str(self._library), "--path.sysfs", str(self.paths.sysfs)),
            *("--path.kmsg", str(self.paths.kmsg), "--collect.interval", "500ms"),
            *("--control.socket", str(self.socket), "--nvml.call-deadline", "500ms"),
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tocsin_exporter", *flags],
                env={**os.environ, "TOCSIN_SIM_DEVICES": str(self.paths.devices)},
                stdout=log,
                stderr=log,
            )
        self.until(lambda text: not ready or 'tocsin_collector_success{collector="gpu"} 1' in text)

    def get(self, path: str) -> str:
        """What one path answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def scrape(self) -> str:
        """One scrape without its node label."""
        text = self.get("/metrics")
        node = socket.gethostname().split(".")[0]
        return text.replace(f'{{node="{node}",', "{").replace(f'{{node="{node}"}}', "")

    def until(self, wanted: Callable[[str], object], seconds: float = 30) -> str:
        end = time.monotonic() + seconds
        text = ""
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                text = self.scrape()
                if wanted(text):
                    return text
            time.sleep(0.05)
        raise AssertionError(f"{text}\n{self.log.read_text()}")

    def quiesce(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tocsin_exporter", "quiesce", "--socket", str(self.socket), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
        )

    def children(self) -> list[str]:
        assert self.process is not None
        below: list[str] = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                below += (task / "children").read_text().split()
        return below

    def end(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(20)

    def close(self) -> None:
        """Let the driver go on and end the exporter."""
        with Node(self.paths.devices) as node:
            node.state.hang = 0
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGKILL)
