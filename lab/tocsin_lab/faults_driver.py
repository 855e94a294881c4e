"""Faults of the simulated driver and of what it counts; their causes are in :mod:`tocsin_lab.sim.trouble`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tocsin_lab.errors import TargetError
from tocsin_lab.fault_model import Kind, Target, number, whole
from tocsin_lab.job.spec import JobPaths
from tocsin_lab.sim import kmsg, trouble
from tocsin_lab.sim.layout import ANY, Job, Node
from tocsin_lab.sim.node import FABRIC_HEALTHY, NodePaths, gpus_of, nodes_of

__all__ = ["CLEAR", "INJECT", "KINDS", "active_on_device", "active_on_node"]

_ECC = ("corrected", "uncorrected", "remap", "remap_pending", "remap_failed")
_WIDTHS = (1, 2, 4, 8, 16)
_STORM_SECONDS, _STORM_LINES = 0.2, 50
_BLANKS = {"zero": trouble.Blank.ZERO, "no_data": trouble.Blank.NO_DATA}
# Bits of the health mask to replace, and with what.
_FABRIC = {
    "bandwidth": (0x0003, 0x0001),
    "route": (0x0030, 0x0010),
    "timeout": (0x00C0, 0x0040),
    "partition": (0x3000, 0x2000),
    "manager": (0xC000, 0x8000),
}
# What a port counts when its signal is bad: retries and checksums on Ampere and Hopper, symbols on Blackwell.
_LINK_KINDS = ("replay", "crc_flit", "receive", "symbol", "raw_lane0", "effective")

KINDS: dict[str, Kind] = {
    "gpu_missing": Kind("device", "the driver does not count the device any more; later indices move up", {}),
    "gpu_hang": Kind("device", "every NVML call on the device blocks", {}),
    "call_hang": Kind("device", "this NVML call on the device blocks", {"call": trouble.FIELD_VALUES}),
    "slow_calls": Kind(
        "device",
        "NVML calls on the device (or this one) take so many seconds more",
        {"magnitude": 0.5, "call": ""},
    ),
    "bad_field": Kind(
        "device",
        "this field value fails with the code: alone (what: field) or with its batch (what: batch)",
        {"field": 82, "code": 999, "what": "field"},
    ),
    "sentinel": Kind(
        "device",
        f"a field value, or a call, succeeds with a blank value (what: {', '.join(trouble.SENTINELS)})",
        {"field": 82, "call": "", "what": "uint32"},
    ),
    "garbage": Kind(
        "device",
        "a field value, or a call, succeeds with this number",
        {"field": 82, "call": "", "magnitude": 3e9},
    ),
    "stale_handles": Kind(
        "node", "every NVML call says Unknown Error until the next initialisation", {}, clearable=False
    ),
    "init_hang": Kind("node", "nvmlInit blocks", {}),
    "init_failure": Kind(
        "node", "nvmlInit fails: 4 no permission, 9 no driver, 18 another version", {"code": 9}
    ),
    "driver_reload": Kind(
        "node", "the driver is loaded again: what it counts begins at 0", {}, clearable=False
    ),
    "counter_wrap": Kind("device", "the PCIe byte counters have so many bits", {"magnitude": 32}),
    "blank_profiling": Kind(
        "device",
        "an Xid 31, and from then on GPM says 0 (what: zero) or nothing (what: no_data)",
        {"what": "zero"},
    ),
    "recovery_action": Kind(
        "device",
        "the driver asks for 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset",
        {"code": 1},
    ),
    "ecc": Kind(
        "device",
        "memory errors per minute, the first at once; or a row remap, pending or failed",
        {"magnitude": 60.0, "what": "corrected"},
    ),
    "ecc_storm": Kind(
        "device",
        f"corrected errors per second; calls take {_STORM_SECONDS:g} s more, the kernel log fills",
        {"magnitude": 1000.0},
    ),
    "nvlink_errors": Kind("device", "errors per second on this link", {"magnitude": 10.0, "link": 0}),
    "nvlink_down": Kind("device", "this link is down", {"link": 0}),
    "pcie_downgrade": Kind(
        "device",
        "so many lanes (what: width) or this generation is left",
        {"magnitude": 8.0, "what": "width"},
    ),
    "fabric_degraded": Kind(
        "device", f"the fabric is not healthy (what: {', '.join(_FABRIC)})", {"what": "bandwidth"}
    ),
    "mig_reconfigured": Kind(
        "device",
        "the device is cut into these MIG instances (what: 3g.40gb,3g.40gb)",
        {"what": "3g.40gb,3g.40gb"},
    ),
}


def _gpu(target: Target) -> int:
    assert target.gpu is not None  # noqa: S101 - the target was resolved
    return target.gpu


def _devices(target: Target) -> Path:
    return target.node_paths.devices


def _one_of(name: str, value: Any, known: Any) -> str:
    if value not in known:
        raise TargetError(f"{name} {value!r}: choose one of {', '.join(known)}")
    return str(value)


def _profile(target: Target, field: str) -> int:
    with Node(_devices(target)) as node:
        return int(getattr(node.state.profile, field))


def report_xid(target: Target, code: int, kernel: bool = True, event: bool = True) -> str:
    """Write an Xid where the driver does: the kernel log and the event sets; some come by one way only."""
    pid = None
    if target.rank is not None and target.job is not None:
        with Job(JobPaths(target.run_dir, target.job.name).shared) as job:
            pid = job.state.ranks[target.rank].pid or None
    gpu = gpus_of(target.run_dir, target.node_paths.name)[_gpu(target)]
    if event:
        trouble.emit(_devices(target), gpu.index, trouble.EVENT_XID, code)
    return kmsg.xid(target.node_paths.kmsg, gpu.pci, code, pid) if kernel else f"Xid {code} as an event"


def _call(target: Target) -> str:
    name = target.values["call"]
    if not isinstance(name, str) or (name and not name.startswith("nvml")) or len(name) > 63:
        raise TargetError(f"call {name!r}: an NVML function, such as {trouble.FIELD_VALUES}")
    return name


def _hang_call(target: Target) -> str:
    name = _call(target)
    trouble.hang_call(_devices(target), name, _gpu(target))
    return f"{name or 'every call'} blocks"


def _slow(target: Target) -> str:
    seconds = number("magnitude", target.values["magnitude"], 0.001, 600.0)
    name = _call(target)
    trouble.slow_call(_devices(target), seconds, name, _gpu(target))
    return f"{name or 'every call'} takes {seconds:g} s more"


def _field(target: Target) -> int:
    return whole("field", target.values["field"], 1, 511)


def _bad_field(target: Target) -> str:
    code, field = whole("code", target.values["code"], 1, 999), _field(target)
    whole_batch = _one_of("what", target.values["what"], ("field", "batch")) == "batch"
    trouble.fail_call(_devices(target), code, trouble.FIELD_VALUES, _gpu(target), field, whole=whole_batch)
    return f"field {field} {'fails its batch' if whole_batch else 'fails'} with {code}"


def _alter(target: Target, value: float) -> str:
    name = _call(target)
    if name:
        trouble.alter(_devices(target), value, name, _gpu(target))
        return f"{name} says {value:g}"
    field = _field(target)
    trouble.alter(_devices(target), value, gpu=_gpu(target), field=field)
    return f"field {field} says {value:g}"


def _sentinel(target: Target) -> str:
    return _alter(target, trouble.SENTINELS[_one_of("what", target.values["what"], trouble.SENTINELS)])


def _garbage(target: Target) -> str:
    return _alter(target, number("magnitude", target.values["magnitude"], 1e-9, 1e18))


def _void(target: Target) -> str:
    trouble.void_handles(_devices(target))
    return "every call says Unknown Error until the next nvmlInit"


def _reload(target: Target) -> str:
    trouble.reload_driver(_devices(target))
    return "the driver is loaded again"


def _fail_init(target: Target) -> str:
    code = whole("code", target.values["code"], 1, 999)
    trouble.fail_init(_devices(target), code)
    return f"nvmlInit returns {code}"


def _hang_init(target: Target) -> str:
    trouble.hang_init(_devices(target))
    return "nvmlInit blocks"


def _remove(target: Target) -> str:
    trouble.remove(_devices(target), _gpu(target))
    return "the device is not counted"


def _hang(target: Target) -> str:
    trouble.hang(_devices(target), _gpu(target))
    return "every call on the device blocks"


def _wrap(target: Target) -> str:
    bits = int(number("magnitude", target.values["magnitude"], 8, 63))
    trouble.wrap_counters(_devices(target), _gpu(target), bits)
    return f"PCIe byte counters of {bits} bits"


def _blank(target: Target) -> str:
    how = _BLANKS[_one_of("what", target.values["what"], _BLANKS)]
    trouble.blank_profiling(_devices(target), _gpu(target), how)
    return report_xid(target, 31)


def _recover(target: Target) -> str:
    action = whole("code", target.values["code"], 1, 7)
    before = trouble.recovery_action(_devices(target), _gpu(target), action)
    pci = gpus_of(target.run_dir, target.node_paths.name)[_gpu(target)].pci
    trouble.emit(_devices(target), _gpu(target), trouble.EVENT_XID, 154)
    return kmsg.recovery_action(target.node_paths.kmsg, pci, before, action)


def _ecc(target: Target) -> str:
    per_minute = number("magnitude", target.values["magnitude"], 0.001, 6e6)
    what = _one_of("what", target.values["what"], _ECC)
    if what in ("corrected", "uncorrected"):
        bad = what == "uncorrected"
        rate = per_minute / 60.0
        trouble.count_ecc(
            _devices(target),
            _gpu(target),
            corrected=int(not bad),
            uncorrected=int(bad),
            rates=(0.0, rate) if bad else (rate, 0.0),
        )
        trouble.emit(
            _devices(target), _gpu(target), trouble.EVENT_DOUBLE_BIT if bad else trouble.EVENT_SINGLE_BIT
        )
        return report_xid(target, 48) if bad else f"{per_minute:g} corrected errors a minute"
    with Node(_devices(target)) as node:
        device = node.state.devices[_gpu(target)]
        if what == "remap":
            device.remapped_rows[1] += 1
        elif what == "remap_pending":
            device.remap_pending = 1
        else:
            device.remap_failed = 1
        del device
    return report_xid(target, 64 if what == "remap_failed" else 63)


def _storm(target: Target) -> str:
    rate = number("magnitude", target.values["magnitude"], 1.0, 1e6)
    devices, gpu = _devices(target), _gpu(target)
    trouble.count_ecc(devices, gpu, rates=(rate, 0.0))
    trouble.slow_call(devices, _STORM_SECONDS, gpu=gpu)
    trouble.emit(devices, gpu, trouble.EVENT_SINGLE_BIT_STORM)
    pci = gpus_of(target.run_dir, target.node_paths.name)[gpu].pci
    for _ in range(_STORM_LINES):
        kmsg.xid(target.node_paths.kmsg, pci, 92)
    return f"{rate:g} corrected errors a second, {_STORM_LINES} kernel records"


def _link_errors(target: Target) -> str:
    rate = number("magnitude", target.values["magnitude"], 0.001, 1e9)
    link = _link(target)
    trouble.link_errors(_devices(target), _gpu(target), link, rate, _LINK_KINDS)
    return f"{rate:g} errors a second on link {link}"


def _link(target: Target) -> int:
    links = _profile(target, "nvlink_links")
    if not links:
        raise TargetError(f"{target.node}: its GPUs have no NVLink")
    return whole("link", target.values["link"], 0, links - 1)


def _link_down(target: Target) -> str:
    link = _link(target)
    trouble.link_down(_devices(target), _gpu(target), link)
    return report_xid(target, 149 if _profile(target, "architecture") >= 10 else 74)


def _downgrade(target: Target) -> str:
    what = _one_of("what", target.values["what"], ("width", "generation"))
    most = _profile(target, f"pcie_{what}_max")
    left = int(number("magnitude", target.values["magnitude"], 1, most - 1))
    if what == "width" and left not in _WIDTHS:
        raise TargetError(f"magnitude {left}: a link has {', '.join(map(str, _WIDTHS[:-1]))} lanes left")
    with Node(_devices(target)) as node:
        setattr(node.state.devices[_gpu(target)], f"pcie_{what}", left)
    return f"PCIe {what} {left} of {most}"


def _fabric(target: Target) -> str:
    what = _one_of("what", target.values["what"], _FABRIC)
    if not _profile(target, "fabric"):
        raise TargetError(f"{target.node}: its GPUs report no fabric")
    clear, put = _FABRIC[what]
    trouble.degrade_fabric(_devices(target), _gpu(target), FABRIC_HEALTHY[1] & ~clear | put)
    return f"fabric: {what} not healthy"


def _cut(target: Target) -> str:
    text = target.values["what"]
    profiles = [part for part in str(text).split(",") if part]
    trouble.reconfigure_mig(_devices(target), _gpu(target), profiles)
    return f"MIG instances: {', '.join(profiles) or 'none'}"


INJECT: dict[str, Callable[[Target], str]] = {
    "gpu_missing": _remove,
    "gpu_hang": _hang,
    "call_hang": _hang_call,
    "slow_calls": _slow,
    "bad_field": _bad_field,
    "sentinel": _sentinel,
    "garbage": _garbage,
    "stale_handles": _void,
    "init_hang": _hang_init,
    "init_failure": _fail_init,
    "driver_reload": _reload,
    "counter_wrap": _wrap,
    "blank_profiling": _blank,
    "recovery_action": _recover,
    "ecc": _ecc,
    "ecc_storm": _storm,
    "nvlink_errors": _link_errors,
    "nvlink_down": _link_down,
    "pcie_downgrade": _downgrade,
    "fabric_degraded": _fabric,
    "mig_reconfigured": _cut,
}


def _each(target: Target, change: Callable[[Path, int], object]) -> str:
    """Change the target's device, or all of the target's node, or all of all nodes."""
    for name in [target.node] if target.node else nodes_of(target.run_dir):
        devices = NodePaths(target.run_dir, name).devices
        gpus = [target.gpu] if target.gpu is not None else range(len(gpus_of(target.run_dir, name)))
        for gpu in gpus:
            change(devices, gpu)
    return "cleared"


def _each_node(target: Target, change: Callable[[Path], object]) -> str:
    for name in [target.node] if target.node else nodes_of(target.run_dir):
        change(NodePaths(target.run_dir, name).devices)
    return "cleared"


def _no_rules(*kinds: trouble.Rule) -> Callable[[Target], str]:
    def clear(target: Target) -> str:
        for kind in kinds:
            _each(target, lambda devices, gpu, kind=kind: trouble.take_away_rules(devices, kind, gpu))  # type: ignore[misc]
        return "cleared"

    return clear


def _no_ecc(devices: Path, gpu: int) -> None:
    """The errors end and a pending remap is done; what was counted and remapped stays."""
    trouble.count_ecc(devices, gpu, rates=(0.0, 0.0))
    with Node(devices) as node:
        device = node.state.devices[gpu]
        device.remap_pending = device.remap_failed = 0
        del device


def _no_storm(devices: Path, gpu: int) -> None:
    trouble.count_ecc(devices, gpu, rates=(0.0, 0.0))
    trouble.take_away_rules(devices, trouble.Rule.SLOW, gpu)


def _links(devices: Path) -> int:
    with Node(devices) as node:
        return int(node.state.profile.nvlink_links)


def _quiet_links(devices: Path, gpu: int) -> None:
    for link in range(_links(devices)):
        trouble.link_errors(devices, gpu, link, 0.0, ())


def _raise_links(devices: Path, gpu: int) -> None:
    for link in range(_links(devices)):
        trouble.link_down(devices, gpu, link, down=False)


def _full_pcie(devices: Path, gpu: int) -> None:
    with Node(devices) as node:
        device = node.state.devices[gpu]
        device.pcie_width = node.state.profile.pcie_width_max
        device.pcie_generation = node.state.profile.pcie_generation_max
        del device


def _whole_fabric(devices: Path, gpu: int) -> None:
    with Node(devices) as node:
        has = bool(node.state.profile.fabric)
    if has:
        trouble.degrade_fabric(devices, gpu, None)


def _no_mig(devices: Path, gpu: int) -> None:
    with Node(devices) as node:
        cut = bool(node.state.devices[gpu].instance_count)
    if cut:
        trouble.reconfigure_mig(devices, gpu, ())


def _no_action(devices: Path, gpu: int) -> None:
    with Node(devices) as node:
        wanted = bool(node.state.devices[gpu].recovery_action)
    if wanted:
        trouble.recovery_action(devices, gpu, 0)


CLEAR: dict[str, Callable[[Target], str]] = {
    "gpu_missing": lambda t: _each(t, lambda path, gpu: trouble.remove(path, gpu, absent=False)),
    "gpu_hang": lambda t: _each(t, lambda path, gpu: trouble.hang(path, gpu, stuck=False)),
    "call_hang": _no_rules(trouble.Rule.HANG),
    "slow_calls": _no_rules(trouble.Rule.SLOW),
    "bad_field": _no_rules(trouble.Rule.ERROR, trouble.Rule.BATCH),
    "sentinel": _no_rules(trouble.Rule.VALUE),
    "garbage": _no_rules(trouble.Rule.VALUE),
    "init_hang": lambda t: _each_node(t, lambda path: trouble.hang_init(path, stuck=False)),
    "init_failure": lambda t: _each_node(t, lambda path: trouble.fail_init(path, 0)),
    "counter_wrap": lambda t: _each(t, lambda path, gpu: trouble.wrap_counters(path, gpu, 64)),
    "blank_profiling": lambda t: _each(
        t, lambda path, gpu: trouble.blank_profiling(path, gpu, trouble.Blank.OFF)
    ),
    "recovery_action": lambda t: _each(t, _no_action),
    "ecc": lambda t: _each(t, _no_ecc),
    "ecc_storm": lambda t: _each(t, _no_storm),
    "nvlink_errors": lambda t: _each(t, _quiet_links),
    "nvlink_down": lambda t: _each(t, _raise_links),
    "pcie_downgrade": lambda t: _each(t, _full_pcie),
    "fabric_degraded": lambda t: _each(t, _whole_fabric),
    "mig_reconfigured": lambda t: _each(t, _no_mig),
}


def active_on_node(state: Any) -> list[dict[str, Any]]:
    """The driver's faults that act on the whole node, and the rules for its devices."""
    rows: list[dict[str, Any]] = []
    if state.init_hang:
        rows.append({"kind": "init_hang"})
    if state.init_code:
        rows.append({"kind": "init_failure", "code": state.init_code})
    for at in range(state.rule_count):
        rule = state.rules[at]
        if not rule.kind:
            continue
        row: dict[str, Any] = {} if rule.device == ANY else {"gpu": rule.device}
        row |= {"call": rule.call.decode()} if rule.call else {}
        row |= {"field": rule.field} if rule.field else {}
        kind = trouble.Rule(rule.kind)
        if kind is trouble.Rule.HANG:
            row["kind"] = "call_hang"
        elif kind is trouble.Rule.SLOW:
            row |= {"kind": "slow_calls", "magnitude": rule.value / 1e9}
        elif kind is trouble.Rule.VALUE:
            known = rule.value in trouble.SENTINELS.values()
            row |= {"kind": "sentinel" if known else "garbage", "value": rule.value}
        else:
            row |= {"kind": "bad_field", "code": rule.code}
        rows.append(row)
        del rule
    return rows


