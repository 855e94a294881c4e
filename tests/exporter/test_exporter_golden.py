"""
A golden scrape per collector.

`make golden` writes the files anew from what the collectors serve now; look at the difference.
"""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import errno
import json
import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.exporter.pci_tree import GPU, HCA, PORT, ROOT, aer, function, link
from tests.exporter.support import Processes, collector_set, series
from tests.exporter.test_storage_parsing import MOUNTS, MOUNTSTATS, lustre_tree
from tests.exporter.test_sysfs_ports import tree

from tocsin_exporter.attribution import Attribution
from tocsin_exporter.collectors import exits, fabric, gpu, gpu_events, host, identity, pcie, storage
from tocsin_exporter.collectors.base import Collector
from tocsin_exporter.events import EventHub
from tocsin_exporter.identity.resolver import Resolver
from tocsin_exporter.kmsg.parse import Parser
from tocsin_exporter.life import Life
from tocsin_exporter.sources.bpf import ExitEvent
from tocsin_exporter.sources.host import HostSource
from tocsin_exporter.sources.kmsg import KernelEvent, KmsgSource
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.source import NvmlSource
from tocsin_exporter.sources.nvml.throttle import THROTTLE_REASONS
from tocsin_exporter.sources.pcie import PcieSource
from tocsin_exporter.sources.rank_host import RankHostSource
from tocsin_exporter.sources.storage import StorageSource
from tocsin_exporter.sources.storage.space import SpaceProbe
from tocsin_exporter.sources.sysfs import FabricSource
from tocsin_exporter.state import StateFile

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("gpu", "gpu_events", "pcie", "identity", "exits", "fabric", "storage", "host")
# What a holder may cost per device, all collectors together.
MOST_PER_HOLDER = 60

# Device 0 has everything; device 1 is older: no activity, no memory temperature, no remaps, no process list.
DEVICES = (
    {
        "index": 0, "up": True, "reason": "", "uuid": "GPU-aaaa", "model": "NVIDIA H100 80GB HBM3",
        "pci": "00000000:3B:00.0", "vbios": "96.00.74.00.1A",
        "pids": [11], "processes": [[11, "compute", 57000000000, "/sys/fs/cgroup/job"]],
        "limits": {"/sys/fs/cgroup/job": [0, 60000000000, 57000000000]},
        "info": {"serial": "165", "architecture": "Hopper", "compute_capability": "9.0", "gsp": "570.172.08", "minor": "0"},
        "values": [
            ["recovery_action", ["none"], 0.0], ["recovery_action", ["gpu_reset"], 1.0],
            ["process_memory_bytes", [], 57000000000], ["memory_limit_bytes", ["hard"], 60000000000], ["sram_threshold_exceeded", [], 0.0],
            *([name, [], value] for name, value in {
                "utilization_ratio": 0.98, "sm_active_ratio": 0.9, "sm_occupancy_ratio": 0.4, "tensor_active_ratio": 0.6,
                "dram_active_ratio": 0.5, "memory_total_bytes": 85520809984, "memory_used_bytes": 57065603072,
                "sm_clock_hertz": 1.2e9, "sm_clock_max_hertz": 1.98e9, "memory_clock_hertz": 2.619e9,
                "power_watts": 588.5, "power_limit_watts": 700.0, "energy_joules_total": 1234.5,
                "temperature_celsius": 61, "memory_temperature_celsius": 70, "pcie_link_generation": 5,
                "pcie_link_generation_max": 5, "pcie_link_width": 16, "pcie_link_width_max": 16,
                "pcie_replays_total": 3, "row_remap_pending": 1.0, "row_remap_failed": 0.0,
            }.items()),
            *(["throttle_active", [reason], float(reason == "hw_thermal")] for reason in THROTTLE_REASONS),
            *(["throttle_seconds_total", [reason], 0.0] for reason in THROTTLE_REASONS),
            ["ecc_errors_total", ["corrected", "dram"], 12], ["ecc_errors_total", ["uncorrected", "dram"], 0],
            ["ecc_errors_total", ["corrected", "sram"], 0], ["ecc_errors_total", ["uncorrected", "sram"], 1],
            ["row_remaps_total", ["corrected"], 1], ["row_remaps_total", ["uncorrected"], 2],
        ],
    },
    {
        "index": 1, "up": True, "reason": "", "uuid": "GPU-bbbb", "model": "Tesla T4", "pci": "00000000:61:00.0",
        "vbios": "", "pids": None,
        "values": [
            ["utilization_ratio", [], 0.0], ["memory_used_bytes", [], 0], ["power_watts", [], 9.5],
            *(["throttle_active", [reason], float(reason == "idle")] for reason in THROTTLE_REASONS),
            *(["throttle_seconds_total", [reason], 0.0] for reason in THROTTLE_REASONS),
        ],
    },
    {"index": 2, "up": False, "reason": "gpu_lost", "uuid": "GPU-cccc", "model": "Tesla T4", "pci": "00000000:62:00.0"},
)  # fmt: skip

