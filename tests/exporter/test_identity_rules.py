"""Which job and rank a process belongs to, from recorded cgroups and environments."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import pytest

from tocsin_common import jobid
from tocsin_exporter.identity import rules

BOOT = "9dcfcddf-90fe-49e8-a07f-f4230fe9f950"
POD = "3f1c2b7e-90ab-4cde-8f01-23456789abcd"
TORCH = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def decide(
    environ: dict[str, str] | None = None,
    *cgroups: str,
    command: tuple[str, ...] = ("python", "train.py"),
    name: str = "python",
    holds_gpu: bool = False,
    pod: tuple[str, str] = ("", ""),
) -> rules.Verdict | None:
    facts = rules.Facts(
        pid=50, parent=1, group=48, start_ticks=1, name=name, cgroups=cgroups, environ=environ or {},
        command=command, holds_gpu=holds_gpu, pod_namespace=pod[0], pod_name=pod[1],
    )  # fmt: skip
    return rules.decide(facts, BOOT)


def found(verdict: rules.Verdict | None) -> tuple[str, str] | None:
    return (verdict.job_id, verdict.rank) if verdict else None


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        pytest.param("/slurm/uid_1000/job_4711/step_0/task_3", "slurm/4711", id="cgroup v1"),
        pytest.param("/slurm_gpu-001/uid_1000/job_4711/step_batch", "slurm/4711", id="v1, one folder per node"),
        pytest.param("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3", "slurm/4711", id="cgroup v2"),
        pytest.param("/system.slice/gpu-001_slurmstepd.scope/job_4711/step_0/user/task_0", "slurm/4711", id="v2, several slurmd"),
    ],
)  # fmt: skip
def test_slurm_by_cgroup(cgroup: str, expected: str) -> None:
    """Slurm's cgroup names the job in both hierarchies, without any environment."""
    verdict = decide({}, cgroup)

    assert (expected, "") == found(verdict)
    assert verdict is not None
    assert "cgroup" == verdict.sources["job"]


@pytest.mark.parametrize(
    "cgroup",
    [
        pytest.param(f"/kubepods/burstable/pod{POD}/0123abc", id="cgroupfs driver"),
        pytest.param(
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{POD.replace('-', '_')}.slice"
            "/cri-containerd-0123abc.scope",
            id="systemd driver",
        ),
    ],
)
def test_kubernetes_by_cgroup(cgroup: str) -> None:
    """A pod's workload is named from namespace and pod name."""
    verdict = decide(TORCH, cgroup, pod=("team-a", "llm-worker-3"))

    assert ("k8s/team-a/llm", "3") == found(verdict)


def test_a_pod_without_a_name_is_known_by_its_uid() -> None:
    """Where nobody tells namespace and name, the uid still tells one pod from another."""
    assert (f"k8s/unknown/{POD}", "") == found(decide({}, f"/kubepods/pod{POD}/c"))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({**TORCH, "TORCHELASTIC_RUN_ID": "demo"}, ("torchrun/demo", "3"), id="torchrun"),
        pytest.param({**TORCH, "TORCHELASTIC_RUN_ID": "none"}, ("torchrun/10.0.0.1:29500", "3"), id="torchrun, no id"),
        pytest.param(TORCH, ("torchrun/10.0.0.1:29500", "3"), id="RANK and MASTER_ADDR"),
        pytest.param(
            {"OMPI_COMM_WORLD_RANK": "5", "PMIX_NAMESPACE": "prterun-h-77@1"}, ("mpi/prterun-h-77@1", "5"), id="Open MPI"
        ),
        pytest.param({"PMI_RANK": "2", "PMI_JOBID": "9"}, ("mpi/9", "2"), id="PMI"),
        pytest.param({"RAY_JOB_ID": "02000000", **TORCH}, ("ray/02000000", "3"), id="Ray"),
        pytest.param({"SLURM_JOB_ID": "4711", "SLURM_PROCID": "6"}, ("slurm/4711", "6"), id="srun task"),
        pytest.param(
            {**TORCH, "TORCHELASTIC_RUN_ID": "x", "SLURM_JOB_ID": "4711", "SLURM_PROCID": "0"},
            ("slurm/4711", "3"),
            id="torchrun inside Slurm",
        ),
        pytest.param({"RANK": "03", **{k: v for k, v in TORCH.items() if k != "RANK"}}, ("torchrun/10.0.0.1:29500", "3"), id="leading zero"),
        pytest.param({"RANK": "-1; rm", "MASTER_ADDR": "h"}, ("torchrun/h:", ""), id="a rank that is none"),
    ],
)  # fmt: skip
def test_environment(environ: dict[str, str], expected: tuple[str, str]) -> None:
    """The allocator names the job, the framework's launcher the rank."""
    assert expected == found(decide(environ))


