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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from tocsin_exporter.errors import CollectError
from tocsin_exporter.sources.latest import ErrorCounter, PollingSource
from tocsin_exporter.sources.nvml.model import Device, Key, NvmlReading, pci_address
from tocsin_exporter.sources.nvml.quantities import FABRIC, QUANTITIES

__all__ = ["NvmlSource"]

log = logging.getLogger(__name__)

# nvmlReturn_t values that mean something to the operator of a node.
_REASONS = {
    4: "no_permission",
    9: "no_driver",
    10: "timeout",
    12: "no_library",
    13: "unsupported",
    18: "no_driver",
}
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


class _EndedError(Exception):
    """The child ended or sent something that is no frame."""


class _Child:
    """One child process and the frames it sends."""

    def __init__(self, command: Sequence[str]) -> None:
        # One arena: the child allocates little, and the default of eight per core costs memory.
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "MALLOC_ARENA_MAX": "1"},
            bufsize=0,
            close_fds=True,
        )
        if self.process.stdin is None or self.process.stdout is None:
            raise OSError("no pipes to the NVML child")
        self._requests, self._frames = self.process.stdin, self.process.stdout
        self._buffer = b""

    def ask(self, last: list[int], skip: list[int]) -> None:
        try:
            self._requests.write(json.dumps({"last": last, "skip": skip}).encode() + b"\n")
        except OSError as err:
            raise _EndedError(str(err)) from err

    def frame(self, deadline: float) -> dict[str, Any]:
        """Return the next frame; raises TimeoutError at *deadline* (monotonic)."""
        while True:
            if len(self._buffer) >= 4:
                (length,) = struct.unpack(">I", self._buffer[:4])
                if length > _MAX_FRAME:
                    raise _EndedError(f"frame of {length} bytes")
                if len(self._buffer) >= 4 + length:
                    body, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
                    try:
                        message = json.loads(body)
                    except ValueError as err:
                        raise _EndedError(f"not JSON: {err}") from err
                    if not isinstance(message, dict):
                        raise _EndedError("not an object")
                    return message
            self._buffer += self._read(deadline)

    def _read(self, deadline: float) -> bytes:
        descriptor = self._frames.fileno()
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        data = os.read(descriptor, 65536)
        if not data:
            raise _EndedError("the child ended")
        return data

    def kill(self) -> bool:
        """Kill the child; return False when it does not die."""
        self.process.kill()
        self._requests.close()
        self._frames.close()
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
    ever seen, hung and lost ones included. *command* replaces the child, for one that speaks the
    same frames.
    """

    def __init__(
        self,
        library: Path | None,
        interval: float,
        deadline: float,
        max_age: float,
        errors: ErrorCounter,
        *,
        tier: str = FABRIC,
        sysfs: Path = Path("/sys"),
        procfs: Path = Path("/proc"),
        command: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("nvml", interval, max_age, errors)
        # -P: nothing is imported from the folder the exporter was started in.
        settings = {"tier": tier, "sysfs": str(sysfs), "procfs": str(procfs)}
        if library is not None:
            settings["library"] = str(library)
        self._command = command or (
            *(sys.executable, "-P", "-m", "tocsin_exporter.sources.nvml.child"),
            json.dumps(settings),
        )
        self._deadline = deadline
        self._clock = clock
        self._wall = wall
        self._child: _Child | None = None
        self._stuck: list[_Child] = []
        self._failures = 0
        self._not_before = 0.0
        # Devices at which a cycle hung: how often, and until when they are left alone.
        self._suspects: dict[int, tuple[int, float]] = {}
        self._answered: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._known: dict[str, Device] = {}
        self._remembered: tuple[Device, ...] = ()
        self._failure = ""
        self._why = ("timeout", "")

    def devices(self) -> tuple[Device, ...]:
        """Return every device seen so far, each as last read, with ``up`` and ``reason`` as of now."""
        with self._lock:
            failure, answered = self._failure, self._answered
            known = sorted(self._known.values(), key=lambda device: (len(device.gpu), device.gpu))
        return tuple(
            replace(device, up=False, reason=failure)
            if failure and device.up and device.uuid not in answered
            else device
            for device in known
        )

    def remember(self, devices: tuple[Device, ...]) -> None:
        """Take in devices of before a restart: one that does not show up again is missing, not unheard of."""
        self._remembered = devices

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def read(self) -> NvmlReading:
        with self._lock:
            self._answered = frozenset()
        try:
            reading = self._cycle()
        except (_EndedError, OSError) as err:
            self._drop_child("ended")
            self._pause()
            raise CollectError("bad_data", f"the NVML child failed: {err}") from err
        self._failures = 0
        with self._lock:
            self._failure = ""
        return reading

    def _cycle(self) -> NvmlReading:
        child = self._running()
        now = self._clock()
        skip = [index for index, (_, until) in self._suspects.items() if now < until]
        child.ask([index for index in self._suspects if index not in skip], skip)
        devices: list[Device] = []
        current: int | None = None
        while True:
            try:
                frame = child.frame(now + self._deadline)
            except TimeoutError:
                self._hung(current, devices)
            if "begin" in frame:
                current = int(frame["begin"])
            elif "device" in frame:
                if current is not None:
                    self._suspects.pop(current, None)
                if frame["device"].get("rejected"):
                    self._errors.add(self.name, "bad_data", int(frame["device"]["rejected"]))
                device = self._device(frame["device"])
                if device is not None:
                    devices.append(device)
            elif "event" in frame:
                continue
            elif "end" in frame:
                return self._finished(devices, frame["end"], skip)
            elif "fail" in frame:
                self._drop_child("failed")
                self._pause()
                raise _failure(frame["fail"])
            else:
                raise _EndedError(f"unexpected frame {sorted(frame)}")

    def _finished(self, devices: list[Device], end: Mapping[str, Any], skip: list[int]) -> NvmlReading:
        self._note(devices, complete=True, skipped=skip)
        reading = NvmlReading(
            self._wall(), tuple(devices), str(end.get("driver_version", "")), str(end.get("cuda_version", ""))
        )
        if skip:
            self.publish(reading)
            raise CollectError(
                "hung", f"the driver hangs at device {', '.join(map(str, skip))}; it is tried again later"
            )
        return reading

    def _hung(self, current: int | None, devices: list[Device]) -> NoReturn:
        """Serve what answered, mark what did not, and end the child."""
        self._drop_child("hung")
        if current is not None:
            times = self._suspects.get(current, (0, 0.0))[0] + 1
            self._suspects[current] = (times, self._clock() + _BACKOFF[min(times, len(_BACKOFF) - 1)])
        if devices:
            # One device hangs, not the driver: the others are read again at once.
            self._note(devices, complete=False, skipped=[])
            self.publish(NvmlReading(self._wall(), tuple(devices)))
        else:
            self._pause()
        with self._lock:
            for uuid, device in self._known.items():
                if device.gpu == str(current):
                    self._known[uuid] = replace(device, up=False, reason="hung")
        where = "in its start" if current is None else f"at device {current}"
        raise CollectError(
            "hung", f"the driver did not answer {where} within {self._deadline:g} s; its child was killed"
        )

    def _running(self) -> _Child:
        """Return a child that has initialised NVML."""
        self._stuck = [child for child in self._stuck if child.process.poll() is None]
        if self._child is not None:
            return self._child
        now = self._clock()
        if now < self._not_before:
            raise CollectError(self._why[0], f"{self._why[1]}; next try in {self._not_before - now:.0f} s")
        if len(self._stuck) >= _MAX_STUCK:
            raise CollectError(
                "hung", f"{len(self._stuck)} NVML children are stuck in the driver; reboot the node"
            )
        self._child = _Child(self._command)
        try:
            frame = self._child.frame(now + max(_START_SECONDS, self._deadline))
        except TimeoutError:
            self._hung(None, [])
        if "fail" in frame:
            self._drop_child("failed")
            self._pause()
            raise _failure(frame["fail"])
        return self._child

    def failed(self, reason: str, detail: str) -> None:
        if self._clock() >= self._not_before or not self._why[1]:
            self._why = (reason, detail)
        self._recall()
        with self._lock:
            self._failure = reason

    def _drop_child(self, why: str) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        log.info("NVML child %s, ending it pid=%d", why, child.process.pid)
        if not child.kill():
            self._stuck.append(child)
            log.error("NVML child does not die, it is left in the driver pid=%d", child.process.pid)

    def _pause(self) -> None:
        self._not_before = self._clock() + _BACKOFF[min(self._failures, len(_BACKOFF) - 1)]
        self._failures += 1

    def _recall(self) -> None:
        """Once the driver has answered or failed, the devices of before the restart are judged with it."""
        devices, self._remembered = self._remembered, ()
        with self._lock:
            for device in devices:
                self._known.setdefault(device.uuid, device)

    def _note(self, devices: list[Device], *, complete: bool, skipped: list[int]) -> None:
        seen = {device.uuid for device in devices}
        self._recall()
        with self._lock:
            self._answered = frozenset(seen)
            for device in devices:
                self._known[device.uuid] = device
            for uuid, device in self._known.items():
                if complete and uuid not in seen and int(device.gpu) not in skipped:
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
        for name, labels, value in raw.get("values", ()):
            quantity = QUANTITIES.get(name)
            if quantity is None:
                continue
            values = counters if quantity.counter else gauges
            values[(name, tuple(labels))] = value
        pids = raw.get("pids")
        return Device(
            gpu=index,
            uuid=uuid,
            model=str(raw.get("model", "")),
            pci=pci_address(str(raw.get("pci", ""))),
            vbios=str(raw.get("vbios", "")),
            mig=str(raw.get("mig", "")),
            info={str(name): str(value) for name, value in raw.get("info", {}).items()},
            up=bool(raw["up"]),
            reason=str(raw["reason"]),
            gauges=gauges,
            counters=counters,
            pids=None if pids is None else tuple(pids),
            processes=tuple((int(p[0]), str(p[1]), p[2], str(p[3])) for p in raw.get("processes", ())),
            limits={str(path): tuple(limit) for path, limit in raw.get("limits", {}).items()},
        )


def _failure(raw: Mapping[str, Any]) -> CollectError:
    reason = _REASONS.get(int(raw.get("code", 0)), "bad_data")
    hint = _HINTS.get(reason, "see the driver's log")
    return CollectError(reason, f"NVML: {raw.get('name')} (code {raw.get('code')}); {hint}")
