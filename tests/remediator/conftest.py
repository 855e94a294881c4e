"""A job that can be broken, a real Prometheus and Alertmanager that watch it, and the real program."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPO = Path(__file__).resolve().parents[2]
JOBS = 12

# Carries an action out once per request id, as the contract for schedulers says; slow on request.
SCHEDULER = """\
#!{python} -I
import json, os, sys, time
root, verb, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
if verb == "status":
    print(open(os.path.join(root, "describe.json")).read())
    sys.exit(0)
request = argv[argv.index("--request-id") + 1]
with open(os.path.join(root, "calls"), "a") as calls:
    calls.write(json.dumps([verb, *argv]) + "\\n")
if os.path.exists(os.path.join(root, "refuse")):
    print(json.dumps({{"applied": False, "error": "no spare node"}}))
    sys.exit(3)
time.sleep(float(open(os.path.join(root, "delay")).read()))
try:
    os.mkdir(os.path.join(root, "done-" + request))
except FileExistsError:
    print(json.dumps({{"accepted": True, "again": True}}))
    sys.exit(0)
with open(os.path.join(root, "count"), "a") as count:
    count.write(verb + "\\n")
if not os.path.exists(os.path.join(root, "useless")):
    open(os.path.join(root, "fixed"), "w").close()
print(json.dumps({{"accepted": True}}))
"""


@dataclass
class Job:
    """What a watched job looks like; its scheduler's `fixed` file heals it."""

    id: str
    root: Path
    family: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    silent: bool = False
    started: float = field(default_factory=time.monotonic)
    stopped_at: float = 0.0

    def breaks(self, family: str, **labels: str) -> None:
        """From now on the rules say this; the steps stop."""
        self.labels = labels
        self.stopped_at = time.monotonic()
        self.family = family

    @property
    def broken(self) -> bool:
        """Whether the fault is there."""
        return bool(self.family) and not (self.root / "fixed").exists()

    def lines(self) -> list[str]:
        """The recorded series that the rules would make of it."""
        if self.silent:
            return []
        broken = self.broken
        until = self.stopped_at if broken else time.monotonic()
        job = f'job_id="{self.id}"'
        lines = [
            f"tocsin_job:step:max{{{job}}} {int((until - self.started) * 10)}",
            f"tocsin_job:steps_per_second:rate1m{{{job}}} {0 if broken else 10}",
            f"tocsin_job:ranks_up:count{{{job}}} {5 if broken and self.family == 'DeadRank' else 6}",
            f"tocsin_job:ranks_expected:max{{{job}}} 6",
            f"tocsin_job:evidence_complete:bool{{{job}}} 1",
            *(f'tocsin_rank:sm_active:avg1m{{{job},rank="{rank}"}} 0.9' for rank in range(6)),
        ]
        if broken:
            extra = "".join(f',{name}="{value}"' for name, value in self.labels.items())
            lines.append(f'tocsin_job:verdict:info{{{job},family="{self.family}"{extra}}} 1')
        return lines


RULES = {
    "groups": [
        {
            "name": "test",
            "rules": [
                {
                    "alert": "TocsinVerdict",
                    "expr": "tocsin_job:verdict:info == 1",
                    "annotations": {"summary": "{{ $labels.family }} of {{ $labels.job_id }}"},
                },
                {
                    "alert": "TocsinDeadRank",
                    "expr": 'tocsin_job:verdict:info{family="DeadRank"} == 1',
                    "labels": {"severity": "info"},
                    "annotations": {
                        "summary": "A rank of {{ $labels.job_id }} is gone",
                        "evidence": 'tocsin_job:ranks_up:count{job_id="{{ $labels.job_id }}"}',
                    },
                },
                {
                    "alert": "TocsinFailSlowGpu",
                    "expr": 'tocsin_job:verdict:info{family="FailSlowGpu"} == 1',
                    "labels": {"severity": "info", "family": "FailSlowGpu", "layer": "device"},
                    "annotations": {
                        "summary": "A GPU is slow",
                        "evidence": "tocsin_rank:sm_active:avg1m"
                        '{job_id="{{ $labels.job_id }}",rank="{{ $labels.rank }}"}',
                    },
                },
            ],
        }
    ]
}

