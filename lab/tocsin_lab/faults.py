"""Faults of the live lab. Each acts on a cause (device, process, recipe, driver), never on a symptom.

What is slow is a *device*: moving the rank away cures it, and the next job on that GPU gets the fault.
"""

from __future__ import annotations

import os
import signal as signals
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tocsin_lab import faults_driver
from tocsin_lab.errors import TargetError
from tocsin_lab.fault_model import Kind, Target, number, on_devices, whole
from tocsin_lab.job.spec import JobPaths, JobRecord, jobs_of, load_record
from tocsin_lab.sim import kmsg, trouble
from tocsin_lab.sim.layout import Job, Node
from tocsin_lab.sim.node import NodePaths, gpus_of, nodes_of

__all__ = ["KINDS", "Kind", "active", "clear", "inject"]

# NVML clock event reason bits.
_SW_POWER_CAP, _HW_SLOWDOWN, _SW_THERMAL, _HW_THERMAL, _HW_POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
_REASONS = ("thermal", "power_brake", "sw_power_cap")
_HEAT_CELSIUS = 30.0


KINDS: dict[str, Kind] = {
    "fail_slow_gpu": Kind("device", "kernels run at this fraction of normal speed", {"magnitude": 0.5}),
    "throttle": Kind(
        "device",
        "SM clock held at this fraction, with the reason bits of thermal, power_brake or sw_power_cap",
        {"magnitude": 0.5, "reason": "thermal"},
    ),
    "rank_exit": Kind("rank", "the process ends by a signal (9) or with an exit code", {}, clearable=False),
    "loss_divergence": Kind(
        "job", "the loss climbs by so many noise deviations per 100 steps", {"magnitude": 40.0}
    ),
    "nan_loss": Kind("job", "the loss is not a number any more", {}),
    "driver_hang": Kind("node", "every NVML call blocks", {}),
    "gpu_lost": Kind("device", "the device falls off the bus", {}),
    "xid": Kind(
        "device",
        "an Xid in the kernel log and the driver's event sets (what: both, kmsg or nvml)",
        {"code": 48, "what": "both"},
        clearable=False,
    ),
    **faults_driver.KINDS,
}
_FIELDS = (
    *("job", "rank", "node", "gpu", "magnitude", "reason", "signal", "exit_code"),
    *("code", "what", "link", "field", "call"),
)


def _the_job(run_dir: Path, name: str | None) -> JobRecord | None:
    names = jobs_of(run_dir)
    if name is not None:
        bare = name.removeprefix("torchrun/")
        if bare not in names:
            raise TargetError(f"no job {name!r} in {run_dir} (jobs there: {', '.join(names) or 'none'})")
        return load_record(JobPaths(run_dir, bare))
    return load_record(JobPaths(run_dir, names[0])) if len(names) == 1 else None


def _rank_of(job: JobRecord | None, node: str, gpu: int) -> int | None:
    for rank, slot in enumerate(job.placement if job else ()):
        if (slot.node, slot.gpu) == (node, gpu):
            return rank
    return None


def _resolve(run_dir: Path, kind: str, given: dict[str, Any], need_target: bool = True) -> Target:
    if kind not in KINDS:
        raise TargetError(f"fault {kind!r}: choose one of {', '.join(KINDS)}")
    for name in given:
        if name not in _FIELDS:
            raise TargetError(f"{kind}: no field {name!r}; there are {', '.join(_FIELDS)}")
    fields = {name: value for name, value in given.items() if value is not None}
    what = KINDS[kind]
    places = {"device": {"rank", "node", "gpu"}, "rank": {"rank"}, "node": {"node", "rank"}, "job": set()}[
        what.target
    ]
    extra = {"signal", "exit_code"} if kind == "rank_exit" else set(what.defaults)
    for name in fields:
        if name not in {"job", *places, *extra}:
            raise TargetError(f"{kind}: takes no {name} (it hits a {what.target})")
    values = {**what.defaults, **{name: fields[name] for name in extra if name in fields}}
    job = _the_job(run_dir, fields.get("job"))
    rank, node, gpu = fields.get("rank"), fields.get("node"), fields.get("gpu")
    if rank is not None:
        if job is None:
            raise TargetError(f"rank {rank!r}: there is no single job in {run_dir}; start or name one")
        whole("rank", rank, 0, len(job.placement) - 1)
        slot = job.placement[rank]
        if (node is not None and node != slot.node) or (gpu is not None and gpu != slot.gpu):
            raise TargetError(
                f"rank {rank} is on {slot.node} GPU {slot.gpu}: name the rank or the GPU, not both"
            )
        node, gpu = slot.node, slot.gpu
    if node is not None and node not in nodes_of(run_dir):
        raise TargetError(
            f"no node {node!r} in {run_dir} (nodes there: {', '.join(nodes_of(run_dir)) or 'none'})"
        )
    if gpu is not None:
        if node is None:
            raise TargetError(f"gpu {gpu!r}: name its node too")
        whole("gpu", gpu, 0, len(gpus_of(run_dir, node)) - 1)
    if what.target == "job" and job is None:
        raise TargetError(f"{kind}: {len(jobs_of(run_dir))} jobs in {run_dir}; name one")
    if need_target:
        if what.target == "rank" and rank is None:
            raise TargetError(f"{kind}: name the rank")
        if what.target == "node" and node is None:
            raise TargetError(f"{kind}: name the node")
        if what.target == "device" and (node is None or gpu is None):
            raise TargetError(f"{kind}: name a rank, or a node and a gpu")
    if what.target == "device" and rank is None and node is not None and gpu is not None:
        rank = _rank_of(job, node, gpu)
    if what.target in ("node", "job"):
        rank = gpu = None
    return Target(run_dir, job, rank, node, gpu, values)


