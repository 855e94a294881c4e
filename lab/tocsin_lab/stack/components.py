"""The commands of the stack's parts: one function per part, from paths and ports to an argument vector."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tocsin_lab.errors import LabError
from tocsin_lab.stack.ports import LOOPBACK
from tocsin_lab.stack.programs import program


@dataclass(frozen=True)
class Part:
    """One process to run: where it says that it is ready, and whether the lab goes on without it."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    url: str = ""
    ready: str = ""
    grace: float = 5.0


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the argument vector of one of the project's own programs."""
    return (sys.executable, "-m", module, *arguments)


def exporter(name: str, port: int, flags: tuple[str, ...], env: dict[str, str]) -> Part:
    """Return the exporter of one node."""
    url = f"http://{LOOPBACK}:{port}"
    listen = ("--web.listen-address", f"{LOOPBACK}:{port}", "--node.name", name)
    argv = python("tocsin_exporter", *listen, *flags)
    return Part(f"exporter-{name}", argv, env, f"{url}/metrics", f"{url}/-/healthy")


def prometheus(folder: Path, config: Path, port: int) -> Part:
    """Return Prometheus with its data under *folder*."""
    url = f"http://{LOOPBACK}:{port}"
    argv = (
        str(program("prometheus")),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=1d",
        f"--web.listen-address={LOOPBACK}:{port}",
        # A new notice at each evaluation: the remediator hears of a resolved verdict at once.
        "--rules.alert.resend-delay=1s",
        "--log.level=warn",
    )
    return Part("prometheus", argv, {}, url, f"{url}/-/ready")


def alertmanager(folder: Path, config: Path, port: int) -> Part:
    """Return Alertmanager, alone: no cluster port."""
    url = f"http://{LOOPBACK}:{port}"
    argv = (
        str(program("alertmanager")),
        f"--config.file={config}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={LOOPBACK}:{port}",
        "--cluster.listen-address=",
        "--log.level=warn",
    )
    return Part("alertmanager", argv, {}, url, f"{url}/-/ready")


def journal(folder: Path) -> str:
    """Return the URL of the remediator's journal under *folder*."""
    return f"sqlite:///{folder / 'journal.db'}"


def remediator(folder: Path, port: int, prometheus_url: str, alertmanager_url: str, runbooks: Path) -> Part:
    """Return the remediator; its configuration is ``config.yaml`` in *folder*."""
    url = f"http://{LOOPBACK}:{port}"
    argv = python(
        "tocsin_remediator",
        "serve",
        *("--listen", f"{LOOPBACK}:{port}"),
        *("--prometheus-url", prometheus_url),
        *("--alertmanager-url", alertmanager_url),
        *("--runbooks", str(runbooks)),
        *("--journal", journal(folder)),
        *("--config", str(folder / "config.yaml")),
    )
    return Part("remediator", argv, {}, f"{url}/incidents", f"{url}/-/ready")


# What a person approves in the lab; advice needs no approval.
LEVELS = {
    "DeadRank": "approve",
    "FailSlowGpu": "approve",
    "GpuThrottled": "approve",
    "LossDivergence": "recommend",
}


def lab_command() -> str:
    """Return the program that the remediator may call: the one beside this interpreter, else on PATH."""
    beside = Path(sys.executable).parent / "tocsin-lab"
    found = str(beside) if beside.exists() else shutil.which("tocsin-lab")
    if not found:
        raise LabError("the command tocsin-lab is not installed beside this Python; run `make setup`")
    return found


def remediator_config(run_dir: Path, real: bool) -> dict[str, object]:
    """
    Return the remediator's configuration in the lab.

    The simulated job's scheduler is a set of allow-listed commands; on real hardware the lab knows no
    scheduler, so every runbook ends with a person.
    """
    if real:
        return {"levels": dict(LEVELS)}
    job = [lab_command(), "--run-dir", str(run_dir), "job"]
    once = ["--job", "{job_id}", "--request-id", "{request_id}"]
    actions = {
        "restart": [*job, "restart", *once],
        "restart_without_node": [*job, "restart", *once, "--exclude-node", "{node}"],
        "move_rank": [*job, "move-rank", *once, "--rank", "{rank}", "--avoid-gpu", "{gpu_uuid}"],
    }
    return {
        "levels": dict(LEVELS),
        # A person waits in front of the lab; the defaults are for sites.
        "timing": {"poll": "2s", "confirm_quiet": "15s", "clear_quiet": "30s"},
        "schedulers": [
            {
                "name": "lab",
                "kind": "command",
                "job_prefix": "torchrun/",
                "describe": {"argv": [*job, "status", "--job", "{job_id}"]},
                "actions": {name: {"argv": argv} for name, argv in actions.items()},
            }
        ],
    }
