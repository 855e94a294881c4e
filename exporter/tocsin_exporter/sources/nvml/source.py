"""The driver's view of the devices, read by a child process that can be killed when the driver hangs."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tocsin_exporter.errors import CollectError
from tocsin_exporter.sources.latest import ErrorCounter, PollingSource
from tocsin_exporter.sources.nvml.devices import Devices, driver_event, mapping, parse
from tocsin_exporter.sources.nvml.failures import RefusedError, refusal
from tocsin_exporter.sources.nvml.model import Device, DriverEvent, HungCall, NvmlReading
from tocsin_exporter.sources.nvml.probe import MOST_STUCK, Crew, Probe
from tocsin_exporter.sources.nvml.process import Child, EndedError
from tocsin_exporter.sources.nvml.progress import NO_DEVICE, OTHER_CALL, Call
from tocsin_exporter.sources.nvml.quantities import FABRIC
from tocsin_exporter.sources.nvml.suspects import Suspects
from tocsin_exporter.sources.nvml.watch import HangError, HangWatch

__all__ = ["NvmlSource", "Released"]

log = logging.getLogger(__name__)

# nvmlInit without persistence mode attaches each board: half a minute has been seen on full nodes.
START_SECONDS = 60.0
# The same for one board, when it is opened.
ATTACH_SECONDS = 15.0
# How long one reading waits for it before it says that the driver is still starting.
_START_PATIENCE = 10.0
_BACKOFF = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
# Devices that may be found hanging in one reading; each costs a call's deadline and a new child.
_MOST_HANGS = 4
_SLICE_SECONDS = 0.25
_RELEASE_SECONDS = 3.0
# The child needs a tenth; a library that leaks is started anew instead, if not too often.
MOST_MEMORY = 192 << 20
RECYCLE_SECONDS = 600.0
# Frames of one cycle: boards and their instances, each with a beginning.
_MOST_FRAMES = 1024


class _QuietError(Exception):
    """The handles are to be given back at once."""


class Released:
    """What became of the handles: ``ok`` when nothing of ours is left in the driver."""

    def __init__(self, ok: bool, detail: str) -> None:
        self.ok, self.detail = ok, detail


class NvmlSource(PollingSource[NvmlReading]):
    """
    Reads all devices every *interval* seconds, each cycle within about *deadline* seconds.

    A call that takes longer than *call_deadline*, or a device that takes longer than *deadline*, hangs: the
    child is killed, the device is left out and tried again by a child of its own, and the others are read on
    in the same cycle. ``devices()`` tells of every device ever seen, hung and lost ones included; ``latest``
    has numbers of those only that answer. *command* replaces the child, for one that speaks the same frames.
    """

    def __init__(
        self,
        library: Path | None,
        interval: float,
        deadline: float,
        max_age: float,
        errors: ErrorCounter,
        *,
        call_deadline: float = 2.0,
        tier: str = FABRIC,
        sysfs: Path = Path("/sys"),
        procfs: Path = Path("/proc"),
        command: Sequence[str] = (),
        most_memory: int = MOST_MEMORY,
        recycle_seconds: float = RECYCLE_SECONDS,
        start_seconds: float = START_SECONDS,
        attach_seconds: float = ATTACH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("nvml", interval, max_age, errors)
        # -P: nothing is imported from the folder the exporter was started in.
        settings = {"tier": tier, "sysfs": str(sysfs), "procfs": str(procfs)}
        if library is not None:
            settings["library"] = str(library)
        self._command = tuple(command) or (
            *(sys.executable, "-P", "-m", "tocsin_exporter.sources.nvml.child"),
            json.dumps(settings),
        )
        self._deadline, self._call_deadline = deadline, call_deadline
        self._most_memory, self._recycle_seconds = most_memory, recycle_seconds
        self._start_seconds, self._attach_seconds = start_seconds, attach_seconds
        self._recycled_at = -recycle_seconds
        self._clock, self._wall = clock, wall
        self._known = Devices(max_age)
        self._suspects = Suspects()
        self._child: Child | None = None
        self._crew = Crew()
        self._probe = Probe(
            self._command, self._crew, self._suspects, self._watch, start_seconds, clock
        )
        self._failures = 0
        self._not_before = 0.0
        self._why = RefusedError("timeout", "timeout", "")
        self._left: set[int] = set()
        self._count: int | None = None
        self._versions: tuple[str, str] = ("", "")
        self._registered = 0
        # A call that hangs and belongs to no device, and when it began.
        self._driver_hang: tuple[str, float] | None = None
        self._event_listeners: list[Callable[[DriverEvent], None]] = []
        self._woken = False
        self._quiet_until = self._quiet_wall = 0.0
        # Whether the reading thread has let go.
        self._quiet = False
        self._given_back = threading.Event()
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._waker)

    # What others ask, from any thread.

    def devices(self) -> tuple[Device, ...]:
        """Return every device seen so far, with ``up`` and ``reason`` as of now."""
        return self._known.all()

    def versions(self) -> tuple[str, str]:
        """Return the versions of driver and CUDA as last read."""
        return self._versions

    def remember(self, devices: tuple[Device, ...]) -> None:
        """Take in devices of before a restart: one that does not show up again is missing, not unheard of."""
        self._known.remember(devices)

    def listen_events(self, listener: Callable[[DriverEvent], None]) -> None:
        """Call *listener* with each event as it arrives, from the reading thread; add before the start."""
        self._event_listeners.append(listener)

    def hung_calls(self) -> tuple[HungCall, ...]:
        """Return the calls that did not return and whose devices have not answered since."""
        now = self._clock()
        calls = []
        for suspect in self._suspects.all():
            if suspect.reason != "hung":
                continue
            board = self._known.at(suspect.index)
            calls.append(
                HungCall(str(suspect.index), board.uuid if board else "", suspect.call, now - suspect.since)
            )
        hang = self._driver_hang
        if hang is not None:
            calls.append(HungCall("", "", hang[0], now - hang[1]))
        return tuple(calls)

    def child_ends(self) -> dict[str, int]:
        """Return how many children ended, by why."""
        return dict(self._crew.ends)

    def registered(self) -> int:
        """Return on how many devices the driver's events are awaited."""
        return self._registered

    def stuck(self) -> int:
        """Return how many children SIGKILL has not ended."""
        return len(self._crew.stuck)

    def quiet_until(self) -> float | None:
        """Return until when the driver is left alone, as a Unix time, or None."""
        return self._quiet_wall if self._clock() < self._quiet_until else None

    def quiesce(self, seconds: float, patience: float = 15.0) -> Released:
        """Give all handles back and leave the driver alone for *seconds*, or for longer if that was asked."""
        self._given_back.clear()
        until = self._clock() + seconds
        if until > self._quiet_until:
            self._quiet_until, self._quiet_wall = until, self._wall() + seconds
        self.poke()
        if self._thread.is_alive() and not self._given_back.wait(patience):
            return Released(False, f"the reading thread did not answer within {patience:g} s")
        if stuck := [child.process.pid for child in self._crew.stuck]:
            return Released(
                False, f"processes {stuck} do not die: they hang in the driver; the reset needs a reboot"
            )
        return Released(True, "no process of this exporter holds a device")

    def resume(self) -> None:
        """Read again."""
        self._quiet_until = 0.0
        self.poke()

    def poke(self) -> None:
        """Read now rather than at the next interval."""
        super().poke()
        os.eventfd_write(self._waker, 1)

    def stop(self) -> None:
        """Stop; the children are killed."""
        self._stopping.set()
        os.eventfd_write(self._waker, 1)
        super().stop()

    def close(self) -> None:
        """End the children."""
        self._drop("")
        self._probe.stop("")

    # The cycle.

    def read(self) -> NvmlReading:
        """Read all devices but the suspects; raises CollectError when any is missing in the reading."""
        self._crew.reap()
        try:
            self._refuse_when_quiet()
            left = self._all_devices()
        except _QuietError:
            self._give_back()
            seconds = self._quiet_until - self._clock()
            raise self._failed(
                RefusedError("disabled", "quiesced", f"quiesced for another {max(seconds, 0):.0f} s")
            ) from None
        except RefusedError as err:
            raise self._failed(err) from None
        except Exception:
            # A bug: the child may be in the middle of a cycle, and its next answer that of another question.
            self._drop("failed")
            raise
        self._failures = 0
        self._driver_hang = None
        reading = self._reading()
        suspects = self._suspects.all()
        if suspects or left:
            self.publish(reading)
        if suspects:
            now = self._clock()
            told = ", ".join(
                f"{row.reason} at device {row.index} in {row.call} since {now - row.since:.0f} s"
                for row in suspects
            )
            hangs = any(row.reason == "hung" for row in suspects)
            raise CollectError("hung" if hangs else "bad_data", f"{told}; tried again and again")
        if left:
            raise CollectError(
                "timeout", f"devices {sorted(left)} were not reached within {self._deadline:g} s"
            )
        return reading

    def _all_devices(self) -> set[int]:
        """Read every device that may be read; return those for which the time did not suffice."""
        read: set[str] = set()
        done: set[int] = set()
        crashed: Call | None = None
        retried = False
        for _ in range(_MOST_HANGS):
            child = self._running()
            try:
                end = self._cycle(child, read, done)
                return self._finished(child, end, read)
            except (EndedError, ValueError, TypeError) as err:
                call, first = child.call(), not retried
                self._drop(err.why if isinstance(err, EndedError) else "ended")
                if first:
                    # Killed by somebody, perhaps: a new one reads on before anybody misses a number.
                    crashed, retried = call, True
                elif call is not None and call.device != NO_DEVICE and _same(call, crashed):
                    # Twice at one device is the device's doing, or the library's with it.
                    self._crashed(call)
                else:
                    self._pause()
                    raise _broken(f"failed: {err}") from err
            except HangError as hang:
                self._hung(hang)
        raise RefusedError("hung", "hung", f"the driver hangs at {_MOST_HANGS} devices in a row")

    def _cycle(self, child: Child, read: set[str], done: set[int]) -> Mapping[str, Any]:
        """Take in the rows of one request; return its last frame."""
        skip = sorted({*self._suspects.indices(), *done})
        child.ask({"first": sorted(self._left), "skip": skip, "seconds": self._deadline})
        watch = self._watch()
        current = NO_DEVICE
        end = self._clock() + 2 * self._deadline + max(self._attach_seconds, self._call_deadline)
        for _ in range(_MOST_FRAMES):
            if self._clock() > end:
                break
            frame = self._next(child, watch, current)
            if "begin" in frame:
                current = int(frame["begin"])
            elif "device" in frame:
                self._take(frame["device"], current, read)
                done.add(current)
            elif "end" in frame:
                child.proven = True
                return mapping(frame["end"])
            elif "fail" in frame:
                self._refused(frame["fail"])
            else:
                raise EndedError(f"it sent an unknown frame {sorted(frame)[:3]}")
        raise EndedError("its answer does not come to an end")

    def _take(self, raw: Any, current: int, read: set[str]) -> None:
        now = self._clock()
        try:
            device = parse(mapping(raw))
            if rejected := raw.get("rejected"):
                self._errors.add(self.name, "bad_data", int(rejected))
            device = self._known.take(device, now)
        except (ValueError, TypeError) as err:
            self._errors.add(self.name, "bad_data")
            log.debug("a device's row cannot be read device=%d: %s", current, err)
            self._known.down(current, "bad_data")
            if (board := self._known.at(current)) is not None:
                read.add(board.uuid)
            return
        if device.uuid:
            read.add(device.uuid)

    def _finished(self, child: Child, end: Mapping[str, Any], read: set[str]) -> set[int]:
        left = {index for index in end.get("left", ()) if isinstance(index, int)}
        count = end.get("count")
        if self._count is not None and count != self._count:
            # The indices are dealt anew, so nobody knows which device a suspect was.
            self._suspects.clear()
        self._count = count
        self._registered = int(end.get("events") or 0)
        self._left = left
        self._known.settle(read, set(self._suspects.indices()), left, self._clock())
        self._versions = (
            str(end.get("driver_version") or self._versions[0]),
            str(end.get("cuda_version") or self._versions[1]),
        )
        memory, now = child.memory(), self._clock()
        if memory > self._most_memory and now - self._recycled_at >= self._recycle_seconds:
            self._recycled_at = now
            log.warning("NVML child has grown to %d MiB, a new one takes over", memory >> 20)
            child.release(_RELEASE_SECONDS)
            self._drop("memory")
        return left

    def _reading(self) -> NvmlReading:
        return NvmlReading(self._wall(), self._known.named(), *self._versions)

    def _running(self) -> Child:
        """Return a child that has initialised NVML; raises `RefusedError`."""
        now = self._clock()
        if self._child is None:
            if now < self._not_before:
                raise self._why.again(self._not_before - now)
            if self._crew.full():
                raise RefusedError("hung", "hung", f"{MOST_STUCK} children do not die; reboot the node")
            try:
                self._child = Child(self._command)
            except OSError as err:
                self._pause()
                reason = "no_permission" if isinstance(err, PermissionError) else "bad_data"
                raise _broken(f"cannot be started: {err}", reason) from err
        child = self._child
        patient = now + min(_START_PATIENCE, self._start_seconds)
        try:
            while not child.ready:
                frame = self._frame(child)
                now = self._clock()
                if frame is not None and "fail" in frame:
                    self._refused(frame["fail"])
                elif frame is not None:
                    child.ready = "ready" in frame
                elif now - child.started >= self._start_seconds:
                    call = child.call()
                    self._hung(HangError(NO_DEVICE, call.name if call else OTHER_CALL, now - child.started))
                elif now >= patient:
                    why = "hung" if self._driver_hang is not None or self._suspects.all() else "timeout"
                    seconds = now - child.started
                    raise RefusedError(why, why, f"the driver has been starting for {seconds:.0f} s")
                else:
                    self._wait(child, min(patient, now + _SLICE_SECONDS))
                    self._refuse_when_quiet()
        except EndedError as err:
            self._drop(err.why)
            self._pause()
            raise _broken(f"failed at its start: {err}") from err
        return child

    # Waiting.

    def _watch(self) -> HangWatch:
        return HangWatch(self._call_deadline, self._deadline, self._attach_seconds, self._clock)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken = False
            self.read_once()
            self._idle(self._clock() + self._interval)

    def _idle(self, until: float) -> None:
        """Hand on events and look after suspects until *until*, or until there is a reason to read."""
        while not self._woken and not self._stopping.is_set() and (now := self._clock()) < until:
            if self._child is not None and self._child.proven:
                self._probe.start(now)
            times = (until, self._suspects.next(), self._quiet_until if now < self._quiet_until else None)
            next_time = min(time for time in times if time is not None)
            if self._probe.child is not None:
                next_time = now + _SLICE_SECONDS
            child = self._child if self._child is not None and self._child.ready else None
            try:
                self._wait(child, max(next_time, now + 0.01))
                if child is not None and self._frame(child) is not None:
                    raise EndedError("it sent a frame that nobody asked for")
            except EndedError as err:
                log.warning("NVML child failed between readings: %s", err)
                self._drop(err.why)
                if child is not None and self._clock() - child.started > self._interval:
                    return
            if self._quiet and self._clock() >= self._quiet_until:
                self._quiet = False
                log.info("quiesce has expired, the driver is read again")
                return

    def _wait(self, child: Child | None, until: float) -> None:
        """Wait for *child*, the probe or other threads, at most until *until*; raises `EndedError`."""
        probe = self._probe.child
        watched: list[Any] = [self._waker, *(part for part in (child, probe) if part is not None)]
        left = max(0.0, until - self._clock())
        ready, _, _ = select.select(watched, [], [], left)
        if self._waker in ready:
            os.eventfd_read(self._waker)
            self._woken = True
        if probe is not None and self._probe.tend(readable=probe in ready):
            self._woken = True
        if child is not None and child in ready:
            child.pump()

    def _frame(self, child: Child) -> dict[str, Any] | None:
        """Return the next frame that is no event, if one has arrived."""
        while (frame := child.frame()) is not None:
            if "event" not in frame:
                return frame
            self._tell(frame["event"])
        return None

    def _next(self, child: Child, watch: HangWatch, current: int) -> dict[str, Any]:
        """Return the child's next frame; raises `HangError`, or `EndedError` when it is the child's fault."""
        while (frame := self._frame(child)) is None:
            hang = watch.look(child.call(), current)
            if hang is not None:
                if child.stopped():
                    raise EndedError("somebody has stopped it", "stopped")
                raise hang
            self._wait(child, self._clock() + _SLICE_SECONDS)
            self._refuse_when_quiet()
        watch.heard()
        return frame

    def _tell(self, raw: Any) -> None:
        """Hand an event of the driver on; a listener that breaks costs only itself."""
        try:
            event = driver_event(raw)
        except ValueError:
            self._errors.add(self.name, "bad_data")
            return
        if event.type == "mig_config":
            # Instances came or went: the child lists them anew.
            self._woken = True
        for listener in self._event_listeners:
            try:
                listener(event)
            except Exception:
                log.exception("a listener of events failed source=%s", self.name)
                self._errors.add(self.name, "listener")

    def _hung(self, hang: HangError) -> None:
        """End the child; leave the device alone, or raise `RefusedError` when it is not one device's call."""
        began = self._clock() - hang.seconds
        self._drop("hung", hang.index)
        if hang.index == NO_DEVICE:
            if self._driver_hang is None:
                self._driver_hang = (hang.name, began)
                log.error("the driver hangs in %s for %.1f s", hang.name, hang.seconds)
            self._pause()
            raise RefusedError("hung", "hung", f"the driver has not returned from {hang.name}")
        suspect = self._suspects.hung(hang.index, hang.name, began, self._clock())
        self._known.down(hang.index, "hung")
        if suspect.times == 1:
            log.error("the driver hangs at device %d in %s for %.1f s", hang.index, hang.name, hang.seconds)

    # Children.

    def _crashed(self, call: Call) -> None:
        """The library has crashed twice at one device: leave that alone."""
        now = self._clock()
        suspect = self._suspects.hung(call.device, call.name, now, now, "bad_data")
        self._known.down(call.device, "bad_data")
        if suspect.times == 1:
            log.error("the driver's library crashes at device %d in %s", call.device, call.name)

    def _refused(self, raw: Any) -> NoReturn:
        """The child says that the driver cannot be read, and ends; raises `RefusedError`."""
        self._drop("failed")
        self._pause()
        raise refusal(mapping(raw))

    def _failed(self, refused: RefusedError) -> RefusedError:
        """Take all devices down; their numbers go at once, for nobody knows them any more."""
        if not refused.repeated:
            self._why = refused
        if self._known.all_down(refused.up):
            self.publish(self._reading())
        return refused

    def _refuse_when_quiet(self) -> None:
        if self._stopping.is_set() or self._clock() < self._quiet_until:
            raise _QuietError

    def _give_back(self) -> None:
        """Release what is held of the driver."""
        child = self._child
        if child is not None:
            if not self._stopping.is_set() and child.ready and not child.release(_RELEASE_SECONDS):
                log.warning("NVML child keeps its handles, it is killed pid=%d", child.process.pid)
            self._drop("quiesced")
        self._probe.stop("quiesced")
        self._failures, self._not_before, self._quiet = 0, 0.0, True
        self._given_back.set()

    def _drop(self, why: str, held_by: int | None = None) -> None:
        child, self._child = self._child, None
        self._crew.end(child, why, held_by)

    def _pause(self) -> None:
        self._not_before = self._clock() + _BACKOFF[min(self._failures, len(_BACKOFF) - 1)]
        self._failures += 1


def _broken(what: str, reason: str = "bad_data") -> RefusedError:
    return RefusedError(reason, reason, f"the NVML child {what}")


def _same(call: Call, other: Call | None) -> bool:
    return other is not None and call.device == other.device
