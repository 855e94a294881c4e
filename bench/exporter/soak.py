"""
A day in minutes: 5,760 scrapes, hundreds of jobs that come and go, faults now and then; does it grow?

The jobs are real processes with a job's environment, the driver's library in their memory and output that
looks like training; the simulated driver lists them as holders of devices. The exporter's ledger runs on a
faster clock (see ``fast``), so that what it keeps for a while is really forgotten within the run.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.exporter import process
from bench.exporter.figures import Figures, percentile, slope, tell
from bench.exporter.scraper import Scraper

from tocsin_common import procstat
from tocsin_lab.sim import kmsg
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import NodePaths, gpus_of
from tocsin_lab.stack import ports, simulated
from tocsin_lab.stack.components import Part
from tocsin_lab.stack.plan import LabPlan
from tocsin_lab.stack.rundir import RunDir
from tocsin_lab.stack.stack import Stack, clean_environment

__all__ = ["Settings", "measure"]

DAY = 86400.0
INTERVAL = 15.0
SCRAPES = int(DAY / INTERVAL)
_SAMPLE_SECONDS = 2.0
_CODES = (13, 31, 43, 45, 48, 63, 74, 79, 94, 119)
_RANK = """
$| = 1; $SIG{TERM} = sub { exit 143 };
for my $step (1 .. 100000) {
  printf " [2026-01-01 00:00:00] iteration %8d/ 100000 | consumed samples: %12d | elapsed time per iteration (ms): 150.0 | learning rate: 3.0E-04 | lm loss: %.4E | grad norm: 1.000 |\\n", $step, $step * 256, 2 + 1 / $step;
  select(undef, undef, undef, 0.15);
}
"""  # noqa: E501 - one line of a log


@dataclass(frozen=True)
class Settings:
    """Real seconds for the day, jobs in it, tier that is served."""

    seconds: float
    jobs: int
    tier: str

    @property
    def speed(self) -> float:
        """How much faster the ledger's clock runs."""
        return DAY / self.seconds


@dataclass
class _Job:
    number: int
    until: float
    gpus: list[int]
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)


class Jobs:
    """Jobs that come and go on one node, and what goes wrong on its devices meanwhile."""

    def __init__(self, paths: NodePaths, library: Path, seed: int = 1) -> None:
        self._paths = paths
        self._random = random.Random(seed)
        self._pci = [gpu.pci for gpu in gpus_of(paths.run_dir, paths.name)]
        self._node = Node(paths.devices)
        self._running: list[_Job] = []
        self._env = {
            **clean_environment(os.environ),
            simulated.NODE_VARIABLE: str(paths.devices),
            "LD_PRELOAD": str(library),
        }
        perl = shutil.which("perl")
        self._argv = [perl, "-e", _RANK] if perl else ["sleep", "60"]
        self.started = self.ended = self.xids = 0

    def step(self, now: float, wanted: float) -> None:
        """End what is due; start jobs until *wanted* were started, as far as devices are free."""
        for job in [one for one in self._running if one.until <= now]:
            self._end(job)
        while self.started < wanted:
            taken = {gpu for job in self._running for gpu in job.gpus}
            # Now and then two jobs share a device.
            free = [gpu for gpu in range(8) if gpu not in taken or self._random.random() < 0.1]
            size = self._random.choice((1, 2, 2, 4, 4, 8))
            if len(free) < size:
                return
            self._start(now, self._random.sample(free, size))

    def _start(self, now: float, gpus: list[int]) -> None:
        job = _Job(self.started, now + self._random.uniform(1.0, 5.0), gpus)
        self.started += 1
        for rank, gpu in enumerate(gpus):
            env = {
                **self._env,
                "TORCHELASTIC_RUN_ID": f"soak-{job.number}",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(len(gpus)),
            }
            log = (self._paths.root / f"rank-{rank}.log").open("wb")
            with log:
                child = subprocess.Popen(self._argv, env=env, stdout=log, stderr=subprocess.STDOUT)
            job.ranks.append(child)
            self._hold(gpu, child.pid)
        self._running.append(job)
        if self._random.random() < 0.3:
            self._fault(gpus[0], job.ranks[0].pid)

    def _hold(self, gpu: int, pid: int) -> None:
        start = procstat.start(pid)
        device = self._node.state.devices[gpu]
        for slot in device.processes:
            if slot.pid == 0:
                slot.start_ticks, slot.memory_bytes, slot.pid = int(start or 0), 40 << 30, pid
                return

    def _fault(self, gpu: int, pid: int) -> None:
        kmsg.xid(self._paths.kmsg, self._pci[gpu], self._random.choice(_CODES), pid)
        self.xids += 1
        device = self._node.state.devices[gpu]
        device.ecc_dram[0] += 1
        if self._random.random() < 0.2:
            device.ecc_dram[1] += 1
            device.remapped_rows[1] += 1

    def _end(self, job: _Job) -> None:
        self._running.remove(job)
        for child in job.ranks:
            child.send_signal(self._random.choice((9, 15)))
        pids = {child.pid for child in job.ranks}
        for child in job.ranks:
            child.wait()
        for gpu in job.gpus:
            for slot in self._node.state.devices[gpu].processes:
                if slot.pid in pids:
                    slot.pid = 0
        self.ended += 1

    def close(self) -> None:
        """End all."""
        for job in list(self._running):
            self._end(job)
        self._node.close()


@dataclass
class _Sample:
    """One look at the exporter; ``hours`` are of its own clock."""

    hours: float
    agent: int
    child: int
    pss: int
    files: int
    threads: int
    processes: int
    series: int


