"""The driver's view of the devices, read by a child process that can be killed when the driver hangs."""

from __future__ import annotations

import json
import logging
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tocsin_exporter.errors import CollectError
from tocsin_exporter.sources.latest import ErrorCounter, PollingSource

__all__ = ["THROTTLE_REASONS", "Device", "NvmlReading", "NvmlSource", "pci_address"]

log = logging.getLogger(__name__)

Key = tuple[str, tuple[str, ...]]

# nvml.h, nvmlClocksEventReason*: the bits of the current clock event reasons.
THROTTLE_REASONS = {
    "idle": 0x1,
    "app_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display": 0x100,
}

# nvmlReturn_t values that mean something to the operator of a node.
_REASONS = {4: "no_permission", 9: "no_driver", 10: "timeout", 12: "no_library", 13: "unsupported", 18: "no_driver"}
_HINTS = {
    "no_library": "install the driver or point --nvml.library at libnvidia-ml.so.1",
    "no_driver": "load the nvidia module, or reload it after a driver update",
    "no_permission": "run with access to /dev/nvidiactl and /dev/nvidia*",
}
_MAX_FRAME = 8 << 20
# Starting Python and nvmlInit without persistence mode both take seconds.
_START_SECONDS = 10.0
_BACKOFF = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
# Children that SIGKILL does not end sit in the driver; more of them would only pile up there.
_MAX_STUCK = 3


@dataclass(frozen=True, slots=True)
class Device:
    """
    One device at one reading.

    ``gauges`` and ``counters`` are keyed by (quantity, label values) in base units; what the
    device does not offer is absent. ``pids`` is None where the driver does not tell.
    """

    gpu: str
    uuid: str
    model: str = ""
    pci: str = ""
    vbios: str = ""
    mig: str = ""
    up: bool = True
    reason: str = ""
    gauges: Mapping[Key, float] = field(default_factory=dict)
    counters: Mapping[Key, float] = field(default_factory=dict)
    pids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """All devices of one cycle; ``wall`` is when it ended, as a Unix time."""

    wall: float
    devices: tuple[Device, ...]
    driver_version: str = ""
    cuda_version: str = ""


def pci_address(text: str) -> str:
    """Return *text* as ``dddd:bb:dd.f`` in lower case with a domain of four digits, or as it is."""
    parts = text.strip().lower().split(":")
    if len(parts) == 2:
        parts.insert(0, "0000")
    if len(parts) != 3:
        return text.strip().lower()
    domain = parts[0].lstrip("0").rjust(4, "0")
    return f"{domain}:{parts[1]}:{parts[2]}" + ("" if "." in parts[2] else ".0")


class _Hung(Exception):
    def __init__(self, index: int | None) -> None:
        super().__init__(f"no answer at device {index}" if index is not None else "no answer")
        self.index = index


class _Ended(Exception):
    """The child ended or sent something that is no frame."""


