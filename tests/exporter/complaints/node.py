"""A simulated node with the real exporter on it, for tests that look at nothing but what it serves."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin_common import procstat
from tocsin_lab.sim import kmsg
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import NodePaths, create_node, gpus_of
from tocsin_lab.stack.procs import descendants
from tocsin_lab.stack.stack import clean_environment

__all__ = ["NAME", "Agent", "Scrape", "gone"]

NAME = "gpu-001"
_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_PAIR = re.compile(r'([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"')


class Scrape:
    """One scrape, read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.types: dict[str, str] = {}
        self.rows: list[tuple[str, dict[str, str], float]] = []
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                self.types[name] = kind
            elif line and not line.startswith("#"):
                match = _LINE.match(line)
                assert match is not None, line
                self.rows.append((match[1], dict(_PAIR.findall(match[2] or "")), float(match[3])))

    def series(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """Return the series of a family that carry *labels*; an empty value stands for no label."""
        return [
            (found, value)
            for family, found, value in self.rows
            if family == name and all(found.get(key, "") == wanted for key, wanted in labels.items())
        ]

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the one series that fits, None when there is none."""
        found = self.series(name, **labels)
        assert len(found) < 2, found
        return found[0][1] if found else None

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the series that fit."""
        return sum(value for _, value in self.series(name, **labels))


@dataclass
class Agent:
    """
    The exporter of one simulated node: ``start`` it, ask it, break its node, ``stop`` it.

    Processes that it starts for jobs are real ones; ``state`` is the simulated driver's memory.
    """

    root: Path
    library: Path
    gpus: int = 2
    hcas: int = 2
    model: str = "H100-SXM"
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    interval: str = "500ms"
    deadline: str = "1s"
    # What starts the exporter's command line, which follows it.
    wrapper: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.paths: NodePaths = create_node(
            self.root, NAME, gpus=self.gpus, hcas=self.hcas, gpu_model=self.model
        )
        self.devices = gpus_of(self.root, NAME)
        self._node = Node(self.paths.devices)
        self.process: subprocess.Popen[bytes] | None = None
        self.jobs: list[subprocess.Popen[bytes]] = []
        self.port = 0

    @property
    def state(self) -> Any:
        """The node's live memory."""
        return self._node.state

    @property
    def log(self) -> str:
        """What the exporter has said so far."""
        path = self.root / "exporter.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def arguments(self) -> tuple[str, ...]:
        """The flags that point an exporter at this node."""
        return (
            *("--node.name", NAME, "--nvml.library", str(self.library)),
            *("--path.sysfs", str(self.paths.sysfs), "--path.kmsg", str(self.paths.kmsg)),
            *("--path.state", str(self.paths.state / "exporter.json")),
            *("--identity.only-env", f"TOCSIN_SIM_DEVICES={self.paths.devices}"),
            *("--collect.interval", self.interval, "--nvml.deadline", self.deadline, "--ebpf.backend", "off"),
            *("--control.socket", str(self.root / "control.sock")),
            *self.flags,
        )

    def environment(self) -> dict[str, str]:
        """The environment of the exporter."""
        return {**clean_environment(os.environ), "TOCSIN_SIM_DEVICES": str(self.paths.devices), **self.env}

    def start(self, *, ready: bool = True) -> Agent:
        """Start the exporter; wait until it listens and, if *ready*, has read the devices."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        listen = ("--web.listen-address", f"127.0.0.1:{self.port}")
        with (self.root / "exporter.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.wrapper, sys.executable, "-m", "tocsin_exporter", *listen, *self.arguments()],
                env=self.environment(),
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                self.get("/-/healthy")
                break
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}: {self.log}")
            time.sleep(0.05)
        if ready:
            self.until(lambda scrape: scrape.value("tocsin_collector_success", collector="gpu") == 1)
        return self

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the exporter's command with this node's flags."""
        return subprocess.run(
            [sys.executable, "-m", "tocsin_exporter", *self.arguments(), *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the exporter."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(20)
            self.process = None

    def close(self) -> None:
        """End everything; a second time does nothing."""
        if "state" not in vars(self._node):
            return
        self.state.hang = 0
        if self.process is not None:
            self.stop(signal.SIGKILL)
        for job in self.jobs:
            job.kill()
            job.wait()
        self._node.close()

    # asking

    def get(self, path: str) -> str:
        """Return the body of *path*."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200, answer.status
            return answer.read().decode()
        finally:
            connection.close()

    def scrape(self) -> Scrape:
        """Return one scrape."""
        return Scrape(self.get("/metrics"))

    def until(self, wanted: Callable[[Scrape], object], seconds: float = 20.0) -> Scrape:
        """Return the first scrape for which *wanted* holds; AssertionError when there is none in time."""
        end = time.monotonic() + seconds
        while True:
            scrape = self.scrape()
            if wanted(scrape):
                return scrape
            if time.monotonic() > end:
                told = [line for line in scrape.text.splitlines() if "_error" in line or "_up{" in line]
                raise AssertionError("never came true; last:\n" + "\n".join([*told[:40], self.log[-2000:]]))
            time.sleep(0.1)

    def cycles(self, count: int = 2) -> Scrape:
        """Return a scrape of after *count* further readings of the devices."""
        name = "tocsin_collector_last_success_timestamp_seconds"
        deadline = time.monotonic() + count * 0.5 + 0.3
        while time.monotonic() < deadline:
            time.sleep(0.05)
        scrape = self.scrape()
        assert scrape.series(name), scrape.text
        return scrape

    def uuid(self, gpu: int) -> str:
        """The UUID of a device."""
        return self.devices[gpu].uuid

    def children(self) -> list[int]:
        """The processes below the exporter."""
        assert self.process is not None
        return [one.pid for one in descendants(self.process.pid)]

    # breaking

    def xid(self, gpu: int, code: int, pid: int | None = None) -> None:
        """Let the kernel log an Xid."""
        kmsg.xid(self.paths.kmsg, self.devices[gpu].pci, code, pid)

    def job(
        self, name: str, gpus: Sequence[int], argv: Sequence[str] = ("sleep", "600"), **env: str
    ) -> list[subprocess.Popen[bytes]]:
        """Start one rank per device of *gpus*, as torchrun would, and let each hold its device."""
        ranks = []
        for rank, gpu in enumerate(gpus):
            child = subprocess.Popen(
                list(argv),
                stdout=subprocess.DEVNULL,
                env={
                    **self.environment(),
                    "TORCHELASTIC_RUN_ID": name,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(len(gpus)),
                    **env,
                },
            )
            self.hold(gpu, child.pid)
            ranks.append(child)
        self.jobs += ranks
        return ranks

    def hold(self, gpu: int, pid: int) -> None:
        """Let the driver list a process on a device."""
        for slot in self.state.devices[gpu].processes:
            if slot.pid == 0:
                slot.start_ticks, slot.memory_bytes, slot.pid = int(procstat.start(pid) or 0), 8 << 30, pid
                return
        raise AssertionError(f"device {gpu} has no room")

    def end(self, ranks: Sequence[subprocess.Popen[bytes]]) -> None:
        """End the processes of a job, and let the driver forget them."""
        for child in ranks:
            child.kill()
            child.wait()
        pids = {child.pid for child in ranks}
        for gpu in range(self.gpus):
            for slot in self.state.devices[gpu].processes:
                if slot.pid in pids:
                    slot.pid = 0


def gone(pids: Sequence[int]) -> bool:
    """Whether no process of *pids* is left."""
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@contextlib.contextmanager
def hung(agent: Agent) -> Iterator[None]:
    """Every driver call hangs meanwhile."""
    agent.state.hang = 1
    try:
        yield
    finally:
        agent.state.hang = 0
