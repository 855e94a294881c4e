"""What can go wrong in a simulated driver: each function writes one cause into a node's shared memory.

``devices`` is the node's ``devices.shm``; ``gpu`` an index in the node's own list, where a removed GPU keeps
its number.
The libraries that have the node mapped see it at their next call.
"""

from __future__ import annotations

import fcntl
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

from tocsin_lab.errors import TargetError
from tocsin_lab.sim import mig
from tocsin_lab.sim.layout import ANY, LINK_COUNTS, MAX_EVENTS, MAX_PROCESSES, MAX_RULES, Node
from tocsin_lab.sim.node import FABRIC_HEALTHY
from tocsin_lab.sim.profiles import PROFILES

__all__ = [
    "EVENT_DOUBLE_BIT",
    "EVENT_MIG",
    "EVENT_RECOVERY_ACTION",
    "EVENT_SINGLE_BIT_STORM",
    "EVENT_XID",
    "FIELD_VALUES",
    "GPM_METRICS",
    "PROCESS_KINDS",
    "SENTINELS",
    "Blank",
    "Rule",
    "alter",
    "blank_profiling",
    "count_ecc",
    "degrade_fabric",
    "emit",
    "end_process",
    "fail_call",
    "fail_init",
    "hang",
    "hang_call",
    "hang_init",
    "link_down",
    "link_errors",
    "lose",
    "model_of",
    "place_process",
    "reconfigure_mig",
    "recovery_action",
    "reload_driver",
    "remove",
    "rules",
    "slow_call",
    "take_away_rules",
    "void_handles",
    "wrap_counters",
]

FIELD_VALUES, GPM_METRICS = "nvmlDeviceGetFieldValues", "nvmlGpmMetricsGet"
EVENT_SINGLE_BIT, EVENT_DOUBLE_BIT, EVENT_XID, EVENT_MIG = 0x1, 0x2, 0x8, 0x100
EVENT_SINGLE_BIT_STORM, EVENT_RECOVERY_ACTION = 0x200, 0x8000
PROCESS_KINDS = ("compute", "graphics", "mps")

# What drivers and DCGM write where they know nothing.
SENTINELS = {
    "uint32": 0xFFFFFFFF,
    "uint64": 0xFFFFFFFFFFFFFFFF,
    "minus_one": 0xFFFFFFFFFFFFFFFF,
    "blank32": 0x7FFFFFF0,
    "blank64": 0x7FFFFFFFFFFFFFF0,
    "blank64_not_supported": 0x7FFFFFFFFFFFFFF2,
}


class Rule(IntEnum):
    """What a rule makes of a call; ``enum sim_rule_kind``."""

    HANG = 1
    SLOW = 2
    ERROR = 3
    BATCH = 4
    VALUE = 5


class Blank(IntEnum):
    """How profiling says nothing: not at all, success with 0, NO_DATA."""

    OFF = 0
    ZERO = 1
    NO_DATA = 2


@contextmanager
def _state(devices: Path) -> Iterator[Any]:
    """The node's state, locked against other writers of causes."""
    with devices.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with Node(devices) as node:
            yield node.state


def model_of(state: Any) -> str:
    """The model's name in ``PROFILES``."""
    wanted = state.profile.name.decode()
    return next(name for name, profile in PROFILES.items() if profile.name == wanted)


def _device(state: Any, gpu: int) -> Any:
    if not 0 <= gpu < state.device_count:
        raise TargetError(f"gpu {gpu}: the node has 0 to {state.device_count - 1}")
    return state.devices[gpu]


# ---- presence, hangs ----


def lose(devices: Path, gpu: int, lost: bool = True) -> None:
    """The GPU falls off the bus: no handle, GPU_IS_LOST; the driver still counts it."""
    with _state(devices) as state:
        _device(state, gpu).lost = int(lost)


def remove(devices: Path, gpu: int, absent: bool = True) -> None:
    """The driver counts the GPU no more, as after a reload without it; the indices behind it move up."""
    with _state(devices) as state:
        _device(state, gpu).absent = int(absent)


