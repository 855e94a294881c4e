"""Who is who under a real Slurm: every task's job, step, rank, attempt and devices, until the job's end."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.slurm.cluster import NODES, SlurmCluster, UnavailableError, programs

from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import create_node

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
TASK = f"{sys.executable} {HERE / 'task.py'}"
OWN = {"gpu1": {0, 1}, "gpu2": {2, 3}}
GPUS = 4
_NUMBERS = count(1)


@dataclass(frozen=True)
class Listed:
    """What Slurm itself says of one process."""

    job: str
    step: str
    rank: str
    node: str


class Site:
    """The cluster, and the exporter of the machine that both of its nodes are."""

    def __init__(self, cluster: SlurmCluster, arguments: list[str], env: dict[str, str]) -> None:
        self.cluster, self._arguments, self._env = cluster, arguments, env
        self.out = cluster.run / "out"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        listen = ["--web.listen-address", f"127.0.0.1:{self.port}"]
        log = (cluster.run / "log" / "exporter.txt").open("wb")
        with log:
            self.exporter = subprocess.Popen(
                [sys.executable, "-m", "tocsin_exporter", *listen, *arguments],
                env=env, stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self) -> None:
        """End the exporter."""
        self.exporter.send_signal(signal.SIGTERM)
        self.exporter.wait(timeout=20)

    def until(self, told: Callable[[], Any], seconds: float = 40) -> Any:
        """Return the first thing that *told* gives and that is not empty."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.exporter.poll() is None, (self.cluster.run / "log/exporter.txt").read_text()
            if found := told():
                return found
            time.sleep(0.2)
        rows = [row for row in self.series("tocsin_rank_(?:up|info)") if row["job_id"].startswith("slurm/")]
        state = [self.cluster.command("squeue"), *map(str, rows)]
        raise AssertionError(f"not within {seconds:.0f} s; " + "\n".join(state))

    def tasks(self, name: str, number: int) -> list[dict[str, Any]]:
        """Wait for *number* tasks and return what they found."""
        return self.until(lambda: self._tasks(name, number))  # type: ignore[no-any-return]

    def _tasks(self, name: str, number: int) -> list[dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in self.out.glob(f"{name}-*.json")]
        living = [each for each in found if Path(f"/proc/{each['pid']}").exists()]
        return living if len(living) == number else []

    def end(self, name: str) -> None:
        """Let the tasks end by themselves."""
        (self.out / f"end-{name}").touch()

    def identity(self, pid: int) -> dict[str, Any]:
        """Ask the command line who *pid* is."""
        done = subprocess.run(
            [sys.executable, "-m", "tocsin_exporter", *self._arguments, "identity", str(pid)],
            capture_output=True, text=True, check=False, env=self._env, timeout=60,
        )  # fmt: skip
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def listed(self, job: str) -> dict[int, Listed]:
        """Return the processes of a job by Slurm's own account."""
        found: dict[int, Listed] = {}
        for node in NODES:
            with suppress(AssertionError):
                for line in self.cluster.command("scontrol", "listpids", job, node).splitlines()[1:]:
                    pid, _, step, _, rank = line.split()[:5]
                    found[int(pid)] = Listed(job, step, rank if rank.isdigit() else "", node)
        return found

    def series(self, family: str, **labels: str) -> list[dict[str, str]]:
        """Return the labels of a family's series that carry *labels*; ``value`` is among them."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except OSError:
            return []
        finally:
            connection.close()
        found = []
        for match in re.finditer(rf"^{family}{{(.*)}} (\S+)$", text, re.MULTILINE):
            row = {**dict(re.findall(r'(\w+)="([^"]*)"', match[1])), "value": match[2]}
            if all(row.get(key, "") == wanted for key, wanted in labels.items()):
                found.append(row)
        return found


@pytest.fixture(scope="module", params=["cgroup/v1", "linuxproc"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """
    Two nodes and an exporter that sees both, over a driver that counts its devices backwards.

    With cgroups Slurm fences devices off, without them the environment alone tells who is who.
    """
    library = ROOT / ".build/lib/libnvidia-ml.so.1"
    if not library.exists():
        pytest.skip("the simulated NVML library is not built (make setup)")
    # Sockets have short names, pytest's folders do not.
    run = Path(tempfile.mkdtemp(prefix="tocsin-slurm-", dir="/tmp"))
    cluster: SlurmCluster | None = None
    site: Site | None = None
    try:
        try:
            cluster = SlurmCluster(programs(ROOT), run, str(request.param))
            cluster.start()
        except UnavailableError as err:
            pytest.skip(f"no Slurm here: {err}")
        paths = create_node(tmp_path_factory.mktemp("gpus"), "vm", gpus=GPUS, hcas=1)
        with Node(paths.devices) as node:
            for index in range(GPUS):
                node.state.devices[index].minor = GPUS - 1 - index
        arguments = [
            *("--node.name", "vm", "--nvml.library", str(library), "--path.sysfs", str(paths.sysfs)),
            *("--path.kmsg", str(paths.kmsg), "--path.state", str(run / "state.json")),
            *("--collect.interval", "1s", "--ebpf.backend", "off"),
            *("--control.socket", str(run / "control.sock")),
        ]
        site = Site(cluster, arguments, {**os.environ, "TOCSIN_SIM_DEVICES": str(paths.devices)})
        site.until(lambda: site and site.series("tocsin_gpu_up"))
        yield site
    finally:
        if site is not None:
            site.stop()
        if cluster is not None:
            cluster.stop()
        shutil.rmtree(run, ignore_errors=True)


@pytest.fixture
def name(site: Site) -> Iterator[str]:
    """A name for the tasks of one test; they and the jobs end with it."""
    own = f"t{next(_NUMBERS)}"
    yield own
    site.end(own)
    with suppress(AssertionError):
        site.cluster.command("scancel", "-u", "root")
    site.until(lambda: not site.cluster.command("squeue", "-h").strip())


def minors(answer: dict[str, Any]) -> set[int]:
    """Return the device files that the exporter gives a process."""
    assert all(each.startswith("minor:") for each in answer["identity"]["devices"]), answer
    return {int(each.removeprefix("minor:")) for each in answer["identity"]["devices"]}


def told(answer: dict[str, Any]) -> Listed:
    """Return what the exporter says, in Slurm's terms."""
    who = answer["identity"]
    node = answer["environ"]["SLURMD_NODENAME"]
    return Listed(who["job_id"].removeprefix("slurm/"), who["step"], who["rank"], node)


