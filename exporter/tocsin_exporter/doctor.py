"""What this node offers and lacks, and what each lack costs; reads, changes nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from tocsin_exporter import control
from tocsin_exporter.config import Config
from tocsin_exporter.control import ControlError
from tocsin_exporter.errors import CollectError, ExporterError, SourceError
from tocsin_exporter.metrics import Tier
from tocsin_exporter.sources import pcie, procfs, rank_host, sysfs
from tocsin_exporter.sources.bpf import doctor as bpf_doctor
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.nvml.model import Device, HungCall
from tocsin_exporter.sources.nvml.source import NvmlSource
from tocsin_exporter.sources.storage import StorageSource

__all__ = ["Finding", "findings", "report"]

_MARKS = {True: "ok", False: "lacks", None: "-"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: ``ok`` is None for what is neither good nor bad; ``cost`` is what a lack costs."""

    name: str
    ok: bool | None
    detail: str
    cost: str = ""


def findings(config: Config) -> Iterator[Finding]:
    """Yield what was found, in the order in which one would look."""
    yield from _driver(config)
    yield from _control(config)
    yield from _ebpf()
    yield from _log(config)
    yield from _processes(config)
    yield from _host(config)
    yield from _ranks(config)
    yield from _fabric(config)
    yield from _storage(config)
    yield from _pcie(config)
    yield from _schedulers()
    yield from _state(config)


def report(config: Config) -> str:
    """Return the findings as a table."""
    rows = list(findings(config))
    width = max(len(row.name) for row in rows)
    lines = []
    for row in rows:
        lines.append(f"{row.name:<{width}}  {_MARKS[row.ok]:<5}  {row.detail}")
        if row.cost and not row.ok:
            lines.append(f"{'':<{width}}         costs: {row.cost}")
    lacks = sum(row.ok is False for row in rows)
    lines.append(f"\n{len(rows) - lacks} of {len(rows)} in order on node {config.node}.")
    return "\n".join(lines)


def _driver(config: Config) -> Iterator[Finding]:
    cost = "no device series: slow, throttled and faulty GPUs are not seen"
    until = _quiesced(config)
    if until is not None:
        when = datetime.fromtimestamp(until).astimezone().strftime("%H:%M:%S")
        detail = f"let go until {when} by `tocsin-exporter quiesce`, so it is not asked"
        yield Finding("driver", False, detail, cost)
        return
    source = NvmlSource(
        config.nvml_library,
        config.interval,
        config.nvml_deadline,
        60,
        ErrorCounter(),
        call_deadline=config.nvml_call_deadline,
        tier=Tier.DEEP.value,
        sysfs=config.sysfs,
        procfs=config.procfs,
    )
    try:
        source.read_once()
        if any(device.up for device in source.devices()):
            # Activity is the mean between two samples, at least 0.1 s apart.
            time.sleep(0.15)
            source.read_once()
        error = source.latest.read()[1]
        devices, versions, registered = source.devices(), source.versions(), source.registered()
        hung = source.hung_calls()
    finally:
        source.close()
    if not devices and error is not None:
        yield Finding("driver", False, f"{error.reason}: {error.detail}", cost)
        return
    yield from _boards(devices, versions[0], error, hung)
    live = [device for device in devices if device.up]
    if live:
        yield from _offers(live, registered)


def _boards(
    devices: Sequence[Device], version: str, error: CollectError | None, hung: Sequence[HungCall]
) -> Iterator[Finding]:
    boards = [device for device in devices if not device.mig]
    models = sorted({device.model for device in boards if device.model})
    detail = f"{version or 'version not told'}, {len(boards)} x {', '.join(models) or 'no GPU'}"
    yield Finding("driver", error is None, detail if error is None else f"{detail}; {error.detail}")
    calls = {call.gpu: call for call in hung}
    for device in boards:
        if not device.up:
            call = calls.get(device.gpu)
            more = f" in {call.call} for {call.seconds:.0f} s" if call is not None else ""
            yield Finding(
                f"GPU {device.gpu}",
                False,
                f"{device.uuid or 'UUID not told'}: {device.reason}{more}",
                "its series; the kernel log says more (dmesg | grep -i -e xid -e nvrm)",
            )
    instances = [device for device in devices if device.mig]
    profiles = sorted({device.info.get("profile", "?") for device in instances})
    yield Finding("MIG", None, f"{len(instances)} instances ({', '.join(profiles)})" if instances else "off")


