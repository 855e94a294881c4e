"""Complaints about cost: memory that grows, work per scraper, hands on the device, sleeping hardware."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.exporter.complaints.node import NAME, Agent
from tests.exporter.support import Processes

from tocsin_exporter.app import build
from tocsin_exporter.config import Config
from tocsin_lab.sim.node import create_node

JOBS, BATCH = 144, 12


@pytest.mark.complaint(18)
def test_jobs_that_ended_leave_no_memory_behind(
    processes: Processes, tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Hours of jobs that come and go on a whole exporter leave as much in memory as the first few did.

    NVIDIA/dcgm-exporter#702, #292, #536, #574; pytorch/ci-infra#1011.
    """
    node = create_node(tmp_path / "run", NAME, gpus=2, hcas=2)
    monkeypatch.setenv("TOCSIN_SIM_DEVICES", str(node.devices))
    now = [time.time()]
    app = build(
        Config(
            node=NAME, procfs=processes.root, sysfs=node.sysfs, kmsg=node.kmsg, state=tmp_path / "state.json",
            nvml_library=nvml_library, ebpf_backend="off",
        ),
        wall=lambda: now[0],
        clock=lambda: now[0],
    )  # fmt: skip

    def live(first: int, last: int) -> int:
        for job in range(first, last):
            pids = [100 + job * 2 + rank for rank in range(2)]
            for rank, pid in enumerate(pids):
                processes.add(
                    pid,
                    start=job + 1,
                    environ={
                        "SLURM_JOB_ID": str(job),
                        "SLURM_PROCID": str(rank),
                        "CUDA_VISIBLE_DEVICES": str(rank),
                    },
                )
            app.resolver.scan()
            app.nvml.read_once()
            app.fabric.read_once()
            served = app.registry.scrape()
            assert f'job_id="slurm/{job}"' in served
            for pid in pids:
                processes.remove(pid)
            # A job every five minutes: what is kept for a quarter of an hour is gone after a few.
            now[0] += 300
            app.resolver.scan()
        app.registry.scrape()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        held = [live(first, first + BATCH) for first in range(0, JOBS, BATCH)]
    finally:
        tracemalloc.stop()
        app.nvml.close()
    # Buffers come and go, so the least of several batches counts. The lines of one job's series alone take
    # more than 10 kB; nothing of the kind is left.
    third = len(held) // 3
    assert min(held[-third:]) - min(held[third : 2 * third]) < 4096 * BATCH * third