def truth(site: Site, task: dict[str, Any], node: str) -> set[int] | None:
    """Return the node's GPUs that the kernel lets a task open, None where no device cgroup stands."""
    return set(task["allowed"]) & OWN[node] if site.cluster.tracking == "cgroup/v1" else None


def _two(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return rows if len(rows) == 2 else []


def test_the_tasks_of_a_step_over_two_nodes(site: Site, name: str) -> None:
    """Job, step, rank and node are as Slurm lists them, the devices those that the kernel lets it open."""
    job = site.cluster.sbatch(
        f"#!/bin/sh\nsrun {TASK} {site.out} {name}\n",
        "-N2", "-n4", "--ntasks-per-node=2", "--gpus-per-node=2",
    )  # fmt: skip
    for task in site.tasks(name, 4):
        answer = site.identity(task["pid"])
        expected = site.listed(job)[task["pid"]]

        assert expected == told(answer)
        assert ("0", []) == (expected.step, answer["conflicts"])
        assert minors(answer) == OWN[expected.node]
        assert truth(site, task, expected.node) in (OWN[expected.node], None)
    # The batch script, srun and the step daemons belong to the job, and are no ranks.
    others = [pid for pid, each in site.listed(job).items() if each.step == "batch"]
    assert others
    for pid in others:
        who = site.identity(pid)["identity"]
        assert (f"slurm/{job}", "") == (who["job_id"], who["rank"])


def test_a_second_job_on_a_node_has_the_other_device(site: Site, name: str) -> None:
    """Both jobs see a device 0 of their own; the second node's are not the first node's."""
    jobs: dict[str, str] = {}
    for order in ("a", "b"):
        for node in NODES:
            mine = f"{name}-{order}-{node}"
            jobs[mine] = site.cluster.sbatch(
                f"#!/bin/sh\nexec {TASK} {site.out} {mine}\n", "-n1", "--gpus=1", "-w", node, "-J", mine
            )
        for node in NODES:
            site.tasks(f"{name}-{order}-{node}", 1)
    given: dict[int, str] = {}
    for mine, job in jobs.items():
        (task,) = site.tasks(mine, 1)
        answer = site.identity(task["pid"])
        (minor,) = minors(answer)

        assert minor in OWN[mine.rsplit("-", 1)[1]]
        assert truth(site, task, mine.rsplit("-", 1)[1]) in ({minor}, None)
        who = answer["identity"]
        assert (f"slurm/{job}", "batch", "0") == (who["job_id"], who["step"], who["rank"])
        given[minor] = f"slurm/{job}"
        site.end(mine)
    assert sorted(given) == [0, 1, 2, 3]


def test_devices_that_stand_idle_are_the_jobs(site: Site, name: str) -> None:
    """A given device is the job's at the driver's index, which counts neither as Slurm nor the files do."""
    job = site.cluster.sbatch(f"#!/bin/sh\nexec {TASK} {site.out} {name}\n", "-n1", "--gpus=2", "-w", "gpu2")
    site.tasks(name, 1)
    owned = site.until(lambda: site.series("tocsin_gpu_owner", job_id=f"slurm/{job}"))

    assert {"0", "1"} == {row["gpu"] for row in owned}


def test_tasks_bound_to_a_device_each_get_no_wrong_one(site: Site, name: str) -> None:
    """Slurm counts a bound task's devices anew inside a device cgroup: none is named then."""
    job = site.cluster.sbatch(
        f"#!/bin/sh\nsrun --gpus-per-task=1 {TASK} {site.out} {name}\n",
        "-N2", "-n4", "--ntasks-per-node=2", "--gpus-per-node=2",
    )  # fmt: skip
    for task in site.tasks(name, 4):
        answer = site.identity(task["pid"])
        listed = site.listed(job)[task["pid"]]
        allowed = truth(site, task, listed.node)

        assert listed == told(answer)
        assert minors(answer) <= (allowed if allowed is not None else OWN[listed.node])
        assert len(minors(answer)) < 2


def test_an_array_is_a_job_per_index(site: Site, name: str) -> None:
    """Each index has the raw id of its own, and array and index beside it."""
    array = site.cluster.sbatch(f"#!/bin/sh\nexec {TASK} {site.out} {name}\n", "-n1", "--array=3,7")
    found = {}
    for task in site.tasks(name, 2):
        who = site.identity(task["pid"])["identity"]
        found[who["inner_id"]] = who["job_id"]
    rows = site.cluster.command("squeue", "-h", "-r", "-o", "%A %K", "-j", array).splitlines()

    assert {f"array/{array}_{index}": f"slurm/{raw}" for raw, index in map(str.split, rows)} == found
    assert len(set(found.values())) == 2


def test_a_heterogeneous_job_is_one_job(site: Site, name: str) -> None:
    """Components have ids of their own; all are the leader's job, with ranks over all of them."""
    leader = site.cluster.sbatch(
        "#!/bin/sh\n#SBATCH -n1 --gpus=1 -w gpu1\n#SBATCH hetjob\n#SBATCH -n1 --gpus=2 -w gpu2\n"
        f"srun --het-group=0,1 {TASK} {site.out} {name}\n"
    )
    found = {}
    for task in site.tasks(name, 2):
        answer = site.identity(task["pid"])
        who, node = answer["identity"], answer["environ"]["SLURMD_NODENAME"]
        found[who["rank"]] = (who["job_id"], answer["conflicts"], node)
        if (allowed := truth(site, task, node)) is not None:
            assert minors(answer) == allowed

    assert {"0": (f"slurm/{leader}", [], "gpu1"), "1": (f"slurm/{leader}", [], "gpu2")} == found


def test_torchruns_ranks_inside_a_batch_script(site: Site, name: str) -> None:
    """The framework's launcher numbers the ranks and has an id of its own inside the allocator's job."""
    job = site.cluster.sbatch(
        f"#!/bin/sh\n{sys.executable} {HERE / 'torchrun'} {site.out} {name}\n",
        "-n1", "--gpus=2", "-w", "gpu1",
    )  # fmt: skip
    found = {}
    for task in site.tasks(name, 2):
        answer = site.identity(task["pid"])
        who = answer["identity"]
        assert [] == answer["conflicts"]
        found[who["rank"]] = (who["job_id"], who["inner_id"], who["local_rank"], minors(answer))

    assert {str(rank): (f"slurm/{job}", "torchrun/pretrain", str(rank), {rank}) for rank in (0, 1)} == found
    up = site.until(lambda: _two(site.series("tocsin_rank_up", job_id=f"slurm/{job}")))
    assert {"0", "1"} == {row["rank"] for row in up}


def test_a_requeued_job_is_the_same_job_in_its_next_attempt(site: Site, name: str) -> None:
    """After a requeue the same job and ranks stand with new processes and a higher attempt."""
    job = site.cluster.sbatch(
        f"#!/bin/sh\nsrun {TASK} {site.out} {name}\n", "-N2", "-n2", "--gpus-per-node=1", "--requeue"
    )
    before = {task["pid"] for task in site.tasks(name, 2)}
    site.until(lambda: len(site.series("tocsin_rank_up", job_id=f"slurm/{job}", value="1")) == 2)
    site.cluster.command("scontrol", "requeue", job)
    site.until(lambda: site.cluster.state(job) == "PENDING")

    site.until(lambda: len(site.series("tocsin_rank_up", job_id=f"slurm/{job}", value="0")) == 2)
    for pid in before:
        assert not site.identity(pid)["found"]
    site.cluster.command("scontrol", "update", f"JobId={job}", "StartTime=now")
    after = site.tasks(name, 2)

    assert not before & {task["pid"] for task in after}
    for task in after:
        answer = site.identity(task["pid"])
        assert site.listed(job)[task["pid"]] == told(answer)
        assert "1" == answer["identity"]["attempt"]
    site.until(lambda: len(site.series("tocsin_rank_info", job_id=f"slurm/{job}", attempt="1")) == 2)
    site.until(lambda: len(site.series("tocsin_rank_software_info", job_id=f"slurm/{job}", step="0")) == 2)
    site.until(lambda: len(site.series("tocsin_rank_up", job_id=f"slurm/{job}", value="1")) == 2)


@pytest.mark.parametrize("way", ["end", "cancel"])
def test_with_a_jobs_end_its_ranks_are_gone(site: Site, name: str, way: str) -> None:
    """Whether it ends or is cancelled: no rank lives, and nobody holds its devices."""
    job = site.cluster.sbatch(
        f"#!/bin/sh\nsrun {TASK} {site.out} {name}\n", "-n2", "-N1", "--gpus=2", "-w", "gpu1"
    )
    tasks = site.tasks(name, 2)
    site.until(lambda: len(site.series("tocsin_rank_up", job_id=f"slurm/{job}", value="1")) == 2)
    site.until(lambda: site.series("tocsin_gpu_owner", job_id=f"slurm/{job}"))
    if way == "end":
        site.end(name)
    else:
        site.cluster.command("scancel", job)
    site.until(lambda: site.cluster.state(job) in ("COMPLETED", "CANCELLED"))

    site.until(lambda: len(site.series("tocsin_rank_up", job_id=f"slurm/{job}", value="0")) == 2)
    site.until(lambda: not site.series("tocsin_gpu_owner", job_id=f"slurm/{job}"))
    assert not any(site.identity(task["pid"])["found"] for task in tasks)