class _Child:
    """One child process and the frames it sends."""

    def __init__(self, library: Path | None) -> None:
        command = [sys.executable, "-m", "tocsin_exporter.sources.nvml_child"]
        if library is not None:
            command.append(str(library))
        # One arena: the child allocates little, and the default of eight per core costs memory.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "MALLOC_ARENA_MAX": "1"},
            bufsize=0,
            close_fds=True,
        )
        self._buffer = b""

    def ask(self, last: list[int]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"last": last}).encode() + b"\n")
        except OSError as err:
            raise _Ended(str(err)) from err

    def frame(self, deadline: float) -> dict[str, Any]:
        """Return the next frame; raises TimeoutError at *deadline* (monotonic)."""
        while True:
            if len(self._buffer) >= 4:
                (length,) = struct.unpack(">I", self._buffer[:4])
                if length > _MAX_FRAME:
                    raise _Ended(f"frame of {length} bytes")
                if len(self._buffer) >= 4 + length:
                    body, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
                    try:
                        message = json.loads(body)
                    except ValueError as err:
                        raise _Ended(f"not JSON: {err}") from err
                    if not isinstance(message, dict):
                        raise _Ended("not an object")
                    return message
            self._buffer += self._read(deadline)

    def _read(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        data = os.read(descriptor, 65536)
        if not data:
            raise _Ended("the child ended")
        return data

    def kill(self) -> bool:
        """Kill the child; return False when it does not die."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return False
        return True


class NvmlSource(PollingSource[NvmlReading]):
    """
    Reads all devices every *interval* seconds, each cycle within *deadline* seconds.

    When a cycle hangs, the devices that answered are published, the others are marked, and the
    child is killed and started again with a growing pause. ``devices()`` tells of every device
    ever seen, hung and lost ones included.
    """

    def __init__(
        self,
        library: Path | None,
        interval: float,
        deadline: float,
        max_age: float,
        errors: ErrorCounter,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("nvml", interval, max_age, errors)
        self._library = library
        self._deadline = deadline
        self._clock = clock
        self._wall = wall
        self._child: _Child | None = None
        self._stuck: list[_Child] = []
        self._failures = 0
        self._not_before = 0.0
        self._suspects: list[int] = []
        self._lock = threading.Lock()
        self._known: dict[str, Device] = {}
        self._failure: tuple[str, str] | None = None
        self._throttled: dict[tuple[str, str], float] = {}
        self._read_at: dict[str, float] = {}

    def devices(self) -> tuple[Device, ...]:
        """Return every device seen so far, each as last read, with ``up`` and ``reason`` as of now."""
        with self._lock:
            failure = self._failure
            known = tuple(self._known[uuid] for uuid in sorted(self._known, key=lambda uuid: self._known[uuid].gpu))
        if failure is None:
            return known
        return tuple(replace(device, up=False, reason=device.reason or failure[0]) if device.up else device for device in known)

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def failed(self, reason: str, detail: str) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = (reason, detail)

    def read(self) -> NvmlReading:
        try:
            reading = self._cycle()
        except _Hung as err:
            self._drop_child("hung")
            detail = f"the driver did not answer within {self._deadline:g} s ({err}); its child was killed"
            self._suspect(err.index)
            raise CollectError("hung", detail) from err
        except (_Ended, OSError) as err:
            self._drop_child("ended")
            raise CollectError("bad_data", f"the NVML child failed: {err}") from err
        self._failures = 0
        self._suspects.clear()
        with self._lock:
            self._failure = None
        return reading

    def _cycle(self) -> NvmlReading:
        child = self._running()
        devices: list[Device] = []
        current: int | None = None
        deadline = self._clock() + self._deadline
        child.ask(self._suspects)
        while True:
            try:
                frame = child.frame(deadline)
            except TimeoutError:
                self._publish_partial(devices)
                raise _Hung(current) from None
            if "begin" in frame:
                current = int(frame["begin"])
            elif "device" in frame:
                device = self._device(frame["device"])
                if device is not None:
                    devices.append(device)
            elif "end" in frame:
                end = frame["end"]
                self._note(devices, complete=True)
                return NvmlReading(
                    self._wall(),
                    tuple(devices),
                    str(end.get("driver_version", "")),
                    str(end.get("cuda_version", "")),
                )
            elif "fail" in frame:
                self._drop_child("failed")
                raise _failure(frame["fail"])
            else:
                raise _Ended(f"unexpected frame {sorted(frame)}")

    def _running(self) -> _Child:
        """Return a child that has initialised NVML."""
        self._stuck = [child for child in self._stuck if child.process.poll() is None]
        if self._child is not None:
            return self._child
        now = self._clock()
        if now < self._not_before:
            with self._lock:
                reason, detail = self._failure or ("timeout", "waiting to start the NVML child again")
            raise CollectError(reason, detail)
        if len(self._stuck) >= _MAX_STUCK:
            raise CollectError("hung", f"{len(self._stuck)} NVML children are stuck in the driver; reboot the node")
        child = _Child(self._library)
        self._child = child
        try:
            frame = child.frame(now + max(_START_SECONDS, self._deadline))
        except TimeoutError:
            raise _Hung(None) from None
        if "fail" in frame:
            self._drop_child("failed")
            raise _failure(frame["fail"])
        return child

    def _drop_child(self, why: str) -> None:
        child, self._child = self._child, None
        pause = _BACKOFF[min(self._failures, len(_BACKOFF) - 1)]
        self._failures += 1
        self._not_before = self._clock() + pause
        if child is not None and not child.kill():
            self._stuck.append(child)
            log.error("NVML child does not die, it is left in the driver pid=%d", child.process.pid)
        log.warning("NVML child %s, next start in %.0f s", why, pause)

    def _suspect(self, index: int | None) -> None:
        """Read *index* last from now on, so that it cannot hide the devices behind it."""
        if index is None:
            return
        if index not in self._suspects:
            self._suspects.append(index)
        with self._lock:
            for uuid, device in self._known.items():
                if device.gpu == str(index):
                    self._known[uuid] = replace(device, up=False, reason="hung")

    def _publish_partial(self, devices: list[Device]) -> None:
        """Serve the devices that answered before one of them hung."""
        if not devices:
            return
        self._note(devices, complete=False)
        reading = NvmlReading(self._wall(), tuple(devices))
        self.latest.put(reading)
        for listener in self._listeners:
            listener(reading)

    def _note(self, devices: list[Device], *, complete: bool) -> None:
        seen = {device.uuid for device in devices}
        with self._lock:
            for device in devices:
                self._known[device.uuid] = device
            if complete:
                for uuid, device in self._known.items():
                    if uuid not in seen:
                        # It was there and the driver no longer lists it.
                        self._known[uuid] = replace(device, up=False, reason="missing")

    def _device(self, raw: Mapping[str, Any]) -> Device | None:
        index = str(raw["index"])
        uuid = str(raw.get("uuid") or "")
        if not uuid:
            # Lost before this child saw it: the identity is the one an earlier child read.
            with self._lock:
                before = [device for device in self._known.values() if device.gpu == index]
            return replace(before[0], up=False, reason=str(raw["reason"])) if before else None
        gauges: dict[Key, float] = {}
        counters: dict[Key, float] = {}
        for name, value in raw.get("gauges", {}).items():
            if name == "energy_joules":
                counters[("energy_joules_total", ())] = value
            elif name == "pcie_replays":
                counters[("pcie_replays_total", ())] = value
            else:
                gauges[(name, ())] = value
        self._throttle(uuid, raw.get("throttle"), gauges, counters)
        for name, count in raw.get("ecc", {}).items():
            severity, _, memory = name.partition("/")
            counters[("ecc_errors_total", (severity, memory))] = count
        remaps = raw.get("remaps", {})
        for severity in ("corrected", "uncorrected"):
            if severity in remaps:
                counters[("row_remaps_total", (severity,))] = remaps[severity]
        for state in ("pending", "failed"):
            if state in remaps:
                gauges[(f"row_remap_{state}", ())] = float(bool(remaps[state]))
        pids = raw.get("pids")
        return Device(
            gpu=index,
            uuid=uuid,
            model=str(raw.get("model", "")),
            pci=pci_address(str(raw.get("pci", ""))),
            vbios=str(raw.get("vbios", "")),
            up=bool(raw["up"]),
            reason=str(raw["reason"]),
            gauges=gauges,
            counters=counters,
            pids=None if pids is None else tuple(pids),
        )

    def _throttle(
        self, uuid: str, mask: int | None, gauges: dict[Key, float], counters: dict[Key, float]
    ) -> None:
        """Turn the reason bits into states, and into seconds by holding each state since the reading before."""
        now = self._clock()
        before = self._read_at.get(uuid)
        self._read_at[uuid] = now
        if mask is None:
            return
        # After a hang nobody knows what held the clock down meanwhile.
        passed = now - before if before is not None and now - before <= 3 * self._interval else 0.0
        for reason, bit in THROTTLE_REASONS.items():
            active = bool(mask & bit)
            gauges[("throttle_active", (reason,))] = float(active)
            total = self._throttled.get((uuid, reason), 0.0) + (passed if active else 0.0)
            self._throttled[(uuid, reason)] = total
            counters[("throttle_seconds_total", (reason,))] = total


def _failure(raw: Mapping[str, Any]) -> CollectError:
    reason = _REASONS.get(int(raw.get("code", 0)), "bad_data")
    hint = _HINTS.get(reason, "see the driver's log")
    return CollectError(reason, f"NVML: {raw.get('name')} (code {raw.get('code')}); {hint}")