def _offers(devices: Sequence[Device], registered: int) -> Iterator[Finding]:
    """Yield what the devices that answer let one see."""
    boards = [device for device in devices if not device.mig]
    # Activity is told as a ratio over the time between two samples.
    measured = [device for device in boards if any(name == "sm_active_ratio" for name, _ in device.gauges)]
    gpm = len(measured) == len(boards)
    yield Finding(
        "device activity (GPM)",
        gpm,
        f"SM, tensor and DRAM activity on {len(measured)} of {len(boards)}"
        + ("" if gpm else "; Hopper and newer have it, unless a profiler holds it"),
        "a slow GPU among equals cannot be told from its peers; such verdicts stay inconclusive",
    )
    listed = [device for device in boards if device.pids is not None]
    seen = len(listed) == len(boards)
    yield Finding(
        "device processes",
        seen,
        "listed by the driver" if seen else f"listed on {len(listed)} of {len(boards)}",
        "holders come from environments only",
    )
    yield Finding(
        "driver events",
        registered > 0,
        f"awaited on {registered} of {len(boards)}" if registered else "not offered",
        "Xids are known from the kernel log only",
    )
    denied = sorted({name for device in devices for name in device.denied})
    yield Finding(
        "device fields",
        not denied,
        f"kept from this user: {', '.join(denied)}" if denied else "none is kept from this user",
        "those series are absent; run as root",
    )


def _quiesced(config: Config) -> float | None:
    """Return until when the exporter that runs here has let go of the devices, or None."""
    if config.control is None:
        return None
    try:
        until = control.ask(config.control, {"command": "status"}).get("until")
    except ControlError:
        return None
    return float(until) if isinstance(until, int | float) else None


def _control(config: Config) -> Iterator[Finding]:
    cost = "no quiesce: a GPU reset or a MIG change has to stop the exporter"
    if config.control is None:
        yield Finding("control socket", False, "off (--control.socket)", cost)
        return
    try:
        control.ask(config.control, {"command": "status"})
    except ControlError as err:
        if problem := control.usable_folder(config.control.parent):
            yield Finding("control socket", False, problem, cost)
        else:
            yield Finding("control socket", None, f"no exporter answers now ({err})")
    else:
        yield Finding("control socket", True, f"an exporter answers at {config.control}")


def _ebpf() -> Iterator[Finding]:
    for name, ok, detail, cost in bpf_doctor():
        yield Finding(name, ok, detail, cost)


def _log(config: Config) -> Iterator[Finding]:
    cost = (
        "no Xid, AER and link events, device faults are seen only when counters move;"
        " kills for lack of memory are not joined to ranks"
    )
    try:
        descriptor = os.open(config.kmsg, os.O_RDONLY | os.O_NONBLOCK)
        os.close(descriptor)
    except OSError as err:
        hint = "; run as root or with CAP_SYSLOG" if isinstance(err, PermissionError) else ""
        yield Finding("kernel log", False, f"{config.kmsg}: {err.strerror}{hint}", cost)
    else:
        yield Finding("kernel log", True, f"{config.kmsg} is readable")


def _processes(config: Config) -> Iterator[Finding]:
    closed = seen = 0
    try:
        for pid in procfs.pids(config.procfs):
            stat = procfs.process_stat(config.procfs, pid)
            if stat is None or stat.kernel_thread:
                continue
            seen += 1
            try:
                procfs.environment(config.procfs, pid)
            except SourceError as err:
                closed += err.reason == "no_permission"
    except ExporterError as err:
        yield Finding("processes", False, str(err), "no job and no rank is known")
        return
    yield Finding(
        "processes",
        closed == 0,
        f"{seen} seen, environment of {closed} closed to this user",
        "ranks of other users are not known; run as root or with CAP_SYS_PTRACE",
    )


