"""Put a whole lab together: the node (simulated or real), the exporters, the servers, the job."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tocsin_common.bundle import BundleError, bundle_root, rendered_files
from tocsin_lab.errors import LabError
from tocsin_lab.stack import components, configs, http, ports, programs, simulated
from tocsin_lab.stack.components import Part
from tocsin_lab.stack.plan import LabPlan
from tocsin_lab.stack.rundir import RunDir, clean_up, read_record, running
from tocsin_lab.stack.stack import Stack, clean_environment

FIRST_SCRAPE_SECONDS = 45.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What `tocsin-lab up` was asked for."""

    plan: LabPlan = field(default_factory=LabPlan)
    simulate: bool | None = None  # None: real hardware where a driver is found
    any_ports: bool = False


@dataclass(frozen=True)
class Wiring:
    """The ports of one lab."""

    exporters: dict[str, int]
    prometheus: int
    alertmanager: int
    remediator: int

    def url(self, port: int) -> str:
        return f"http://{ports.LOOPBACK}:{port}"


def wire(nodes: tuple[str, ...], any_ports: bool) -> Wiring:
    """Choose the ports: the documented ones where free."""
    wishes = [
        *ports.exporter_wishes(len(nodes)),
        ports.PROMETHEUS,
        ports.ALERTMANAGER,
        ports.REMEDIATOR,
    ]
    chosen = ports.choose([0] * len(wishes) if any_ports else wishes)
    split = len(nodes)
    return Wiring(dict(zip(nodes, chosen[:split], strict=True)), *chosen[split:])


def take_run_dir(run: RunDir, say: Say) -> None:
    """Make the run directory ours; LabError when a lab already runs there."""
    record = read_record(run.record)
    if record is not None:
        if running(record):
            raise LabError(
                f"a lab already runs in {run.root} (process {record.supervisor.pid}); "
                "stop it with `tocsin-lab down`, or choose another --run-dir"
            )
        stopped = clean_up(run, record)
        ended = f" and stopped its {', '.join(stopped)}" if stopped else ""
        say(f"removed what a killed lab left in {run.root}{ended}")
    elif run.root.is_dir() and any(run.root.iterdir()):
        raise LabError(f"{run.root} is not empty and holds no lab; choose another --run-dir")
    run.prepare()


class Lab:
    """One lab from start to stop."""

    def __init__(self, run: RunDir, options: Options, say: Say) -> None:
        self.run = run
        self.plan = options.plan
        self._say = say
        self.real = programs.driver_present() if options.simulate is None else not options.simulate
        self.nodes = (socket.gethostname().split(".")[0],) if self.real else options.plan.node_names
        self.wiring = wire(self.nodes, options.any_ports)
        self.stack = Stack(run, clean_environment(os.environ), say)
        self.notes: list[str] = []

    @property
    def prometheus(self) -> str:
        return self.wiring.url(self.wiring.prometheus)

    @property
    def remediator(self) -> str:
        return self.wiring.url(self.wiring.remediator)

    def start(self) -> None:
        """Start everything and wait until it answers; LabError says what does not."""
        self.notes = _lacks()
        for note in self.notes:
            self._say(note)
        if not self.real:
            simulated.build_nodes(self.run, self.plan)
            for part in simulated.hardware(self.run, self.plan):
                self.stack.start(part)
        self._start_exporters()
        self._start_servers()
        self.stack.wait_ready()
        if not self.real:
            for part in simulated.job(self.run, self.plan):
                self.stack.start(part)
        jobs = () if self.real else (self.plan.job,)
        self.stack.describe(self.nodes, jobs, self.notes)
        self._wait_first_scrape()
        self.stack.mark_ready()

    def _start_exporters(self) -> None:
        for node, port in self.wiring.exporters.items():
            state = self.run.node(node)
            state.mkdir(parents=True, exist_ok=True)
            flags: tuple[str, ...] = ("--path.state", str(state / "state" / "exporter.json"))
            env: dict[str, str] = {}
            if not self.real:
                more, env = simulated.exporter_flags(self.run, node)
                flags += more
            self.stack.start(components.exporter(node, port, flags, env))

    def _start_servers(self) -> None:
        wiring = self.wiring
        folder = self.run.part("prometheus")
        config = configs.prometheus(wiring.exporters, wiring.remediator, wiring.alertmanager, rule_files())
        path = configs.write(folder / "prometheus.yml", config)
        self.stack.start(components.prometheus(folder, path, wiring.prometheus))
        folder = self.run.part("alertmanager")
        path = configs.write(folder / "alertmanager.yml", configs.alertmanager(wiring.remediator))
        self.stack.start(components.alertmanager(folder, path, wiring.alertmanager))
        self.stack.start(self._remediator())

    def _remediator(self) -> Part:
        folder = self.run.part("remediator")
        configs.write(folder / "config.yaml", components.remediator_config(self.run.root, self.real))
        return components.remediator(
            folder,
            self.wiring.remediator,
            self.prometheus,
            self.wiring.url(self.wiring.alertmanager),
            bundle_root() / "runbooks",
        )

    def _wait_first_scrape(self) -> None:
        """Wait until Prometheus has read every exporter once with success."""
        wanted = len(self.nodes)
        deadline = time.monotonic() + FIRST_SCRAPE_SECONDS
        while True:
            self.stack.watch()
            try:
                rows = http.query(self.prometheus, f'up{{job="{configs.EXPORTER_JOB}"}} == 1')
            except LabError:
                rows = []
            if len(rows) == wanted:
                return
            if time.monotonic() > deadline:
                raise LabError(
                    f"Prometheus read {len(rows)} of {wanted} exporters within {FIRST_SCRAPE_SECONDS:.0f} s; "
                    f"see {self.prometheus}/targets and the logs in {self.run.logs}"
                )
            time.sleep(0.2)

    def stop(self, keep: bool) -> list[str]:
        """Stop everything, remove the run directory unless *keep*; return what went wrong."""
        problems = self.stack.stop()
        if not keep and not problems:
            self.run.remove()
        return problems


def rule_files() -> list[Path]:
    """Return the rendered rule files; LabError when the bundle is not there."""
    try:
        return [file.path for file in rendered_files(bundle_root()) if file.kind == "rules"]
    except BundleError as err:
        raise LabError(str(err)) from err


def _lacks() -> list[str]:
    """Say in one line each what this user may not do and what it costs."""
    status = Path("/proc/self/status").read_text("ascii", "replace")
    if programs.may_trace(programs.capabilities(status)):
        return []
    lack = (
        "no right to trace (root, or CAP_BPF with CAP_PERFMON): going on without CUDA and NCCL evidence; "
        "job output is read from its log files, exits from /proc"
    )
    return [lack]
