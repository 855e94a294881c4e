"""What is said where the kernel side cannot work, and that it works in unusual places."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tocsin_exporter.sources.bpf import BpfSource, doctor
from tocsin_exporter.sources.bpf.symbols import op_number
from tocsin_exporter.sources.bpf.tracefs import tracepoint_ids
from tocsin_exporter.sources.latest import ErrorCounter

Start = Callable[..., Any]

_PR_CAPBSET_DROP = 24
_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39}


def without(*names: str) -> Callable[[], None]:
    """Return what makes a child process give up capabilities for good."""

    def drop() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        for name in names:
            if libc.prctl(_PR_CAPBSET_DROP, _CAPABILITIES[name], 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")

    return drop


def in_child(code: str, *arguments: str, before: tuple[str, ...] = (), drop: Any = None) -> list[str]:
    command = [*before, sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=drop, timeout=60, check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout.split("\n")[:-1]


START = """
import sys
from pathlib import Path
from tocsin_exporter.sources.bpf import BpfSource
from tocsin_exporter.sources.latest import ErrorCounter
class Nobody:
    def subscribe(self, arrived, left): pass
source = BpfSource(Nobody(), ErrorCounter(), object_path=Path(sys.argv[1]))
source.start()
print(source.rung)
for part, error in sorted(source.failures.items()):
    print(part, error.reason, error.detail)
source.stop()
"""


def test_without_rights_every_part_says_what_it_needs(bpf_object: Path) -> None:
    """
    Without the capabilities nothing is loaded, nothing raises, and each part names what it needs.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can give up capabilities in a child")

    rung, *failures = in_child(START, str(bpf_object), drop=without(*_CAPABILITIES))

    assert "off" == rung
    assert ["exits no_permission", "output no_permission", "probes no_permission"] == [
        " ".join(line.split()[:2]) for line in failures
    ]
    assert all("needs CAP_BPF and CAP_PERFMON" in line for line in failures)


