"""
The one form of a job id.

``slurm/<id>``, ``k8s/<namespace>/<owner>``, ``ray/<id>``, ``torchrun/<run id>`` or
``torchrun/<address>:<port>``, ``mpi/<id>``, ``proc/<leader pid>@<first 8 of the boot id>``.
Rules, silences and the remediator's locks compare these as text, so a job must be spelled the
same from every node and by every part of the product.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "ALLOCATORS",
    "JobId",
    "kubernetes",
    "mpi",
    "parse",
    "pod_owner",
    "process",
    "ray",
    "slurm",
    "torchrun",
]

ALLOCATORS = ("slurm", "k8s", "ray", "torchrun", "mpi", "proc")

# Ids come from environments that any user can write: a label stays short and on one line.
_LONGEST = 160
_UNSAFE = re.compile(r"[^A-Za-z0-9._:@+=/\-]")

# Suffixes that Kubernetes generates use this alphabet (apimachinery's util/rand): no vowels, so
# that an ordinary word is hardly ever taken for one.
_HASH = r"[bcdfghjklmnpqrstvwxz2456789]"
_GENERATED = re.compile(rf"-{_HASH}{{5}}$")
_REPLICA_SET = re.compile(rf"-{_HASH}{{6,10}}-{_HASH}{{5}}$")
_ORDINAL = re.compile(r"-\d+$")
# Replica types that training operators put between the job's name and the ordinal.
_REPLICA = re.compile(r"-(?:master|worker|launcher|chief|ps|evaluator|leader)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class JobId:
    """A job id taken apart: the allocator that named the job, and what it called it."""

    allocator: str
    name: str

    def __str__(self) -> str:
        return f"{self.allocator}/{self.name}"


def _clean(text: str) -> str:
    return _UNSAFE.sub("_", text.strip())[:_LONGEST]


def slurm(job: str) -> str:
    """Return the id of Slurm job *job*, the raw job id (the leader's for heterogeneous jobs)."""
    return f"slurm/{_clean(job)}"


def kubernetes(namespace: str, owner: str) -> str:
    """Return the id of the workload *owner* in *namespace*."""
    return f"k8s/{_clean(namespace).replace('/', '_') or 'unknown'}/{_clean(owner).replace('/', '_')}"


def ray(job: str) -> str:
    """Return the id of Ray job *job*."""
    return f"ray/{_clean(job)}"


def mpi(job: str) -> str:
    """Return the id of an MPI launch known as *job* to its launcher."""
    return f"mpi/{_clean(job)}"


def torchrun(run_id: str, address: str = "", port: str = "") -> str:
    """
    Return the id of a torchrun launch.

    An empty run id and ``none`` (torchrun's default) name nothing, so the rendezvous does.
    """
    run_id = run_id.strip()
    if run_id and run_id.lower() != "none":
        return f"torchrun/{_clean(run_id)}"
    return f"torchrun/{_clean(address)}:{_clean(port)}"


def process(leader: int, boot_id: str) -> str:
    """Return the id of a process group that no allocator knows; the boot id keeps pids of two boots apart."""
    return f"proc/{leader}@{boot_id.replace('-', '')[:8]}"


def pod_owner(pod: str) -> str:
    """
    Return the name of a pod's workload as far as the pod's name tells it.

    Hashes of replica sets and jobs, ordinals and the replica types of training operators are
    taken off, since all pods of one workload must give one job.
    """
    name = pod
    for suffix in (_REPLICA_SET, _GENERATED):
        shorter = suffix.sub("", name)
        if shorter != name and shorter:
            name = shorter
            break
    while (shorter := _ORDINAL.sub("", name)) != name and shorter:
        name = shorter
    return _REPLICA.sub("", name) or name


def parse(job_id: str) -> JobId:
    """
    Take *job_id* apart.

    Raises:
        ValueError: It is not a job id; the text says why.

    """
    allocator, slash, name = job_id.partition("/")
    if not slash or not name:
        raise ValueError(f"{job_id!r} is not a job id: expected <allocator>/<name>")
    if allocator not in ALLOCATORS:
        raise ValueError(
            f"{job_id!r}: unknown allocator {allocator!r}, expected one of {', '.join(ALLOCATORS)}"
        )
    return JobId(allocator, name)
