"""Complaints about owners: missing, left over, multiplied, wrong."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.exporter.complaints.node import NAME, Agent, Scrape
from tests.exporter.support import Processes

from tocsin_common import procstat

POWER = "tocsin_gpu_power_watts"
OWNER = "tocsin_gpu_owner"


@pytest.fixture
def blind(make: Callable[..., Agent]) -> Iterator[Agent]:
    """An exporter that learns nothing of jobs."""
    agent = make(flags=("--no-collector.identity", "--path.procfs", "/proc"))
    yield agent
    agent.close()


@pytest.fixture
def seen(make: Callable[..., Agent], processes: Processes) -> Iterator[tuple[Agent, Processes]]:
    """
    An exporter whose processes are written by the test, under the pids of real ones.

    The simulated driver lists living processes only, and no test may put itself into a Slurm cgroup.
    """
    agent = make(flags=("--path.procfs", str(processes.root)))
    yield agent, processes
    agent.close()


def devices(scrape: Scrape) -> list[dict[str, str]]:
    return [labels for labels, _ in scrape.series(POWER)]


@pytest.mark.complaint(15)
def test_device_series_do_not_wait_for_the_owner(blind: Agent, agent: Agent) -> None:
    """
    Who holds a device is a series of its own: devices are told alike with, without and despite it.

    NVIDIA/dcgm-exporter#411, #342, #428, #477, #151, #577, #718.
    """
    unowned = blind.start().cycles(1)
    agent.job("owner", [0])
    owned = agent.until(lambda scrape: scrape.series(OWNER, job_id="torchrun/owner"))

    assert {"node": NAME, "gpu": "0", "gpu_uuid": agent.uuid(0)} == devices(owned)[0]
    assert devices(unowned) == devices(owned)
    assert 0 == unowned.value("tocsin_collector_success", collector="identity")
    assert unowned.series("tocsin_collector_error_info", collector="identity", reason="disabled")
    assert 1 == owned.value("tocsin_collector_success", collector="identity")
    assert owned.series("tocsin_collector_last_success_timestamp_seconds", collector="identity")


@pytest.mark.complaint(16)
def test_gauges_of_a_job_end_with_its_last_process(agent: Agent) -> None:
    """
    When the owner ends, what is told of it as living is gone with the next reading.

    NVIDIA/dcgm-exporter#140, #16; XuehaiPan/nvitop#106; Project-HAMi/HAMi#2281, #128.
    """
    job = "torchrun/ended"
    ranks = agent.job("ended", [0, 1])
    agent.until(lambda scrape: len(scrape.series("tocsin_job_gpu_power_watts", job_id=job)) == 2)
    agent.end(ranks)
    after = agent.until(lambda scrape: not scrape.series("tocsin_job_gpu_power_watts", job_id=job))

    for living in ("tocsin_job_info", "tocsin_rank_info", "tocsin_rank_resident_memory_bytes"):
        agent.until(lambda scrape, name=living: not scrape.series(name, job_id=job))  # type: ignore[misc]
    assert not after.series("tocsin_job_gpu_memory_used_bytes", job_id=job)
    # What it was responsible for is told a while longer, as an end and not as a life.
    down = agent.until(lambda scrape: len(scrape.series("tocsin_rank_up", job_id=job)) == 2)
    assert 0 == down.total("tocsin_rank_up", job_id=job)


@pytest.mark.complaint(17)
def test_one_gpu_is_one_series_through_all_its_owners(agent: Agent) -> None:
    """
    A device's series keep their labels while jobs come and go, so that nothing is summed twice.

    NVIDIA/dcgm-exporter#237, #340, #655.
    """
    every = [agent.cycles(1)]
    for name in ("first", "second"):
        ranks = agent.job(name, [0])
        job = f"torchrun/{name}"
        every.append(agent.until(lambda scrape, job=job: scrape.series(OWNER, job_id=job)))  # type: ignore[misc]
        agent.end(ranks)
        every.append(agent.cycles(1))

    assert 1 == len({str(devices(scrape)) for scrape in every})
    assert 2 == len(devices(every[-1]))


@pytest.mark.complaint(28)
def test_a_gpu_belongs_to_whom_the_driver_names_and_never_to_a_local_index(
    seen: tuple[Agent, Processes],
) -> None:
    """
    Inside a job's device cgroup index 0 is any device: the driver's process list decides, by UUID.

    plazonic/nvidia_gpu_prometheus_exporter and slurm-job-exporter#63, #64, #65, #66, #50; PrincetonUniversity
    /jobstats#34, #61. Slurm's newer cgroup names carry no job number; then the environment tells.
    """
    agent, processes = seen
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            agent.hold(1, child.pid)
            processes.add(
                child.pid,
                start=int(procstat.start(child.pid) or 0),
                environ={
                    "SLURM_JOB_ID": "4711",
                    "SLURM_PROCID": "3",
                    "CUDA_VISIBLE_DEVICES": "0",
                    "TOCSIN_SIM_DEVICES": str(agent.paths.devices),
                },
                cgroup="0::/system.slice/slurmstepd.scope/s9R3VXKQ0P2M/step_0/user/task_3\n",
            )
            agent.start()
            scrape = agent.until(lambda one: one.series(OWNER, job_id="slurm/4711"))
        finally:
            child.kill()

    assert [("1", agent.uuid(1), "3")] == [
        (labels["gpu"], labels["gpu_uuid"], labels["rank"])
        for labels, _ in scrape.series(OWNER, job_id="slurm/4711")
    ]


@pytest.mark.complaint(36)
def test_no_scrape_asks_a_scheduler(make: Callable[..., Agent], tmp_path: Path) -> None:
    """
    What is told of a Slurm job comes from its processes; no program is run, whoever scrapes how often.

    SckyzO/slurm_exporter#144; PrincetonUniversity/jobstats#3: five dumps of the queue per scrape.
    """
    asked = tmp_path / "asked"
    for name in ("squeue", "scontrol", "sinfo", "sacct", "kubectl", "nvidia-smi"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {name} >> {asked}\n")
        program.chmod(0o755)
    agent = make(env={"PATH": f"{tmp_path}:/usr/bin:/bin"}).start()
    ranks = [rank for job in range(20) for rank in agent.job("", [], SLURM_JOB_ID=str(job))]
    for number in range(8):
        ranks += agent.job(f"busy-{number}", [number % 2], SLURM_JOB_ID=str(5000 + number), SLURM_PROCID="0")
    try:
        scrape = agent.until(lambda one: len(one.series("tocsin_job_info")) >= 8)
        for _ in range(30):
            agent.scrape()
        time.sleep(0.6)
    finally:
        agent.close()

    assert not asked.exists()
    for number in range(8):
        job = f"slurm/{5000 + number}"
        rows = [name for name, labels, _ in scrape.rows if labels.get("job_id") == job]
        assert 0 < len(rows) <= 80
