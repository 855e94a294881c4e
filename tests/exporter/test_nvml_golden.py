"""
What a MIG node and a Blackwell node serve, read by a real child from the simulated library.

The files hold series without their values, which move with the simulated hardware; of a device's links
the first two. `make golden` writes them anew; look at the difference.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.support import collector_set, series

from tocsin_exporter.attribution import Attribution, HeldDevice
from tocsin_exporter.collectors import gpu
from tocsin_exporter.collectors.gpu import GpuCollector, process_samples
from tocsin_exporter.identity.resolver import Resolver
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.model import Device
from tocsin_exporter.sources.nvml.source import NvmlSource
from tocsin_exporter.state import StateFile
from tocsin_lab.sim import trouble
from tocsin_lab.sim.node import create_node

GOLDEN = Path(__file__).parent / "golden"
SHAPES: dict[str, dict[str, Any]] = {
    "gpu_mig": {"gpu_model": "H100-SXM", "mig_profiles": ("3g.40gb", "1g.10gb"), "tier": "fabric"},
    "gpu_blackwell": {"gpu_model": "B200", "tier": "deep"},
    "gpu_inference": {"gpu_model": "L40S", "tier": "deep"},
}


class Served:
    """The gpu collector over a child of its own."""

    def __init__(self, root: Path, library: Path, *, tier: str, **shape: Any) -> None:
        paths = create_node(root, "gpu-001", gpus=1, hcas=0, **shape)
        os.environ["TOCSIN_SIM_DEVICES"] = str(paths.devices)
        trouble.place_process(paths.devices, 0, os.getpid(), 3 << 30)
        errors = ErrorCounter()
        self.source = NvmlSource(library, 5.0, 10.0, 60.0, errors, tier=tier, sysfs=root / "no-sys")
        ledger = Attribution(Resolver(root, errors), StateFile(None), errors, boot_id="b", sysfs=root)
        self.collector: GpuCollector = gpu.build(self.source, ledger)

    def read(self) -> str:
        """Read twice, since activity is a difference, and return the scrape."""
        self.source.read_once()
        time.sleep(0.12)
        self.source.read_once()
        return collector_set(self.collector).scrape()


@pytest.fixture
def served(
    request: pytest.FixtureRequest, tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    monkeypatch.setenv("TOCSIN_SIM_DEVICES", "")
    made = Served(tmp_path, nvml_library, **SHAPES[request.param])
    yield made
    made.source.close()


def shape(text: str) -> str:
    """Series of a scrape without values, and of links the first two."""
    names = [line.rpartition(" ")[0].replace(f'pid="{os.getpid()}"', 'pid="1"') for line in series(text)]
    return "".join(f"{name}\n" for name in names if not re.search(r'link="(?!0"|1")', name))


@pytest.mark.parametrize(("name", "served"), [(name, name) for name in SHAPES], indirect=["served"])
def test_golden_shape(name: str, served: Served) -> None:
    """Families and labels of each kind of device are exactly the committed ones."""
    found = shape(served.read())
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("TOCSIN_GOLDEN") == "write":
        path.write_text(found)

    assert path.read_text() == found


@pytest.mark.parametrize("served", SHAPES, indirect=True)
def test_no_kind_of_device_is_told_garbage(served: Served) -> None:
    """Nothing that a healthy device answers is refused."""
    served.read()
    reading, error = served.source.latest.read()

    assert error is None
    assert reading is not None
    assert all(device.up for device in reading.devices)
    assert {} == served.source._errors.counts()


def test_a_job_is_told_the_memory_of_its_own_processes() -> None:
    """On a shared device each holder has its processes' memory and its cgroup's limits, nobody the sum."""
    device = Device(
        gpu="0",
        uuid="GPU-a",
        processes=(
            (1, "compute", 100, "/cg/a"),
            (2, "compute", 20, ""),
            (3, "mps", 3, "/cg/a"),
            (4, "compute", None, ""),
        ),
        limits={"/cg/a": (0, 500, 103)},
    )
    jobs = {1: "slurm/1", 2: "slurm/2", 3: "slurm/1", 4: "slurm/3"}
    held = tuple(
        HeldDevice("0", "GPU-a", "", job, "", job != "slurm/9", True, {}, {}, {})
        for job in ("slurm/1", "slurm/2", "slurm/3", "slurm/9")
    )
    found = {
        (sample.family.removeprefix("tocsin_job_gpu_"), sample.labels[3], *sample.labels[5:]): sample.value
        for sample in process_samples((device,), held, lambda pid: jobs[pid])
    }

    assert {
        ("process_memory_bytes", "slurm/1"): 103,
        ("process_memory_bytes", "slurm/2"): 20,
        ("memory_limit_bytes", "slurm/1", "soft"): 0,
        ("memory_limit_bytes", "slurm/1", "hard"): 500,
        ("memory_limit_used_bytes", "slurm/1"): 103,
    } == found
