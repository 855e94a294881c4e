"""Which devices the allocator gave to a job, from the environment of its processes."""

# ruff: noqa: E501 - one case, one line

from __future__ import annotations

from pathlib import Path

import pytest
from tests.exporter.support import Processes

from tocsin_exporter.identity.assigned import DeviceMap, assigned_devices, own_devices
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


# Slurm's GPUs 0 to 3 are the device files 4 to 7: another daemon has the first four.
FILES = (4, 5, 6, 7)
BOUND = {"SLURMD_TRES_BIND": "gpu:per_task:1"}
ONE, TWO = {"SLURM_JOB_NUM_NODES": "1"}, {"SLURM_JOB_NUM_NODES": "2"}


def devices(env: dict[str, str], cgroups: tuple[str, ...] = ()) -> tuple[str, ...]:
    facts = Facts(pid=1, parent=0, group=1, start_ticks=5, name="python", cgroups=cgroups, environ=env)
    verdict = decide(facts, "boot")
    assert verdict is not None
    return assigned_devices(facts, verdict, FILES)


@pytest.mark.parametrize(
    ("env", "cgroups", "expected"),
    [
        pytest.param({**RUN, CUDA: UUID}, (), (UUID,), id="CUDA by UUID"),
        pytest.param({**RUN, CUDA: MIG}, (), (MIG,), id="CUDA by MIG UUID"),
        pytest.param({**RUN, CUDA: f"MIG-{UUID}/1/0"}, (), (f"MIG-{UUID}/1/0",), id="CUDA by MIG name"),
        pytest.param({**RUN, CUDA: "5"}, (), ("5",), id="CUDA by index"),
        pytest.param({**RUN, CUDA: ""}, (), (), id="CUDA has none"),
        pytest.param({**RUN, CUDA: "", SHOWN: UUID}, (), (), id="none beats the runtime's list"),
        pytest.param({**SLURM, GPUS: "2,3"}, (), ("minor:6", "minor:7"), id="Slurm's job"),
        pytest.param({**SLURM, GPUS: "2,3", STEP: "3"}, (), ("minor:7",), id="Slurm's step"),
        pytest.param({**SLURM, GPUS: "4"}, (), (), id="more than Slurm has files for"),
        pytest.param({**SLURM, GPUS: "gpu:2"}, (), (), id="no number"),
        pytest.param({**SLURM, GPUS: "2,3", CUDA: "1"}, (), ("minor:7",), id="local number in Slurm's list"),
        pytest.param({**SLURM, STEP: "1", CUDA: "0"}, (), ("minor:5",), id="local number in the step's list"),
        pytest.param({**SLURM, STEP: "1", CUDA: "1"}, (), ("minor:5",), id="no device cgroup"),
        pytest.param({**SLURM, STEP: "1,2", CUDA: "1"}, (), (), id="either way"),
        pytest.param({**SLURM, **TWO, GPUS: "1", STEP: "0", CUDA: "0"}, (), ("minor:4",), id="the job's list of another node"),
        pytest.param({**SLURM, **TWO, GPUS: "1", STEP: "0"}, ("/slurm/uid_0/job_7/step_0",), ("minor:4",), id="likewise, not asked by CUDA"),
        pytest.param({**SLURM, **BOUND, STEP: "0", CUDA: "0"}, (), (), id="a bound task's number may be counted anew"),
        pytest.param({**SLURM, **BOUND, STEP: "1", CUDA: "1"}, (), ("minor:5",), id="a bound task's number that was not"),
        pytest.param({**SLURM, **BOUND, **ONE, GPUS: "3", STEP: "0", CUDA: "0"}, (), ("minor:7",), id="bound to all that the job has"),
        pytest.param({**SLURM, **BOUND, **TWO, GPUS: "3", STEP: "0", CUDA: "0"}, (), (), id="bound, and the job's list is another node's"),
        pytest.param({**SLURM, **BOUND, **ONE, "SLURM_HET_SIZE": "2", GPUS: "3", STEP: "0", CUDA: "0"}, (), (), id="bound in a heterogeneous job"),
        pytest.param({**RUN, GPUS: "2"}, (), (), id="Slurm's list without Slurm"),
        pytest.param({SHOWN: f"{UUID},{MIG}"}, POD, (UUID, MIG), id="container by UUID"),
        pytest.param({SHOWN: "all"}, POD, (), id="every image says all"),
        pytest.param({SHOWN: "0"}, POD, (), id="container by number"),
        pytest.param({SHOWN: "void"}, POD, (), id="void"),
        pytest.param({CUDA: "0", SHOWN: UUID}, POD, (UUID,), id="local number in a container"),
        pytest.param({CUDA: "0", SHOWN: MIG}, POD, (MIG,), id="local number of a MIG instance in a container"),
        pytest.param({CUDA: "1", SHOWN: UUID}, POD, (), id="a number more than the container has"),
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
    env = {**SLURM, GPUS: "2,3", "SLURMD_NODENAME": "n1"}
    gres = processes.root / "20/root/etc/slurm/gres.conf"
    processes.add(20, name="slurmd", command=("/usr/sbin/slurmd", "-D", "-N", "n1"))
    gres.parent.mkdir(parents=True)
    gres.write_text("NodeName=n[0-3] Name=gpu Type=h100 File=/dev/nvidia[4-7]\n")
    processes.add(50, name="slurm_script", environ=env, cgroup=cgroup, start=900)
    processes.add(51, name="python", parent=50, environ=env, cgroup=cgroup, start=950)
    resolver.scan()
    (given,) = resolver.assigned()

    assert ("slurm/7", "", ("minor:6", "minor:7")) == (given.job_id, given.rank, given.devices)
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


@pytest.mark.parametrize(
    ("env", "cgroups", "expected"),
    [
        pytest.param({CUDA: "2"}, (), (2,), id="one device"),
        pytest.param({CUDA: "0,1,2,3", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}, (), (2,), id="all, by local rank"),
        pytest.param({CUDA: "0,1,2,3", "LOCAL_RANK": "2"}, (), (), id="all, unclear which"),
        pytest.param({CUDA: "0,1"}, (), (0, 1), id="one process, two devices"),
        pytest.param({CUDA: "GPU-bbbb0000"}, (), (1,), id="UUID, shortened"),
        pytest.param({CUDA: "GPU-"}, (), (), id="UUID, of any device"),
        pytest.param({CUDA: "-1"}, (), (), id="none"),
        pytest.param({CUDA: ""}, (), (), id="empty"),
        pytest.param({**SLURM, CUDA: "0", STEP: "3"}, (), (5,), id="Slurm's index is neither NVML's nor the file's"),
        pytest.param({**SLURM, CUDA: "2"}, (), (2,), id="Slurm without GPUs of its own"),
        pytest.param({CUDA: MIG}, (), (), id="a MIG instance is no whole device"),
        pytest.param({CUDA: "1", SHOWN: "GPU-cccc0000-3,GPU-aaaa0000-1"}, POD, (0,), id="index inside a container"),
        pytest.param({CUDA: "1"}, POD, (), id="container, not told which"),
        pytest.param({}, (), (), id="not set"),
    ],
)  # fmt: skip
def test_the_drivers_indices(env: dict[str, str], cgroups: tuple[str, ...], expected: tuple[int, ...]) -> None:
    """A number counts as a driver's index only where that is certain."""
    known = DeviceMap(
        {"GPU-aaaa0000-1": 0, "GPU-bbbb0000-2": 1, "GPU-cccc0000-3": 2}, {4: 2, 5: 3, 6: 4, 7: 5}, {"": FILES}, 1
    )
    environ = {**env, "RANK": "0", "MASTER_ADDR": "h", "WORLD_SIZE": "4"}
    facts = Facts(pid=1, parent=0, group=1, start_ticks=5, name="python", cgroups=cgroups, environ=environ)
    verdict = decide(facts, "boot")
    assert verdict is not None

    assert expected == known.indices(own_devices(facts, verdict, known.slurm_files("")))


@pytest.mark.parametrize(
    ("minors", "daemons", "expected"),
    [
        pytest.param({0: 0, 1: 1}, 1, (0, 1), id="the driver counts as the device files do"),
        pytest.param({0: 1, 1: 0}, 1, None, id="it does not"),
        pytest.param({1: 0, 2: 1}, 1, None, id="the first file is not Slurm's"),
        pytest.param({0: 0, 1: 1}, 2, None, id="two daemons share the devices"),
        pytest.param({}, 1, None, id="the driver is silent"),
    ],
)
def test_detected_devices_are_known_where_every_order_is_the_same(
    minors: dict[int, int], daemons: int, expected: tuple[int, ...] | None
) -> None:
    """With AutoDetect Slurm's index is a device's only where no order could give another."""
    assert expected == DeviceMap({}, minors, {"n1": ()}, daemons).slurm_files("n1")


def test_a_slurm_node_that_no_daemon_here_serves_has_no_known_devices() -> None:
    """Without Slurm's own list an index names nothing."""
    assert DeviceMap({}, {0: 0}, {}, 0).slurm_files("n1") is None
