"""What cgroup paths say, in the forms of Slurm 20 to 26 and of the kubelet with its runtimes."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import pytest

from tocsin_exporter.identity.cgroups import PodCgroup, SlurmCgroup, job_of_title, pod_of, slurm_of, step_name

UID = "3f1c2b7e-90ab-4cde-8f01-23456789abcd"
FLAT = UID.replace("-", "_")
STATIC = "8e1f3a5c7d9b0a2c4e6f8091a2b3c4d5"
CID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("/slurm/uid_1000/job_4711/step_0/task_3", SlurmCgroup("4711", "0", "3"), id="v1"),
        pytest.param("/slurm/uid_1000/job_4711/step_batch/task_0", SlurmCgroup("4711", "batch", "0"), id="v1 batch"),
        pytest.param("/slurm/uid_1000/job_4711/step_batch/task_special", SlurmCgroup("4711", "batch"), id="v1 special task"),
        pytest.param("/slurm/uid_1000/job_4711/step_extern", SlurmCgroup("4711", "extern"), id="v1 extern"),
        pytest.param("/slurm/uid_1000/job_4711/step_interactive/task_0", SlurmCgroup("4711", "interactive", "0"), id="v1 salloc"),
        pytest.param("/slurm/uid_1000/job_4711/step_4294967294", SlurmCgroup("4711", "batch"), id="v1 batch by number"),
        pytest.param("/slurm/uid_1000/job_4711/step_0+1/task_2", SlurmCgroup("4711", "0+1", "2"), id="v1 heterogeneous step"),
        pytest.param("/slurm/uid_1000/job_4711", SlurmCgroup("4711"), id="v1 job alone"),
        pytest.param("/slurm_gpu-001/uid_0/job_5/step_0/task_0", SlurmCgroup("5", "0", "0", "gpu-001"), id="v1 several daemons"),
        pytest.param("/slurm/job_77/step_3", SlurmCgroup("77", "3"), id="v1 without user"),
        pytest.param("/batch/uid_1000/job_12/step_4/task_1", SlurmCgroup("12", "4", "1"), id="v1 CgroupPrepend"),
        pytest.param(f"/docker/{CID}/slurm/uid_0/job_9/step_0/task_0", SlurmCgroup("9", "0", "0"), id="v1 in a container"),
        pytest.param("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3", SlurmCgroup("4711", "0", "3"), id="v2"),
        pytest.param("/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_special", SlurmCgroup("4711", "batch"), id="v2 batch"),
        pytest.param("/system.slice/slurmstepd.scope/job_4711/step_extern/user/task_special", SlurmCgroup("4711", "extern"), id="v2 extern"),
        pytest.param("/system.slice/slurmstepd.scope/job_4711/step_0+2/user/task_0", SlurmCgroup("4711", "0+2", "0"), id="v2 heterogeneous step"),
        pytest.param("/system.slice/slurmstepd.scope/job_4711/step_0/slurm", SlurmCgroup("4711", "0"), id="v2 the step's daemon"),
        pytest.param("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0/my/own", SlurmCgroup("4711", "0", "0"), id="v2 nested by the job"),
        pytest.param("/system.slice/gpu-001_slurmstepd.scope/job_8/step_1/user/task_7", SlurmCgroup("8", "1", "7", "gpu-001"), id="v2 several daemons"),
        pytest.param("/hpc.slice/slurmstepd.scope/job_8/step_1/user/task_7", SlurmCgroup("8", "1", "7"), id="25.11, another slice"),
        pytest.param("/system.slice/docker-ab.scope/system.slice/slurmstepd.scope/job_3/step_0/user/task_0", SlurmCgroup("3", "0", "0"), id="v2 in a container"),
        pytest.param("/../../slurmstepd.scope/job_3/step_0/user/task_0", SlurmCgroup("3", "0", "0"), id="v2 from inside a container"),
        pytest.param("/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_1", SlurmCgroup("", "0", "1", sluid="s5K1KKYAYG5D00"), id="26.05"),
        pytest.param("/system.slice/n1_slurmstepd.scope/sEKNKTV3WPV500/step_batch/user/task_special", SlurmCgroup("", "batch", "", "n1", "sEKNKTV3WPV500"), id="26.05 several daemons"),
        pytest.param("/system.slice/slurmstepd.scope/s5K1KKYAYG5D00", SlurmCgroup("", sluid="s5K1KKYAYG5D00"), id="26.05 job alone"),
    ],
)  # fmt: skip
def test_a_slurm_path_names_job_step_task_and_node(path: str, expected: SlurmCgroup) -> None:
    """Every layout of both hierarchies is read to its end."""
    assert expected == slurm_of((path,))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/", id="root"),
        pytest.param("/system.slice/slurmd.service", id="the node's daemon"),
        pytest.param("/system.slice/slurmstepd.scope/system", id="its waiting step daemon"),
        pytest.param("/slurm/uid_1000", id="a user without a job"),
        pytest.param("/slurm/uid_1000/job_", id="no number"),
        pytest.param("/slurm/uid_1000/job_12x/step_0", id="no number either"),
        pytest.param("/slurm/uid_1000/myjob_12/step_0", id="another word"),
        pytest.param("/user.slice/my-slurm-tests/job_5/step_0", id="a folder that speaks of slurm"),
        pytest.param("/user.slice/user-1000.slice/job_5", id="a job of somebody else"),
        pytest.param("/pbs/uid_1000/job_5", id="user and job without a step under another name"),
        pytest.param("/system.slice/slurmstepd.scope/job_s5K1KKYAYG5D00/step_0", id="a SLUID has no prefix"),
        pytest.param("/system.slice/slurmstepd.scope/s5K1KKYAYG5D0/step_0", id="a digit short"),
        pytest.param("/system.slice/slurmstepd.scope/s5K1KKYAYG5D000/step_0", id="a digit more"),
        pytest.param("/system.slice/slurmstepd.scope/s5K1KKYAYG5DI0/step_0", id="base32 has no I"),
        pytest.param("/system.slice/slurmstepd.scope/S5K1KKYAYG5D00/step_0", id="a large S"),
        pytest.param("/user.slice/s5K1KKYAYG5D00/step_0", id="a SLUID elsewhere"),
        pytest.param("/system.slice/notslurmstepd.scope/job_5/step_0", id="another scope"),
    ],
)
def test_what_only_looks_like_slurm_is_none(path: str) -> None:
    """A path that Slurm does not make names no job."""
    assert slurm_of((path,)) is None


def test_of_several_hierarchies_the_one_that_tells_most_counts() -> None:
    """The freezer ends with the step, memory with the task; others may stand at the root."""
    paths = ("/", "/slurm_gpu1/uid_0/job_1/step_0", "/slurm_gpu1/uid_0/job_1/step_0/task_2", "/slurm_gpu1/uid_0/job_1")

    assert SlurmCgroup("1", "0", "2", "gpu1") == slurm_of(paths)


@pytest.mark.parametrize(
    ("title", "job"),
    [
        ("slurmstepd: [4711.0]", "4711"),
        ("slurmstepd: [4711.batch]", "4711"),
        ("slurmstepd: [4711.0+1]", "4711"),
        ("slurmstepd: [4711.4294967291]", "4711"),
        ("slurmstepd: [x.0]", ""),
        ("slurmstepd infinity", ""),
        ("/usr/sbin/slurmstepd", ""),
        ("my slurmstepd: [4711.0]", ""),
    ],
)
def test_the_step_daemon_has_the_job_in_its_title(title: str, job: str) -> None:
    """From 26.05 on this is where a node itself has the number of a job."""
    assert job == job_of_title(title)


def test_steps_with_a_meaning_are_known_by_number_and_by_name() -> None:
    """Versions differ in what they write."""
    assert ["batch", "extern", "interactive", "7", "0+1"] == [
        step_name(each) for each in ("4294967291", "4294967292", "4294967290", "7", "0+1")
    ]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(f"/kubepods/pod{UID}/{CID}", PodCgroup(UID, CID), id="cgroupfs, guaranteed"),
        pytest.param(f"/kubepods/burstable/pod{UID}/{CID}", PodCgroup(UID, CID), id="cgroupfs, burstable"),
        pytest.param(f"/kubepods/besteffort/pod{UID}/crio-{CID}", PodCgroup(UID, CID), id="cgroupfs, CRI-O"),
        pytest.param(f"/kubepods.slice/kubepods-pod{FLAT}.slice/cri-containerd-{CID}.scope", PodCgroup(UID, CID), id="systemd, guaranteed"),
        pytest.param(f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice/cri-containerd-{CID}.scope", PodCgroup(UID, CID), id="systemd, containerd"),
        pytest.param(f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{FLAT}.slice/crio-{CID}.scope", PodCgroup(UID, CID), id="systemd, CRI-O"),
        pytest.param(f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{FLAT}.slice/crio-{CID}.scope/container", PodCgroup(UID, CID), id="systemd, CRI-O with crun"),
        pytest.param(f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice/docker-{CID}.scope", PodCgroup(UID, CID), id="systemd, Docker"),
        pytest.param(f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice/crio-conmon-{CID}.scope", PodCgroup(UID), id="CRI-O's monitor is no container"),
        pytest.param(f"/system.slice/containerd.service/kubepods-burstable-pod{FLAT}.slice:cri-containerd:{CID}", PodCgroup(UID, CID), id="containerd with the other driver"),
        pytest.param(f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{FLAT}.slice/cri-containerd-{CID}.scope", PodCgroup(UID, CID), id="kind"),
        pytest.param(f"/system.slice/docker-{OTHER}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{FLAT}.slice/cri-containerd-{CID}.scope", PodCgroup(UID, CID), id="kind from the host"),
        pytest.param(f"/docker/{OTHER}/kubelet/kubepods/besteffort/pod{UID}/{CID}", PodCgroup(UID, CID), id="kind from the host, v1"),
        pytest.param(f"/system.slice/k3s.service/kubepods/burstable/pod{UID}/{CID}", PodCgroup(UID, CID), id="k3s"),
        pytest.param(f"/kubepods/burstable/pod{UID}/{CID}/docker/{OTHER}", PodCgroup(UID, CID), id="a container in the pod's own Docker"),
        pytest.param(f"/kubepods/burstable/pod{OTHER[:32]}/{OTHER}/kubelet/kubepods/pod{UID}/{CID}", PodCgroup(UID, CID), id="a cluster in a pod"),
        pytest.param(f"/kubepods/burstable/pod{STATIC}/{CID}", PodCgroup(STATIC, CID), id="static pod"),
        pytest.param(f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{CID}.scope", PodCgroup(STATIC, CID), id="static pod, systemd"),
        pytest.param(f"/../../pod{UID}/{CID}", PodCgroup(UID, CID), id="a neighbour from inside a container"),
        pytest.param(f"/../../kubepods-burstable-pod{FLAT}.slice/cri-containerd-{CID}.scope", PodCgroup(UID, CID), id="a neighbour, systemd"),
        pytest.param(f"/kubepods/burstable/pod{UID}", PodCgroup(UID), id="pod alone"),
        pytest.param(f"/kubepods/burstable/pod{UID}/0123abc", PodCgroup(UID), id="no container id"),
    ],
)  # fmt: skip
def test_a_pod_path_names_pod_and_container(path: str, expected: PodCgroup) -> None:
    """Every runtime and cgroup driver, nested clusters and static pods."""
    assert expected == pod_of((path,))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/", id="root"),
        pytest.param("/kubepods.slice", id="the root of all pods"),
        pytest.param("/kubepods/burstable", id="a class of pods"),
        pytest.param(f"/user.slice/pod{UID}/{CID}", id="a pod of somebody else"),
        pytest.param(f"/machine.slice/libpod-{CID}.scope", id="Podman"),
        pytest.param(f"/system.slice/docker-{CID}.scope", id="Docker"),
        pytest.param(f"/kubepods/burstable/tripod{UID}/{CID}", id="another word"),
        pytest.param(f"/kubepods/pod{UID[:-1]}/{CID}", id="a digit short"),
        pytest.param(f"/kubepods/pod{UID}0/{CID}", id="a digit more"),
        pytest.param(f"/kubepods/pod{UID.replace('-', '_', 1)}/{CID}", id="two kinds of dashes"),
    ],
)
def test_what_only_looks_like_a_pod_is_none(path: str) -> None:
    """A path that no kubelet makes names no pod."""
    assert pod_of((path,)) is None