def hang(devices: Path, gpu: int | None = None, stuck: bool = True) -> None:
    """Every call blocks: on one GPU, or of the whole driver."""
    with _state(devices) as state:
        if gpu is None:
            state.hang = int(stuck)
        else:
            _device(state, gpu).hang = int(stuck)


def hang_init(devices: Path, stuck: bool = True) -> None:
    """``nvmlInit`` blocks."""
    with _state(devices) as state:
        state.init_hang = int(stuck)


def fail_init(devices: Path, code: int) -> None:
    """``nvmlInit`` returns this nvmlReturn: 4 no permission, 9 no driver, 18 version mismatch; 0: works."""
    with _state(devices) as state:
        state.init_code = code


def void_handles(devices: Path) -> None:
    """Every call fails with UNKNOWN until the library is shut down and initialised again."""
    with _state(devices) as state:
        state.session += 1


def reload_driver(devices: Path) -> None:
    """Unload and load the driver: what counts since the load begins at 0, lifetime counts and remaps stay."""
    with _state(devices) as state:
        for gpu in range(state.device_count):
            device = state.devices[gpu]
            _book_ecc(device)
            for memory in ("dram", "sram"):
                total, base = getattr(device, f"ecc_{memory}"), getattr(device, f"ecc_{memory}_base")
                base[0], base[1] = total[0], total[1]
            for name in ("tx", "rx"):
                setattr(device, f"pcie_{name}_bytes", 0)
                setattr(device, f"nvlink_{name}_bytes", 0)
            for name in (
                "pcie_replays",
                "pcie_recoveries",
                "energy_uj",
                "busy_ns",
                "sm_ns",
                "occupancy_ns",
                "tensor_ns",
                "fp32_ns",
                "dram_ns",
                "idle_ns",
            ):
                setattr(device, name, 0)
            device.pcie_errors[:] = [0] * len(device.pcie_errors)
            device.throttle_held_ns[:] = [0] * len(device.throttle_held_ns)
            device.throttle_since_ns = device.idle_since_ns = time.monotonic_ns()
            for link in device.links:
                link.counts[:] = [0] * len(LINK_COUNTS)
                link.down_tx_bytes = link.down_rx_bytes = 0
                link.rate_since_ns = time.monotonic_ns()
            del device
        state.session += 1


# ---- rules: one call, one field ----


def _bits(value: float, call: str) -> int:
    if call == GPM_METRICS:
        return int(struct.unpack("<Q", struct.pack("<d", float(value)))[0])
    return int(value) & 0xFFFFFFFFFFFFFFFF


def _rule(
    devices: Path,
    kind: Rule,
    call: str,
    gpu: int | None,
    field: int,
    scope: int | None,
    code: int,
    value: int,
) -> None:
    with _state(devices) as state:
        if gpu is not None:
            _device(state, gpu)
        free = next((at for at in range(MAX_RULES) if state.rules[at].kind == 0), None)
        if free is None:
            raise TargetError(f"{MAX_RULES} rules act already: take some away")
        rule = state.rules[free]
        rule.device = ANY if gpu is None else gpu
        rule.field, rule.scope = field, ANY if scope is None else scope
        rule.code, rule.value, rule.call = code, value, call.encode()
        rule.kind = kind  # last: a reader takes the rule from here on
        state.rule_count = max(state.rule_count, free + 1)
        del rule


def hang_call(
    devices: Path, call: str = "", gpu: int | None = None, field: int = 0, scope: int | None = None
) -> None:
    """This call blocks (``""``: every call), or the batch when it asks for this field."""
    _rule(devices, Rule.HANG, call, gpu, field, scope, 0, 0)


def slow_call(
    devices: Path,
    seconds: float,
    call: str = "",
    gpu: int | None = None,
    field: int = 0,
    scope: int | None = None,
) -> None:
    """This call, or this field of it, takes so much longer."""
    _rule(devices, Rule.SLOW, call, gpu, field, scope, 0, int(seconds * 1e9))