DEAD_RANK = {
    "verdict": "job",
    "side": "yours",
    "layer": "workload",
    "rank": "3",
    "node": "gpu-002",
}


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(what: Callable[[], Any], seconds: float = 20.0, hint: Callable[[], object] = lambda: "") -> Any:
    """Wait for something to be true; what it returned."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(requests.RequestException):
            found = what()
            if found:
                return found
        if time.monotonic() > end:
            pytest.fail(f"did not happen within {seconds} s: {hint()}")
        time.sleep(0.1)


class Processes:
    """Children of a test, each ended by its pid."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, argv: list[str], log: Path) -> subprocess.Popen[bytes]:
        """Start one with its output in `log`."""
        with log.open("ab") as out:
            child = subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        self.all.append(child)
        return child

    def end(self) -> None:
        """End them all."""
        for child in reversed(self.all):
            if child.poll() is None:
                child.terminate()
        for child in self.all:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(10)


@dataclass
class Remediator:
    """A `tocsin-remediator serve` that can be killed and started again."""

    folder: Path
    argv: list[str]
    url: str
    job: str
    processes: Processes
    child: subprocess.Popen[bytes] | None = None

    @property
    def journal(self) -> str:
        return f"sqlite:///{self.folder}/journal.db"

    @property
    def log(self) -> str:
        return (self.folder / "remediator.log").read_text()[-6000:]

    def start(self) -> None:
        """Start and wait until it is ready."""
        self.child = self.processes.start(self.argv, self.folder / "remediator.log")
        until(lambda: requests.get(f"{self.url}/-/ready", timeout=2).ok, hint=lambda: self.log)

    def kill(self) -> None:
        """kill -9."""
        assert self.child is not None
        self.child.send_signal(signal.SIGKILL)
        self.child.wait(10)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another command on its journal."""
        argv = [sys.executable, "-m", "tocsin_remediator", words[0], "--journal", self.journal, *words[1:]]
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)

    def incidents(self) -> list[dict[str, Any]]:
        """What the API lists of this test's job."""
        found = requests.get(f"{self.url}/api/v1/incidents", timeout=5).json()
        return [one for one in found if one["job_id"] == self.job]

    def approve(self, incident: dict[str, Any]) -> None:
        """Approve the plan as it was shown, through the API."""
        body = {"by": "operator", "plan_digest": incident["plan_digest"]}
        address = f"{self.url}/api/v1/incidents/{incident['id']}/approve"
        answer = requests.post(address, json=body, timeout=5)
        assert 200 == answer.status_code, answer.text

    def only(self) -> dict[str, Any]:
        """The only incident, in full."""
        found = self.incidents()
        assert 1 == len(found), found
        return dict(requests.get(f"{self.url}/api/v1/incidents/{found[0]['id']}", timeout=5).json())

    def reaches(self, *states: str, seconds: float = 25.0) -> dict[str, Any]:
        """Wait until the only incident is in one of these states."""

        def there() -> dict[str, Any] | None:
            one = self.only() if self.incidents() else {}
            return one if one.get("state") in states else None

        def hint() -> str:
            return json.dumps([one | {} for one in self.incidents()], indent=1) + self.log

        return dict(until(there, seconds, hint))