def measure(settings: Settings, run: RunDir, figures: Figures) -> None:
    """Run the day and add its figures."""
    plan = LabPlan(nodes=1, gpus=8, hcas=8, ranks=8, job="soak")
    node = plan.node_names[0]
    paths = NodePaths(run.root, node)
    stack = Stack(run, clean_environment(os.environ), tell)
    jobs: Jobs | None = None
    try:
        simulated.build_nodes(run, plan)
        for part in simulated.hardware(run, plan):
            stack.start(part)
        part = _exporter(settings, run, node)
        stack.start(part)
        stack.wait_ready()
        jobs = Jobs(paths, simulated.library_folder(run) / "libcuda.so.1")
        tell(f"a day in {settings.seconds:.0f} s: {SCRAPES} scrapes, {settings.jobs} jobs")
        samples, times, failed, hours = _day(settings, stack.pid(part.name), part.url, jobs)
        _report(figures, samples, times, failed, hours, jobs)
    finally:
        if jobs is not None:
            jobs.close()
        for problem in stack.stop():
            tell(problem)


def _exporter(settings: Settings, run: RunDir, node: str) -> Part:
    [port] = ports.choose([0])
    url = f"http://{ports.LOOPBACK}:{port}"
    argv = (
        *(sys.executable, str(Path(__file__).with_name("fast.py"))),
        *(f"{settings.speed:g}", f"{INTERVAL / settings.speed:g}", str(port), node, settings.tier),
        *(str(run.root), str(simulated.library_folder(run) / "libnvidia-ml.so.1")),
    )
    env = {simulated.NODE_VARIABLE: str(NodePaths(run.root, node).devices)}
    return Part("exporter", argv, env, f"{url}/metrics", f"{url}/-/healthy")


def _day(settings: Settings, pid: int, url: str, jobs: Jobs) -> tuple[list[_Sample], list[float], int, float]:
    """Scrape through the day; return what was seen, the scrapes' seconds, how many failed, and the hours."""
    scraper = Scraper(url, 10.0)
    samples: list[_Sample] = []
    times: list[float] = []
    failed = 0
    series = [0]
    began = time.monotonic()
    done = threading.Event()

    def hours() -> float:
        return (time.monotonic() - began) * settings.speed / 3600

    def turn_over() -> None:
        # Beside the scrapes: starting eight processes takes longer than the pause between two of those.
        while not done.wait(0.05):
            now = time.monotonic() - began
            jobs.step(now, settings.jobs * now / settings.seconds)

    worker = _started(turn_over)
    due, next_sample = began, began
    try:
        for _ in range(SCRAPES):
            time.sleep(max(0.0, due - time.monotonic()))
            due += settings.seconds / SCRAPES
            asked = time.perf_counter()
            try:
                body = scraper.scrape()
                series[0] = sum(1 for line in body.splitlines() if line and not line.startswith(b"#"))
            except OSError:
                failed += 1
            times.append(time.perf_counter() - asked)
            if time.monotonic() >= next_sample:
                next_sample += _SAMPLE_SECONDS
                samples.append(_look(pid, hours(), series[0]))
                tell(
                    f"hour {samples[-1].hours:5.2f}: agent {samples[-1].agent / 2**20:.2f} MiB, "
                    f"driver's child {samples[-1].child / 2**20:.2f} MiB, {series[0]} series"
                )
    finally:
        done.set()
        worker.join(30)
    return samples, times, failed, hours()


def _started(run: Callable[[], None]) -> threading.Thread:
    worker = threading.Thread(target=run, name="jobs", daemon=True)
    worker.start()
    return worker


def _look(pid: int, hours: float, series: int) -> _Sample:
    pids = process.family(pid)
    agent, child = process.memory(pids[:1]), process.memory(pids[1:])
    return _Sample(
        hours,
        agent.private,
        child.private,
        agent.pss + child.pss,
        process.open_files(pids),
        process.threads(pids),
        len(pids),
        series,
    )


def _report(
    figures: Figures, samples: list[_Sample], times: list[float], failed: int, hours: float, jobs: Jobs
) -> None:
    later = [one for one in samples if one.hours >= 1.0]
    quarter = max(1, len(later) // 4)
    first, last = later[:quarter], later[-quarter:]
    figures.add("soak_scrapes", "", len(times))
    figures.add("soak_scrapes_failed", "", failed)
    figures.add("soak_hours", "h", hours)
    figures.add("soak_jobs_started", "", jobs.started)
    figures.add("soak_jobs_ended", "", jobs.ended)
    figures.add("soak_xids", "", jobs.xids)
    figures.add("soak_scrape_p50", "ms", 1000 * statistics.median(times))
    figures.add("soak_scrape_p99", "ms", 1000 * percentile(times, 0.99))
    looks: tuple[tuple[str, str, float, Callable[[_Sample], float]], ...] = (
        ("agent_private", "MiB", 2**20, lambda one: one.agent),
        ("driver_child_private", "MiB", 2**20, lambda one: one.child),
        ("pss", "MiB", 2**20, lambda one: one.pss),
        ("open_files", "", 1, lambda one: one.files),
        ("threads", "", 1, lambda one: one.threads),
        ("processes", "", 1, lambda one: one.processes),
        ("series", "", 1, lambda one: one.series),
    )
    for name, unit, scale, value in looks:
        figures.add(f"soak_{name}_first", unit, statistics.median(map(value, first)) / scale)
        figures.add(f"soak_{name}_last", unit, statistics.median(map(value, last)) / scale)
        figures.add(f"soak_{name}_most", unit, max(map(value, samples)) / scale)
        grown = slope([(one.hours, value(one)) for one in later]) / scale
        # Growth per day after the first hour, by the median of all slopes.
        figures.add(f"soak_{name}_growth", f"{unit}/d" if unit else "1/d", 24 * grown)