def _host(config: Config) -> Iterator[Finding]:
    reading, _ = procfs.host(config.procfs)
    yield Finding(
        "pressure (PSI)",
        bool(reading.pressure),
        "cpu, memory, io" if reading.pressure else f"no {config.procfs}/pressure; boot with psi=1",
        "host pressure cannot be ruled out",
    )
    yield Finding(
        "cgroups",
        None,
        "v2" if os.path.exists(config.sysfs / "fs/cgroup/cgroup.controllers") else "v1 or none",
    )


def _storage(config: Config) -> Iterator[Finding]:
    source = StorageSource(config.procfs, config.sysfs, config.interval, config.max_age, ErrorCounter())
    source.read_once()
    reading, error = source.latest.read()
    cost = "a slow or hung mount is not told from a slow job"
    if reading is None:
        yield Finding("mounts", False, error.detail if error else "not read", cost)
        return
    kinds = Counter(mount.kind for mount in reading.mounts)
    detail = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none that holds data"
    if not source.whole_node:
        detail += f"; only this mount namespace, since {config.procfs}/1/root may not be entered"
    yield Finding("mounts", True, detail)
    silent = [point for point, answer in reading.space.items() if answer.waiting is not None]
    if silent:
        yield Finding(
            "mounts that answer", False, f"no answer yet from {', '.join(sorted(silent)[:5])}", cost
        )


def _ranks(config: Config) -> Iterator[Finding]:
    for name, ok, detail, cost in rank_host.checks(config.procfs, config.sysfs):
        yield Finding(name, ok, detail, cost)


def _fabric(config: Config) -> Iterator[Finding]:
    errors = ErrorCounter()
    try:
        ports = sysfs.read_ports(config.sysfs, errors)
    except SourceError as err:
        yield Finding("fabric", False, err.detail, "fabric faults are not seen")
        return
    active = sum(bool(port.active) for port in ports)
    unread = sum(errors.counts().values())
    yield Finding(
        "fabric",
        None if not ports else unread == 0,
        f"{len(ports)} ports, {active} active, {unread} files unreadable"
        if ports
        else "no InfiniBand or RoCE ports",
        "errors in those files are not seen",
    )


def _pcie(config: Config) -> Iterator[Finding]:
    errors = ErrorCounter()
    try:
        functions = pcie.Reader(config.sysfs, errors).read(
            pcie.find_endpoints(config.sysfs, (), errors).values()
        )
    except SourceError as err:
        yield Finding("PCIe", False, err.detail, "PCIe errors and links of HCAs are not seen")
        return
    if not functions:
        yield Finding("PCIe", None, f"no GPU and no HCA below {config.sysfs}/bus/pci")
        return
    devices = [row for row in functions if row.role == "endpoint"]
    reporting = [row for row in functions if row.errors or row.received]
    gone = [row.pci for row in devices if row.present is False]
    unread = sum(errors.counts().values())
    cost = "what those devices and files would tell is not seen"
    if not reporting:
        cost = (
            "errors of links are not counted; boot a kernel with CONFIG_PCIEAER, without pci=noaer,"
            " and let the firmware leave AER to it"
        )
    yield Finding(
        "PCIe",
        bool(reporting) and not gone and not unread,
        f"{len(devices)} GPUs and HCAs, {len(functions) - len(devices)} ports above them,"
        f" error counters (AER) on {len(reporting)} of {len(functions)}, {unread} files unreadable"
        + (f"; gone from the bus: {', '.join(gone)}" if gone else ""),
        cost,
    )


def _schedulers() -> Iterator[Finding]:
    found = [
        name
        for name, command in (("Slurm", "scontrol"), ("Kubernetes", "kubelet"), ("Ray", "ray"))
        if shutil.which(command)
    ]
    yield Finding(
        "schedulers",
        None,
        ", ".join(found) or "none on the path; jobs are named from cgroups and environments",
    )


def _state(config: Config) -> Iterator[Finding]:
    cost = "event counts start anew with each restart of the exporter"
    if config.state is None:
        yield Finding("state file", False, "none; set --path.state", cost)
        return
    folder = config.state.parent
    ok = os.access(folder, os.W_OK) if folder.exists() else os.access(folder.parent, os.W_OK)
    yield Finding("state file", ok, f"{config.state}{'' if ok else ' is not writable'}", cost)