@dataclass
class Site:
    """Everything a test needs of one machine room."""

    folder: Path
    job: Job
    root: Path
    prometheus_url: str
    alertmanager_url: str
    processes: Processes
    remediator_port: int

    def count(self) -> int:
        """How often an action was really carried out."""
        file = self.root / "count"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def calls(self) -> list[list[str]]:
        """The argument vectors that the scheduler was given."""
        file = self.root / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def delay(self, seconds: float) -> None:
        """Let actions take this long."""
        (self.root / "delay").write_text(str(seconds))

    def runbooks(self, **more: str) -> Path:
        """The shipped runbooks with short waits; `more` replaces further text by text."""
        folder = self.folder / "runbooks"
        if not folder.exists():
            folder.mkdir()
            for file in sorted((REPO / "runbooks").glob("*.yaml")):
                text = quick(file.read_text())
                for old, new in more.items():
                    text = text.replace(old, new)
                (folder / file.name).write_text(text)
        return folder

    def post(self, url: str, **labels: str) -> requests.Response:
        """Send a firing TocsinVerdict as Alertmanager would."""
        alert = {"status": "firing", "labels": {"alertname": "TocsinVerdict", **labels}, "annotations": {}}
        return requests.post(f"{url}/api/v1/alerts", json={"version": "4", "alerts": [alert]}, timeout=5)

    def remediator(self, *flags: str, config: dict[str, Any] | None = None) -> Remediator:
        """The program, not started."""
        folder = self.folder / "remediator"
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(config or self.config()))
        url = f"http://127.0.0.1:{self.remediator_port}"
        argv = [sys.executable, "-m", "tocsin_remediator", "serve"]
        argv += ["--listen", f"127.0.0.1:{self.remediator_port}", "--prometheus-url", self.prometheus_url]
        argv += ["--alertmanager-url", self.alertmanager_url, "--runbooks", str(self.runbooks())]
        argv += [
            "--journal",
            f"sqlite:///{folder}/journal.db",
            "--config",
            str(folder / "config.yaml"),
            *flags,
        ]
        return Remediator(folder, argv, url, self.job.id, self.processes)

    def config(self, **more: Any) -> dict[str, Any]:
        """The lab's configuration with short waits."""
        program, root = str(self.root / "scheduler"), str(self.root)
        request = ["--request-id", "{request_id}"]
        moved = ["--rank", "{rank}", "--avoid-gpu", "{gpu_uuid}"]
        return {
            "levels": {"DeadRank": "approve", "FailSlowGpu": "approve", "GpuThrottled": "approve"},
            "schedulers": [
                {
                    "name": "lab",
                    "kind": "command",
                    "job_prefix": "torchrun/",
                    "describe": {"argv": [program, root, "status", "--job", "{job_id}"]},
                    "actions": {
                        "restart": {"argv": [program, root, "restart", "--job", "{job_id}", *request]},
                        "move_rank": {
                            "argv": [program, root, "move-rank", "--job", "{job_id}", *moved, *request]
                        },
                    },
                }
            ],
            "timing": {"poll": "200ms", "confirm_quiet": "2s", "clear_quiet": "2s"},
            **more,
        }


def quick(text: str) -> str:
    """A runbook with waits for a test."""
    for slow, fast in (
        ("settle: 15s", "settle: 1s"),
        ("for: 30s", "for: 1s"),
        ("for: 1m", "for: 1s"),
        ("interval: 5s", "interval: 500ms"),
        ("hold: 1m", "hold: 1s"),
        ("hold: 2m", "hold: 1s"),
        ("baseline: {window: 30m, before: 1m}", "baseline: {window: 30s, before: 0s}"),
        ("cooldown: 1m", "cooldown: 1s"),
        ("cooldown: 10m", "cooldown: 1s"),
    ):
        text = text.replace(slow, fast)
    return text


