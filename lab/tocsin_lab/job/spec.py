"""A job's record on disk (``job.json``): the one place that says what should run where."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tocsin_common import files
from tocsin_lab.errors import JobError
from tocsin_lab.sim.layout import MAX_RANKS, Job, Node
from tocsin_lab.sim.node import Gpu, NodePaths, gpus_of, nodes_of

__all__ = [
    "JobConfig",
    "JobPaths",
    "JobRecord",
    "Slot",
    "create_job",
    "default_placement",
    "jobs_of",
    "load_record",
    "save_record",
    "spare_gpus",
]

_VERSION = 1
_MAX_REQUESTS = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class JobPaths:
    """Where a job's files are in a lab run directory."""

    run_dir: Path
    name: str

    @property
    def root(self) -> Path:
        return self.run_dir / "jobs" / self.name

    @property
    def record(self) -> Path:
        return self.root / "job.json"

    @property
    def shared(self) -> Path:
        return self.root / "job.shm"

    @property
    def socket(self) -> Path:
        return self.root / "control.sock"

    @property
    def checkpoints(self) -> Path:
        return self.root / "ckpt"

    def log(self, rank: int) -> Path:
        return self.root / f"rank-{rank}.log"


@dataclass(frozen=True)
class Slot:
    """One rank's place."""

    node: str
    gpu: int


@dataclass(frozen=True)
class JobConfig:
    """What the ranks read. Times in seconds; ``checkpoint_every`` in steps, 0 for none."""

    step_seconds: float = 1.0
    seed: int = 1
    total_steps: int = 20000
    checkpoint_every: int = 30
    global_batch_size: int = 256
    fabric_bytes_per_second: float = 50e9


@dataclass(frozen=True)
class JobRecord:
    """The job as it should be. ``attempt`` is TORCHELASTIC_RESTART_COUNT, -1 before the first start;
    ``requests`` maps request ids to the answers given."""

    name: str
    config: JobConfig
    placement: tuple[Slot, ...]
    attempt: int = -1
    wanted: str = "running"
    on_rank_exit: str = "wait"
    avoided: tuple[str, ...] = ()
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def job_id(self) -> str:
        return f"torchrun/{self.name}"

    def answered(self, request_id: str, answer: dict[str, Any]) -> JobRecord:
        """With one more answer kept; the oldest are dropped beyond a bound."""
        kept = {**self.requests, request_id: answer}
        for old in list(kept)[:-_MAX_REQUESTS]:
            del kept[old]
        return replace(self, requests=kept)


def load_record(paths: JobPaths) -> JobRecord:
    """Read a job's record.

    Raises:
        JobError: no such job, or the record cannot be read.
    """
    try:
        document = json.loads(paths.record.read_text())
        if document["version"] != _VERSION:
            raise JobError(
                f"{paths.record}: version {document['version']}, expected {_VERSION}: create the job again"
            )
        return JobRecord(
            name=document["name"],
            config=JobConfig(**document["config"]),
            placement=tuple(Slot(**slot) for slot in document["placement"]),
            attempt=document["attempt"],
            wanted=document["wanted"],
            on_rank_exit=document["on_rank_exit"],
            avoided=tuple(document["avoided"]),
            requests=document["requests"],
        )
    except FileNotFoundError as error:
        known = ", ".join(jobs_of(paths.run_dir)) or "none"
        raise JobError(f"no job {paths.name!r} in {paths.run_dir} (jobs there: {known})") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JobError(f"{paths.record}: cannot be read ({error}): create the job again") from error


def save_record(paths: JobPaths, record: JobRecord) -> None:
    """Replace the record; once this returns the change outlives a crash."""
    body = json.dumps({"version": _VERSION, "job_id": record.job_id, **asdict(record)}, indent=1)
    files.replace(paths.record, f"{body}\n".encode())


def jobs_of(run_dir: Path) -> tuple[str, ...]:
    """Names of the jobs in a run directory, sorted."""
    return tuple(sorted(path.parent.name for path in (run_dir / "jobs").glob("*/job.json")))


def spare_gpus(run_dir: Path, record: JobRecord) -> tuple[Gpu, ...]:
    """GPUs that no running job holds, that the driver has not lost and that this job does not avoid."""
    taken = {(slot.node, slot.gpu) for slot in record.placement}
    for other in jobs_of(run_dir):
        if other != record.name:
            theirs = load_record(JobPaths(run_dir, other))
            if theirs.wanted == "running":
                taken |= {(slot.node, slot.gpu) for slot in theirs.placement}
    return tuple(
        gpu
        for node in nodes_of(run_dir)
        for gpu in gpus_of(run_dir, node)
        if (node, gpu.index) not in taken and not gpu.lost and gpu.uuid not in record.avoided
    )


def default_placement(run_dir: Path, ranks: int) -> tuple[Slot, ...]:
    """Spread ranks evenly over the nodes in order, leaving the last GPUs of each node spare.

    Raises:
        JobError: there are not enough GPUs.
    """
    nodes = nodes_of(run_dir)
    if not nodes:
        raise JobError(f"no nodes in {run_dir}: create them first")
    per_node = -(-ranks // len(nodes))
    places = [Slot(nodes[rank // per_node], rank % per_node) for rank in range(ranks)]
    for slot in places:
        have = len(gpus_of(run_dir, slot.node))
        if slot.gpu >= have:
            raise JobError(
                f"{ranks} ranks on {len(nodes)} nodes need {per_node} GPUs each, {slot.node} has {have}"
            )
    return tuple(places)


def create_job(
    run_dir: Path,
    name: str,
    ranks: int = 6,
    config: JobConfig | None = None,
    placement: tuple[Slot, ...] | None = None,
    on_rank_exit: str = "wait",
) -> JobPaths:
    """Create a job's folder, record and shared memory; its supervisor starts the ranks.

    Raises:
        JobError: an unusable name, number of ranks, placement or value.
    """
    if not _NAME.fullmatch(name):
        raise JobError(f"job name {name!r}: letters, digits, dot, dash and underscore, at most 63")
    if not 1 <= ranks <= MAX_RANKS:
        raise JobError(f"{ranks} ranks: a job has 1 to {MAX_RANKS}")
    if on_rank_exit not in ("wait", "kill"):
        raise JobError(f"on_rank_exit {on_rank_exit!r}: wait (as srun does) or kill (as torchrun does)")
    config = config or JobConfig()
    if not 0.01 <= config.step_seconds <= 600.0 or config.total_steps < 1 or config.checkpoint_every < 0:
        raise JobError("step_seconds 0.01 to 600, total_steps at least 1, checkpoint_every at least 0")
    places = placement if placement is not None else default_placement(run_dir, ranks)
    if len(places) != ranks or len(set(places)) != ranks:
        raise JobError(f"placement: {ranks} ranks need {ranks} different GPUs")
    for slot in places:
        if slot.node not in nodes_of(run_dir) or not 0 <= slot.gpu < len(gpus_of(run_dir, slot.node)):
            raise JobError(f"placement: there is no GPU {slot.gpu} on a node {slot.node!r} in {run_dir}")
    with Node(NodePaths(run_dir, places[0].node).devices) as node:
        config = replace(config, fabric_bytes_per_second=node.state.profile.fabric_bytes_per_second)
    paths = JobPaths(run_dir, name)
    paths.checkpoints.mkdir(parents=True, exist_ok=True)
    Job.create(paths.shared, ranks)
    save_record(paths, JobRecord(name, config, places, on_rank_exit=on_rank_exit))
    return paths
