"""Who counts the calls: nobody, the exporter by each of its backends, and bpftrace."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.ebpf.load import JOB, Rank
from bench.exporter.figures import tell

from tocsin_lab.stack import ports
from tocsin_lab.stack.procs import Child

__all__ = ["Exporter", "backends", "bpftrace", "exporter"]

_SAMPLE = re.compile(r"^(tocsin_\w+)\{([^}]*)\} (\S+)$", re.M)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_READY_SECONDS = 60.0
_QUIET = ("gpu", "gpu_events", "pcie", "fabric", "host")


class Exporter:
    """A running exporter of this machine."""

    def __init__(self, child: Child, port: int) -> None:
        self.child = child
        self._port = port

    def series(self) -> list[tuple[str, dict[str, str], float]]:
        """Return one scrape: (family, labels, value)."""
        connection = http.client.HTTPConnection(ports.LOOPBACK, self._port, timeout=10)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        return [
            (name, dict(_LABEL.findall(labels)), float(value))
            for name, labels, value in _SAMPLE.findall(text)
        ]

    def total(self, family: str, **labels: str) -> float:
        """Return the sum over the benchmark's job of the series that have *labels*."""
        return self.value(family, job_id=f"torchrun/{JOB}", **labels)

    def value(self, family: str, **labels: str) -> float:
        """Return the sum of the series of a family that have *labels*, of whatever job."""
        return sum(
            value
            for name, found, value in self.series()
            if name == family and labels.items() <= found.items()
        )


def backends() -> list[str]:
    """Return the backends that the exporter's own help lists, without ``off``."""
    done = subprocess.run(
        [sys.executable, "-m", "tocsin_exporter", "--help"], capture_output=True, text=True, check=True
    )
    match = re.search(r"--ebpf\.backend ([\w|]+)", done.stdout)
    return [name for name in match[1].split("|") if name != "off"] if match else []


@contextmanager
def exporter(
    backend: str, ranks: Sequence[Rank], work: Path, flags: Sequence[str] = ()
) -> Iterator[Exporter | None]:
    """Run the exporter until the block ends; None, with the reason told, where the backend does not work."""
    (port,) = ports.choose([0])
    argv = [
        *(sys.executable, "-m", "tocsin_exporter", "--web.listen-address", f"{ports.LOOPBACK}:{port}"),
        *("--control.socket", "", "--ebpf.backend", backend, *flags),
        *(f"--no-collector.{name}" for name in _QUIET),
    ]
    child = Child(backend, argv, os.environ, work / f"exporter-{backend}.log", work)
    try:
        found = Exporter(child, port)
        yield found if _ready(found, len(ranks)) else None
    finally:
        child.stop(30)


def _ready(found: Exporter, ranks: int) -> bool:
    child = found.child
    end = time.monotonic() + _READY_SECONDS
    while time.monotonic() < end and child.exit_status() is None:
        try:
            seen = {
                (name, labels["rank"])
                for name, labels, _ in found.series()
                if labels.get("job_id") == f"torchrun/{JOB}" and labels.get("op") in ("launch", "all_reduce")
            }
            if sum(name.startswith("tocsin_cuda_calls") for name, _ in seen) == ranks and (
                sum(name.startswith("tocsin_nccl_calls") for name, _ in seen) == ranks
            ):
                return True
        except OSError:
            pass
        time.sleep(0.2)
    tell(f"{child.name} is left out: it sees no calls within {_READY_SECONDS:.0f} s; {child.tail()}")
    return False


@contextmanager
def bpftrace(script: str, work: Path) -> Iterator[bool]:
    """Run a bpftrace script until the block ends; False where there is none."""
    program = shutil.which("bpftrace")
    if program is None:
        tell("bpftrace is left out: it is not installed (apt-get install bpftrace)")
        yield False
        return
    child = Child("bpftrace", [program, "-e", script], os.environ, work / "bpftrace.log", work)
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end and child.exit_status() is None and "Attaching" not in child.tail():
            time.sleep(0.1)
        # "Attaching" is printed before the probes are in place.
        time.sleep(2.0)
        works = child.exit_status() is None
        yield works
        if not works:
            tell(f"bpftrace is left out: {child.tail()}")
    finally:
        child.stop(20)
