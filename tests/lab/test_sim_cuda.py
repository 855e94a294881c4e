"""The simulated driver and NCCL behave as a device: asynchronous, in order, waiting for peers."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tocsin_lab import faults
from tocsin_lab.sim.layout import Job

Script = Callable[..., Any]

_HEAD = """
import ctypes as c, json, os, time
from tocsin_lab.job.driver import Communicator, Device, unique_id
def took(call, *arguments):
    start = time.monotonic()
    call(*arguments)
    return time.monotonic() - start
"""


def test_a_launch_returns_before_the_work_is_done(script: Script, devices: Path) -> None:
    """Ten kernels of 40 ms are launched at once; the synchronising call takes their 400 ms."""
    launches, synchronise = script(
        _HEAD
        + """
d = Device()
f = d.function("gemm_x")
launches = took(lambda: [d.launch(f, 40000) for _ in range(10)])
print(json.dumps([launches, took(d.synchronize)]))
""",
        devices,
    )

    assert launches < 0.1
    assert 0.3 < synchronise < 1.0


def test_a_full_queue_blocks_the_launch(script: Script, devices: Path) -> None:
    """The 1,024th pending launch returns at once, a later one waits for room, as on hardware."""
    first, later = script(
        _HEAD
        + """
d = Device()
f = d.function("gemm_x")
d.launch(f, 300000)
first = took(lambda: [d.launch(f, 1) for _ in range(1023)])
print(json.dumps([first, took(lambda: d.launch(f, 1))]), flush=True)
os._exit(0)
""",
        devices,
    )

    assert first < 0.2
    assert later > 0.1


def test_speed_follows_the_device_at_once(script: Script, run_dir: Path, devices: Path) -> None:
    """Half the clock and half the speed make a kernel take four times as long."""
    text = (
        _HEAD + "d = Device()\nd.launch(d.function('gemm_x'), 100000)\nprint(json.dumps(took(d.synchronize)))"
    )
    healthy = script(text, devices)
    faults.inject(run_dir, "throttle", node="gpu-001", gpu=0, magnitude=0.5)
    faults.inject(run_dir, "fail_slow_gpu", node="gpu-001", gpu=0, magnitude=0.5)
    slow = script(text, devices)

    assert 0.05 < healthy < 0.25
    assert 0.35 < slow < 0.8


def test_visible_devices_choose_the_device(script: Script, devices: Path) -> None:
    """CUDA_VISIBLE_DEVICES takes indices and UUID prefixes; an impossible one leaves no device."""
    text = (
        _HEAD
        + """
l, n = c.CDLL("libcuda.so.1"), c.c_int()
l.cuInit(0)
l.cuDeviceGetCount(c.byref(n))
print(json.dumps(n.value))
"""
    )

    assert script(text, devices) == 2
    assert script(text, devices, CUDA_VISIBLE_DEVICES="1") == 1
    assert script(text, devices, CUDA_VISIBLE_DEVICES="7") == 0
    assert script(text, devices, CUDA_VISIBLE_DEVICES="GPU-") == 1


def test_a_captured_graph_runs_its_kernels(script: Script, devices: Path) -> None:
    """Launches under capture run nothing; each graph launch runs them all."""
    captured, launched = script(
        _HEAD
        + """
