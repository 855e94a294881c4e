"""Puts sources, identity, attribution and collectors together, by hand and in one place."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tocsin_common import __version__
from tocsin_exporter.attribution import Attribution
from tocsin_exporter.collectors import (
    cuda,
    exits,
    fabric,
    gpu,
    gpu_events,
    host,
    identity,
    nccl,
    output,
    pcie,
    storage,
)
from tocsin_exporter.collectors.base import Collector, Sample
from tocsin_exporter.config import Config
from tocsin_exporter.events import EventHub
from tocsin_exporter.exposition import DroppedLabels, Exposition
from tocsin_exporter.identity.kubelet import KubeletSource
from tocsin_exporter.identity.resolver import Resolver
from tocsin_exporter.identity.software import SoftwareSource
from tocsin_exporter.life import Life
from tocsin_exporter.registry import CollectorSet
from tocsin_exporter.sources import procfs
from tocsin_exporter.sources.bpf import BpfSource
from tocsin_exporter.sources.host import HostSource
from tocsin_exporter.sources.kmsg import KernelEvent, KmsgSource
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.model import NvmlReading, address_of
from tocsin_exporter.sources.nvml.source import NvmlSource
from tocsin_exporter.sources.output import OutputSource
from tocsin_exporter.sources.pcie import PcieSource
from tocsin_exporter.sources.rank_host import RankHostSource
from tocsin_exporter.sources.storage import StorageSource
from tocsin_exporter.sources.sysfs import FabricSource
from tocsin_exporter.state import StateFile
from tocsin_exporter.web.stats import WebStats

__all__ = ["App", "build"]

log = logging.getLogger(__name__)

_FIRST_SCAN_SECONDS = 5.0


class _Part(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


@dataclass
class App:
    """The running exporter: ``registry`` is what a scrape collects."""

    config: Config
    registry: CollectorSet
    resolver: Resolver
    nvml: NvmlSource
    kmsg: KmsgSource
    fabric: FabricSource
    pcie: PcieSource
    storage: StorageSource
    host: HostSource
    rank_host: RankHostSource
    bpf: BpfSource | None
    parts: tuple[_Part, ...]
    web: WebStats

    def start(self) -> None:
        """Start all sources; each one that cannot run says so in its own series."""
        self.resolver.start()
        # Devices are given to jobs at the first reading, so the jobs come first.
        self.resolver.wait_first(_FIRST_SCAN_SECONDS)
        for part in self.parts:
            part.start()

    def wait_first(self, timeout: float) -> None:
        """Wait until every source has read once, well or badly, or *timeout* seconds have passed."""
        end = time.monotonic() + timeout
        for source in (self.nvml, self.kmsg, self.fabric, self.pcie, self.storage, self.host, self.rank_host):
            if source in self.parts:
                source.wait_first(max(0.0, end - time.monotonic()))

    def read_again(self) -> None:
        """Read the devices a second time: activity is a mean between two readings."""
        time.sleep(0.3)
        for source in (self.nvml, self.fabric):
            source.poke()
        time.sleep(0.5)

    def stop(self) -> None:
        """Stop all sources."""
        for part in reversed(self.parts):
            part.stop()
        self.resolver.stop()


class _Own:
    """The exporter's samples about itself."""

    def __init__(
        self,
        started: float,
        errors: ErrorCounter,
        dropped: DroppedLabels,
        attribution: Attribution,
        kmsg: KmsgSource,
        hub: EventHub,
        bpf: BpfSource | None,
        resolver: Resolver,
        nvml: NvmlSource,
        fabric_source: FabricSource,
        storage_source: StorageSource,
        host_source: HostSource,
        web: WebStats,
    ) -> None:
        self._started = started
        self._errors = errors
        self._dropped = dropped
        self._attribution = attribution
        self._kmsg = kmsg
        self._hub = hub
        self._bpf = bpf
        self._resolver = resolver
        self._nvml = nvml
        self._fabric = fabric_source
        self._storage = storage_source
        self._host = host_source
        self._web = web

    def __call__(self) -> Iterator[Sample]:
        rung = str(self._bpf.rung) if self._bpf is not None else "off"
        yield Sample("tocsin_exporter_info", (__version__, platform.release(), rung), 1)
        yield Sample("tocsin_exporter_start_timestamp_seconds", (), self._started)
        for (source, reason), count in self._errors.counts().items():
            yield Sample("tocsin_exporter_source_errors_total", (source, reason), count)
        for reason, count in self._dropped.counts().items():
            yield Sample("tocsin_exporter_dropped_labels_total", (reason,), count)
        for facility, count in self._kmsg.records().items():
            yield Sample("tocsin_exporter_kernel_records_total", (facility,), count)
        yield Sample("tocsin_exporter_kernel_records_lost_total", (), self._kmsg.lost())
        for source, count in self._hub.counts().items():
            yield Sample("tocsin_exporter_device_events_total", (source,), count)
        published = self._attribution.published()
        yield Sample("tocsin_exporter_unattributed_increments_total", (), published.unattributed)
        yield Sample("tocsin_exporter_state_durable", (), float(self._attribution.durable()))
        yield Sample("tocsin_identity_unmatched_processes", (), published.unmatched)
        for reason, count in self._nvml.child_ends().items():
            yield Sample("tocsin_exporter_nvml_child_ends_total", (reason,), count)
        yield Sample("tocsin_exporter_nvml_stuck_children", (), self._nvml.stuck())
        if (until := self._nvml.quiet_until()) is not None:
            yield Sample("tocsin_exporter_quiesced_until_timestamp_seconds", (), until)
        for layer, share in self._visibility(rung).items():
            yield Sample("tocsin_visibility", (layer,), share)
        yield from self._web.samples()

    def _visibility(self, rung: str) -> dict[str, float]:
        """Return what is seen of each layer: 1 all of its sources, 0.5 some, 0 none."""
        sources = {
            "device": (self._nvml.latest.read()[1] is None, self._kmsg.latest.read()[1] is None),
            "host": (self._host.latest.read()[1] is None,),
            "fabric": (self._fabric.latest.read()[1] is None,),
            "storage": (self._storage.latest.read()[1] is None,),
            # Ranks, their output and their ends are seen without probes too, if less well.
            "workload": (
                self._resolver.state()[1] is None,
                rung != "off" and self._bpf is not None and not self._bpf.failures,
            ),
        }
        return {layer: 1.0 if all(seen) else 0.5 if any(seen) else 0.0 for layer, seen in sources.items()}