@pytest.mark.complaint(19)
def test_scrapers_cost_the_driver_nothing(make: Callable[..., Agent]) -> None:
    """
    A scrape starts no program and asks the driver nothing: it serves the last finished reading.

    NVIDIA/dcgm-exporter#311; NVIDIA/gpu-monitoring-tools#133; utkuozdemir/nvidia_gpu_exporter#89, #90, #405;
    sustainable-computing-io/kepler#2032.
    """
    agent = make()
    # Asked for once at the start; then not for minutes.
    agent.interval = "300s"
    agent.start()
    time.sleep(1.0)
    children = agent.children()
    assert 1 == len(children)

    def reads() -> int:
        text = Path(f"/proc/{children[0]}/io").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("syscr")).split()[1])

    before = reads()
    started = {child for _ in range(5) for child in agent.children()}
    threads = [threading.Thread(target=lambda: [agent.scrape() for _ in range(10)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        started |= set(agent.children())
    for thread in threads:
        thread.join()

    assert before == reads()
    assert set(children) == started
    agent.close()


# In a mount namespace of its own: a file system whose server never answers, mounted twice in one place, a
# program that asks for its size, and the exporter, which holds the server's end: nothing of it outlives that.
HUNG = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def done(status):
    if status != 0:
        sys.exit(f"no hung mount here: {os.strerror(ctypes.get_errno())}")
done(libc.unshare(0x20000))
done(libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))
here = sys.argv[1]
for _ in range(2):
    server = os.open("/dev/fuse", os.O_RDWR)
    os.set_inheritable(server, True)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    done(libc.mount(b"server:/export", here.encode(), b"fuse", 0, options))
subprocess.Popen(["stat", "-f", here], stdout=subprocess.DEVNULL)
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.complaint(27)
@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="needs root and /dev/fuse for a mount that hangs",
)
def test_a_mount_that_hangs_holds_nothing_up(make: Callable[..., Agent], tmp_path: Path) -> None:
    """
    A mount, even twice the same one, whose server never answers has one thread aside that waits for it.

    No scrape does, no reading does, and nothing piles up; that it does not answer is told.

    prometheus/node_exporter#244, #475, #868, #997, #1353, #3058, #433, #3258.
    """
    here = tmp_path / "hung"
    here.mkdir()
    agent = make(wrapper=(sys.executable, "-c", HUNG, str(here)))
    try:
        agent.start()
    except AssertionError as err:
        if "no hung mount here" in str(err):
            pytest.skip(str(err))
        raise
    assert agent.process is not None
    tasks = Path(f"/proc/{agent.process.pid}/task")
    # The interval after which silence counts, and the readings until then.
    agent.until(lambda scrape: 0 == scrape.value("tocsin_storage_responds", mount=str(here)))
    before = len(list(tasks.iterdir()))
    for _ in range(20):
        assert 1 == agent.scrape().value("tocsin_collector_success", collector="host")
        time.sleep(0.05)
    waits = [(task / "wchan").read_text() for task in tasks.iterdir()]
    lookers = [pid for pid in agent.children() if name_of(pid) == "stat"]
    after, last = len(waits), agent.scrape()
    agent.close()

    # The mount does hang.
    assert 1 == len(lookers)
    assert len([wait for wait in waits if "fuse" in wait]) <= 1
    assert after <= before
    assert 1 == last.value("tocsin_collector_success", collector="storage")
    assert 0 == last.value("tocsin_storage_responds", mount=str(here))


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@contextmanager
def sleeping(pci: Path) -> Iterator[None]:
    """The kernel has suspended a device meanwhile."""
    folder = pci / "power"
    folder.mkdir(exist_ok=True)
    (folder / "runtime_status").write_text("suspended\n")
    try:
        yield
    finally:
        (folder / "runtime_status").write_text("active\n")


@pytest.mark.complaint(31)
def test_a_suspended_gpu_is_not_woken_by_polling(make: Callable[..., Agent]) -> None:
    """
    While the kernel has a device suspended the driver is not asked about it; the other one is read.

    henrygd/beszel#1522; NVIDIA/k8s-device-plugin#110.
    """
    agent = make().start()
    pci = agent.paths.sysfs / "bus/pci/devices" / agent.devices[1].pci
    power = "tocsin_gpu_power_watts"
    agent.until(lambda scrape: len(scrape.series(power)) == 2)
    with sleeping(pci):
        asleep = agent.until(lambda scrape: not scrape.series(power, gpu="1"))
        assert asleep.series(power, gpu="0")
        # Every call on it would hang now: nobody calls.
        agent.state.devices[1].hang = 1
        still = agent.cycles(4)
        agent.state.devices[1].hang = 0
        assert 1 == still.value("tocsin_collector_success", collector="gpu")
        assert still.series(power, gpu="0")
    agent.until(lambda scrape: scrape.series(power, gpu="1"))
    agent.close()


@pytest.mark.complaint(29)
def test_processes_that_the_driver_names_and_nobody_sees_are_counted(
    make: Callable[..., Agent], processes: Processes
) -> None:
    """
    Where the driver's pids are another namespace's, no series is given to a stranger, and the gap is told.

    Project-HAMi/HAMi-core#112; NVIDIA/nvidia-docker#1483.
    """
    agent = make(flags=("--path.procfs", str(processes.root)))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        try:
            agent.hold(0, child.pid)
            agent.start()
            scrape = agent.until(lambda one: one.value("tocsin_identity_unmatched_processes") == 1)
        finally:
            child.kill()
            agent.close()

    assert 1 == scrape.value("tocsin_gpu_processes", gpu="0")
    assert not scrape.series("tocsin_gpu_owner")