def test_the_cgroup_beats_the_environment_and_the_conflict_is_told() -> None:
    """A process that claims another job than its cgroup's belongs to the cgroup's."""
    verdict = decide({"SLURM_JOB_ID": "1"}, "/slurm/uid_0/job_4711/step_0")

    assert verdict is not None
    assert ("slurm/4711", ("job",)) == (verdict.job_id, verdict.conflicts)


def test_components_of_a_heterogeneous_job_are_one_job() -> None:
    """All components carry the leader's id, and that is no conflict."""
    environ = {"SLURM_JOB_ID": "4712", "SLURM_JOB_ID_HET_GROUP_0": "4711", "SLURM_JOB_ID_HET_GROUP_1": "4712"}
    verdict = decide(environ, "/slurm/uid_0/job_4712/step_0")

    assert verdict is not None
    assert ("slurm/4711", ()) == (verdict.job_id, verdict.conflicts)


def test_the_leaders_number_in_a_component_is_no_conflict() -> None:
    """Steps over several components have the leader's number in the environment, in each component's cgroup."""
    environ = {"SLURM_JOB_ID": "3", "SLURM_JOB_ID_HET_GROUP_0": "3", "SLURM_JOB_ID_HET_GROUP_1": "4", "SLURM_PROCID": "1"}
    verdict = decide(environ, "/slurm_gpu2/uid_0/job_4/step_0/task_0")

    assert verdict is not None
    assert ("slurm/3", "1", "0", "gpu2", ()) == (verdict.job_id, verdict.rank, verdict.step, verdict.node, verdict.conflicts)


SLUID = "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_1"


@pytest.mark.parametrize(
    ("environ", "stepd", "expected", "source"),
    [
        pytest.param({"SLURM_JOB_ID": "12"}, "12", "slurm/12", "slurmstepd", id="daemon and environment"),
        pytest.param({}, "12", "slurm/12", "slurmstepd", id="the environment is closed"),
        pytest.param({"SLURM_JOB_ID": "12"}, "", "slurm/12", "environ", id="no daemon above"),
        pytest.param({}, "", "slurm/s5K1KKYAYG5D00", "cgroup", id="neither"),
    ],
)
def test_a_sluid_is_followed_to_the_jobs_number(environ: dict[str, str], stepd: str, expected: str, source: str) -> None:
    """Slurm 26.05's paths have no number; the step's daemon has it, then the environment."""
    facts = rules.Facts(
        pid=50, parent=1, group=48, start_ticks=1, name="python", cgroups=(SLUID,), environ=environ, stepd_job=stepd
    )
    verdict = rules.decide(facts, BOOT)

    assert verdict is not None
    assert (expected, source, "0") == (verdict.job_id, verdict.sources["job"], verdict.step)


def test_a_claim_against_the_daemon_of_the_step_is_a_conflict() -> None:
    """Whoever writes another job into the environment does not join it."""
    facts = rules.Facts(
        pid=50, parent=1, group=48, start_ticks=1, name="python", cgroups=(SLUID,), environ={"SLURM_JOB_ID": "9"}, stepd_job="12"
    )  # fmt: skip
    verdict = rules.decide(facts, BOOT)

    assert verdict is not None
    assert ("slurm/12", ("job",)) == (verdict.job_id, verdict.conflicts)


@pytest.mark.parametrize(
    ("environ", "step"),
    [
        ({"SLURM_STEP_ID": "3"}, "3"),
        ({"SLURM_STEPID": "3"}, "3"),
        ({"SLURM_STEP_ID": "4294967290"}, "interactive"),
        ({"SLURM_TASK_PID": "77"}, "batch"),
        ({}, ""),
        ({"SLURM_STEP_ID": "x"}, ""),
    ],
)
def test_the_step_by_the_environment(environ: dict[str, str], step: str) -> None:
    """Without cgroups the environment tells the step; only a batch script has none there."""
    verdict = decide({"SLURM_JOB_ID": "4711", **environ})

    assert verdict is not None
    assert step == verdict.step


