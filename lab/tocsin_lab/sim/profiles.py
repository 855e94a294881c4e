"""GPU models a simulated node can have.

Memory, cores, multiprocessors, clocks, power limits, link counts and rates, PCIe: NVIDIA's data sheets and
architecture papers of each board. PCI device ids: the driver's list of supported products. What a model
answers to which call follows nvml.h's "for … or newer fully supported devices". Idle and working power, the
temperature limits, the number of row remapping banks and firmware versions are plausible, not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MIG_PROFILES", "PROFILES", "MigProfile", "Profile"]

# NVML_NVLINK_VERSION_*
_NVLINK3, _NVLINK4, _NVLINK5 = 4, 6, 7
# nvmlEventType*: ECC, P-state, Xid and clock; MIG; from Hopper on storm, DRAM retirement, poison,
# unavailable, recovery action.
_EVENTS, _MIG_EVENT, _HOPPER_EVENTS = 0x1F, 0x100, 0xFE00


@dataclass(frozen=True)
class Profile:
    """One GPU model. Clocks in MHz, power in mW, memory in bytes, rates per second; 0 or 1: has it."""

    name: str
    driver: str
    vbios: str
    part_number: str
    inforom: str
    cuda_version: int
    architecture: int
    compute_major: int
    compute_minor: int
    cores: int
    multiprocessors: int
    gpm: int
    sm_clock_max_mhz: int
    sm_clock_idle_mhz: int
    memory_clock_mhz: int
    video_clock_max_mhz: int
    memory_bus_bits: int
    power_limit_mw: int
    power_min_mw: int
    power_idle_mw: int
    power_compute_mw: int
    power_collective_mw: int
    pcie_generation_max: int
    pcie_width_max: int
    pci_device_id: int
    pci_subsystem_id: int
    nvlink_links: int
    nvlink_version: int
    nvlink_mbps: int
    temperature_shutdown: int
    temperature_slowdown: int
    temperature_max: int
    temperature_memory_max: int
    tlimit: int
    remap_banks: int
    mig_slices: int
    fabric: int
    recovery_action: int
    power_average: int
    pcie_error_counters: int
    sram_status: int
    power_smoothing: int
    event_types: int
    memory_bytes: int
    bar1_bytes: int
    nvlink_bytes_per_second: float
    fabric_bytes_per_second: float
    pcie_bytes_per_second: float


@dataclass(frozen=True)
class MigProfile:
    """A kind of MIG instance: compute slices of 7, memory slices of 8, multiprocessors, copy engines."""

    slices: int
    memory_slices: int
    multiprocessors: int
    engines: int


PROFILES = {
    "H100-SXM": Profile(
        name="NVIDIA H100 80GB HBM3",
        driver="570.172.08",
        vbios="96.00.99.00.01",
        part_number="692-2G520-0200-000",
        inforom="G520.0200.00.05",
        cuda_version=12080,
        architecture=9,
        compute_major=9,
        compute_minor=0,
        cores=16896,
        multiprocessors=132,
        gpm=1,
        sm_clock_max_mhz=1980,
        sm_clock_idle_mhz=345,
        memory_clock_mhz=2619,
        video_clock_max_mhz=1545,
        memory_bus_bits=5120,
        power_limit_mw=700_000,
        power_min_mw=200_000,
        power_idle_mw=72_000,
        power_compute_mw=640_000,
        power_collective_mw=270_000,
        pcie_generation_max=5,
        pcie_width_max=16,
        pci_device_id=0x233010DE,
        pci_subsystem_id=0x16C110DE,
        nvlink_links=18,
        nvlink_version=_NVLINK4,
        nvlink_mbps=26562,
        temperature_shutdown=95,
        temperature_slowdown=89,
        temperature_max=87,
        temperature_memory_max=95,
        tlimit=1,
        remap_banks=2560,
        mig_slices=7,
        fabric=1,
        recovery_action=1,
        power_average=1,
        pcie_error_counters=1,
        sram_status=1,
        power_smoothing=0,
        event_types=_EVENTS | _MIG_EVENT | _HOPPER_EVENTS,
        memory_bytes=81559 << 20,
        bar1_bytes=128 << 30,
        nvlink_bytes_per_second=300e9,
        fabric_bytes_per_second=50e9,
        pcie_bytes_per_second=50e9,
    ),
    "H200-SXM": Profile(
        name="NVIDIA H200",
        driver="570.172.08",
        vbios="96.00.BC.00.01",
        part_number="692-2G520-0280-001",
        inforom="G520.0280.00.01",
        cuda_version=12080,
        architecture=9,
        compute_major=9,
        compute_minor=0,
        cores=16896,
        multiprocessors=132,
        gpm=1,
        sm_clock_max_mhz=1980,
        sm_clock_idle_mhz=345,
        memory_clock_mhz=3201,
        video_clock_max_mhz=1545,
        memory_bus_bits=6144,
        power_limit_mw=700_000,
        power_min_mw=200_000,
        power_idle_mw=76_000,
        power_compute_mw=640_000,
        power_collective_mw=280_000,
        pcie_generation_max=5,
        pcie_width_max=16,
        pci_device_id=0x233510DE,
        pci_subsystem_id=0x18BE10DE,
        nvlink_links=18,
        nvlink_version=_NVLINK4,
        nvlink_mbps=26562,
        temperature_shutdown=95,
        temperature_slowdown=89,
        temperature_max=87,
        temperature_memory_max=95,
        tlimit=1,
        remap_banks=2560,
        mig_slices=7,
        fabric=1,
        recovery_action=1,
        power_average=1,
        pcie_error_counters=1,
        sram_status=1,
        power_smoothing=0,
        event_types=_EVENTS | _MIG_EVENT | _HOPPER_EVENTS,
        memory_bytes=143771 << 20,
        bar1_bytes=256 << 30,
        nvlink_bytes_per_second=300e9,
        fabric_bytes_per_second=50e9,
        pcie_bytes_per_second=50e9,
    ),
    "B200": Profile(
        name="NVIDIA B200",
        driver="580.82.07",
        vbios="97.00.88.00.0F",
        part_number="692-2G525-0220-002",
        inforom="G525.0220.00.03",
        cuda_version=13000,
        architecture=10,
        compute_major=10,
        compute_minor=0,
        cores=18944,
        multiprocessors=148,
        gpm=1,
        sm_clock_max_mhz=1965,
        sm_clock_idle_mhz=120,
        memory_clock_mhz=3996,
        video_clock_max_mhz=1740,
        memory_bus_bits=8192,
        power_limit_mw=1_000_000,
        power_min_mw=200_000,
        power_idle_mw=140_000,
        power_compute_mw=900_000,
        power_collective_mw=400_000,
        # DGX and HGX B200 connect their GPUs with generation 5.
        pcie_generation_max=5,
        pcie_width_max=16,
        pci_device_id=0x290110DE,
        pci_subsystem_id=0x199910DE,
        nvlink_links=18,
        nvlink_version=_NVLINK5,
        nvlink_mbps=53125,
        temperature_shutdown=95,
        temperature_slowdown=89,
        temperature_max=87,
        temperature_memory_max=95,
        tlimit=1,
        remap_banks=4096,
        mig_slices=7,
        fabric=1,
        recovery_action=1,
        power_average=1,
        pcie_error_counters=1,
        sram_status=1,
        power_smoothing=1,
        event_types=_EVENTS | _MIG_EVENT | _HOPPER_EVENTS,
        memory_bytes=183359 << 20,
        bar1_bytes=256 << 30,
        nvlink_bytes_per_second=600e9,
        fabric_bytes_per_second=50e9,
        pcie_bytes_per_second=50e9,
    ),
    # No GPM, no recovery action, no margins: what only Hopper (or Ada) and newer report is absent.
    "A100-SXM": Profile(
        name="NVIDIA A100-SXM4-80GB",
        driver="570.172.08",
        vbios="92.00.9E.00.01",
        part_number="692-2G506-0212-002",
        inforom="G506.0212.00.02",
        cuda_version=12080,
        architecture=7,
        compute_major=8,
        compute_minor=0,
        cores=6912,
        multiprocessors=108,
        gpm=0,
        sm_clock_max_mhz=1410,
        sm_clock_idle_mhz=210,
        memory_clock_mhz=1593,
        video_clock_max_mhz=1290,
        memory_bus_bits=5120,
        power_limit_mw=400_000,
        power_min_mw=100_000,
        power_idle_mw=55_000,
        power_compute_mw=370_000,
        power_collective_mw=160_000,
        pcie_generation_max=4,
        pcie_width_max=16,
        pci_device_id=0x20B210DE,
        pci_subsystem_id=0x147F10DE,
        nvlink_links=12,
        nvlink_version=_NVLINK3,
        nvlink_mbps=25000,
        temperature_shutdown=92,
        temperature_slowdown=89,
        temperature_max=85,
        temperature_memory_max=95,
        tlimit=0,
        remap_banks=640,
        mig_slices=7,
        fabric=0,
        recovery_action=0,
        power_average=0,
        pcie_error_counters=0,
        sram_status=1,
        power_smoothing=0,
        event_types=_EVENTS | _MIG_EVENT,
        memory_bytes=81920 << 20,
        bar1_bytes=128 << 30,
        nvlink_bytes_per_second=240e9,
        fabric_bytes_per_second=25e9,
        pcie_bytes_per_second=25e9,
    ),
    # Ada on PCIe with GDDR6: no NVLink, no MIG, no GPM, no memory temperature, cooled by the chassis. What
    # peers exchange goes over PCIe.
    "L40S": Profile(
        name="NVIDIA L40S",
        driver="570.172.08",
        vbios="95.02.66.00.02",
        part_number="900-2G133-0080-000",
        inforom="G133.0242.00.03",
        cuda_version=12080,
        architecture=8,
        compute_major=8,
        compute_minor=9,
        cores=18176,
        multiprocessors=142,
        gpm=0,
        sm_clock_max_mhz=2520,
        sm_clock_idle_mhz=210,
        memory_clock_mhz=9001,
        video_clock_max_mhz=1965,
        memory_bus_bits=384,
        power_limit_mw=350_000,
        power_min_mw=100_000,
        power_idle_mw=36_000,
        power_compute_mw=330_000,
        power_collective_mw=140_000,
        pcie_generation_max=4,
        pcie_width_max=16,
        pci_device_id=0x26B910DE,
        pci_subsystem_id=0x185110DE,
        nvlink_links=0,
        nvlink_version=0,
        nvlink_mbps=0,
        temperature_shutdown=97,
        temperature_slowdown=94,
        temperature_max=92,
        temperature_memory_max=0,
        tlimit=1,
        remap_banks=192,
        mig_slices=0,
        fabric=0,
        recovery_action=0,
        power_average=1,
        pcie_error_counters=1,
        sram_status=0,
        power_smoothing=0,
        event_types=_EVENTS,
        memory_bytes=46068 << 20,
        bar1_bytes=64 << 30,
        nvlink_bytes_per_second=22e9,
        fabric_bytes_per_second=25e9,
        pcie_bytes_per_second=25e9,
    ),
}

# As `nvidia-smi mig -lgip` names them; by model, since the name says the memory.
MIG_PROFILES: dict[str, dict[str, MigProfile]] = {
    "A100-SXM": {
        "1g.10gb": MigProfile(1, 1, 14, 1),
        "1g.20gb": MigProfile(1, 2, 14, 1),
        "2g.20gb": MigProfile(2, 2, 28, 2),
        "3g.40gb": MigProfile(3, 4, 42, 3),
        "4g.40gb": MigProfile(4, 4, 56, 4),
        "7g.80gb": MigProfile(7, 8, 98, 7),
    },
    "H100-SXM": {
        "1g.10gb": MigProfile(1, 1, 16, 1),
        "1g.20gb": MigProfile(1, 2, 26, 1),
        "2g.20gb": MigProfile(2, 2, 32, 2),
        "3g.40gb": MigProfile(3, 4, 60, 3),
        "4g.40gb": MigProfile(4, 4, 64, 4),
        "7g.80gb": MigProfile(7, 8, 132, 8),
    },
    "H200-SXM": {
        "1g.18gb": MigProfile(1, 1, 16, 1),
        "1g.35gb": MigProfile(1, 2, 26, 1),
        "2g.35gb": MigProfile(2, 2, 32, 2),
        "3g.71gb": MigProfile(3, 4, 60, 3),
        "4g.71gb": MigProfile(4, 4, 64, 4),
        "7g.141gb": MigProfile(7, 8, 132, 8),
    },
    "B200": {
        "1g.23gb": MigProfile(1, 1, 18, 1),
        "1g.45gb": MigProfile(1, 2, 30, 1),
        "2g.45gb": MigProfile(2, 2, 36, 2),
        "3g.90gb": MigProfile(3, 4, 70, 3),
        "4g.90gb": MigProfile(4, 4, 72, 4),
        "7g.180gb": MigProfile(7, 8, 148, 8),
    },
    "L40S": {},
}