def fail_call(
    devices: Path,
    code: int,
    call: str = "",
    gpu: int | None = None,
    field: int = 0,
    scope: int | None = None,
    whole: bool = False,
) -> None:
    """The call returns ``code``; with a field that field does, or, if ``whole``, the batch with it."""
    _rule(devices, Rule.BATCH if whole else Rule.ERROR, call, gpu, field, scope, code, 0)


def alter(
    devices: Path,
    value: float,
    call: str = FIELD_VALUES,
    gpu: int | None = None,
    field: int = 0,
    scope: int | None = None,
) -> None:
    """The call succeeds and reports ``value``: see SENTINELS, or any nonsense.

    A call with several results reports it in those that vary (utilisation, used memory).
    """
    _rule(devices, Rule.VALUE, call, gpu, field, scope, 0, _bits(value, call))


def rules(devices: Path) -> list[dict[str, Any]]:
    """The rules that act."""
    with _state(devices) as state:
        return [
            {
                "kind": Rule(rule.kind),
                "call": rule.call.decode(),
                "gpu": None if rule.device == ANY else rule.device,
                "field": rule.field,
                "code": rule.code,
                "value": rule.value,
            }
            for rule in state.rules
            if rule.kind
        ]


def take_away_rules(devices: Path, kind: Rule | None = None, gpu: int | None = None) -> None:
    """Calls behave again: all, those with this kind of rule, those on this GPU."""
    with _state(devices) as state:
        for rule in state.rules:
            if (kind is None or rule.kind == kind) and (gpu is None or rule.device == gpu):
                rule.kind = 0


# ---- what the hardware counts ----


def _book_ecc(device: Any) -> None:
    """Add what a running rate has counted, before the rate changes."""
    elapsed = (time.monotonic_ns() - device.ecc_rate_since_ns) / 1e9
    for severity in range(2):
        if device.ecc_rate[severity] > 0.0:
            device.ecc_dram[severity] += int(device.ecc_rate[severity] * elapsed)
    device.ecc_rate_since_ns = time.monotonic_ns()


def count_ecc(
    devices: Path,
    gpu: int,
    corrected: int = 0,
    uncorrected: int = 0,
    memory: str = "dram",
    rates: tuple[float, float] | None = None,
) -> None:
    """Add errors now; ``rates`` are corrected and uncorrected DRAM errors per second from now on."""
    with _state(devices) as state:
        device = _device(state, gpu)
        _book_ecc(device)
        counts = device.ecc_dram if memory == "dram" else device.ecc_sram
        counts[0] += corrected
        counts[1] += uncorrected
        if rates is not None:
            device.ecc_rate[0], device.ecc_rate[1] = rates
        del device, counts


def link_errors(devices: Path, gpu: int, link: int, rate: float, kinds: Sequence[str]) -> None:
    """The port counts so many errors a second in each of ``kinds`` (of LINK_COUNTS) from now on; 0: none."""
    with _state(devices) as state:
        port = _device(state, gpu).links[_link(state, link)]
        _book_link(port)
        port.rate = rate
        port.rate_mask = sum(1 << LINK_COUNTS.index(kind) for kind in kinds)
        del port


def _link(state: Any, link: int) -> int:
    if not 0 <= link < state.profile.nvlink_links:
        raise TargetError(f"link {link}: this model has {state.profile.nvlink_links} NVLinks")
    return link


def _book_link(port: Any) -> None:
    grown = int(port.rate * (time.monotonic_ns() - port.rate_since_ns) / 1e9) if port.rate > 0.0 else 0
    for at in range(len(LINK_COUNTS)):
        if port.rate_mask >> at & 1:
            port.counts[at] += grown
    port.rate_since_ns = time.monotonic_ns()


def link_down(devices: Path, gpu: int, link: int, down: bool = True) -> None:
    """The link is not active; its counters stand still."""
    with _state(devices) as state:
        device = _device(state, gpu)
        port = device.links[_link(state, link)]
        port.down_tx_bytes = device.nvlink_tx_bytes // state.profile.nvlink_links
        port.down_rx_bytes = device.nvlink_rx_bytes // state.profile.nvlink_links
        port.down = int(down)
        del device, port


