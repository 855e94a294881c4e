"""What the path of a process's cgroup says: Slurm job and step, or pod and container; no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["PodCgroup", "SlurmCgroup", "job_of_title", "pod_of", "slurm_of", "step_name"]

# A step is numbered or has a name; the component of a heterogeneous job stands behind a plus sign.
_STEP = (
    r"(?:/step_(?P<step>[a-z]+|\d{1,10}(?:\+\d{1,4})?)(?=/|$)"
    r"(?:/(?:user|slurm))?(?:/task_(?P<task>\d{1,9}|special))?)?"
)
_STEP_AGAIN = _STEP.replace("<step>", "<step2>").replace("<task>", "<task2>")
# The first hierarchy: below `slurm`, or `slurm_<node>` where Slurm is built for several daemons a machine.
_FIRST = re.compile(
    rf"(?:^|/)slurm(?:_(?P<node>[^/]+))?(?:/uid_\d+)?/job_(?P<job>\d{{1,10}})(?=/|$){_STEP}"
    # The folder on top may bear any name (CgroupPrepend); then user and step must be there as well.
    rf"|/uid_\d+/job_(?P<job2>\d{{1,10}})(?=/step_){_STEP_AGAIN}"
)
# The second: below a scope whose slice may be configured. Since 26.05 a job's folder is, unless
# CgroupJobIdPaths is set, its SLUID: an s and 13 digits of Crockford's base32.
_SECOND = re.compile(
    r"(?:^|/)(?:(?P<node>[^/]+)_)?slurmstepd\.scope"
    rf"/(?:job_(?P<job>\d{{1,10}})|(?P<sluid>s[0-9A-HJKMNP-TV-Z]{{13}}))(?=/|$){_STEP}"
)
_TITLE = re.compile(r"^slurmstepd: \[(\d{1,10})\.([a-z]+|\d{1,10}(?:\+\d{1,4})?)\]")
# What older versions number, later ones name.
_STEP_NAMES = {
    "4294967291": "batch",
    "4294967292": "extern",
    "4294967290": "interactive",
    "4294967294": "batch",
    "4294967295": "extern",
}

# A pod made from a file on the node has the hash of that file as its uid.
_UID = r"(?:[0-9a-f]{8}(?P<dash>[-_])(?:[0-9a-f]{4}(?P=dash)){3}[0-9a-f]{12}|[0-9a-f]{32})"
_POD = re.compile(rf"(?P<before>[^/]*)pod(?P<uid>{_UID})(?:\.slice)?(?=[/:]|$)")
_CONTAINER = re.compile(r"(?:[a-z-]*[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?$")


@dataclass(frozen=True, slots=True)
class SlurmCgroup:
    """
    A Slurm job's cgroup. Exactly one of ``job`` (digits) and ``sluid`` is not empty.

    ``step`` is a number, `n+m` in a heterogeneous job, `batch`, `extern`, `interactive`, or "" above steps;
    ``task`` is the number of the task on this node, "" where the path has none; ``node`` is the node's name
    where Slurm is built for several daemons a machine.
    """

    job: str
    step: str = ""
    task: str = ""
    node: str = ""
    sluid: str = ""


@dataclass(frozen=True, slots=True)
class PodCgroup:
    """A pod's uid, and the container's id (64 hexadecimal digits) or ""."""

    uid: str
    container: str = ""


def slurm_of(paths: Iterable[str]) -> SlurmCgroup | None:
    """Return the Slurm job of a process by its cgroup *paths*; the path that tells most wins."""
    best: SlurmCgroup | None = None
    for path in paths:
        found = _slurm(path)
        # The freezer of the first hierarchy ends with the step, the memory's path with the task.
        if found is not None and (best is None or _told(found) > _told(best)):
            best = found
    return best


def _slurm(path: str) -> SlurmCgroup | None:
    if match := _SECOND.search(path):
        step = match["step"] or ""
        return SlurmCgroup(
            match["job"] or "",
            step_name(step),
            _task(match["task"]),
            match["node"] or "",
            match["sluid"] or "",
        )
    if match := _FIRST.search(path):
        step = match["step"] or match["step2"] or ""
        return SlurmCgroup(
            match["job"] or match["job2"],
            step_name(step),
            _task(match["task"] or match["task2"]),
            match["node"] or "",
        )
    return None


def _task(text: str | None) -> str:
    return text if text and text.isdigit() else ""


def _told(found: SlurmCgroup) -> int:
    return bool(found.step) + bool(found.task)


def step_name(number: str) -> str:
    """Return a step by name where its number means one."""
    return _STEP_NAMES.get(number, number)


def job_of_title(title: str) -> str:
    """Return the job that a slurmstepd has in its title, or "": the link from a SLUID to the job's number."""
    match = _TITLE.match(title)
    return match[1] if match else ""


def pod_of(paths: Iterable[str]) -> PodCgroup | None:
    """
    Return the pod of a process by its cgroup *paths*.

    Where a cluster runs inside a container of another one, the inner pod is the workload.
    """
    best: PodCgroup | None = None
    for path in paths:
        found = _pod(path)
        if found is not None and (best is None or (found.container and not best.container)):
            best = found
    return best


def _pod(path: str) -> PodCgroup | None:
    # Seen from inside a container, paths of neighbours begin above one's own: `/../../pod<uid>/<id>`.
    if "kubepods" not in path and not path.startswith("/.."):
        return None
    found: re.Match[str] | None = None
    for match in _POD.finditer(path):
        before = match["before"]
        if not before or before.endswith("-"):
            found = match
    if found is None:
        return None
    # Right below the pod; what a container nests in itself is still that container.
    rest = path[found.end() :].lstrip("/:").split("/", 1)[0]
    container = _CONTAINER.match(rest)
    uid = found["uid"].replace("_", "-")
    return PodCgroup(uid, container["id"] if container and "conmon" not in rest else "")
