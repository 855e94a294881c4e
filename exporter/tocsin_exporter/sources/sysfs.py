"""InfiniBand and RoCE ports from sysfs, each file on its own: an unreadable one costs only its own value."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources.latest import ErrorCounter, PollingSource
from tocsin_exporter.sources.procfs import read_small

__all__ = [
    "BDF",
    "ERROR_COUNTERS",
    "HW_ERROR_COUNTERS",
    "SATURATION",
    "Expectation",
    "FabricSource",
    "Port",
    "distance",
    "locate",
    "pci_path",
    "read_ports",
]

# Traffic counters count units of four octets (InfiniBand Architecture Specification, PortCounters).
_WORD = 4
# Files of counters/ that count something gone wrong.
ERROR_COUNTERS = (
    "symbol_error", "link_error_recovery", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors", "port_xmit_discards", "port_xmit_constraint_errors",
    "port_rcv_constraint_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
    "VL15_dropped",
)  # fmt: skip
# The same of hw_counters/; traffic and load are left out.
HW_ERROR_COUNTERS = (
    "out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "duplicate_request",
    "rnr_nak_retry_err", "req_transport_retries_exceeded", "req_rnr_retries_exceeded", "out_of_buffer",
    "req_cqe_error", "resp_cqe_error", "req_remote_access_errors", "req_remote_invalid_request",
    "resp_remote_access_errors", "resp_local_length_error", "rp_cnp_ignored", "roce_adp_retrans",
    "roce_adp_retrans_to", "roce_slow_restart", "rx_icrc_encapsulated",
)  # fmt: skip
# Where a counter of counters/ stops: it neither wraps nor grows any more, so its rate is blind.
# The widths are those of the port's own counters (InfiniBand Architecture Specification, PortCounters); the
# traffic counters stop only in hardware without the extended ones.
SATURATION = {
    **dict.fromkeys(("local_link_integrity_errors", "excessive_buffer_overrun_errors"), 2**4 - 1),
    **dict.fromkeys(
        ("link_error_recovery", "link_downed", "port_xmit_constraint_errors", "port_rcv_constraint_errors"),
        2**8 - 1,
    ),
    **dict.fromkeys(
        ("symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors",
         "port_xmit_discards", "VL15_dropped"),
        2**16 - 1,
    ),
    **dict.fromkeys(("port_xmit_wait", "port_rcv_data", "port_xmit_data"), 2**32 - 1),
}  # fmt: skip
# What management packets alone do not reach in years, and a job in a second.
_IN_USE_BYTES = 1 << 30
# A port that was taken out of use is not asked for for ever.
_EXPECT_SECONDS = 7 * 86400.0
_MAX_PORTS = 64
_STATE = re.compile(r"^([0-9]): ")
_ACTIVE = "4"
_RATE = re.compile(r"^(\d+(?:\.\d+)?) Gb/sec")
# No kernel counter has more digits.
_NUMBER = re.compile(r"^[0-9]{1,20}$")
# A PCI address; domains of more than four digits are those of VMD and Hyper-V.
BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
# What firmware prints where it has no counter.
_NONE = ("N/A", "")


@dataclass(frozen=True, slots=True)
class Port:
    """
    One port at one reading. ``counters`` are keyed by quantity and kernel file name in base
    units; what could not be read is absent. ``pci_path`` runs from the root to the device.
    ``saturated`` says by kernel file name whether a counter has stopped at its highest value,
    ``expected`` whether the port is in use: one that never was is down by design.
    """

    name: str
    device: str
    active: bool | None
    rate: float | None
    link_layer: str
    hca_type: str
    firmware: str
    counters: Mapping[tuple[str, tuple[str, ...]], float]
    pci_path: tuple[str, ...] = ()
    numa_node: int = -1
    saturated: Mapping[str, bool] = field(default_factory=dict)
    expected: bool = True


def read_ports(sysfs: Path, errors: ErrorCounter) -> tuple[Port, ...]:
    """Return all ports; raises SourceError only when the whole class cannot be listed."""
    base = sysfs / "class/infiniband"
    try:
        devices = sorted(os.listdir(base))
    except FileNotFoundError:
        # A node without such adapters is no fault.
        return ()
    except OSError as err:
        raise SourceError("no_permission", f"{base}: {err.strerror}") from err
    ports: list[Port] = []
    for device in devices:
        try:
            numbers = sorted(name for name in os.listdir(base / device / "ports") if _NUMBER.match(name))
        except OSError:
            errors.add("sysfs", "ports")
            continue
        for number in numbers:
            if len(ports) >= _MAX_PORTS:
                errors.add("sysfs", "too_many_ports")
                return tuple(ports)
            ports.append(_port(base / device, device, number, errors))
    return tuple(ports)


def _text(path: Path, errors: ErrorCounter) -> str:
    """Return the file's text, or "" when it is missing (not an error) or unreadable (counted)."""
    try:
        return read_small(path, 256).decode("ascii", "replace").strip()
    except SourceError as err:
        if err.reason != "unsupported":
            errors.add("sysfs", path.name)
        return ""


