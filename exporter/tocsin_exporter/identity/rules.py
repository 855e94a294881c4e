"""From the facts of one process to the job and rank it belongs to; no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin_common import jobid
from tocsin_exporter.identity.cgroups import pod_of, slurm_of, step_name

__all__ = [
    "WEAK",
    "Facts",
    "Verdict",
    "decide",
    "is_filter",
    "is_launcher",
    "is_starter",
    "is_wrapper",
    "telling",
]

_DIGITS = re.compile(r"^\d{1,9}$")
_LAUNCH_WORDS = re.compile(
    r"(^|/)(torchrun|mpirun|mpiexec(\.\w+)?|prterun|prte|prted|orterun|orted|srun|salloc|sbatch|deepspeed"
    r"|accelerate|horovodrun|ray|raylet)$"
)
_LAUNCH_MODULES = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher")
_WRAPPERS = frozenset(
    (
        "sh", "bash", "dash", "zsh", "ksh", "fish", "timeout", "time", "env", "nice", "numactl", "taskset",
        "stdbuf", "nsys", "ncu", "strace", "tini", "dumb-init", "su", "sudo", "setsid", "script",
        "slurm_script", "conda", "uv",
    )
)  # fmt: skip
_FILTERS = frozenset(
    (
        "tee", "cat", "grep", "sed", "awk", "gawk", "mawk", "ts", "tail", "head", "less", "xargs",
        "rotatelogs", "multilog", "svlogd",
    )
)  # fmt: skip
# They fork, wait for the rest of the step or the container, and only then become what they start.
_STARTERS = ("slurmstepd", "runc:", "crun", "conmon")
# They hold devices for others, or look at them; as the kernel cuts names.
_SERVICES = frozenset(("nvidia-cuda-mps", "nvidia-persiste", "nv-hostengine"))
_STARTING_STEPS = ("batch", "extern", "interactive")
# The strength of a rank that only the task numbering of Slurm gives.
WEAK = 5
_FRAMEWORKS = (
    "megatron", "deepspeed", "torchtitan", "nemo", "lightning", "axolotl", "llamafactory", "accelerate",
    "composer", "maxtext", "nanogpt", "verl", "vllm", "sglang", "fairseq", "detectron2", "ultralytics", "trl",
)  # fmt: skip


# Environments hold secrets and megabytes; only what may name a job, a rank or a device is kept.
_TELLING = re.compile(
    r"^(?:SLURM_|SLURMD_(?:NODENAME|TRES_BIND)$|OMPI_|PMI|HYDI_|RAY_JOB|TORCHELASTIC_|(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE)$|MASTER_(?:ADDR|PORT)$"
    r"|MPI_LOCALRANKID$|(?:CUDA|NVIDIA)_VISIBLE_DEVICES$|(?:MY_)?POD_NAME(?:SPACE)?$|NAMESPACE$|HOSTNAME$)"
)


def telling(environ: Mapping[str, str], also: str = "") -> dict[str, str]:
    """Return the variables that the rules read, and *also*."""
    return {name: value for name, value in environ.items() if name == also or _TELLING.match(name)}


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What is known of one process.

    ``pod_name``, ``pod_namespace`` and ``container_name`` are what the kubelet's log folders or the
    environment say;
    ``holds_gpu`` comes from the driver's process list; ``stepd_job`` is the job in the title of the
    slurmstepd above the process, "" where its cgroup has the job's number.
    """

    pid: int
    parent: int
    group: int
    start_ticks: int
    name: str
    cgroups: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    user: str = ""
    pod_name: str = ""
    pod_namespace: str = ""
    container_name: str = ""
    holds_gpu: bool = False
    stepd_job: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What a process was found to be. ``rank`` is "" for a process without one; ``strength``
    orders the sources of a rank (lower is stronger). ``visible`` are the devices it was given:
    indices or UUIDs as text. ``step`` is the allocator's step and ``node`` the node by the allocator's name.
    ``container`` is the id of the pod's container. ``conflicts`` names facts on which two sources disagree.
    """

    job_id: str
    allocator: str
    rank: str
    strength: int
    local_rank: str = ""
    world_size: int | None = None
    nodes_expected: int | None = None
    attempt: str = ""
    inner_id: str = ""
    team: str = ""
    job_name: str = ""
    framework: str = ""
    visible: tuple[str, ...] = ()
    step: str = ""
    node: str = ""
    container: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()

    @property
    def batch_step(self) -> bool:
        """Whether it runs in the step that starts the others."""
        return self.step in _STARTING_STEPS


def is_launcher(facts: Facts) -> bool:
    """Say whether the process only starts ranks: it waits for them and is none."""
    words = facts.command[:4]
    if any(_LAUNCH_WORDS.search(word) for word in (facts.name, *words[:3]) if not word.startswith("-")):
        return True
    return any(word in _LAUNCH_MODULES for word in facts.command[:6])


def is_wrapper(facts: Facts) -> bool:
    """Say whether the process usually only waits for a child that does the work."""
    return facts.name in _WRAPPERS


def is_starter(name: str) -> bool:
    """Say whether a process of this name may yet become another program, however long it has been there."""
    return name.startswith(_STARTERS)


def is_filter(facts: Facts) -> bool:
    """Say whether the process usually only passes output on."""
    return facts.name in _FILTERS


def decide(facts: Facts, boot_id: str) -> Verdict | None:
    """Return the job and rank of a process, or None when it belongs to no job."""
    env = facts.environ
    sources: dict[str, str] = {}
    conflicts: list[str] = []
    step = node = ""

    job_id = allocator = ""
    slurm = slurm_of(facts.cgroups)
    claimed = _digits(env.get("SLURM_JOB_ID", "")) or _digits(env.get("SLURM_JOBID", ""))
    pod = pod_of(facts.cgroups)
    if slurm is not None:
        allocator, sources["job"] = "slurm", "cgroup"
        number, step = slurm.job, slurm.step
        if not number:
            # A SLUID has no number in it: the step's daemon has, else the environment claims one. The SLUID
            # itself is at least the same for all of the job.
            number, sources["job"] = next(
                (found, source)
                for found, source in (
                    (facts.stepd_job, "slurmstepd"),
                    (claimed, "environ"),
                    (slurm.sluid, "cgroup"),
                )
                if found
            )
        job_id = jobid.slurm(_het_leader(env, number) or number)
        # All components of a heterogeneous job have the leader's number in their environment.
        if claimed and claimed not in (number, _het_leader(env, number)):
            conflicts.append("job")
    elif claimed:
        allocator, sources["job"] = "slurm", "environ"
        job_id = jobid.slurm(_het_leader(env, claimed) or claimed)
    elif pod is not None:
        allocator, sources["job"] = "k8s", "cgroup"
        job_id = jobid.kubernetes(
            facts.pod_namespace or "unknown", jobid.pod_owner(facts.pod_name or pod.uid)
        )
    elif env.get("RAY_JOB_ID"):
        allocator, sources["job"] = "ray", "environ"
        job_id = jobid.ray(env["RAY_JOB_ID"])
    inner = _inner(env)
    if not job_id and inner:
        job_id, allocator, sources["job"] = inner, jobid.parse(inner).allocator, "environ"

    if allocator == "slurm":
        node = (slurm.node if slurm else "") or env.get("SLURMD_NODENAME", "")
        step = step or _step(env)

    ranks = _ranks(env, allocator)
    rank, strength = "", 9
    # The shell that starts the steps has the number of the first task.
    starts = step in _STARTING_STEPS and is_wrapper(facts) and bool(ranks) and ranks[0][2] == WEAK
    if ranks and not is_launcher(facts) and not starts:
        rank, source, strength = ranks[0]
        sources["rank"] = f"environ:{source}"
        # Slurm numbers its tasks, which are not torchrun's ranks: no disagreement.
        if any(other != rank for other, _, weak in ranks[1:] if weak < WEAK):
            conflicts.append("rank")
    if not job_id:
        if not facts.holds_gpu or facts.name in _SERVICES:
            return None
        job_id, allocator, sources["job"] = jobid.process(facts.group or facts.pid, boot_id), "proc", "nvml"

    visible = _visible(env)
    if visible:
        sources["gpu"] = "environ"
    return Verdict(
        job_id=job_id,
        allocator=allocator,
        rank=rank,
        strength=strength,
        local_rank=_first(
            env, "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"
        ),
        world_size=_world(env, allocator),
        nodes_expected=_nodes(env),
        attempt=_attempt(env),
        inner_id=_inner_label(env, inner, job_id),
        team=env.get("SLURM_JOB_ACCOUNT", "") or (facts.pod_namespace if allocator == "k8s" else ""),
        job_name=env.get("SLURM_JOB_NAME", "") or facts.pod_name or env.get("RAY_JOB_NAME", ""),
        framework=_framework(facts),
        visible=visible,
        step=step,
        node=node,
        container=pod.container if pod is not None else "",
        sources=sources,
        conflicts=tuple(conflicts),
    )


def _digits(text: str) -> str:
    return text if _DIGITS.match(text) else ""


def _first(env: Mapping[str, str], *names: str) -> str:
    for name in names:
        if found := _digits(env.get(name, "")):
            return found
    return ""


def _step(env: Mapping[str, str]) -> str:
    """Return the step by the environment; a batch script has none there."""
    found = env.get("SLURM_STEP_ID", "") or env.get("SLURM_STEPID", "")
    if re.fullmatch(r"\d{1,10}", found):
        return step_name(found)
    return "batch" if "SLURM_TASK_PID" in env else ""


def _attempt(env: Mapping[str, str]) -> str:
    """Return how often the job was started again: by Slurm, by torchrun, or by both as `m.n`."""
    requeued, restarted = _first(env, "SLURM_RESTART_COUNT"), _first(env, "TORCHELASTIC_RESTART_COUNT")
    # torchrun counts from 0 again in each of Slurm's attempts.
    return f"{requeued}.{restarted}" if requeued.strip("0") and restarted else restarted or requeued


def _het_leader(env: Mapping[str, str], own: str) -> str:
    """Return the leader's job id of a heterogeneous job whose component is *own*."""
    leader = _digits(env.get("SLURM_JOB_ID_HET_GROUP_0", ""))
    components = [value for name, value in env.items() if name.startswith("SLURM_JOB_ID_HET_GROUP_")]
    return leader if own in components else ""


