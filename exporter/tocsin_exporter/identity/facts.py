"""What /proc and the kubelet's folders tell of one process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.identity import rules
from tocsin_exporter.identity.cgroups import pod_of, slurm_of
from tocsin_exporter.identity.slurmd import job_above
from tocsin_exporter.sources import procfs as proc

__all__ = ["read_facts"]


def read_facts(
    procfs: Path, stat: proc.ProcessStat, pods: Path = Path("/var/log/pods"), also: str = ""
) -> tuple[rules.Facts, SourceError | None]:
    """
    Return what /proc tells of one process, and the error when its environment is closed to us.

    Of the environment only the variables that the rules read are kept, and *also*.
    """
    error: SourceError | None = None
    try:
        env = rules.telling(proc.environment(procfs, stat.pid), also)
    except SourceError as err:
        env, error = {}, err
    cgroups = proc.cgroup_paths(procfs, stat.pid)
    namespace = pod = container = ""
    if inside := pod_of(cgroups):
        namespace, pod = _pod(pods, inside.uid, env)
        container = _container(pods, inside.container)
    slurm = slurm_of(cgroups)
    return (
        rules.Facts(
            pid=stat.pid,
            parent=stat.parent,
            group=stat.group,
            start_ticks=stat.start_ticks,
            name=stat.name,
            cgroups=cgroups,
            environ=env,
            command=proc.command_line(procfs, stat.pid),
            user=proc.user_of(procfs, stat.pid),
            pod_name=pod,
            pod_namespace=namespace,
            container_name=container,
            stepd_job=job_above(procfs, stat.parent, slurm.sluid) if slurm and slurm.sluid else "",
        ),
        error,
    )


def _container(pods: Path, container: str) -> str:
    """Return the name of the container of that id, "" when the kubelet's links do not tell."""
    if not container:
        return ""
    end = f"-{container}.log"
    try:
        # `<pod>_<namespace>_<container>-<id>.log`, beside the folder of the pods.
        names = [name for name in os.listdir(pods.parent / "containers") if name.endswith(end)]
    except OSError:
        return ""
    return names[0].removesuffix(end).rpartition("_")[2] if len(names) == 1 else ""


def _pod(pods: Path, uid: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Return namespace and name of the pod *uid*."""
    # The kubelet keeps `<namespace>_<pod>_<uid>` for each pod; that beats what a container says of itself.
    try:
        names = [name for name in os.listdir(pods) if name.endswith(f"_{uid}")]
    except OSError:
        names = []
    if names and names[0].count("_") == 2:
        namespace, pod, _ = names[0].split("_")
        return namespace, pod
    pod = env.get("POD_NAME") or env.get("MY_POD_NAME") or env.get("HOSTNAME", "")
    namespace = env.get("POD_NAMESPACE") or env.get("MY_POD_NAMESPACE") or env.get("NAMESPACE", "")
    return namespace, pod