CHILD = f"""
import json, struct, sys
def send(message):
    body = json.dumps(message).encode()
    sys.stdout.buffer.write(struct.pack(">I", len(body)) + body); sys.stdout.buffer.flush()
send({{"ready": True}})
for line in sys.stdin:
    for device in json.loads({json.dumps(json.dumps(DEVICES))}):
        send({{"begin": device["index"]}}); send({{"device": device}})
    send({{"end": {{"count": 3, "driver_version": "570.172.08", "cuda_version": "12.8"}}}})
"""

LOG = (
    "Memory cgroup out of memory: Killed process 12 (python) total-vm:1kB, anon-rss:1kB",
    "NVRM: Xid (PCI:0000:3b:00): 48, pid=11, name=python, An uncorrectable double bit error (DBE)",
    "NVRM: Xid (PCI:0000:3b:00): 45, pid=11, name=python, Ch 00000008 caused by previous Xid 48",
    "NVRM: Xid (PCI:0000:61:00): 31, pid=7, name=other, MMU Fault",
    "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
)


def fixed() -> float:
    """Return a clock that stands."""
    return 1700000900.0


def statvfs(path: str) -> os.statvfs_result:
    """Answer as a file system of 1 GiB, and as one that the server no longer knows below /data."""
    if path == "/data":
        raise OSError(errno.ESTALE, "stale")
    return os.statvfs_result((4096, 4096, 262144, 131072, 131072, 65536, 32768, 32768, 0, 255))