def wrap_counters(devices: Path, gpu: int, bits: int = 32) -> None:
    """The PCIe byte counters (fields 197 and 198) are so many bits wide; 64: they never wrap."""
    with _state(devices) as state:
        _device(state, gpu).pcie_counter_bits = bits


def blank_profiling(devices: Path, gpu: int, how: Blank = Blank.ZERO) -> None:
    """GPM samples say nothing, as after an Xid 31 until the next reset."""
    with _state(devices) as state:
        _device(state, gpu).gpm_blank = how


def recovery_action(devices: Path, gpu: int, action: int) -> int:
    """What the driver wants done (field 230; 0: nothing) and its event; returns what it wanted before."""
    with _state(devices) as state:
        device = _device(state, gpu)
        before = int(device.recovery_action)
        device.recovery_action = action
        _emit(state, gpu, EVENT_RECOVERY_ACTION, action)
        del device
        return before


def degrade_fabric(devices: Path, gpu: int, mask: int | None, state_code: int = 3, summary: int = 2) -> None:
    """Set fabric state, health mask and summary (2 unhealthy, 3 limited); None: healthy again."""
    with _state(devices) as state:
        device = _device(state, gpu)
        if mask is None:
            state_code, mask, summary = FABRIC_HEALTHY
        device.fabric_state, device.fabric_health_mask = state_code, mask
        device.fabric_health_summary = summary
        del device


# ---- events, processes, MIG ----


def _emit(state: Any, gpu: int, kind: int, data: int, instance: tuple[int, int] | None = None) -> None:
    event = state.events[state.event_count % MAX_EVENTS]
    event.type, event.data, event.device = kind, data, gpu
    event.gpu_instance, event.compute_instance = instance or (ANY, ANY)
    del event
    state.event_count += 1


def emit(devices: Path, gpu: int, kind: int, data: int = 0, instance: tuple[int, int] | None = None) -> None:
    """Append an event for every event set that asked for it: ``EVENT_XID`` with the code as data."""
    with _state(devices) as state:
        _device(state, gpu)
        _emit(state, gpu, kind, data, instance)


def place_process(
    devices: Path,
    gpu: int,
    pid: int,
    memory_bytes: int = 1 << 30,
    kind: str = "compute",
    instance: int | None = None,
) -> None:
    """A living process uses the GPU, or MIG instance number ``instance`` of it (from 0).

    Raises:
        TargetError: no such process or instance, or no room.
    """
    ticks = _start_ticks(pid)
    with _state(devices) as state:
        device = _device(state, gpu)
        if instance is not None and not 0 <= instance < device.instance_count:
            raise TargetError(f"instance {instance}: GPU {gpu} has {device.instance_count} MIG instances")
        slot = next((at for at in range(MAX_PROCESSES) if device.processes[at].pid == 0), None)
        if slot is None:
            raise TargetError(f"GPU {gpu} has {MAX_PROCESSES} processes already")
        process = device.processes[slot]
        process.kind, process.start_ticks = PROCESS_KINDS.index(kind), ticks
        process.memory_bytes = memory_bytes
        process.instance = 0 if instance is None else instance + 1
        process.pid = pid
        del device, process


def end_process(devices: Path, gpu: int, pid: int) -> None:
    """The process gives the GPU back."""
    with _state(devices) as state:
        for process in _device(state, gpu).processes:
            if process.pid == pid:
                process.pid = 0


def _start_ticks(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError as error:
        raise TargetError(f"pid {pid}: {error.strerror}") from error
    # The command may hold spaces and parentheses: count behind the last one, from field 3 to field 22.
    return int(text[text.rindex(")") + 2 :].split()[19])


def reconfigure_mig(devices: Path, gpu: int, profiles: Sequence[str]) -> None:
    """Cut the GPU into other instances (none: MIG off); handles of the old ones are void, an event says so.

    Raises:
        TargetError: they do not fit.
    """
    with _state(devices) as state:
        device = _device(state, gpu)
        mig.configure(device, model_of(state), profiles)
        for process in device.processes:
            process.instance = 0
        _emit(state, gpu, EVENT_MIG, 0)
        del device
