"""GPU models a simulated node can have; figures from NVIDIA's data sheets (SXM boards)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PROFILES", "Profile"]


@dataclass(frozen=True)
class Profile:
    """One GPU model. Clocks in MHz, power in mW, memory in bytes, rates in bytes per second."""

    name: str
    driver: str
    vbios: str
    part_number: str
    cuda_version: int
    architecture: int
    compute_major: int
    compute_minor: int
    cores: int
    gpm: int
    sm_clock_max_mhz: int
    sm_clock_idle_mhz: int
    memory_clock_mhz: int
    power_limit_mw: int
    power_idle_mw: int
    power_compute_mw: int
    power_collective_mw: int
    pcie_generation_max: int
    pcie_width_max: int
    pci_device_id: int
    pci_subsystem_id: int
    memory_bytes: int
    nvlink_bytes_per_second: float
    fabric_bytes_per_second: float
    pcie_bytes_per_second: float


PROFILES = {
    "H100-SXM": Profile(
        name="NVIDIA H100 80GB HBM3",
        driver="570.172.08",
        vbios="96.00.99.00.01",
        part_number="692-2G520-0200-000",
        cuda_version=12080,
        architecture=9,
        compute_major=9,
        compute_minor=0,
        cores=16896,
        gpm=1,
        sm_clock_max_mhz=1980,
        sm_clock_idle_mhz=345,
        memory_clock_mhz=2619,
        power_limit_mw=700_000,
        power_idle_mw=72_000,
        power_compute_mw=640_000,
        power_collective_mw=270_000,
        pcie_generation_max=5,
        pcie_width_max=16,
        pci_device_id=0x233010DE,
        pci_subsystem_id=0x16C110DE,
        memory_bytes=81559 << 20,
        nvlink_bytes_per_second=300e9,
        fabric_bytes_per_second=50e9,
        pcie_bytes_per_second=50e9,
    ),
    # No GPM: what only Hopper and newer report is absent, as on the board.
    "A100-SXM": Profile(
        name="NVIDIA A100-SXM4-80GB",
        driver="570.172.08",
        vbios="92.00.9E.00.01",
        part_number="692-2G506-0212-002",
        cuda_version=12080,
        architecture=7,
        compute_major=8,
        compute_minor=0,
        cores=6912,
        gpm=0,
        sm_clock_max_mhz=1410,
        sm_clock_idle_mhz=210,
        memory_clock_mhz=1593,
        power_limit_mw=400_000,
        power_idle_mw=55_000,
        power_compute_mw=370_000,
        power_collective_mw=160_000,
        pcie_generation_max=4,
        pcie_width_max=16,
        pci_device_id=0x20B210DE,
        pci_subsystem_id=0x147F10DE,
        memory_bytes=81920 << 20,
        nvlink_bytes_per_second=240e9,
        fabric_bytes_per_second=25e9,
        pcie_bytes_per_second=25e9,
    ),
}
