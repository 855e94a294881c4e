"""Which versions a rank has loaded, from the files that real processes map."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.exporter.support import Processes, collector_set, series

from tocsin_exporter.collectors import identity
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.identity.resolver import Resolver
from tocsin_exporter.identity.software import Software, SoftwareSource, loaded, mapped_files, packages
from tocsin_exporter.sources.latest import ErrorCounter

PROC = Path("/proc")
SITE = "/opt/venv/lib/python3.11/site-packages"
PIP = {"torch": "2.5.1+cu124", "nvidia_nccl_cu12": "2.21.5", "nvidia_cuda_runtime_cu12": "12.4.127", "nvidia_cudnn_cu12": "9.1.0.70", "jaxlib": "0.4.30"}
TORCH = f"{SITE}/torch/lib/libtorch_cpu.so"


@pytest.mark.parametrize(
    ("files", "installed", "expected"),
    [
        pytest.param(["/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5"], {}, Software(nccl="2.21.5"), id="distribution"),
        pytest.param(["/usr/local/cuda-12.4/lib64/libcudart.so.12.4.127"], {}, Software(cuda="12.4.127"), id="toolkit"),
        pytest.param(["/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15"], {}, Software(driver="550.54.15"), id="driver"),
        pytest.param(["/opt/conda/lib/libcudnn.so.9.1.0"], {}, Software(cudnn="9.1.0"), id="conda"),
        pytest.param([f"{SITE}/torch/lib/libcudart-d0da41ae.so.11.0"], {}, Software(cuda="11.0"), id="bundled with torch"),
        pytest.param([TORCH], {SITE: PIP}, Software(torch="2.5.1+cu124"), id="a package that is there and not loaded"),
        pytest.param(
            [TORCH, f"{SITE}/nvidia/nccl/lib/libnccl.so.2", f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12", f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9"],
            {SITE: PIP}, Software("2.5.1+cu124", "", "12.4.127", "9.1.0.70", "2.21.5"), id="pip",
        ),
        pytest.param([f"{SITE}/jaxlib/xla_extension.so"], {SITE: PIP}, Software(jax="0.4.30"), id="jax"),
        pytest.param([f"{SITE}/nvidia/nccl/lib/libnccl.so.2"], {}, Software(), id="a major version alone"),
        pytest.param(["/opt/own/libnccl.so.2.19.3", f"{SITE}/nvidia/nccl/lib/libnccl.so.2"], {SITE: PIP}, Software(nccl="2.19.3"), id="two of them"),
        pytest.param(["/opt/libnccl-net.so.2.21.5", "/opt/xlibcuda.so.1.2", "/opt/libcudart_static.so"], {}, Software(), id="other libraries"),
        pytest.param([], {SITE: PIP}, Software(), id="nothing"),
    ],
)  # fmt: skip
def test_versions(files: list[str], installed: dict[str, dict[str, str]], expected: Software) -> None:
    """A file's name tells what is loaded; a package's version counts where a file of it is mapped."""
    assert expected == loaded(files, installed)


MAPPER = """
import mmap, sys
kept = []
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        kept.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
print("ready", flush=True)
sys.stdin.read()
"""
Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that has files mapped; return its pid."""
    running: list[subprocess.Popen[str]] = []

    def mapper(*files: Path, around: tuple[str, ...] = ()) -> int:
        process = subprocess.Popen(
            [*around, sys.executable, "-c", MAPPER, *map(str, files)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(process)
        assert process.stdout is not None
        assert "ready" == process.stdout.readline().strip()
        return process.pid

    yield mapper
    for process in running:
        process.communicate()


def tree(root: Path) -> tuple[Path, Path]:
    """A virtual environment with NCCL and torch as pip lays them out; returns the libraries."""
    site = root / "lib/python3.11/site-packages"
    nccl, torch = site / "nvidia/nccl/lib/libnccl.so.2", site / "torch/lib/libtorch_cpu.so"
    for path in (nccl, torch):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 4096)
    for name in ("nvidia_nccl_cu12-2.21.5", "torch-2.5.1+cu124", "numpy-2.1.0", "odd name-1"):
        (site / f"{name}.dist-info").mkdir()
    return nccl, torch


def rank(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid, 1, 0.0, "torchrun/demo", "0", "torchrun", step="3", container="ab")


def source(*ranks: ProcessIdentity) -> SoftwareSource:
    return SoftwareSource(PROC, lambda: ranks, ErrorCounter(), looks=(0.0, 0.0))


def test_a_real_process(tmp_path: Path, start: Start) -> None:
    """What a living process has mapped, with the packages beside it."""
    who = rank(start(*tree(tmp_path)))

    assert {(who.pid, 1): Software(torch="2.5.1+cu124", nccl="2.21.5")} == source(who).read()


def test_an_upgraded_library_is_still_the_loaded_one(tmp_path: Path, start: Start) -> None:
    """A file that was deleted under a running process keeps its name."""
    library = tmp_path / "libnccl.so.2.19.3"
    library.write_bytes(b"x" * 4096)
    pid = start(library)
    library.unlink()

    assert "2.19.3" == loaded(mapped_files(PROC, pid), {}).nccl


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mount namespaces need root and unshare")
def test_a_process_in_another_mount_namespace(tmp_path: Path, start: Start) -> None:
    """Paths are those that the process sees; its own root directory leads to them."""
    hidden, outside = tmp_path / "hidden", tmp_path / "outside"
    hidden.mkdir()
    libraries = tree(outside)
    around = ("unshare", "--mount", "sh", "-c", f'mount --bind "{outside}" "{hidden}" && exec "$@"', "sh")
    pid = start(*(hidden / path.relative_to(outside) for path in libraries), around=around)

    assert not list(hidden.iterdir())
    assert Software(torch="2.5.1+cu124", nccl="2.21.5") == source(rank(pid)).read()[(pid, 1)]


def test_a_rank_is_looked_at_a_few_times_and_then_known(tmp_path: Path, start: Start) -> None:
    """What is known stays when the files are gone; an ended rank is forgotten."""
    who = rank(start(*tree(tmp_path)))
    living = [who]
    watch = SoftwareSource(PROC, lambda: tuple(living), ErrorCounter(), looks=(0.0,))
    first = watch.read()
    shutil.rmtree(tmp_path / "lib")

    assert first == watch.read() == {(who.pid, 1): Software(torch="2.5.1+cu124", nccl="2.21.5")}
    living.clear()
    assert {} == watch.read()


def test_a_process_without_a_rank_or_gone_costs_nothing(start: Start) -> None:
    """Helpers are not looked at; a rank that ended in between has no versions and is no error."""
    errors = ErrorCounter()
    gone = rank(2**22 + 1)
    watch = SoftwareSource(PROC, lambda: (replace(rank(start()), rank=""), gone), errors, looks=(0.0,))

    assert {(gone.pid, 1): Software()} == watch.read()
    assert {} == errors.counts()


def test_versions_step_and_container_stand_on_one_series(tmp_path: Path, processes: Processes) -> None:
    """The collector joins what a rank has loaded with who it is; before the first look versions are absent."""
    processes.add(50, environ={"SLURM_JOB_ID": "7", "SLURM_PROCID": "2", "SLURM_STEP_ID": "3"})
    view = Resolver(processes.root, ErrorCounter(), pods=tmp_path)
    view.scan()
    (who,) = view.living()
    versions = {(who.pid, who.start_ticks): Software(torch="2.5.1", nccl="2.21.5")}
    told = [
        [line for line in series(collector_set(collector).scrape()) if "software" in line]
        for collector in (identity.build(view, 60.0, lambda: versions), identity.build(view, 60.0))
    ]

    who_it_is = 'tocsin_rank_software_info{node="gpu-001",job_id="slurm/7",rank="2",step="3"'
    assert [[who_it_is + ',torch="2.5.1",nccl="2.21.5"} 1'], [who_it_is + "} 1"]] == told


def test_a_folder_that_is_none_has_no_packages(tmp_path: Path) -> None:
    """A missing folder, or a file in its place."""
    (tmp_path / "file").write_text("")

    assert {} == packages(PROC, os.getpid(), str(tmp_path / "none"))
    assert {} == packages(PROC, os.getpid(), str(tmp_path / "file"))
