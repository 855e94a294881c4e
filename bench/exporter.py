"""
What the exporter costs: CPU, memory, scrape time, with and without a hung driver.

One simulated node of 8 GPUs and 8 HCAs with a job of 8 ranks on it, the exporter as it ships, a scrape
every 15 s while CPU is counted. The last line is JSON; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tocsin_common import procstat
from tocsin_lab import inject
from tocsin_lab.scenario import Fault
from tocsin_lab.stack import components, http, ports, simulated
from tocsin_lab.stack.plan import LabPlan
from tocsin_lab.stack.procs import descendants
from tocsin_lab.stack.rundir import RunDir
from tocsin_lab.stack.stack import Stack, clean_environment

INTERVAL = 15.0
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return user and system time of processes and of their ended children."""
    total = 0
    for pid in pids:
        total += sum(int(field) for field in procstat.fields(pid)[11:15])
    return total / TICKS


def pss_bytes(pids: Sequence[int]) -> int:
    """Return the proportional set size of processes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def scrape_times(url: str, count: int) -> list[float]:
    """Return the seconds of *count* scrapes, one after the other."""
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        http.get(url, timeout=30.0)
        taken.append(time.perf_counter() - started)
        time.sleep(0.02)
    return taken


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which *share* of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figure(name: str, unit: str, value: float) -> dict[str, str | float]:
    """Return one figure of the result."""
    return {"name": name, "unit": unit, "value": round(value, 5)}


def tell(text: str) -> None:
    """Print one line beside the result."""
    sys.stderr.write(text + "\n")


def measure(seconds: float, scrapes: int, run: RunDir) -> list[dict[str, str | float]]:
    """Return the figures of one run."""
    plan = LabPlan(nodes=1, gpus=8, hcas=8, ranks=8, step_seconds=1.0, job="bench")
    stack = Stack(run, clean_environment(os.environ), tell)
    try:
        simulated.build_nodes(run, plan)
        for part in simulated.hardware(run, plan):
            stack.start(part)
        node = plan.node_names[0]
        flags, env = simulated.exporter_flags(run, node)
        [port] = ports.choose([0])
        part = components.exporter(node, port, (*flags, "--collect.interval", f"{INTERVAL:.0f}s"), env)
        stack.start(part)
        stack.wait_ready()
        for part in simulated.job(run, plan):
            stack.start(part)
        # Holders, probes and windows settle before anything is counted.
        time.sleep(2 * INTERVAL + 5)
        pid = stack.pid(f"exporter-{node}")
        url = f"http://{ports.LOOPBACK}:{port}/metrics"
        figures = [_costs(pid, url, seconds)]
        figures.append(_scrapes(url, scrapes, "scrape"))
        inject.strike(run, Fault.model_validate({"kind": "driver_hang", "at": "0s", "node": node}))
        time.sleep(2 * INTERVAL)
        figures.append(_scrapes(url, scrapes, "scrape_driver_hung"))
        return [one for some in figures for one in some]
    finally:
        for problem in stack.stop():
            tell(problem)


def _costs(pid: int, url: str, seconds: float) -> list[dict[str, str | float]]:
    pids = [pid, *(one.pid for one in descendants(pid))]
    before, started = cpu_seconds(pids), time.monotonic()
    next_scrape = started
    while time.monotonic() - started < seconds:
        if time.monotonic() >= next_scrape:
            http.get(url)
            next_scrape += INTERVAL
        time.sleep(0.1)
    own = (cpu_seconds(pids) - before) / (time.monotonic() - started)
    body = http.get(url)
    series = sum(1 for line in body.splitlines() if line and not line.startswith("#"))
    return [
        figure("cpu", "cores", own),
        figure("pss", "MiB", pss_bytes(pids) / 2**20),
        figure("processes", "", len(pids)),
        figure("series", "", series),
        figure("body", "KiB", len(body) / 1024),
    ]


def _scrapes(url: str, count: int, name: str) -> list[dict[str, str | float]]:
    taken = scrape_times(url, count)
    return [
        figure(f"{name}_p50", "ms", 1000 * statistics.median(taken)),
        figure(f"{name}_p99", "ms", 1000 * percentile(taken, 0.99)),
        figure(f"{name}_max", "ms", 1000 * max(taken)),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 unless something could not be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long CPU is counted (60)")
    parser.add_argument("--scrapes", type=int, default=200, help="scrapes that are timed (200)")
    chosen = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        run = RunDir(Path(folder) / "run")
        run.prepare()
        figures = measure(chosen.seconds, chosen.scrapes, run)
    for one in figures:
        sys.stdout.write(f"{one['name']:<26} {one['value']:>12} {one['unit']}\n")
    sys.stdout.write(json.dumps({"name": "bench-exporter", "figures": figures}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