def build(
    config: Config, *, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
) -> App:
    """
    Return the exporter for *config*, not yet started.

    *wall* and *clock* are the time by which jobs and their facts age; deadlines and pauses are real ones.
    """
    errors, dropped = ErrorCounter(), DroppedLabels()
    wanted, interval, max_age = config.collectors, config.interval, config.max_age
    kubelet = KubeletSource(config.pod_resources, errors)
    resolver = Resolver(
        config.procfs, errors, config.only_env, kubelet=kubelet.devices_of, wall=wall, clock=clock
    )
    software = SoftwareSource(config.procfs, resolver.living, errors)
    nvml = NvmlSource(
        config.nvml_library,
        interval,
        config.nvml_deadline,
        max_age,
        errors,
        call_deadline=config.nvml_call_deadline,
        tier=config.tier.value,
        sysfs=config.sysfs,
        procfs=config.procfs,
    )
    fabric_source = FabricSource(config.sysfs, interval, max_age, errors)
    pcie_source = PcieSource(
        config.sysfs,
        interval,
        max_age,
        errors,
        told=lambda: (device.pci for device in nvml.devices() if device.pci),
    )
    storage_source = StorageSource(config.procfs, config.sysfs, interval, max_age, errors)
    host_source = HostSource(config.procfs, interval, max_age, errors)
    rank_host = RankHostSource(
        config.procfs,
        config.sysfs,
        interval,
        max_age,
        errors,
        resolver,
        devices=lambda: {int(each.gpu): each.pci for each in nvml.devices() if each.pci},
        on_gpu=lambda: frozenset(pid for each in nvml.devices() for pid in each.pids or ()),
        wall=wall,
        clock=clock,
    )

    def child_of(pid: int) -> tuple[str, str] | None:
        """Return whose child a process is: by the tree at the last reading, else by what it has inherited."""
        holder = resolver.holder_of(pid)
        return rank_host.rank_of_child(pid) or ((holder.job_id, holder.rank) if holder else None)

    life = Life(resolver, wall, child_of=child_of, errors=errors, changed=lambda: attribution.keep())

    def log_read(events: list[KernelEvent], cursor: int) -> None:
        # Before the hub, which has the cursor written: who was killed is known by then.
        life.on_log(events)
        hub.on_log(events, cursor)

    # The sinks need what comes after them, and the ledger the log's identity: those are bound below.
    kmsg = KmsgSource(config.kmsg, errors, log_read, max_age, wall=wall)
    attribution = Attribution(
        resolver,
        StateFile(config.state),
        errors,
        boot_id=procfs.boot_id(config.procfs),
        log_identity=kmsg.identity,
        sysfs=config.sysfs,
        wall=wall,
        clock=clock,
        extra=lambda: {**hub.saved(), **life.saved()},
    )
    hub = EventHub(
        attribution.on_events,
        lambda uuid, index: address_of(nvml.devices(), uuid, index),
        errors,
        cursor=attribution.cursor,
        changed=nvml.poke,
    )
    hub.restore(attribution.restored, same_boot=attribution.same_boot)
    life.restore(attribution.restored)
    hub.follow(kmsg)
    if "gpu_events" in wanted:
        nvml.listen_events(hub.on_driver)
    kmsg.resume(attribution.cursor)
    nvml.remember(attribution.known_devices())

    def devices_read(reading: NvmlReading) -> None:
        gpus: dict[int, tuple[int, ...]] = {}
        for device in reading.devices:
            for pid in device.pids or ():
                gpus[pid] = (*gpus.get(pid, ()), int(device.gpu))
        whole = [device for device in reading.devices if not device.mig]
        minors = {int(device.info["minor"]): int(device.gpu) for device in whole if device.info.get("minor")}
        resolver.note_devices(gpus, {device.uuid: int(device.gpu) for device in reading.devices}, minors)
        attribution.on_reading(reading)

    nvml.listen(devices_read)
    fabric_source.listen(attribution.on_ports)
    # Polled counters are read again when a holder comes or goes.
    resolver.subscribe(lambda _: nvml.poke(), attribution.on_left)
    resolver.subscribe(lambda _: None, lambda _: nvml.poke())

    def alive(pid: int, start_ticks: int) -> bool:
        found = procfs.process_stat(config.procfs, pid)
        return found is not None and found.start_ticks == start_ticks and not found.ended

    bpf: BpfSource | None = None
    if config.ebpf_backend != "off" and wanted & {"cuda", "nccl", "output", "exits"}:
        bpf = BpfSource(resolver, errors, proc=config.procfs, wanted=wanted)

    output_source = OutputSource(resolver, errors, bpf, proc=config.procfs, clock=wall)
    exit_facts = exits.build(
        bpf,
        resolver,
        output_source,
        wall,
        life=life,
        alive=alive if attribution.same_boot else None,
        gone_at=None if attribution.same_boot else procfs.boot_time(config.procfs),
    )

    all_collectors: tuple[Collector, ...] = (
        gpu.build(nvml, attribution, resolver.holder_of),
        gpu_events.build(nvml, kmsg, attribution, hub),
        pcie.build(nvml, attribution, pcie_source),
        identity.build(resolver, max_age, software.now),
        cuda.build(bpf),
        nccl.build(bpf),
        output.build(output_source, bpf),
        exit_facts,
        fabric.build(fabric_source, attribution),
        storage.build(storage_source),
        host.build(host_source, rank_host),
    )
    web = WebStats()
    own = _Own(
        time.time(), errors, dropped, attribution, kmsg, hub, bpf, resolver, nvml, fabric_source,
        storage_source, host_source, web,
    )  # fmt: skip
    registry = CollectorSet(
        [collector for collector in all_collectors if collector.name in wanted],
        Exposition(config.node, config.tier, dropped),
        own=own,
        disabled=[collector.name for collector in all_collectors if collector.name not in wanted],
    )
    # What only a collector that is off would read is not read; ports need the devices for their holders.
    polled = (
        # Before the sources, so that it still gives out what they bring while they stop.
        (hub, {"gpu_events"}),
        (nvml, {"gpu", "gpu_events", "pcie", "fabric"}),
        (kmsg, {"gpu_events", "exits"}),
        (fabric_source, {"fabric"}),
        (pcie_source, {"pcie"}),
        (storage_source, {"storage"}),
        (host_source, {"host"}),
        (rank_host, {"host"}),
        (kubelet, {"gpu", "identity"}),
        (software, {"identity"}),
    )
    # The ledger stops last: what the sources bring until then is still written.
    parts: list[_Part] = [attribution, *(source for source, readers in polled if readers & wanted)]
    # Before the probes, or their first news find nobody.
    if "exits" in wanted:
        parts.append(exit_facts)
    if "output" in wanted:
        parts.append(output_source)
    if bpf is not None:
        parts.append(bpf)
    log.info(
        "built node=%s pid=%d interval=%gs collectors=%s",
        config.node,
        os.getpid(),
        interval,
        ",".join(registry.names),
    )
    return App(
        config,
        registry,
        resolver,
        nvml,
        kmsg,
        fabric_source,
        pcie_source,
        storage_source,
        host_source,
        rank_host,
        bpf,
        tuple(parts),
        web,
    )