def inject(run_dir: Path, kind: str, **target: Any) -> dict[str, Any]:
    """Make something go wrong; returns what was done, when and where.

    ``target`` holds ``job``, ``rank``, ``node``, ``gpu`` and the kind's own fields; None means not given.

    Raises:
        TargetError: an unknown kind, field, target or value.
    """
    found = _resolve(run_dir, kind, target)
    return found.described(kind, _INJECT[kind](found))


def clear(run_dir: Path, kind: str, **target: Any) -> dict[str, Any]:
    """Take a fault away again; without a target, wherever it acts.

    Raises:
        TargetError: an unknown kind or target, or a fault that has happened and cannot be undone.
    """
    found = _resolve(run_dir, kind, target, need_target=False)
    if not KINDS[kind].clearable:
        raise TargetError(
            f"{kind} has happened and cannot be taken away; a dead rank comes back with `job restart`"
        )
    return replace(found, values={}).described(kind, _CLEAR[kind](found))


def _slow(target: Target) -> str:
    speed = number("magnitude", target.values["magnitude"], 0.05, 0.99)
    with Node(target.node_paths.devices) as node:
        node.state.devices[target.gpu].speed_factor = speed
    return f"kernels run at {speed:g} of normal speed"


def _throttle(target: Target) -> str:
    fraction = number("magnitude", target.values["magnitude"], 0.05, 0.99)
    reason = target.values["reason"]
    if reason not in _REASONS:
        raise TargetError(f"reason {reason!r}: choose one of {', '.join(_REASONS)}")
    if reason == "sw_power_cap":
        bits = _SW_POWER_CAP
    elif reason == "power_brake":
        bits = _HW_POWER_BRAKE | _HW_SLOWDOWN
    else:
        # Software holds the temperature in small steps; the hardware's own slowdown halves the clock.
        bits = _HW_THERMAL | _HW_SLOWDOWN if fraction <= 0.5 else _SW_THERMAL
    with Node(target.node_paths.devices) as node:
        device = node.state.devices[target.gpu]
        _book_throttle(device)
        device.clock_fraction = fraction
        device.throttle_since_ns = time.monotonic_ns()
        device.throttle_reasons = bits
        device.heat_celsius = _HEAT_CELSIUS if reason == "thermal" else 0.0
        del device
    return f"SM clock at {fraction:g}, reason bits {bits:#x}"


def _book_throttle(device: Any) -> None:
    """Add the running throttle to the counters of its reasons before it changes."""
    held = time.monotonic_ns() - device.throttle_since_ns
    for bit in range(len(device.throttle_held_ns)):
        if device.throttle_reasons >> bit & 1:
            device.throttle_held_ns[bit] += held
    device.throttle_reasons = 0


def _exit(target: Target) -> str:
    number, code = target.values.get("signal"), target.values.get("exit_code")
    if number is not None and code is not None:
        raise TargetError("rank_exit: a signal or an exit_code, not both")
    assert target.rank is not None  # noqa: S101 - _resolve checked it
    with Job(target.job_paths.shared) as job:
        slot = job.state.ranks[target.rank]
        pid = slot.pid
        if code is not None:
            slot.exit_request = whole("exit_code", code, 0, 255) + 1
        del slot
    if code is not None:
        return f"rank {target.rank} ends with exit code {code} at its next step"
    which = signals.Signals(whole("signal", 9 if number is None else number, 1, 31))
    if pid <= 0:
        raise TargetError(f"rank {target.rank} has no process: start the job first")
    try:
        # Through a descriptor: the pid may have been reused since the rank wrote it.
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise TargetError(f"rank {target.rank}: process {pid} has ended already") from error
    try:
        if b"tocsin_lab.job.rank" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            raise TargetError(
                f"rank {target.rank}: process {pid} is another program: the rank has ended already"
            )
        signals.pidfd_send_signal(descriptor, which)
    finally:
        os.close(descriptor)
    return f"sent {which.name} to process {pid}"


def _diverge(target: Target) -> str:
    sigmas = number("magnitude", target.values["magnitude"], 0.1, 10_000.0)
    with Job(target.job_paths.shared) as job:
        job.state.recipe.loss_drift = sigmas
    return f"the loss climbs by {sigmas:g} noise deviations per 100 steps"