@pytest.fixture
def collectors(processes: Processes, tmp_path: Path) -> Iterator[Callable[[], dict[str, Collector]]]:
    """A node with three devices, one rank on the first, two ports, and a log with three Xids."""
    errors = ErrorCounter()
    job = {"RANK": "3", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1",
           "TORCHELASTIC_RUN_ID": "demo", "SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "pretrain", "SLURM_JOB_ACCOUNT": "ml"}  # fmt: skip
    processes.add(11, environ=job, cgroup="0::/system.slice/slurmstepd.scope/job_4711/step_0\n", start=500)
    processes.add(12, environ={**job, "RANK": "4"}, start=510)
    # The rank has a data loader, and its job's control group two CPUs and a limit; GPU 0 is beside half its CPUs.
    processes.add(13, parent=11, start=600, name="pt_data_worker")
    processes.run(11, children=(13,))
    processes.run(13)
    sysfs = tmp_path / "sys"
    group = sysfs / "fs/cgroup/system.slice/slurmstepd.scope/job_4711"
    (group / "step_0").mkdir(parents=True)
    (sysfs / "fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    for name, text in {
        "cpu.max": "200000 100000",
        "cpu.stat": "nr_periods 90\nnr_throttled 9\nthrottled_usec 4500000",
        "memory.max": "4096000",
        "memory.current": "4000000",
        "memory.events": "max 3\noom 1\noom_kill 1",
        "step_0/memory.max": "max",
        "step_0/memory.current": "3000000",
        "step_0/memory.events": "max 0\noom_kill 1",
        "step_0/cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1250000",
        "step_0/memory.numa_stat": "anon N0=750000 N1=250000\nfile N0=0 N1=0",
    }.items():
        (group / name).write_text(text + "\n")
    (processes.root / "sys/kernel/task_delayacct").write_text("1\n")
    files = {
        "port_rcv_data": "1000",
        "port_xmit_data": "500",
        "symbol_error": "2",
        "link_downed": "1",
        "port_xmit_wait": "9",
    }
    tree(sysfs, counters=files, hw={"local_ack_timeout_err": "4"})
    tree(sysfs, counters={"port_rcv_data": "8"}, device="mlx5_1")
    (sysfs / "class/infiniband/mlx5_1/ports/1/state").write_text("1: DOWN\n")
    # GPU 0 and an HCA share a switch whose root port heard of an error; the link of GPU 0 has half its lanes.
    top, upper = "0000:3a:00.0", "0000:3b:01.0"
    function(
        sysfs,
        top,
        files={**PORT, **link(), **aer(), **ROOT, "aer_rootport_total_err_cor": 4},
        bridge="pci0000:3a",
    )
    function(sysfs, top, upper, files={**PORT, **link(), **aer(BadTLP=3, Timeout=1)}, bridge="pci0000:3a")
    function(sysfs, top, upper, "0000:3b:00.0", files={**GPU, **link(width=8), **aer()}, bridge="pci0000:3a")
    function(sysfs, top, upper, "0000:3c:00.0", files={**HCA, **link(), **aer()}, bridge="pci0000:3a")
    place = (sysfs / "bus/pci/devices/0000:3b:00.0").resolve()
    (place / "numa_node").write_text("0\n")
    (place / "local_cpulist").write_text("0-1,8-9\n")
    # GPU 1 sleeps, GPU 2 answers with all ones; neither has a port above it that counts.
    function(sysfs, "0000:61:00.0", files={**GPU, **link()}, bridge="pci0000:61", status="suspended")
    function(sysfs, "0000:62:00.0", files={**GPU, **link("Unknown", 63)}, bridge="pci0000:62")
    (processes.root / "pressure").mkdir()
    for name, total in (("cpu", 1500000), ("memory", 0), ("io", 250000)):
        (processes.root / "pressure" / name).write_text(
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n"
        )
    (processes.root / "meminfo").write_text(
        "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB\n"
    )
    (processes.root / "vmstat").write_text("nr_free_pages 1\noom_kill 2\n")
    (processes.root / "loadavg").write_text("3.25 1.00 0.50 1/100 4242\n")

    resolver = Resolver(processes.root, errors, pods=tmp_path, clock=fixed, wall=fixed)
    nvml = NvmlSource(None, 5.0, 5.0, 60.0, errors, command=(sys.executable, "-c", CHILD), wall=fixed)
    attribution = Attribution(
        resolver, StateFile(None), errors, boot_id="b", sysfs=sysfs, wall=fixed, clock=fixed
    )
    kmsg = KmsgSource(tmp_path / "kmsg", errors, lambda _events, _cursor: None, 60.0)
    hub = EventHub(attribution.on_events, lambda _uuid, _index: "", errors)
    ports = FabricSource(sysfs, 5.0, 60.0, errors)
    functions = PcieSource(sysfs, 5.0, 60.0, errors)
    counters = HostSource(processes.root, 5.0, 60.0, errors)
    sides = RankHostSource(
        processes.root, sysfs, 5.0, 60.0, errors, resolver,
        devices=lambda: {0: "0000:3b:00.0"}, wall=fixed, clock=fixed,
    )  # fmt: skip
    (processes.root / "self").mkdir(exist_ok=True)
    (processes.root / "self/mountinfo").write_text("\n".join(MOUNTS) + "\n")
    (processes.root / "self/mountstats").write_text("\n".join(MOUNTSTATS) + "\n")
    (processes.root / "diskstats").write_text(
        " 259 0 nvme0n1 100 1 2000 300 50 2 4000 600 3 700 900 0 0 0 0 5 60\n"
    )
    (sysfs / "block/nvme0n1").mkdir(parents=True)
    lustre_tree(tmp_path)
    (tmp_path / "proc/fs/lustre").rename(processes.root / "fs/lustre")
    disks = StorageSource(
        processes.root, sysfs, 5.0, 60.0, errors, probe=SpaceProbe(clock=fixed, statvfs=statvfs)
    )
    life = Life(resolver, fixed)

    def read() -> dict[str, Collector]:
        resolver.scan()
        nvml.read_once()
        reading = nvml.latest.read()[0]
        assert reading is not None
        resolver.note_devices({11: (0,)}, {"GPU-aaaa": 0})
        resolver.scan()
        life.start()
        attribution.on_reading(reading)
        parser = Parser()
        found = [event for line in LOG for event in parser.feed(line)]
        hub.on_log([KernelEvent(event, 1700000800.5) for event in found], 3)
        life.on_log(KernelEvent(event, 1700000800.5) for event in found)
        kmsg.latest.put(3)
        ports.listen(attribution.on_ports)
        ports.read_once()
        functions.read_once()
        counters.read_once()
        life.ended(ExitEvent(next(who for who in resolver.living() if who.pid == 12), 9 | 0x80, 1700000801.0))
        processes.remove(12)
        resolver.scan()
        sides.read_once()
        disks.read_once()
        built: tuple[Collector, ...] = (
            gpu.build(nvml, attribution, resolver.holder_of),
            gpu_events.build(nvml, kmsg, attribution, hub),
            pcie.build(nvml, attribution, functions),
            identity.build(resolver, 60.0),
            fabric.build(ports, attribution),
            storage.build(disks),
            host.build(counters, sides),
            exits.build(None, resolver, None, fixed, life=life),
        )
        return {each.name: each for each in built}

    yield read
    nvml.close()


def scrape(collector: Collector) -> str:
    """Return the collector's own families, without its duration and success."""
    mine = pwd.getpwuid(os.getuid()).pw_name
    lines = collector_set(collector).scrape().replace(f'user="{mine}"', 'user="tester"').splitlines()
    return "\n".join(line for line in lines if "tocsin_collector_" not in line) + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, collectors: Callable[[], dict[str, Collector]]) -> None:
    """The families, labels, zeros and values of a scrape are exactly the committed ones."""
    text = scrape(collectors()[name])
    path = GOLDEN / f"{name}.prom"
    if os.environ.get("TOCSIN_GOLDEN") == "write":
        path.write_text(text)

    assert path.read_text() == text