def _exposition(jobs: list[Job]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = "".join(f"{line}\n" for job in jobs for line in job.lines()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


def scheduler(root: Path, job: str) -> None:
    """The scheduler's program and what it knows of the job."""
    root.mkdir(parents=True, exist_ok=True)
    program = root / "scheduler"
    program.write_text(SCHEDULER.format(python=sys.executable))
    program.chmod(0o755)
    (root / "delay").write_text("0")
    ranks = [
        {
            "rank": rank,
            "node": f"gpu-{rank // 3 + 1:03d}",
            "gpu": str(rank % 3),
            "gpu_uuid": f"GPU-00000000-0000-0000-0000-00000000000{rank}",
            "pid": 1000 + rank,
            "alive": rank != 3,
        }
        for rank in range(6)
    ]
    answer = {"job_id": job, "state": "running", "attempt": 0, "ranks": ranks, "spare": []}
    (root / "describe.json").write_text(json.dumps(answer))


def _samples(url: str) -> int:
    query = "min(count_over_time(tocsin_job:steps_per_second:rate1m[1m]))"
    rows = requests.get(f"{url}/api/v1/query", params={"query": query}, timeout=2).json()["data"]["result"]
    return int(rows[0]["value"][1]) if rows else 0


@dataclass
class Watch:
    """One Prometheus and one Alertmanager for all tests; each test takes a job of its own."""

    jobs: list[Job]
    prometheus_url: str
    alertmanager_url: str
    remediator_port: int
    taken: int = 0


@pytest.fixture(scope="session")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """Healthy jobs under watch; skipped by name where Prometheus is not unpacked."""
    tools = REPO / ".tools" / "bin"
    for name in ("prometheus", "alertmanager"):
        if not os.access(tools / name, os.X_OK):
            pytest.skip(f".tools/bin/{name} is missing; `make setup` unpacks it")
    folder = tmp_path_factory.mktemp("watch")
    jobs = [Job(f"torchrun/job-{place}", folder / f"job-{place}") for place in range(JOBS)]
    for job in jobs:
        scheduler(job.root, job.id)
    server = _exposition(jobs)
    processes = Processes()
    prometheus, alertmanager, remediator = (free_port() for _ in range(3))
    (folder / "rules.yml").write_text(yaml.safe_dump(RULES))
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]},
        "scrape_configs": [
            {
                "job_name": "tocsin",
                "static_configs": [{"targets": [f"127.0.0.1:{server.server_address[1]}"]}],
            }
        ],
    }
    (folder / "p.yml").write_text(yaml.safe_dump(configuration))
    hook = {"url": f"http://127.0.0.1:{remediator}/api/v1/alerts", "send_resolved": True}
    route = {"receiver": "w", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"}
    receiver = {"name": "w", "webhook_configs": [hook]}
    (folder / "a.yml").write_text(yaml.safe_dump({"route": route, "receivers": [receiver]}))
    made = Watch(jobs, f"http://127.0.0.1:{prometheus}", f"http://127.0.0.1:{alertmanager}", remediator)
    try:
        processes.start(
            [
                str(tools / "prometheus"),
                f"--config.file={folder}/p.yml",
                f"--storage.tsdb.path={folder}/tsdb",
                f"--web.listen-address=127.0.0.1:{prometheus}",
                "--log.level=warn",
                "--rules.alert.resend-delay=1s",
            ],
            folder / "prometheus.log",
        )
        processes.start(
            [
                str(tools / "alertmanager"),
                f"--config.file={folder}/a.yml",
                f"--storage.path={folder}/am",
                f"--web.listen-address=127.0.0.1:{alertmanager}",
                "--cluster.listen-address=",
            ],
            folder / "alertmanager.log",
        )
        until(lambda: requests.get(f"{made.prometheus_url}/-/ready", timeout=2).ok)
        until(lambda: requests.get(f"{made.alertmanager_url}/-/ready", timeout=2).ok)
        # A job must have been healthy for a while before "as before" means anything.
        until(lambda: _samples(made.prometheus_url) >= 5)
        yield made
    finally:
        processes.end()
        server.shutdown()
        server.server_close()
        shutil.rmtree(folder / "tsdb", ignore_errors=True)


@pytest.fixture
def site(watch: Watch, tmp_path: Path) -> Iterator[Site]:
    """A healthy job of the test's own."""
    job = watch.jobs[watch.taken]
    watch.taken += 1
    processes = Processes()
    try:
        yield Site(
            tmp_path,
            job,
            job.root,
            watch.prometheus_url,
            watch.alertmanager_url,
            processes,
            watch.remediator_port,
        )
    finally:
        job.family = ""
        job.silent = True
        processes.end()


@pytest.fixture
def helpers() -> type[Helpers]:
    """What tests share (this folder is no package)."""
    return Helpers


class Helpers:
    """Shared constants and functions."""

    repo = REPO
    dead_rank = DEAD_RANK
    free_port = staticmethod(free_port)
    until = staticmethod(until)
    quick = staticmethod(quick)
    scheduler = staticmethod(scheduler)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Site]]:
    """A server for tests that need no Prometheus: (address, site). Its Prometheus is not there."""
    folder = tmp_path_factory.mktemp("shared")
    job = Job("torchrun/x", folder / "scheduler")
    scheduler(job.root, job.id)
    processes = Processes()
    port = free_port()
    nowhere = f"http://127.0.0.1:{free_port()}"
    made = Site(folder, job, job.root, nowhere, nowhere, processes, port)
    try:
        remediator = made.remediator("--max-body", "100000")
        remediator.start()
        yield remediator.url, made
    finally:
        processes.end()


@pytest.fixture
def site_free(tmp_path: Path) -> Iterator[Site]:
    """As `shared`, for one test, and nothing is started."""
    job = Job("torchrun/x", tmp_path / "scheduler")
    scheduler(job.root, job.id)
    processes = Processes()
    nowhere = f"http://127.0.0.1:{free_port()}"
    try:
        yield Site(tmp_path, job, job.root, nowhere, nowhere, processes, free_port())
    finally:
        processes.end()