def _nan(target: Target) -> str:
    with Job(target.job_paths.shared) as job:
        job.state.recipe.nan_loss = 1
    return "the loss is not a number from the next step on"


def _hang(target: Target) -> str:
    with Node(target.node_paths.devices) as node:
        node.state.hang = 1
    return "every NVML call blocks"


def _lose(target: Target) -> str:
    assert target.gpu is not None  # noqa: S101 - _resolve checked it
    gpu = gpus_of(target.run_dir, target.node_paths.name)[target.gpu]
    if gpu.lost:
        raise TargetError(f"{gpu.node} GPU {gpu.index} is lost already")
    with Node(target.node_paths.devices) as node:
        device = node.state.devices[target.gpu]
        device.recovery_action = 2  # reboot the node
        device.lost = 1
        serial = device.serial.decode()
        del device
    trouble.emit(target.node_paths.devices, gpu.index, trouble.EVENT_XID, 79)
    return kmsg.gpu_lost(target.node_paths.kmsg, gpu.pci, gpu.uuid, serial)


def _xid(target: Target) -> str:
    assert target.gpu is not None  # noqa: S101 - _resolve checked it
    code, what = whole("code", target.values["code"], 1, 1023), target.values["what"]
    if what not in ("both", "kmsg", "nvml"):
        raise TargetError(f"what {what!r}: choose one of both, kmsg, nvml")
    return faults_driver.report_xid(target, code, kernel=what != "nvml", event=what != "kmsg")


_INJECT: dict[str, Callable[[Target], str]] = {
    "fail_slow_gpu": _slow,
    "throttle": _throttle,
    "rank_exit": _exit,
    "loss_divergence": _diverge,
    "nan_loss": _nan,
    "driver_hang": _hang,
    "gpu_lost": _lose,
    "xid": _xid,
    **faults_driver.INJECT,
}


def _full_speed(device: Any) -> None:
    device.speed_factor = 1.0


def _full_clock(device: Any) -> None:
    _book_throttle(device)
    device.clock_fraction = 1.0
    device.heat_celsius = 0.0


def _found(device: Any) -> None:
    device.lost = 0
    device.recovery_action = 0


def _unhang(target: Target) -> str:
    for name in [target.node] if target.node else nodes_of(target.run_dir):
        with Node(NodePaths(target.run_dir, name).devices) as node:
            node.state.hang = 0
    return "cleared"


def _learn(target: Target) -> str:
    with Job(target.job_paths.shared) as job:
        job.state.recipe.loss_drift = 0.0
    return "cleared"


def _numbers(target: Target) -> str:
    with Job(target.job_paths.shared) as job:
        job.state.recipe.nan_loss = 0
    return "cleared: weights that are not numbers stay so until a restart from a checkpoint"


_CLEAR: dict[str, Callable[[Target], str]] = {
    "fail_slow_gpu": lambda target: on_devices(target, _full_speed),
    "throttle": lambda target: on_devices(target, _full_clock),
    "loss_divergence": _learn,
    "nan_loss": _numbers,
    "driver_hang": _unhang,
    "gpu_lost": lambda target: on_devices(target, _found),
    **faults_driver.CLEAR,
}


def active(run_dir: Path) -> list[dict[str, Any]]:
    """The faults that act now, each with its target."""
    rows: list[dict[str, Any]] = []
    for name in nodes_of(run_dir):
        with Node(NodePaths(run_dir, name).devices) as node:
            if node.state.hang:
                rows.append({"kind": "driver_hang", "node": name})
            for gpu in range(node.state.device_count):
                device = node.state.devices[gpu]
                where = {"node": name, "gpu": gpu}
                if device.speed_factor < 1.0:
                    rows.append({"kind": "fail_slow_gpu", **where, "magnitude": device.speed_factor})
                if device.clock_fraction < 1.0:
                    bits = int(device.throttle_reasons)
                    reason = "sw_power_cap" if bits & 0x4 else "power_brake" if bits & 0x80 else "thermal"
                    rows.append(
                        {"kind": "throttle", **where, "magnitude": device.clock_fraction, "reason": reason}
                    )
                if device.lost:
                    rows.append({"kind": "gpu_lost", **where})
                driver = faults_driver.active_on_device(device, node.state.profile)
                rows.extend({**row, **where} for row in driver)
                del device
            rows.extend({**row, "node": name} for row in faults_driver.active_on_node(node.state))
    for name in jobs_of(run_dir):
        with Job(JobPaths(run_dir, name).shared) as job:
            recipe = job.state.recipe
            if recipe.loss_drift > 0.0:
                rows.append({"kind": "loss_divergence", "job": name, "magnitude": recipe.loss_drift})
            if recipe.nan_loss:
                rows.append({"kind": "nan_loss", "job": name})
            del recipe
    return rows
