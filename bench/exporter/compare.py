"""
All contenders on one simulated node at once: 8 GPUs, 8 HCAs, a job of 8 ranks.

They run side by side, are scraped in turn and counted over the same windows, so that what else the machine
does hits all alike. Where a time is given it is the median of the windows, or a percentile of all scrapes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.exporter import process
from bench.exporter.contenders import Contender, contenders
from bench.exporter.figures import Figures, percentile, tell

from tocsin_lab.sim.layout import Node, SimDevice
from tocsin_lab.sim.node import NodePaths
from tocsin_lab.stack import http, simulated
from tocsin_lab.stack.plan import LabPlan
from tocsin_lab.stack.rundir import RunDir
from tocsin_lab.stack.stack import Stack, clean_environment

__all__ = ["Settings", "measure"]

INTERVAL = 15.0
TIERS = ("core", "fabric", "deep")
# A scraper gives up after this, as Prometheus does by default.
PATIENCE = 10.0
_CHUNK = 20
_HOUR = 3600.0


@dataclass(frozen=True)
class Settings:
    """How long is measured: windows of CPU time, their length in seconds, scrapes per contender."""

    windows: int = 5
    window_seconds: float = 30.0
    scrapes: int = 200


@dataclass
class _Scraper:
    """One scraping process."""

    url: str
    timeout: float
    child: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        argv = [sys.executable, str(Path(__file__).with_name("scraper.py")), self.url, str(self.timeout)]
        self.child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, count: int) -> None:
        if self.child.stdin is not None:
            self.child.stdin.write(f"{count}\n")
            self.child.stdin.flush()

    def answer(self) -> tuple[list[float], int]:
        """Return the seconds of each scrape that was asked for, and how many failed."""
        line = self.child.stdout.readline() if self.child.stdout is not None else ""
        said = json.loads(line)
        return [float(one) for one in said["times"]], int(said["failed"])

    def close(self) -> None:
        self.child.kill()
        self.child.communicate()


@contextmanager
def _scrapers(url: str, count: int, timeout: float = PATIENCE) -> Iterator[list[_Scraper]]:
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(_Scraper(url, timeout))
            stack.callback(made[-1].close)
        yield made


def measure(settings: Settings, run: RunDir, figures: Figures) -> None:
    """Run everything and add its figures."""
    plan = LabPlan(nodes=1, gpus=8, hcas=8, ranks=8, step_seconds=1.0, job="bench")
    node = plan.node_names[0]
    stack = Stack(run, clean_environment(os.environ), tell)
    try:
        simulated.build_nodes(run, plan)
        for part in simulated.hardware(run, plan):
            stack.start(part)
        all_of_them = contenders(run, node, INTERVAL, TIERS)
        for one in all_of_them:
            stack.start(one.part)
        stack.wait_ready()
        for part in simulated.job(run, plan):
            stack.start(part)
        # Holders, probes and windows settle before anything is counted.
        tell(f"{len(all_of_them)} exporters and a job of {plan.ranks} ranks run; waiting for them to settle")
        _scrape_for(all_of_them, 2 * INTERVAL + 5)
        _windows(settings, stack, all_of_them, figures, "")
        _sizes(stack, all_of_them, figures)
        _latency(stack, all_of_them, settings.scrapes, figures, "scrape")
        _crowd(all_of_them, 5, settings.scrapes, figures)
        _hangs(settings, stack, all_of_them, NodePaths(run.root, node).devices, figures)
        _ratios(figures)
    finally:
        for problem in stack.stop():
            tell(problem)


def _scrape_for(who: Sequence[Contender], seconds: float) -> None:
    """Scrape everybody at the usual interval for a while."""
    end = time.monotonic() + seconds
    due = time.monotonic()
    while time.monotonic() < end:
        if time.monotonic() >= due:
            for one in who:
                http.get(one.url, timeout=PATIENCE)
            due += INTERVAL
        time.sleep(0.1)


def _windows(
    settings: Settings, stack: Stack, who: Sequence[Contender], figures: Figures, suffix: str
) -> None:
    """Add CPU use at the usual interval: the median of the windows, and how far they lie apart."""
    cores: dict[str, list[float]] = {one.name: [] for one in who}
    drivers: dict[str, list[float]] = {one.name: [] for one in who}
    for window in range(settings.windows):
        families = {one.name: process.family(stack.pid(one.part.name)) for one in who}
        began = time.monotonic()
        before = {name: [process.cpu_seconds([pid]) for pid in pids] for name, pids in families.items()}
        _scrape_for(who, settings.window_seconds)
        passed = time.monotonic() - began
        for name, pids in families.items():
            used = [process.cpu_seconds([pid]) - was for pid, was in zip(pids, before[name], strict=True)]
            cores[name].append(max(0.0, sum(used)) / passed)
            drivers[name].append(max(0.0, sum(used[1:])) / passed)
        tell(f"window {window + 1} of {settings.windows}{suffix} done")
    for one in who:
        figures.add(f"{one.name}_cpu{suffix}", "cores", statistics.median(cores[one.name]))
        if not suffix:
            figures.add(f"{one.name}_cpu_most", "cores", max(cores[one.name]))
            figures.add(f"{one.name}_cpu_per_hour", "s", _HOUR * statistics.median(cores[one.name]))
            if any(drivers[one.name]):
                figures.add(f"{one.name}_cpu_driver_child", "cores", statistics.median(drivers[one.name]))


def _sizes(stack: Stack, who: Sequence[Contender], figures: Figures) -> None:
    """Add series, body and memory."""
    for one in who:
        body = http.get(one.url)
        pids = process.family(stack.pid(one.part.name))
        used = process.memory(pids)
        series = sum(1 for line in body.splitlines() if line and not line.startswith("#"))
        figures.add(f"{one.name}_series", "", series)
        figures.add(f"{one.name}_body", "KiB", len(body) / 1024)
        figures.add(f"{one.name}_pss", "MiB", used.pss / 2**20)
        figures.add(f"{one.name}_memory_alone", "MiB", used.alone / 2**20)
        figures.add(f"{one.name}_processes", "", len(pids))


def _latency(
    stack: Stack,
    who: Sequence[Contender],
    scrapes: int,
    figures: Figures,
    name: str,
) -> None:
    """Add the time of a scrape by one scraper; the contenders take turns."""
    times: dict[str, list[float]] = {one.name: [] for one in who}
    failed: dict[str, int] = {one.name: 0 for one in who}
    used: dict[str, float] = {one.name: 0.0 for one in who}
    with ExitStack() as open_ones:
        asking = {one.name: open_ones.enter_context(_scrapers(one.url, 1))[0] for one in who}
        for _ in range(max(1, scrapes // _CHUNK)):
            for one in who:
                pids = process.family(stack.pid(one.part.name))
                before = process.cpu_seconds(pids)
                asking[one.name].ask(min(scrapes, _CHUNK))
                taken, lost = asking[one.name].answer()
                used[one.name] += process.cpu_seconds(pids) - before
                times[one.name] += taken
                failed[one.name] += lost
    for one in who:
        _times(figures, f"{one.name}_{name}", times[one.name])
        if name == "scrape":
            figures.add(f"{one.name}_cpu_per_scrape", "ms", 1000 * used[one.name] / len(times[one.name]))
        if failed[one.name]:
            figures.add(f"{one.name}_{name}_failed", "ratio", failed[one.name] / len(times[one.name]))


def _times(figures: Figures, name: str, times: Sequence[float]) -> None:
    figures.add(f"{name}_p50", "ms", 1000 * statistics.median(times))
    figures.add(f"{name}_p99", "ms", 1000 * percentile(times, 0.99))
    figures.add(f"{name}_max", "ms", 1000 * max(times))


def _crowd(who: Sequence[Contender], scrapers: int, scrapes: int, figures: Figures) -> None:
    """Add the time of a scrape while several scrapers ask at once."""
    times: dict[str, list[float]] = {one.name: [] for one in who}
    with ExitStack() as open_ones:
        asking = {one.name: open_ones.enter_context(_scrapers(one.url, scrapers)) for one in who}
        for _ in range(max(1, scrapes // scrapers // _CHUNK)):
            for one in who:
                for scraper in asking[one.name]:
                    scraper.ask(_CHUNK)
                for scraper in asking[one.name]:
                    times[one.name] += scraper.answer()[0]
    for one in who:
        _times(figures, f"{one.name}_scrape_by_{scrapers}", times[one.name])


def _hangs(
    settings: Settings, stack: Stack, who: Sequence[Contender], devices: Path, figures: Figures
) -> None:
    """Add the same while one device hangs, and while the whole driver does."""
    survivors = [one for one in who if one.ours]
    plain = [one for one in who if not one.ours]
    if any(field[0] == "hang" for field in SimDevice._fields_):
        _set_hang(devices, 3, 1)
        _scrape_for(survivors, 2 * INTERVAL)
        _latency(stack, survivors, settings.scrapes, figures, "scrape_one_gpu_hung")
        _latency(stack, plain, 1, figures, "scrape_one_gpu_hung")
        _set_hang(devices, 3, 0)
        time.sleep(5.0)
    _set_hang(devices, None, 1)
    _scrape_for(survivors, 2 * INTERVAL)
    once = Settings(1, settings.window_seconds, settings.scrapes)
    _windows(once, stack, survivors, figures, "_driver_hung")
    _latency(stack, survivors, settings.scrapes, figures, "scrape_driver_hung")
    _latency(stack, plain, 2, figures, "scrape_driver_hung")
    for one in plain:
        pids = process.family(stack.pid(one.part.name))
        figures.add(f"{one.name}_threads_driver_hung", "", process.threads(pids))
    _set_hang(devices, None, 0)


def _set_hang(devices: Path, gpu: int | None, value: int) -> None:
    with Node(devices) as node:
        if gpu is None:
            node.state.hang = value
        else:
            node.state.devices[gpu].hang = value


_PAIRS = (("plain", "tocsin_devices"), ("plain", "tocsin_fabric"), ("node_exporter", "tocsin_fabric"))
_COSTS = ("cpu", "cpu_per_scrape", "pss", "memory_alone", "scrape_p50", "scrape_p99", "scrape_by_5_p99")


def _ratios(figures: Figures) -> None:
    """Add what the others cost over what the exporter costs."""
    for other, ours in _PAIRS:
        for what in _COSTS:
            figures.ratio(f"{other}_over_{ours}_{what}", f"{other}_{what}", f"{ours}_{what}")
    figures.ratio(
        "plain_over_tocsin_fabric_scrape_driver_hung_p50",
        "plain_scrape_driver_hung_p50",
        "tocsin_fabric_scrape_driver_hung_p50",
    )