def _count(path: Path, errors: ErrorCounter) -> float | None:
    text = _text(path, errors)
    if _NUMBER.match(text):
        return float(text)
    if text and not text.startswith(_NONE[0]):
        errors.add("sysfs", path.name)
    return None


def _port(base: Path, device: str, number: str, errors: ErrorCounter) -> Port:
    here = base / "ports" / number
    counters: dict[tuple[str, tuple[str, ...]], float] = {}
    saturated: dict[str, bool] = {}

    def put(quantity: str, labels: tuple[str, ...], path: Path, scale: float = 1.0) -> None:
        value = _count(path, errors)
        if value is None:
            return
        counters[(quantity, labels)] = value * scale
        if (most := SATURATION.get(path.name)) is not None:
            saturated[path.name] = value == most

    put("receive_bytes_total", (), here / "counters/port_rcv_data", _WORD)
    put("transmit_bytes_total", (), here / "counters/port_xmit_data", _WORD)
    put("transmit_wait_total", (), here / "counters/port_xmit_wait")
    put("link_downed_total", (), here / "counters/link_downed")
    for name in ERROR_COUNTERS:
        put("errors_total", (name,), here / "counters" / name)
    for name in HW_ERROR_COUNTERS:
        put("errors_total", (name,), here / "hw_counters" / name)
    text = _text(here / "state", errors)
    state = _STATE.match(text)
    if text and not state:
        errors.add("sysfs", "state")
    rate = _RATE.match(_text(here / "rate", errors))
    numa = _text(base / "device/numa_node", errors)
    return Port(
        name=f"{device}/{number}",
        device=device,
        active=state[1] == _ACTIVE if state else None,
        rate=float(rate[1]) * 1e9 / 8 if rate else None,
        link_layer=_text(here / "link_layer", errors),
        hca_type=_text(base / "hca_type", errors),
        firmware=_text(base / "fw_ver", errors),
        counters=counters,
        pci_path=pci_path(base / "device"),
        numa_node=int(numa) if re.match(r"^-?\d+$", numa) else -1,
        saturated=saturated,
    )


class Expectation:
    """
    Which ports are in use, by evidence: those seen active, and those that have carried the data of a job.

    A port that then stays down for a week is no longer asked for. Nothing is kept over a restart of the
    exporter, but the counters of the port are: they go on until the driver is loaded anew.
    """

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def judge(self, ports: tuple[Port, ...], now: float) -> tuple[Port, ...]:
        """Return *ports* with ``expected`` as of *now* (a clock that never goes back)."""
        for port in ports:
            carried = max(
                port.counters.get((name, ()), 0.0) for name in ("receive_bytes_total", "transmit_bytes_total")
            )
            if port.active or (port.name not in self._seen and carried >= _IN_USE_BYTES):
                self._seen[port.name] = now
        here = {port.name for port in ports}
        for name in self._seen.keys() - here:
            if now - self._seen[name] > _EXPECT_SECONDS:
                del self._seen[name]
        return tuple(
            replace(port, expected=now - self._seen.get(port.name, float("-inf")) <= _EXPECT_SECONDS)
            for port in ports
        )


def pci_path(device: Path | str) -> tuple[str, ...]:
    """Return the PCI addresses from the root port down to *device*, as its place in /sys/devices tells."""
    path: tuple[str, ...] = ()
    for part in os.path.realpath(device).lower().split("/"):
        if _BRIDGE.fullmatch(part):
            # A host bridge begins a bus of its own, also where it is itself behind a PCI function (VMD).
            path = ()
        elif BDF.fullmatch(part):
            path = (*path, part)
    return path


def locate(sysfs: Path, pci: str) -> tuple[tuple[str, ...], int]:
    """Return the PCI path and NUMA node (-1 when unknown) of the device at *pci*."""
    here = sysfs / "bus/pci/devices" / pci
    try:
        numa = read_small(here / "numa_node", 32).decode("ascii", "replace").strip()
    except SourceError:
        numa = ""
    return pci_path(here), int(numa) if re.match(r"^-?\d+$", numa) else -1


def distance(one: tuple[tuple[str, ...], int], other: tuple[tuple[str, ...], int]) -> int | None:
    """
    Return how far apart two devices are, or None when nothing is known.

    Hops through a shared PCIe switch count least, then one NUMA node, then another one.
    """
    first, second = one[0], other[0]
    shared = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        shared += 1
    if shared:
        return len(first) + len(second) - 2 * shared
    if one[1] >= 0 and other[1] >= 0:
        return 100 if one[1] == other[1] else 200
    return None


class FabricSource(PollingSource[tuple[Port, ...]]):
    """Reads all ports every interval."""

    def __init__(
        self,
        sysfs: Path,
        interval: float,
        max_age: float,
        errors: ErrorCounter,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("sysfs", interval, max_age, errors)
        self._sysfs = sysfs
        self._clock = clock
        self._expectation = Expectation()

    def read(self) -> tuple[Port, ...]:
        return self._expectation.judge(read_ports(self._sysfs, self._errors), self._clock())
