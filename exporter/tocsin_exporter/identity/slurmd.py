"""What Slurm's own daemons on this machine tell: jobs behind SLUIDs, and their files of GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.identity.cgroups import job_of_title, slurm_of
from tocsin_exporter.identity.gres import GpuFiles, gpu_minors
from tocsin_exporter.identity.rules import Facts
from tocsin_exporter.sources import procfs as proc

__all__ = ["DAEMON", "gpu_files", "job_above"]

DAEMON = "slurmd"
# Where packages and a configuration that the controller hands out put it.
_FOLDERS = ("/etc/slurm", "/run/slurm/conf", "/etc/slurm-llnl", "/usr/local/etc", "/opt/slurm/etc")
_MOST_ANCESTORS = 64


def job_above(procfs: Path, parent: int, sluid: str) -> str:
    """Return the number of the job *sluid* by the slurmstepd above a child of *parent*, or ""."""
    pid = parent
    for _ in range(_MOST_ANCESTORS):
        stat = proc.process_stat(procfs, pid) if pid > 1 else None
        if stat is None:
            return ""
        if stat.name.startswith("slurmstepd"):
            # A job may call its own processes so, but cannot put them where only the daemons are.
            paths = [path for path in proc.cgroup_paths(procfs, pid) if path.endswith("/slurm")]
            there = slurm_of(paths)
            job = job_of_title(" ".join(proc.command_line(procfs, pid)))
            if job and there is not None and there.sluid == sluid:
                return job
        pid = stat.parent
    return ""


def gpu_files(procfs: Path, daemons: Iterable[Facts], nodes: Iterable[str]) -> dict[str, GpuFiles | None]:
    """
    Return the GPU device files of the Slurm *nodes* that *daemons* serve here (see `gpu_minors`).

    A daemon that was not told its name serves whatever node its jobs name, as long as it is the only one.
    """
    texts = {_option(daemon, "-N"): _gres_conf(procfs, daemon) for daemon in daemons}
    found: dict[str, GpuFiles | None] = {}
    for node in {*nodes, *texts} - {""}:
        text = texts.get(node, texts.get("") if len(texts) == 1 else None)
        found[node] = None if text is None else gpu_minors(text, node)
    return found


def _gres_conf(procfs: Path, daemon: Facts) -> str | None:
    given = _option(daemon, "-f") or daemon.environ.get("SLURM_CONF", "")
    folders = [str(Path(given).parent)] if given.startswith("/") else []
    for folder in (*folders, *_FOLDERS):
        try:
            # As the daemon sees it, which may be inside a container.
            path = procfs / str(daemon.pid) / "root" / folder.lstrip("/") / "gres.conf"
            return proc.read_small(path, 1 << 20).decode("utf-8", "replace")
        except SourceError:
            continue
    return None


def _option(daemon: Facts, letter: str) -> str:
    words = daemon.command
    for number, word in enumerate(words):
        if word == letter:
            return words[number + 1] if number + 1 < len(words) else ""
        if word.startswith(letter) and not word.startswith("--"):
            return word[len(letter) :]
    return ""