def active_on_device(device: Any, profile: Any) -> list[dict[str, Any]]:
    """The driver's faults that act on one device."""
    rows: list[dict[str, Any]] = []
    if device.absent:
        rows.append({"kind": "gpu_missing"})
    if device.hang:
        rows.append({"kind": "gpu_hang"})
    if device.pcie_counter_bits < 64:
        rows.append({"kind": "counter_wrap", "magnitude": device.pcie_counter_bits})
    if device.gpm_blank:
        rows.append({"kind": "blank_profiling", "what": "zero" if device.gpm_blank == 1 else "no_data"})
    if device.recovery_action and not device.lost:
        rows.append({"kind": "recovery_action", "code": device.recovery_action})
    for severity, what in enumerate(("corrected", "uncorrected")):
        if device.ecc_rate[severity] > 0.0:
            rows.append({"kind": "ecc", "what": what, "magnitude": device.ecc_rate[severity] * 60.0})
    for flag in ("remap_pending", "remap_failed"):
        if getattr(device, flag):
            rows.append({"kind": "ecc", "what": flag})
    for number_, link in enumerate(device.links[: profile.nvlink_links]):
        if link.down:
            rows.append({"kind": "nvlink_down", "link": number_})
        if link.rate > 0.0:
            rows.append({"kind": "nvlink_errors", "link": number_, "magnitude": link.rate})
        del link
    for what in ("width", "generation"):
        left = getattr(device, f"pcie_{what}")
        if left < getattr(profile, f"pcie_{what}_max"):
            rows.append({"kind": "pcie_downgrade", "what": what, "magnitude": left})
    if profile.fabric and device.fabric_health_mask != FABRIC_HEALTHY[1]:
        rows.append({"kind": "fabric_degraded", "mask": device.fabric_health_mask})
    return rows
