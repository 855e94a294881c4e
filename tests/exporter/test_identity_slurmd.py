"""What Slurm's daemons on a node tell: gres.conf, and the jobs behind SLUIDs."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import pytest
from tests.exporter.support import Processes

from tocsin_exporter.identity.facts import read_facts
from tocsin_exporter.identity.gres import expand, gpu_minors
from tocsin_exporter.identity.resolver import Resolver
from tocsin_exporter.identity.slurmd import gpu_files, job_above
from tocsin_exporter.sources import procfs
from tocsin_exporter.sources.latest import ErrorCounter

SLUID = "s5K1KKYAYG5D00"
STEP = f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("Name=gpu File=/dev/nvidia[0-3]", (0, 1, 2, 3), id="a range"),
        pytest.param("Name=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia1", (0, 1), id="a line each"),
        pytest.param("name=GPU type=h100 file=/dev/nvidia[2-3] Cores=0-15", (2, 3), id="small letters"),
        pytest.param("AutoDetect=off\nNodeName=n1 Name=gpu File=/dev/nvidia[0-1]\nNodeName=n2 Name=gpu File=/dev/nvidia[2-3]", (2, 3), id="by node"),
        pytest.param("NodeName=n[0-9] Name=gpu \\\n File=/dev/nvidia[4,6-7] # three", (4, 6, 7), id="continued, with a comment"),
        pytest.param("Name=mps Count=100\nName=gpu File=/dev/nvidia[0-1]", (0, 1), id="other resources"),
        pytest.param("AutoDetect=nvml", (), id="detected"),
        pytest.param("AutoDetect=nvml\nName=gpu Type=h100 Count=8", (), id="detected, counted"),
        pytest.param("NodeName=n1 AutoDetect=off\nAutoDetect=nvml", (), id="not detected elsewhere"),
        pytest.param("AutoDetect=off", None, id="none"),
        pytest.param("", None, id="empty"),
        pytest.param("NodeName=n1 Name=gpu File=/dev/nvidia[0-1]", None, id="another node"),
        pytest.param("Name=gpu Count=4", None, id="no files"),
        pytest.param("Name=gpu File=/dev/nvidia[2-3]\nName=gpu File=/dev/nvidia[0-1]", None, id="not in order"),
        pytest.param("Name=gpu Type=a100 File=/dev/nvidia[0-1]\nName=gpu Type=h100 File=/dev/nvidia[2-3]", None, id="several types"),
        pytest.param("Name=gpu File=/dev/nvidia[0-1]\nName=gpu File=/dev/nvidia1", None, id="a file twice"),
        pytest.param("Name=gpu File=/dev/nvidia[0-1]\nAutoDetect=nvml\nName=gpu Type=x Count=1", None, id="listed and detected"),
        pytest.param("Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21", None, id="MIG"),
        pytest.param("Name=gpu File=/dev/dri/renderD128", None, id="another maker's device"),
        pytest.param("Include other.conf\nName=gpu File=/dev/nvidia0", None, id="included elsewhere"),
        pytest.param("Name=gpu File=/dev/nvidia[0-", None, id="broken"),
    ],
)  # fmt: skip
def test_slurms_indices_are_device_files_where_the_order_is_certain(text: str, expected: tuple[int, ...] | None) -> None:
    """gres.conf gives the files of node n2; any doubt about the order gives none."""
    assert expected == gpu_minors(text, "n2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07],x", ["n1", "n2", "n3", "n07", "x"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[3-1]", []),
        ("", []),
    ],
)
def test_host_lists(text: str, expected: list[str]) -> None:
    """Ranges, zeros in front, several brackets."""
    assert expected == expand(text)


def test_a_host_list_is_bounded() -> None:
    """A list that means millions of names costs thousands."""
    assert 4096 >= len(expand("n[0-999999][0-999999][0-999999]"))


def _daemon(processes: Processes, pid: int, conf: str, *arguments: str, folder: str = "etc/slurm") -> None:
    processes.add(pid, name="slurmd", command=("/usr/sbin/slurmd", *arguments))
    path = processes.root / str(pid) / "root" / folder / "gres.conf"
    path.parent.mkdir(parents=True)
    path.write_text(conf)


@pytest.mark.parametrize("arguments", [("-D",), ("-D", "-f", "/opt/own/slurm.conf"), ("-D", "-f/opt/own/slurm.conf")])
def test_a_daemon_without_a_name_serves_the_node_that_its_jobs_name(
    processes: Processes, arguments: tuple[str, ...]
) -> None:
    """The file lies where the daemon looks for it, by its own root directory."""
    folder = "opt/own" if len(arguments) > 1 else "etc/slurm"
    _daemon(processes, 20, "NodeName=n1 Name=gpu File=/dev/nvidia[0-1]", *arguments, folder=folder)
    stat = procfs.process_stat(processes.root, 20)
    assert stat is not None
    facts, _ = read_facts(processes.root, stat)

    assert {"n1": (0, 1), "n2": None} == gpu_files(processes.root, [facts], ["n1", "n2"])


def test_two_daemons_have_their_own_devices(processes: Processes) -> None:
    """Index 0 of the second node is another device than index 0 of the first."""
    conf = "NodeName=n1 Name=gpu File=/dev/nvidia[0-1]\nNodeName=n2 Name=gpu File=/dev/nvidia[2-3]\n"
    _daemon(processes, 20, conf, "-D", "-N", "n1")
    _daemon(processes, 21, conf, "-D", "-Nn2")
    for pid, node in ((50, "n1"), (51, "n2")):
        environ = {"SLURM_JOB_ID": str(pid), "SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "0",
                   "CUDA_VISIBLE_DEVICES": "0", "SLURMD_NODENAME": node}  # fmt: skip
        processes.add(pid, environ=environ)
    view = Resolver(processes.root, ErrorCounter(), pods=processes.root / "pods")
    view.note_devices({}, {}, {0: 3, 1: 2, 2: 1, 3: 0})
    view.scan()

    assert {("slurm/50", ("minor:0",)), ("slurm/51", ("minor:2",))} == {
        (each.job_id, each.devices) for each in view.assigned()
    }
    assert {50: (3,), 51: (1,)} == {who.pid: who.gpu_indices for who in view.living()}


def test_a_sluid_is_followed_to_the_daemon_above_the_process(processes: Processes) -> None:
    """The daemon of the step is an ancestor in the same job; a shell between them does not matter."""
    processes.add(30, name="slurmstepd", command=("slurmstepd: [4711.0]",), cgroup=f"{STEP}/slurm\n")
    processes.add(31, parent=30, name="bash", cgroup=f"{STEP}/user/task_0\n")
    processes.add(32, parent=31, cgroup=f"{STEP}/user/task_0\n", environ={"SLURM_PROCID": "0"})
    view = Resolver(processes.root, ErrorCounter(), pods=processes.root / "pods")
    view.scan()

    assert [("slurm/4711", "0", "0")] == [(who.job_id, who.rank, who.step) for who in view.living() if who.pid == 32]


def test_a_daemon_of_another_job_is_not_believed(processes: Processes) -> None:
    """Whoever sits below a foreign daemon, or calls itself one, gets no number from it."""
    other = "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/slurm\n"
    processes.add(30, name="slurmstepd", command=("slurmstepd: [99.0]",), cgroup=other)
    processes.add(31, name="slurmstepd", command=("slurmstepd infinity",), cgroup=f"{STEP}/slurm\n")
    processes.add(32, name="slurmstepd", command=("slurmstepd: [99.0]",), cgroup=f"{STEP}/user/task_0\n")

    assert "" == job_above(processes.root, 32, SLUID)
    assert "" == job_above(processes.root, 30, SLUID)
    assert "" == job_above(processes.root, 31, SLUID)
    assert "" == job_above(processes.root, 1, SLUID)