def _inner(env: Mapping[str, str]) -> str:
    """Return the id of the torchrun or MPI launch that the environment tells of."""
    run_id = env.get("TORCHELASTIC_RUN_ID", "").strip()
    address, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    if (run_id and run_id.lower() != "none") or (address and "RANK" in env):
        return jobid.torchrun(run_id, address, port)
    launched = any(name in env for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"))
    if launched:
        for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "HYDI_CONTROL_FD"):
            if env.get(name):
                return jobid.mpi(env[name])
        return jobid.mpi(f"{address}:{port}" if address else "unnamed")
    return ""


def _inner_label(env: Mapping[str, str], inner: str, job_id: str) -> str:
    if array := _digits(env.get("SLURM_ARRAY_JOB_ID", "")):
        return f"array/{array}_{env.get('SLURM_ARRAY_TASK_ID', '')}"
    return inner if inner and inner != job_id else ""


def _ranks(env: Mapping[str, str], allocator: str) -> list[tuple[str, str, int]]:
    """Return (rank, variable, strength) of every source of a rank, the strongest first."""
    found: list[tuple[str, str, int]] = []
    torch = any(name in env for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "WORLD_SIZE", "LOCAL_RANK"))
    names = ["RANK"] if torch else []
    names += ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"]
    if allocator == "slurm":
        names.append("SLURM_PROCID")
    for strength, name in enumerate(names):
        value = _digits(env.get(name, ""))
        # srun exports PMI variables to every task, a torchrun agent included.
        if value:
            weak = name == "SLURM_PROCID" or (allocator == "slurm" and name.startswith("PMI"))
            found.append((str(int(value)), name, WEAK if weak else strength))
    return found


