"""
The driver's own events: a thread that waits for them and hands each on.

Waiting blocks by design, so it never happens between readings. The set of events is made anew
after an error and when devices come or go. Never run on hardware: which events a board supports is
asked, and public reports say that some Xids never arrive here, so the kernel log is read as well.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from tocsin_exporter.sources.nvml.calls import Error, Library
from tocsin_exporter.sources.nvml.results import SUCCESS, TIMEOUT, UNSUPPORTED
from tocsin_exporter.sources.nvml.structures import EventData

__all__ = ["EVENT_TYPES", "Watcher"]

# nvml.h, nvmlEventType*. Not among them: performance states, clocks and single corrected errors, which
# come by the thousand and say nothing.
EVENT_TYPES = {
    0x2: "ecc_double_bit",
    0x8: "xid",
    0x100: "mig_config",
    0x200: "ecc_single_bit_storm",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "poison_nonfatal",
    0x2000: "poison_fatal",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}
_WANTED = sum(EVENT_TYPES)
_WAIT_MILLISECONDS = 1000
_PAUSES = (1.0, 5.0, 30.0)
_NO_INSTANCE = 0xFFFFFFFF


class Watcher(threading.Thread):
    """
    Waits for events of the devices that `watch` names.

    *emit* gets ``{"index", "uuid", "type", "code", "mig", "wall"}``: ``code`` is the event's data (the
    Xid for ``xid``), ``mig`` is ``<gpu instance>/<compute instance>`` or empty, ``wall`` is when it arrived.
    """

    def __init__(
        self, library: Library, emit: Callable[[dict[str, Any]], None], wall: Callable[[], float] = time.time
    ) -> None:
        super().__init__(name="nvml-events", daemon=True)
        self._library = library
        self._emit = emit
        self._wall = wall
        self._stopping = threading.Event()
        self._wanted: frozenset[int] = frozenset()
        # On how many devices events are registered now.
        self.registered = 0

    def watch(self, indices: frozenset[int]) -> None:
        """Watch these devices from now on."""
        self._wanted = indices
        # It may have ended already, where the driver has no events: a thread starts once.
        if indices and self.ident is None and not self._stopping.is_set():
            self.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """End the thread and release the events; return whether it ended in time."""
        self._stopping.set()
        if self.is_alive():
            self.join(timeout)
        return not self.is_alive()

    def run(self) -> None:
        """Wait, hand on, begin anew."""
        failures = 0
        while not self._stopping.is_set():
            try:
                if not self._watch():
                    return
                failures = 0
            except Error:
                self._stopping.wait(_PAUSES[min(failures, len(_PAUSES) - 1)])
                failures += 1

    def _watch(self) -> bool:
        """Watch until the devices change; return False where the driver has no events. Raises `Error`."""
        wanted, library = self._wanted, self._library
        events = ctypes.c_void_p()
        code = library.call("nvmlEventSetCreate", ctypes.byref(events))
        if code in UNSUPPORTED:
            return False
        if code != SUCCESS:
            raise Error(code)
        try:
            devices = self._register(events, wanted)
            self.registered = len(devices)
            data = EventData()
            while wanted == self._wanted and not self._stopping.is_set():
                code = library.call(
                    "nvmlEventSetWait_v2", events, ctypes.byref(data), ctypes.c_uint(_WAIT_MILLISECONDS)
                )
                if code == SUCCESS:
                    self._tell(data, devices)
                elif code in UNSUPPORTED:
                    return False
                elif code != TIMEOUT:
                    raise Error(code)
        finally:
            self.registered = 0
            library.call("nvmlEventSetFree", events)
        return True

    def _register(self, events: Any, wanted: frozenset[int]) -> dict[int, tuple[int, str]]:
        """Register what each device supports; return address of the handle -> index and UUID."""
        library = self._library
        devices: dict[int, tuple[int, str]] = {}
        for index in sorted(wanted):
            handle = ctypes.c_void_p()
            code = library.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            if code != SUCCESS or not handle.value:
                continue
            try:
                uuid = library.text("nvmlDeviceGetUUID", handle)
                types = (library.ask("nvmlDeviceGetSupportedEventTypes", handle) or 0) & _WANTED
            except Error:
                continue
            if types:
                library.call("nvmlDeviceRegisterEvents", handle, ctypes.c_uint64(types), events)
                devices[handle.value] = (index, uuid)
        return devices

    def _tell(self, data: Any, devices: dict[int, tuple[int, str]]) -> None:
        index, uuid = devices.get(data.device or 0, (-1, ""))
        instances = (data.gpuInstanceId, data.computeInstanceId)
        self._emit(
            {
                "index": index,
                "uuid": uuid,
                "type": EVENT_TYPES.get(data.eventType, f"0x{data.eventType:x}"),
                "code": data.eventData,
                "mig": "" if _NO_INSTANCE in instances else f"{instances[0]}/{instances[1]}",
                "wall": self._wall(),
            }
        )