def test_the_shell_that_starts_the_steps_is_no_rank() -> None:
    """A batch script has the first task's number, and is that task only where it does the work itself."""
    environ = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_TASK_PID": "50"}

    assert ("slurm/7", "") == found(decide(environ, name="slurm_script", command=("/bin/sh", "slurm_script")))
    assert ("slurm/7", "0") == found(decide(environ))
    assert ("slurm/7", "0") == found(decide({**environ, "SLURM_STEP_ID": "0"}, name="bash", command=("bash",)))
    assert ("slurm/7", "3") == found(decide({**environ, **TORCH}, name="bash", command=("bash",)))


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({}, ""),
        ({"SLURM_RESTART_COUNT": "2"}, "2"),
        ({"TORCHELASTIC_RESTART_COUNT": "1"}, "1"),
        ({"SLURM_RESTART_COUNT": "0", "TORCHELASTIC_RESTART_COUNT": "1"}, "1"),
        ({"SLURM_RESTART_COUNT": "2", "TORCHELASTIC_RESTART_COUNT": "0"}, "2.0"),
    ],
)
def test_an_attempt_counts_requeues_and_restarts(environ: dict[str, str], attempt: str) -> None:
    """torchrun counts from 0 again after a requeue, which is an attempt of its own."""
    verdict = decide({"SLURM_JOB_ID": "7", **environ})

    assert verdict is not None
    assert attempt == verdict.attempt


def test_a_pods_namespace_is_its_team_and_its_container_is_told() -> None:
    """What Kubernetes knows beside the workload."""
    verdict = decide({}, f"/kubepods/pod{POD}/{'ab' * 32}", pod=("team-a", "llm-0"))

    assert verdict is not None
    assert ("k8s/team-a/llm", "team-a", "ab" * 32) == (verdict.job_id, verdict.team, verdict.container)


def test_ranks_that_disagree_are_a_conflict() -> None:
    """Two launchers that number one process differently are counted; the framework's number stands."""
    verdict = decide({**TORCH, "OMPI_COMM_WORLD_RANK": "7"})

    assert verdict is not None
    assert ("3", ("rank",)) == (verdict.rank, verdict.conflicts)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        pytest.param("torchrun", ("/usr/bin/python", "/usr/bin/torchrun", "train.py"), id="torchrun"),
        pytest.param("python", ("python", "-m", "torch.distributed.run", "train.py"), id="its module"),
        pytest.param("mpirun", ("mpirun", "-n", "8", "train"), id="mpirun"),
        pytest.param("srun", ("srun", "python", "train.py"), id="srun"),
    ],
)
def test_launchers_are_no_ranks(name: str, command: tuple[str, ...]) -> None:
    """A launcher inside Slurm belongs to the job and is none of its ranks."""
    assert ("slurm/4711", "") == found(
        decide({"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0"}, name=name, command=command)
    )


def test_a_process_without_a_job_is_one_when_it_holds_a_device() -> None:
    """A plain process on a GPU is named by its group's leader and the boot; others belong to no job."""
    assert ("proc/48@9dcfcddf", "") == found(decide(holds_gpu=True))
    assert decide() is None


def test_of_an_environment_only_what_decides_is_kept() -> None:
    """Secrets and other variables of a process do not stay in the exporter's memory."""
    kept = {**TORCH, "SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "0", "OMPI_COMM_WORLD_RANK": "0", "POD_NAMESPACE": "a"}

    assert kept == rules.telling({**kept, "HF_TOKEN": "x", "RANKING": "1", "PATH": "/bin", "MY_RANK": "2"})
    assert {"TOCSIN_LAB_NODE": "n"} == rules.telling({"TOCSIN_LAB_NODE": "n"}, "TOCSIN_LAB_NODE")


@pytest.mark.parametrize(
    ("pod", "owner"),
    [
        ("trainer-6d5f9c8b7d-x2k4q", "trainer"),
        ("trainer-x2k4q", "trainer"),
        ("vllm-0", "vllm"),
        ("llm-worker-12", "llm"),
        ("llm-master-0", "llm"),
        ("sweep-3-x2k4q", "sweep"),
        ("set-workers-0-3-x2k4q", "set-workers"),
        ("plain", "plain"),
        ("model-server", "model-server"),
        ("0", "0"),
    ],
)
def test_pod_owner(pod: str, owner: str) -> None:
    """Hashes, ordinals and replica types are taken off a pod's name, words are not."""
    assert owner == jobid.pod_owner(pod)


@pytest.mark.parametrize("text", ["", "slurm", "slurm/", "pbs/1", "/1"])
def test_what_is_no_job_id(text: str) -> None:
    """A job id has a known allocator and a name."""
    with pytest.raises(ValueError, match=r"job id|allocator"):
        jobid.parse(text)


def test_job_ids_are_short_and_on_one_line() -> None:
    """An id from an environment cannot break a label or grow without bound."""
    assert "torchrun/a_b_c" == jobid.torchrun("a b\nc")
    assert len(jobid.torchrun("x" * 10_000)) < 200