@pytest.mark.parametrize("name", NAMES)
def test_golden_files_are_clean(name: str, promtool: str) -> None:
    """`promtool check metrics` has nothing to say about a golden scrape."""
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=(GOLDEN / f"{name}.prom").read_text(),
        text=True,
        capture_output=True,
    )

    assert (0, "") == (done.returncode, done.stdout + done.stderr)


def test_a_holder_costs_a_bounded_number_of_series(collectors: Callable[[], dict[str, Collector]]) -> None:
    """All collectors together serve at most sixty series per device and holder."""
    lines = series(collector_set(*collectors().values()).scrape())
    held = [line for line in lines if line.startswith("tocsin_job_gpu_") and 'job_id="slurm/4711"' in line]

    assert 0 < len(held) <= MOST_PER_HOLDER


def test_what_a_device_does_not_offer_is_absent(collectors: Callable[[], dict[str, Collector]]) -> None:
    """An older device has no activity and no remaps: no series, in particular no zero."""
    lines = [line for line in series(collector_set(*collectors().values()).scrape()) if 'gpu="1"' in line]

    assert [line for line in lines if line.startswith("tocsin_gpu_power_watts")]
    for absent in (
        "sm_active",
        "tensor_active",
        "memory_temperature",
        "row_remap",
        "ecc_errors",
        "gpu_processes",
        "pcie_",
    ):
        assert not [line for line in lines if absent in line], absent