def _world(env: Mapping[str, str], allocator: str) -> int | None:
    names = ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
    if allocator == "slurm":
        names += ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]
    found = _first(env, *names)
    return int(found) if found else None


def _nodes(env: Mapping[str, str]) -> int | None:
    found = _first(env, "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "GROUP_WORLD_SIZE")
    return int(found) if found else None


def _visible(env: Mapping[str, str]) -> tuple[str, ...]:
    """
    Return the one device or the devices that the environment gives to this very process.

    A process that sees all devices of its node uses the one of its local rank.
    """
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return ()
    # CUDA stops reading at the first entry it does not understand.
    entries: list[str] = []
    for entry in listed.split(",")[:64]:
        text = entry.strip()
        if not (_DIGITS.match(text) or text.startswith(("GPU-", "MIG-"))):
            break
        entries.append(text)
    local, size = _first(env, "LOCAL_RANK"), _first(env, "LOCAL_WORLD_SIZE")
    if len(entries) > 1 and local:
        if size and int(size) == 1:
            return tuple(entries)
        if size and int(size) == len(entries) and int(local) < len(entries):
            return (entries[int(local)],)
        # Several processes share several devices in a way only the driver knows.
        return ()
    return tuple(entries)


def _framework(facts: Facts) -> str:
    text = " ".join(facts.command[:12]).lower()
    return next((name for name in _FRAMEWORKS if name in text), "")
