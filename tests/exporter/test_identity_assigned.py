"""Which devices the allocator gave to a job, from the environment of its processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.exporter.support import Processes

from tocsin_exporter.identity.assigned import assigned_devices
from tocsin_exporter.identity.resolver import Resolver
from tocsin_exporter.identity.rules import Facts, decide
from tocsin_exporter.sources.latest import ErrorCounter

UUID = "GPU-8f6d2a51-0000-0000-0000-00000000000a"
MIG = "MIG-8f6d2a51-0000-0000-0000-00000000000b"
CUDA, SHOWN = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"
GPUS, STEP = "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"
SLURM = {"SLURM_JOB_ID": "7"}
RUN = {"TORCHELASTIC_RUN_ID": "run", "RANK": "3", "LOCAL_RANK": "1"}
POD = ("/kubepods.slice/kubepods-pod01234567_0123_0123_0123_0123456789ab.slice/cri-1.scope",)


def devices(env: dict[str, str], cgroups: tuple[str, ...] = ()) -> tuple[str, ...]:
    facts = Facts(pid=1, parent=0, group=1, start_ticks=5, name="python", cgroups=cgroups, environ=env)
    verdict = decide(facts, "boot")
    assert verdict is not None
    return assigned_devices(facts, verdict, {UUID: 4})


@pytest.mark.parametrize(
    ("env", "cgroups", "expected"),
    [
        pytest.param({**RUN, CUDA: UUID}, (), (UUID,), id="CUDA by UUID"),
        pytest.param({**RUN, CUDA: MIG}, (), (MIG,), id="CUDA by MIG UUID"),
        pytest.param({**RUN, CUDA: f"MIG-{UUID}/1/0"}, (), (f"MIG-{UUID}/1/0",), id="CUDA by MIG name"),
        pytest.param({**RUN, CUDA: "5"}, (), ("5",), id="CUDA by index"),
        pytest.param({**RUN, CUDA: ""}, (), (), id="CUDA has none"),
        pytest.param({**RUN, CUDA: "", SHOWN: UUID}, (), (), id="none beats the runtime's list"),
        pytest.param({**SLURM, GPUS: "2,3"}, (), ("minor:2", "minor:3"), id="Slurm's job"),
        pytest.param({**SLURM, GPUS: "2,3", STEP: "3"}, (), ("minor:3",), id="Slurm's step"),
        pytest.param({**SLURM, GPUS: "gpu:2"}, (), (), id="no number"),
        pytest.param({**SLURM, GPUS: "2,3", CUDA: "1"}, (), ("minor:3",), id="local number in Slurm's list"),
        pytest.param({**RUN, GPUS: "2"}, (), (), id="Slurm's list without Slurm"),
        pytest.param({SHOWN: f"{UUID},{MIG}"}, POD, (UUID, MIG), id="container by UUID"),
        pytest.param({SHOWN: "all"}, POD, (), id="every image says all"),
        pytest.param({SHOWN: "0"}, POD, (), id="container by number"),
        pytest.param({SHOWN: "void"}, POD, (), id="void"),
        pytest.param({CUDA: "0", SHOWN: UUID}, POD, ("4",), id="local number in a container"),
        pytest.param({SHOWN: "GPU-" + "f" * 4000}, POD, (), id="too long"),
    ],
)  # fmt: skip
def test_what_the_environment_gives(
    env: dict[str, str], cgroups: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """Each way in which allocators and runtimes name devices, and nothing where a number may be local."""
    assert expected == devices(env, cgroups)


def test_a_job_without_a_rank_or_a_device_is_known_by_what_it_was_given(
    processes: Processes, tmp_path: Path
) -> None:
    """A batch script that has not started its training yet holds its allocation, told once per job."""
    resolver = Resolver(processes.root, ErrorCounter(), pods=tmp_path)
    cgroup = "0::/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0\n"
    env = {**SLURM, GPUS: "2,3"}
    processes.add(50, name="slurm_script", environ=env, cgroup=cgroup, start=900)
    processes.add(51, name="python", parent=50, environ=env, cgroup=cgroup, start=950)
    resolver.scan()
    (given,) = resolver.assigned()

    assert ("slurm/7", "", ("minor:2", "minor:3")) == (given.job_id, given.rank, given.devices)
    assert (50, 1700000009.0) == (given.pid, given.start_time)

    processes.remove(50)
    processes.remove(51)
    resolver.scan()
    assert () == resolver.assigned()


def test_services_that_hold_devices_for_others_are_no_jobs(processes: Processes, tmp_path: Path) -> None:
    """The MPS server is on every device it serves and is nobody's job."""
    resolver = Resolver(processes.root, ErrorCounter(), pods=tmp_path)
    processes.add(60, name="nvidia-cuda-mps", command=("nvidia-cuda-mps-server",))
    processes.add(61, name="python")
    resolver.note_devices({60: (0,), 61: (0,)}, {UUID: 0})
    resolver.scan()

    assert [61] == [who.pid for who in resolver.living()]
    assert resolver.holder_of(60) is None
