"""
GPUs and HCAs on the PCI bus and the ports above them, from sysfs: presence, links, error counters.

The kernel books an error at the end of the link that noticed it, so the ports above are read as well as
the devices. Its counters lie in memory; link state and the head of the configuration space are read from
the device, which would wake a suspended one: such a device is left asleep.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources.latest import ErrorCounter, PollingSource
from tocsin_exporter.sources.procfs import read_small
from tocsin_exporter.sources.sysfs import BDF, pci_path

__all__ = ["SEVERITIES", "Endpoint", "Function", "PcieSource", "Reader", "find_endpoints"]

# Severity, the file of every function, the line of its total, and the file of root ports alone.
SEVERITIES = (
    ("corrected", "aer_dev_correctable", "TOTAL_ERR_COR", "aer_rootport_total_err_cor"),
    ("nonfatal", "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", "aer_rootport_total_err_nonfatal"),
    ("fatal", "aer_dev_fatal", "TOTAL_ERR_FATAL", "aer_rootport_total_err_fatal"),
)
_NVIDIA = "0x10de"
_DISPLAY, _INFINIBAND = "0x03", "0x0207"
_GONE_VENDOR = "0xffff"
_GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6, "128.0": 7}
_SPEED = re.compile(r"^(\d{1,3}(?:\.\d)?) GT/s")
_WIDTHS = frozenset((1, 2, 4, 8, 12, 16, 32))
# All bits of the field set: nothing answers at this address.
_GONE_WIDTH = "63"
_ASLEEP = frozenset(("suspended", "suspending", "resuming"))
# An error that the kernel has no name for goes by its bit: dev_cor_errs_bit[4]. A severity has at most 32.
_AER_LINE = re.compile(r"^([A-Za-z0-9_]{1,32}(?:\[[0-9]{1,2}\])?) ([0-9]{1,20})$")
_COUNT = re.compile(r"^[0-9]{1,20}$")
_MOST_NAMES = 33
_FILE_BYTES = 4096

_MOST_SCANNED = 4096
_MOST_ENDPOINTS = 64
_MOST_FUNCTIONS = 512
# New devices are rare; looking for them costs a read per function of the bus.
_SCAN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """
    A device at the end of a link.

    ``kind`` is ``gpu`` or ``hca``, ``device`` an HCA's RDMA name, and ``path`` the addresses from the root
    port down to and with its own.
    """

    pci: str
    kind: str
    device: str = ""
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """
    One PCI function at one reading.

    ``role`` is ``endpoint``, ``upstream`` (a port between an endpoint and its root port) or ``root``;
    ``upstream`` and ``root`` are addresses, empty where there is no such port. ``present`` and ``suspended``
    are None when nothing tells. ``errors`` are totals by severity, ``named`` the counts above 0 by severity
    and the kernel's name, ``received`` the messages that a root port got from below. ``link`` holds
    ``generation``, ``width`` and, where both ends are known, their most (``_max``); a link is told at its
    lower end. What could not be read is absent.
    """

    pci: str
    role: str
    kind: str
    device: str = ""
    upstream: str = ""
    root: str = ""
    present: bool | None = None
    suspended: bool | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    named: Mapping[tuple[str, str], int] = field(default_factory=dict)
    received: Mapping[str, int] = field(default_factory=dict)
    link: Mapping[str, int] = field(default_factory=dict)


def find_endpoints(sysfs: Path, told: Iterable[str], errors: ErrorCounter) -> dict[str, Endpoint]:
    """
    Return the GPUs and HCAs of the tree by address; a tree without a PCI bus has none.

    *told* are addresses that the driver names as GPUs. Virtual functions of a device are left out
    unless the driver names them. Raises SourceError when the bus cannot be listed.
    """
    base = f"{sysfs}/bus/pci/devices"
    try:
        names = sorted(name for name in os.listdir(base) if BDF.fullmatch(name))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as err:
        raise SourceError("no_permission", f"{base}: {err.strerror}") from err
    wanted: dict[str, tuple[str, str]] = {pci: ("gpu", "") for pci in sorted(set(told)) if BDF.fullmatch(pci)}
    for device, pci in _rdma(sysfs):
        if not _virtual(base, pci):
            wanted.setdefault(pci, ("hca", device))
    if len(names) > _MOST_SCANNED:
        errors.add("pcie", "too_many_functions")
    for pci in names[:_MOST_SCANNED]:
        if pci not in wanted and (kind := _kind(base, pci)) and not _virtual(base, pci):
            wanted[pci] = (kind, "")
    found: dict[str, Endpoint] = {}
    for pci, (kind, device) in wanted.items():
        path = pci_path(f"{base}/{pci}") if os.path.exists(f"{base}/{pci}") else ()
        if not path or path[-1] != pci:
            continue
        if len(found) >= _MOST_ENDPOINTS:
            errors.add("pcie", "too_many_endpoints")
            break
        found[pci] = Endpoint(pci, kind, device, path)
    return found


def _rdma(sysfs: Path) -> list[tuple[str, str]]:
    """Return name and address of the RDMA devices; those on another bus below a PCI function are left out."""
    base = f"{sysfs}/class/infiniband"
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return []
    return [
        (name, pci)
        for name in names
        if BDF.fullmatch(pci := os.path.basename(os.path.realpath(f"{base}/{name}/device")))
    ]


def _virtual(base: str, pci: str) -> bool:
    return os.path.lexists(f"{base}/{pci}/physfn")


def _kind(base: str, pci: str) -> str:
    try:
        code = read_small(f"{base}/{pci}/class", 16)
        if code.startswith(_INFINIBAND.encode()):
            return "hca"
        if code.startswith(_DISPLAY.encode()):
            vendor = read_small(f"{base}/{pci}/vendor", 16).decode("ascii", "replace").strip()
            return "gpu" if vendor == _NVIDIA else ""
    except SourceError:
        # A function that says nothing of itself is none that we look for.
        pass
    return ""


class Reader:
    """Reads functions one by one; keeps what a file said last, so that only what changed is parsed."""

    def __init__(self, sysfs: Path, errors: ErrorCounter) -> None:
        self._base = f"{sysfs}/bus/pci/devices"
        self._errors = errors
        self._aer: dict[str, tuple[bytes, dict[str, int]]] = {}
        self._most: dict[str, dict[str, int]] = {}

    def forget(self) -> None:
        """Read everything anew from now on."""
        self._aer.clear()
        self._most.clear()

    def read(self, endpoints: Iterable[Endpoint]) -> tuple[Function, ...]:
        """Return the endpoints and every port above them, each once."""
        found: dict[str, Function] = {}
        for endpoint in endpoints:
            path = endpoint.path
            for at in range(len(path) - 1, -1, -1):
                pci = path[at]
                if pci in found:
                    # What is above it was read with it.
                    break
                if len(found) >= _MOST_FUNCTIONS:
                    self._errors.add("pcie", "too_many_functions")
                    return tuple(found.values())
                found[pci] = self._function(path, at, endpoint if at == len(path) - 1 else None)
        return tuple(found.values())

    def _function(self, path: tuple[str, ...], at: int, endpoint: Endpoint | None) -> Function:
        """Read ``path[at]``; *endpoint* is what ends the path, None for a port above it."""
        pci, above = path[at], path[:at]
        folder = f"{self._base}/{pci}"
        status = self._text(folder, "power/runtime_status")
        asleep = status in _ASLEEP
        errors, named = self._device_errors(folder)
        link: dict[str, int] = {}
        width = ""
        # A link ends at a device and at the upper port of a switch; the ports between are its other ends.
        if not asleep and (endpoint or (above and (len(path) - 1 - at) % 2 == 0)):
            width = self._text(folder, "current_link_width")
            link = {
                **self._generation("generation", folder, "current_link_speed"),
                **self._lanes("width", folder, "current_link_width", width),
            }
            if link and above:
                link.update(self._most_of_link(pci, above[-1]))
        return Function(
            pci=pci,
            role="endpoint" if endpoint else "upstream" if above else "root",
            kind=endpoint.kind if endpoint else "port",
            device=endpoint.device if endpoint else "",
            upstream=above[-1] if above else "",
            root=above[0] if above else "",
            present=self._present(folder, width, asleep=asleep) if endpoint else None,
            suspended=asleep if status else None,
            errors=errors,
            named=named,
            received={} if above or endpoint else self._received(folder),
            link=link,
        )

    # presence

    def _present(self, folder: str, width: str, *, asleep: bool) -> bool | None:
        """Whether something answers at the address; None where only waking it would tell."""
        if not os.path.exists(folder) or self._text(folder, "vendor") == _GONE_VENDOR:
            return False
        if asleep:
            return None
        if width == _GONE_WIDTH:
            return False
        if width.isdigit() and int(width) in _WIDTHS:
            return True
        # Last, as the kernel lets a reader wait here while it resets the device.
        head = self._bytes(folder, "config", 4)
        return head != b"\xff\xff\xff\xff" if len(head) == 4 else None

    # links

    def _most_of_link(self, pci: str, above: str) -> dict[str, int]:
        """Return the most that both ends can; nothing where one is unknown: a lesser slot is no fault."""
        one, other = self._most_of(pci), self._most_of(above)
        return {name: min(value, other[name]) for name, value in one.items() if name in other}

    def _most_of(self, pci: str) -> dict[str, int]:
        """Return what the function itself can; it does not change, so it is read until it is known."""
        if (known := self._most.get(pci)) is not None:
            return known
        folder = f"{self._base}/{pci}"
        if self._text(folder, "power/runtime_status") in _ASLEEP:
            return {}
        found = {
            **self._generation("generation_max", folder, "max_link_speed"),
            **self._lanes("width_max", folder, "max_link_width", self._text(folder, "max_link_width")),
        }
        if len(found) == 2:
            self._most[pci] = found
        return found

    def _generation(self, key: str, folder: str, name: str) -> dict[str, int]:
        text = self._text(folder, name)
        if not text or text.startswith("Unknown"):
            return {}
        match = _SPEED.match(text)
        generation = _GENERATIONS.get(match[1]) if match else None
        if generation is None:
            self._errors.add("pcie", name)
            return {}
        return {key: generation}

    def _lanes(self, key: str, folder: str, name: str, text: str) -> dict[str, int]:
        if not _COUNT.match(text):
            if text and not text.startswith("Unknown"):
                self._errors.add("pcie", name)
            return {}
        # 0 is a link that is down or none, 255 unknown, 63 a device that does not answer.
        return {key: int(text)} if int(text) in _WIDTHS else {}

    # errors

    def _device_errors(self, folder: str) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
        errors: dict[str, int] = {}
        named: dict[tuple[str, str], int] = {}
        for severity, name, total, _ in SEVERITIES:
            counts = self._aer_file(folder, name)
            if total in counts:
                errors[severity] = counts[total]
            for error, count in counts.items():
                if count and error != total:
                    named[(severity, error)] = count
        return errors, named

    def _aer_file(self, folder: str, name: str) -> dict[str, int]:
        data = self._bytes(folder, name)
        before = self._aer.get(f"{folder}/{name}")
        if before is not None and before[0] == data:
            return before[1]
        counts: dict[str, int] = {}
        odd = False
        for line in data.decode("ascii", "replace").splitlines():
            match = _AER_LINE.match(line)
            if match and len(counts) < _MOST_NAMES:
                counts[match[1]] = int(match[2])
            else:
                odd = odd or bool(line.strip())
        if odd:
            # Not kept, so that it is counted at each reading, as every other read that fails.
            self._errors.add("pcie", name)
        else:
            self._aer[f"{folder}/{name}"] = (data, counts)
        return counts

    def _received(self, folder: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for severity, _, _, name in SEVERITIES:
            text = self._text(folder, name)
            if _COUNT.match(text):
                found[severity] = int(text)
            elif text:
                self._errors.add("pcie", name)
        return found

    # files

    def _bytes(self, folder: str, name: str, limit: int = _FILE_BYTES) -> bytes:
        """Return the file's content, or nothing when it is missing (no error) or unreadable (counted)."""
        try:
            return read_small(f"{folder}/{name}", limit)
        except SourceError as err:
            if err.reason != "unsupported":
                self._errors.add("pcie", name.rsplit("/", 1)[-1])
            return b""

    def _text(self, folder: str, name: str) -> str:
        return self._bytes(folder, name, 64).decode("ascii", "replace").strip()


class PcieSource(PollingSource[tuple[Function, ...]]):
    """
    Reads the functions every interval and looks for new devices once a minute.

    *told* returns the addresses that the driver names now. A device that was seen and is gone stays
    known, as not present.
    """

    def __init__(
        self,
        sysfs: Path,
        interval: float,
        max_age: float,
        errors: ErrorCounter,
        *,
        told: Callable[[], Iterable[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("pcie", interval, max_age, errors)
        self._sysfs = sysfs
        self._told = told
        self._clock = clock
        self._reader = Reader(sysfs, errors)
        self._known: dict[str, Endpoint] = {}
        self._seen: frozenset[str] = frozenset()
        self._scan_at = clock()

    def read(self) -> tuple[Function, ...]:
        told = frozenset(self._told())
        if self._clock() >= self._scan_at or told != self._seen:
            found = find_endpoints(self._sysfs, told, self._errors)
            known = {**self._known, **found}
            if len(known) > _MOST_ENDPOINTS:
                self._errors.add("pcie", "too_many_endpoints")
                known = found
            self._known = known
            self._reader.forget()
            self._seen, self._scan_at = told, self._clock() + _SCAN_SECONDS
        return self._reader.read(self._known.values())