def test_two_capabilities_are_enough_for_probes_and_exits(bpf_object: Path, watch: Start, view: Any) -> None:
    """
    Without CAP_SYS_ADMIN probes and exits work; only output needs a mounted tracefs then.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can give up capabilities in a child")
    watched = watch(view)
    if watched.source.rung != "uprobe_multi":
        pytest.skip("this kernel has no uprobe_multi, the one way without CAP_SYS_ADMIN")

    rung, *failures = in_child(START, str(bpf_object), drop=without("CAP_SYS_ADMIN"))

    assert "uprobe_multi" == rung
    assert {"output"} >= {line.split()[0] for line in failures}


def test_an_object_that_was_not_built_is_an_answer(view: Any, tmp_path: Path) -> None:
    """
    Without the object file the reason says how to build it.
    """
    errors = ErrorCounter()
    source = BpfSource(view, errors, object_path=tmp_path / "tocsin.bpf.o")
    source.start()
    source.stop()

    assert {"no_library"} == {failure.reason for failure in source.failures.values()}
    assert "make bpf" in source.failures["probes"].detail
    assert {("ebpf", "no_library"): 1} == errors.counts()


def test_an_object_of_another_version_is_refused(
    view: Any, tmp_path: Path, watch: Start, bpf_object: Path
) -> None:
    """
    A file that is no object, or one of another layout, is refused with the reason.
    """
    watch(view)
    broken = tmp_path / "tocsin.bpf.o"
    broken.write_bytes(bpf_object.read_bytes()[:1000])
    source = BpfSource(view, ErrorCounter(), object_path=broken)
    source.start()
    source.stop()

    assert "off" == source.rung
    assert {"probes", "output", "exits"} == source.failures.keys()


def test_the_doctor_says_what_each_lack_costs(tmp_path: Path) -> None:
    """
    Each part has a row with its cost; what is missing says so.
    """
    rows = list(doctor(tmp_path / "missing.o"))

    assert [("eBPF probes", False), ("eBPF exits", False), ("eBPF output", False)] == [
        row[:2] for row in rows
    ]
    assert all(row[3] for row in rows)


def test_tracepoint_numbers_leave_no_mount(watch: Start, view: Any) -> None:
    """
    Where tracefs is not mounted its numbers are read all the same, and no mount is left.
    """
    watched = watch(view)
    if "output" in watched.source.failures:
        pytest.skip(f"no tracepoints here: {watched.source.failures['output'].detail}")
    before = Path("/proc/self/mountinfo").read_text()

    numbers = tracepoint_ids(["syscalls/sys_enter_write", "syscalls/sys_enter_writev"])

    assert 2 == len(set(numbers.values()))
    assert before == Path("/proc/self/mountinfo").read_text()


NAMESPACE = """
import os, subprocess, sys, time
from pathlib import Path
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.sources.bpf import BpfSource
from tocsin_exporter.sources.latest import ErrorCounter
read, write = os.pipe()
rank = subprocess.Popen([sys.argv[2], str(write)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                        pass_fds=[write], env={"LD_LIBRARY_PATH": os.path.dirname(sys.argv[2])})
def do(command):
    rank.stdin.write(command + b"\\n"); rank.stdin.flush()
do(b"noop"); os.read(read, 1)
class One:
    def subscribe(self, arrived, left): arrived(ProcessIdentity(rank.pid, 1, 0.0, "j", "0", "torchrun"))
source = BpfSource(One(), ErrorCounter(), object_path=Path(sys.argv[1]), poll=0.02)
ends = []
source.listen_exits(ends.append)
source.start()
for _ in range(500):
    if source.counts() and "cuda" in source.counts()[0].layers: break
    time.sleep(0.01)
do(b"launch 5"); os.read(read, 1)
print(source.counts()[0].stat.op(0).calls)
do(b"exit 4"); rank.wait()
for _ in range(500):
    if ends: break
    time.sleep(0.01)
print(os.getpid(), ends[0].process.pid == rank.pid, ends[0].code)
source.stop()
"""


def test_pids_are_those_of_the_exporters_namespace(
    bpf_object: Path, native: Path, watch: Start, view: Any
) -> None:
    """
    In a container with pids of its own the exporter counts the processes that it sees.
    """
    watch(view)
    before = ("unshare", "--pid", "--fork", "--mount-proc")
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespaces here")

    assert ["5", "1 True 4"] == in_child(NAMESPACE, str(bpf_object), str(native / "rank"), before=before)


LAB = """
import ctypes, sys
cuda, nccl = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1"), ctypes.CDLL(sys.argv[1] + "/libnccl.so.2")
print("ready", flush=True)
sys.stdin.readline()
for _ in range(7):
    cuda.cuStreamSynchronize(None)
for _ in range(3):
    nccl.ncclGroupEnd()
print("done", flush=True)
sys.stdin.readline()
"""


def test_the_lab_libraries_are_counted(root: Path, watch: Start, view: Any) -> None:
    """
    Calls into the simulated driver and NCCL of the lab are counted exactly, failing ones as errors too.
    """
    folder = root / ".build" / "lib"
    if not (folder / "libcuda.so.1").exists():
        pytest.skip("the lab's libraries are not built; run `make setup`")
    command = [sys.executable, "-c", LAB, str(folder)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert "ready\n" == child.stdout.readline()
        view.add(child.pid)
        watched = watch(view)
        watched.probed("cuda", "nccl")
        child.stdin.write("\n")
        child.stdin.flush()
        assert "done\n" == child.stdout.readline()
        stat = watched.rank().stat
        child.stdin.close()

    waits = stat.op(op_number("sync_stream"))
    assert 7 == waits.calls
    assert 7 == sum(stat.wait.buckets)
    assert waits.errors in (0, 7)
    assert 3 == stat.op(op_number("group_end")).calls