d = Device()
f = d.function("gemm_x")
l, graph, run = d._cuda, c.c_void_p(), c.c_void_p()
l.cuStreamBeginCapture_v2(d.stream, 0)
d.launch(f, 50000); d.launch(f, 50000)
l.cuStreamEndCapture(d.stream, c.byref(graph))
captured = took(d.synchronize)
l.cuGraphInstantiateWithFlags(c.byref(run), graph, c.c_uint64(0))
l.cuGraphLaunch(run, d.stream)
print(json.dumps([captured, took(d.synchronize)]))
""",
        devices,
    )

    assert captured < 0.05
    assert launched > 0.07


_HOT_CUDA = """
cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx cuGraphLaunch cuStreamSynchronize cuStreamSynchronize_ptsz
cuCtxSynchronize cuEventSynchronize cuEventRecord cuMemAlloc_v2 cuMemFree_v2 cuMemcpyHtoD_v2 cuMemcpyDtoH_v2
cuMemcpyHtoDAsync_v2 cuMemcpyAsync cuMemcpyDtoDAsync_v2
"""
_HOT_NCCL = """
ncclAllReduce ncclAllGather ncclReduceScatter ncclBroadcast ncclReduce ncclSend ncclRecv ncclCommInitRank
ncclGroupStart ncclGroupEnd
"""


@pytest.mark.parametrize(("library", "names"), [("libcuda.so.1", _HOT_CUDA), ("libnccl.so.2", _HOT_NCCL)])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the bytes are those of x86-64")
def test_probed_functions_begin_with_a_push(sim_lib: Path, tmp_path: Path, library: str, names: str) -> None:
    """A uprobe on them is emulated, not single-stepped; no two share an address, which would count twice."""
    # Copies: where a lab runs, the originals hold its breakpoints instead.
    for name in ("libcuda.so.1", "libnccl.so.2"):
        shutil.copy(sim_lib / name, tmp_path / name)
    text = (
        "import ctypes as c, sys\n"
        f"l = c.CDLL({str(tmp_path / library)!r})\n"
        "at = [c.cast(getattr(l, name), c.c_void_p).value for name in sys.argv[1:]]\n"
        "print(len(set(at)) == len(at), sorted({c.string_at(a, 1) for a in at}))\n"
    )
    argv = [sys.executable, "-c", text, *names.split()]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True [b'U']"


def test_nccl_refuses_what_it_cannot_do(script: Script, devices: Path) -> None:
    """A NULL communicator is an invalid argument (4), an unmatched group end invalid usage (5)."""
    got = script(
        _HEAD
        + """
d = Device()
l = c.CDLL(os.environ["TOCSIN_SIM_LIB"] + "/libnccl.so.2")
version = c.c_int()
alone = Communicator(d, unique_id(), 1, 0)
alone.all_reduce(d.allocate(4096), 1024)
d.synchronize()
known = l.ncclGetVersion(c.byref(version))
print(json.dumps([known, version.value, l.ncclAllReduce(0, 0, 1, 7, 0, 0, 0), l.ncclGroupEnd()]))
""",
        devices,
    )

    assert got == [0, 22606, 4, 5]


def test_grouped_sends_cross_without_a_deadlock(sim_lib: Path, run_dir: Path, devices: Path) -> None:
    """Two ranks that each send first and then receive, in one group, both finish."""
    shared = run_dir / "job.shm"
    Job.create(shared, 2)
    text = (
        _HEAD
        + """
import sys
rank = int(sys.argv[1])
d = Device()
from tocsin_lab.sim.layout import Job
from pathlib import Path
job = Job(Path(os.environ["TOCSIN_SIM_JOB"]))
if rank == 0:
    made = unique_id()
    c.memmove(job.state.rendezvous.id, made, 128)
    job.state.rendezvous.attempt = 1
while job.state.rendezvous.attempt != 1:
    time.sleep(0.005)
comm = Communicator(d, bytes(job.state.rendezvous.id), 2, rank)
n = comm._nccl
for call in (n.ncclSend, n.ncclRecv):
    call.argtypes = (c.c_uint64, c.c_size_t, c.c_int, c.c_int, c.c_void_p, c.c_void_p)
n.ncclGroupStart()
n.ncclSend(1, 10, 7, 1 - rank, comm._comm, d.stream)
n.ncclRecv(1, 10, 7, 1 - rank, comm._comm, d.stream)
n.ncclGroupEnd()
d.synchronize()
os._exit(0)
"""
    )
    base = {"TOCSIN_SIM_LIB": str(sim_lib), "TOCSIN_SIM_DEVICES": str(devices), "TOCSIN_SIM_JOB": str(shared)}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", text, str(rank)],
            env={**base, "CUDA_VISIBLE_DEVICES": str(rank), "PATH": "/usr/bin"},
        )
        for rank in range(2)
    ]

    assert [child.wait(15) for child in children] == [0, 0]
