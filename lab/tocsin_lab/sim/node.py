"""Creates a simulated node: shared GPU state, sysfs tree, kernel log.

``python -m tocsin_lab.sim.node --run-dir $RUN gpu-001 gpu-002`` creates nodes from the command line.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tocsin_lab.errors import LabError, TargetError
from tocsin_lab.sim import kmsg, mig, sysfs
from tocsin_lab.sim.layout import MAX_DEVICES, Node
from tocsin_lab.sim.profiles import PROFILES, Profile

__all__ = ["FABRIC_HEALTHY", "Gpu", "NodePaths", "create_node", "gpus_of", "nodes_of"]

# Bus numbers as an eight-GPU board has them, then on.
_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF, 0x2B, 0x33, 0x4A, 0x6B, 0x8B, 0xA4, 0xB3, 0xE3)
# NVML_GPU_FABRIC_STATE_COMPLETED; the health mask of a fabric that is whole: degraded bandwidth false (2),
# route recovery, unhealthy route and access time-out false, configuration right (1), partition assigned,
# manager connected; the summary "healthy".
FABRIC_HEALTHY = (3, 0x51AA, 1)
_NAMESPACE = uuid.UUID("6f0c1b52-6c0e-5b7e-9a61-0b1f3a0a7c55")


@dataclass(frozen=True)
class NodePaths:
    """Where a node's files are in a lab run directory."""

    run_dir: Path
    name: str

    @property
    def root(self) -> Path:
        return self.run_dir / "nodes" / self.name

    @property
    def devices(self) -> Path:
        return self.root / "devices.shm"

    @property
    def sysfs(self) -> Path:
        return self.root / "sys"

    @property
    def kmsg(self) -> Path:
        return self.root / "kmsg"

    @property
    def state(self) -> Path:
        return self.root / "state"


@dataclass(frozen=True)
class Gpu:
    """One simulated GPU; ``pci`` is ``dddd:bb:dd.f``, ``lost`` whether it fell off the bus."""

    node: str
    index: int
    uuid: str
    pci: str
    lost: bool


def nodes_of(run_dir: Path) -> tuple[str, ...]:
    """Names of the nodes in a run directory, sorted."""
    return tuple(sorted(path.parent.name for path in (run_dir / "nodes").glob("*/devices.shm")))


def gpus_of(run_dir: Path, node: str) -> tuple[Gpu, ...]:
    """The GPUs of a node.

    Raises:
        LayoutError: no such node, or its state has another layout.
    """
    with Node(NodePaths(run_dir, node).devices) as mapped:
        found = []
        for index in range(mapped.state.device_count):
            device = mapped.state.devices[index]
            pci = f"{device.pci_domain:04x}:{device.pci_bus:02x}:{device.pci_device:02x}.0"
            found.append(Gpu(node, index, device.uuid.decode(), pci, bool(device.lost)))
            del device
        return tuple(found)


def create_node(
    run_dir: Path,
    name: str,
    gpus: int = 4,
    hcas: int = 2,
    gpu_model: str = "H100-SXM",
    *,
    mig_profiles: Sequence[str] = (),
    driver: str = "",
) -> NodePaths:
    """Create (or create anew) a healthy node of ``gpus`` devices and ``hcas`` HCAs.

    ``mig_profiles`` cuts every GPU into these instances (``3g.40gb``); ``driver`` is another driver version
    than the model's, and with it come or go the calls that only newer drivers have.
    UUIDs and serial numbers depend on the node's name and the index only.

    Raises:
        TargetError: an impossible number of devices, an unknown model, MIG profiles that do not fit.
    """
    if gpu_model not in PROFILES:
        raise TargetError(f"gpu_model {gpu_model!r}: choose one of {', '.join(sorted(PROFILES))}")
    if not 1 <= gpus <= MAX_DEVICES:
        raise TargetError(f"{gpus} GPUs: a node has 1 to {MAX_DEVICES}")
    if not 0 <= hcas <= 8:
        raise TargetError(f"{hcas} HCAs: a node has 0 to 8")
    if not name or len(name) > 63 or any(mark in name for mark in "/\0 ") or name.startswith("."):
        raise TargetError(f"node name {name!r}: at most 63 characters, no slash, space or leading dot")
    mig.fitting(gpu_model, mig_profiles)
    paths = NodePaths(run_dir, name)
    paths.root.mkdir(parents=True, exist_ok=True)
    paths.state.mkdir(exist_ok=True)
    profile = PROFILES[gpu_model]
    fresh = paths.root / "devices.shm.creating"
    Node.create(fresh)
    with Node(fresh) as mapped:
        state = mapped.state
        state.created_ns = time.monotonic_ns()
        state.session = 1
        state.name = name.encode()
        state.device_count = gpus
        state.hca_count = hcas
        for field, value in asdict(profile).items():
            setattr(state.profile, field, value.encode() if isinstance(value, str) else value)
        if driver:
            state.profile.driver = driver.encode()
        for index in range(gpus):
            device = state.devices[index]
            device.minor = index
            device.pci_bus = _BUSES[index]
            device.numa_node = 0 if index < (gpus + 1) // 2 else 1
            device.hca = index * hcas // gpus if hcas else 0
            _healthy(device, f"{name}/{index}", profile)
            if mig_profiles:
                mig.configure(device, gpu_model, mig_profiles)
            del device
        del state
    os.replace(fresh, paths.devices)
    found = gpus_of(run_dir, name)
    sysfs.create(paths.sysfs, found, hcas, profile)
    kmsg.create(
        paths.kmsg,
        driver or profile.driver,
        [gpu.pci for gpu in found],
        [sysfs.hca_pci(at) for at in range(hcas)],
    )
    return paths


def _healthy(device: Any, seed: str, profile: Profile) -> None:
    device.uuid = f"GPU-{uuid.uuid5(_NAMESPACE, seed)}".encode()
    device.serial = f"165{uuid.uuid5(_NAMESPACE, f'serial/{seed}').int % 10**10:010d}".encode()
    device.speed_factor = device.clock_fraction = 1.0
    device.pcie_generation = profile.pcie_generation_max
    device.pcie_width = profile.pcie_width_max
    device.pcie_counter_bits = 64
    device.ecc_mode[0] = device.ecc_mode[1] = 1
    device.power_limit_mw = profile.power_limit_mw
    device.temperature_c = 33.0
    device.power_mw = profile.power_idle_mw
    for number in range(profile.nvlink_links):
        device.links[number].remote_link = device.minor * profile.nvlink_links % 64 + number
    if profile.fabric:
        device.fabric_state, device.fabric_health_mask, device.fabric_health_summary = FABRIC_HEALTHY


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tocsin_lab.sim.node", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--hcas", type=int, default=2)
    parser.add_argument("--gpu-model", default="H100-SXM", choices=sorted(PROFILES))
    parser.add_argument("--mig", default="", metavar="LIST", help="cut every GPU, e.g. 3g.40gb,3g.40gb")
    parser.add_argument("names", nargs="+", metavar="NODE")
    arguments = parser.parse_args(argv)
    try:
        for name in arguments.names:
            paths = create_node(
                arguments.run_dir,
                name,
                arguments.gpus,
                arguments.hcas,
                arguments.gpu_model,
                mig_profiles=[profile for profile in arguments.mig.split(",") if profile],
            )
            print(paths.root)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
