"""What the exporter believes about one process, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tocsin_exporter.config import Config
from tocsin_exporter.identity import rules, slurmd
from tocsin_exporter.identity.assigned import DeviceMap, assigned_devices
from tocsin_exporter.identity.facts import read_facts
from tocsin_exporter.identity.kubelet import KubeletSource
from tocsin_exporter.identity.resolver import identity_of
from tocsin_exporter.sources import procfs
from tocsin_exporter.sources.latest import ErrorCounter

__all__ = ["describe"]

# The variables that decide; others may hold secrets and are not printed.
_TELLING = (
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURMD_NODENAME",
    "SLURMD_TRES_BIND", "SLURM_RESTART_COUNT", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "RAY_JOB_ID",
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "POD_NAME", "POD_NAMESPACE",
)  # fmt: skip


def describe(config: Config, pid: int) -> dict[str, Any]:
    """
    Return facts, sources and the verdict on *pid*.

    ``found`` is false when there is no such process; ``identity`` is null when it belongs to
    no job, and ``note`` says what that rests on.
    """
    stat = procfs.process_stat(config.procfs, pid)
    if stat is None or stat.ended:
        gone = "no process" if stat is None else "has ended, nobody has looked yet:"
        return {"pid": pid, "found": False, "note": f"{gone} {pid} under {config.procfs}"}
    facts, error = read_facts(config.procfs, stat, also=config.only_env[0] if config.only_env else "")
    answer: dict[str, Any] = {
        "pid": pid,
        "found": True,
        "name": stat.name,
        "parent": stat.parent,
        "cgroups": list(facts.cgroups),
        "environ": {name: facts.environ[name] for name in _TELLING if name in facts.environ},
        "launcher": rules.is_launcher(facts),
        "identity": None,
    }
    if error is not None:
        answer["note"] = f"{error.reason}: {error.detail}; run as root or as the process's user"
    if config.only_env and facts.environ.get(config.only_env[0]) != config.only_env[1]:
        answer["note"] = f"outside --identity.only-env {config.only_env[0]}={config.only_env[1]}"
        return answer
    verdict = rules.decide(facts, procfs.boot_id(config.procfs))
    if verdict is None:
        answer.setdefault(
            "note", "neither cgroup nor environment names a job; a device held would make it proc/…"
        )
        return answer
    known = _device_map(config, verdict.node)
    found = identity_of(facts, verdict, (), known, procfs.boot_time(config.procfs))
    answer["identity"] = {
        **asdict(found),
        "gpu_indices": list(found.gpu_indices),
        "sources": dict(found.sources),
        "devices": list(
            assigned_devices(facts, verdict, known.slurm_files(verdict.node))
            or _kubelets(config, facts, verdict)
        ),
    }
    answer["conflicts"] = list(verdict.conflicts)
    if not verdict.rank:
        answer.setdefault("note", "no rank: a launcher or helper of the job")
    return answer


def _kubelets(config: Config, facts: rules.Facts, verdict: rules.Verdict) -> tuple[str, ...]:
    """Return what the kubelet gave the container of a process."""
    if verdict.allocator != "k8s":
        return ()
    source = KubeletSource(config.pod_resources, ErrorCounter())
    source.read_once()
    return source.devices_of(facts.pod_namespace, facts.pod_name, facts.container_name)


def _device_map(config: Config, node: str) -> DeviceMap:
    """Return what devices' names stand for without asking the driver: the files behind Slurm's indices."""
    if not node:
        return DeviceMap()
    daemons = []
    for pid in procfs.pids(config.procfs):
        stat = procfs.process_stat(config.procfs, pid)
        if stat is not None and stat.name == slurmd.DAEMON:
            daemons.append(read_facts(config.procfs, stat)[0])
    return DeviceMap(files=slurmd.gpu_files(config.procfs, daemons, (node,)), daemons=len(daemons))
