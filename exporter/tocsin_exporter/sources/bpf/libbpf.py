"""The part of libbpf (and of the system calls behind it) that the loader uses, typed, through ctypes."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from tocsin_exporter.errors import SourceError

__all__ = ["Handle", "Libbpf", "Ring", "SampleCallback"]

Handle = int
SampleCallback = Callable[[bytes], None]

_NUMBERS = {"x86_64": (321, 298), "aarch64": (280, 241)}
_BPF_LINK_CREATE = 28
_PERF_TYPE_TRACEPOINT = 2
_PERF_FLAG_FD_CLOEXEC = 8
UPROBE_MULTI = 48
_UPROBE_MULTI_RETURN = 1

_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SAMPLE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _UprobeOpts(ctypes.Structure):
    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("ref_ctr_offset", ctypes.c_size_t),
        ("bpf_cookie", ctypes.c_uint64),
        ("retprobe", ctypes.c_bool),
        ("func_name", ctypes.c_char_p),
    ]


class _PerfAttr(ctypes.Structure):
    # PERF_ATTR_SIZE_VER0; what is not named stays 0.
    _fields_ = [
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 3),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
    ]


class _MultiLink(ctypes.Structure):
    # union bpf_attr, member link_create with uprobe_multi.
    _fields_ = [
        ("prog_fd", ctypes.c_uint32),
        ("target_fd", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("path", ctypes.c_uint64),
        ("offsets", ctypes.c_uint64),
        ("ref_ctr_offsets", ctypes.c_uint64),
        ("cookies", ctypes.c_uint64),
        ("cnt", ctypes.c_uint32),
        ("multi_flags", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    ]


_P, _S, _I, _U32, _ST = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_size_t
_PROTOTYPES: dict[str, tuple[object, tuple[object, ...]]] = {
    "libbpf_set_print": (_P, (_PRINT,)),
    "bpf_object__open_file": (_P, (_S, _P)),
    "bpf_object__load": (_I, (_P,)),
    "bpf_object__close": (None, (_P,)),
    "bpf_object__find_program_by_name": (_P, (_P, _S)),
    "bpf_object__next_program": (_P, (_P, _P)),
    "bpf_object__find_map_by_name": (_P, (_P, _S)),
    "bpf_program__name": (_S, (_P,)),
    "bpf_program__fd": (_I, (_P,)),
    "bpf_program__set_autoload": (_I, (_P, ctypes.c_bool)),
    "bpf_program__set_expected_attach_type": (_I, (_P, _I)),
    "bpf_program__attach_uprobe_opts": (_P, (_P, _I, _S, _ST, _P)),
    "bpf_program__attach_perf_event": (_P, (_P, _I)),
    "bpf_program__attach_raw_tracepoint": (_P, (_P, _S)),
    "bpf_link__destroy": (_I, (_P,)),
    "bpf_map__fd": (_I, (_P,)),
    "bpf_map__value_size": (_U32, (_P,)),
    "bpf_map__set_max_entries": (_I, (_P, _U32)),
    "bpf_map__set_initial_value": (_I, (_P, _P, _ST)),
    "bpf_map__initial_value": (_P, (_P, ctypes.POINTER(_ST))),
    "bpf_map__reuse_fd": (_I, (_P, _I)),
    "bpf_map_update_elem": (_I, (_I, _P, _P, ctypes.c_uint64)),
    "bpf_map_delete_elem": (_I, (_I, _P)),
    "ring_buffer__new": (_P, (_I, _SAMPLE, _P, _P)),
    "ring_buffer__consume": (_I, (_P,)),
    "ring_buffer__free": (None, (_P,)),
}


class Libbpf:
    """
    libbpf 1.x. Failing calls raise `SourceError` with what failed and libbpf's last words.

    Handles are addresses that libbpf owns; none may be used after the call that frees it.
    """

    def __init__(self, name: str = "libbpf.so.1") -> None:
        numbers = _NUMBERS.get(platform.machine())
        if numbers is None:
            raise SourceError("unsupported", f"eBPF: no system call numbers known for {platform.machine()}")
        self._bpf_number, self._perf_number = numbers
        try:
            self._lib = ctypes.CDLL(name, use_errno=True)
            self._libc = ctypes.CDLL(None, use_errno=True)
            for function, (result, arguments) in _PROTOTYPES.items():
                prototype = getattr(self._lib, function)
                prototype.restype, prototype.argtypes = result, list(arguments)
        except (OSError, AttributeError) as err:
            raise SourceError("no_library", f"libbpf 1.x is not usable ({err}); install libbpf1") from err
        self._libc.syscall.restype = ctypes.c_long
        self._words: deque[str] = deque(maxlen=40)
        # libbpf keeps the pointer, so the callback must live as long as the process may call it.
        self._print = _PRINT(self._heard)
        self._lib.libbpf_set_print(self._print)

    def _heard(self, level: int, form: bytes, arguments: int) -> int:
        if level <= 1:
            buffer = ctypes.create_string_buffer(2048)
            self._libc.vsnprintf(buffer, ctypes.c_size_t(len(buffer)), form, ctypes.c_void_p(arguments))
            self._words.append(buffer.value.decode(errors="replace").strip())
        return 0

    def close(self) -> None:
        """Stop listening to libbpf's messages."""
        self._lib.libbpf_set_print(_PRINT())

    def _fail(self, what: str, number: int) -> SourceError:
        number = abs(number)
        if number in (errno.EPERM, errno.EACCES):
            # libbpf's own guesses (memory limits, kernel options) would only mislead here.
            needs = "CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN"
            return SourceError("no_permission", f"eBPF: {what}: {os.strerror(number)}; needs {needs}")
        words = "; ".join(list(self._words)[-2:])[:400]
        said = f" ({words})" if words else ""
        return SourceError("unsupported", f"eBPF: {what}: {os.strerror(number)}{said}")

    def _pointer(self, what: str, function: str, *arguments: object) -> Handle:
        self._words.clear()
        result = getattr(self._lib, function)(*arguments)
        if not result:
            raise self._fail(what, ctypes.get_errno())
        return int(result)

    def _status(self, what: str, function: str, *arguments: object) -> None:
        self._words.clear()
        result = getattr(self._lib, function)(*arguments)
        if result < 0:
            raise self._fail(what, result)

    # objects and programs

    def open(self, path: Path) -> Handle:
        """Parse an object file; it is not in the kernel yet."""
        return self._pointer(f"open {path.name}", "bpf_object__open_file", os.fsencode(path), None)

    def load(self, handle: Handle) -> None:
        """Create the maps and load the programs."""
        self._status("load programs", "bpf_object__load", handle)

    def close_object(self, handle: Handle) -> None:
        """Free the object with its programs and maps."""
        self._lib.bpf_object__close(handle)

    def programs(self, handle: Handle) -> dict[str, Handle]:
        """Return the programs of an object by name."""
        found: dict[str, Handle] = {}
        program = self._lib.bpf_object__next_program(handle, None)
        while program:
            found[self._lib.bpf_program__name(program).decode()] = int(program)
            program = self._lib.bpf_object__next_program(handle, program)
        return found

    def map(self, handle: Handle, name: str) -> Handle:
        """Return a map of an object."""
        return self._pointer(f"find map {name}", "bpf_object__find_map_by_name", handle, name.encode())

    def set_autoload(self, program: Handle, wanted: bool) -> None:
        """Say whether `load` is to load *program*."""
        self._status("set autoload", "bpf_program__set_autoload", program, wanted)

    def set_multi(self, program: Handle) -> None:
        """Mark *program* for attaching to many places at once."""
        self._status("set type", "bpf_program__set_expected_attach_type", program, UPROBE_MULTI)

    # maps

    def map_fd(self, handle: Handle) -> int:
        """Return the descriptor of a loaded map; the object owns it."""
        return int(self._lib.bpf_map__fd(handle))

    def value_size(self, handle: Handle) -> int:
        """Return the size of a map's values in bytes."""
        return int(self._lib.bpf_map__value_size(handle))

    def set_max_entries(self, handle: Handle, entries: int) -> None:
        """Size a map before loading."""
        self._status("size map", "bpf_map__set_max_entries", handle, entries)

    def reuse(self, handle: Handle, descriptor: int) -> None:
        """Let an object that is not loaded yet share another one's map."""
        self._status("share map", "bpf_map__reuse_fd", handle, descriptor)

    def write_initial(self, handle: Handle, offset: int, data: bytes) -> None:
        """Set part of a data section before loading."""
        size = ctypes.c_size_t()
        at = self._pointer("read-only data", "bpf_map__initial_value", handle, ctypes.byref(size))
        if offset < 0 or offset + len(data) > size.value:
            raise SourceError("bad_data", "eBPF: the object's configuration has another size; run `make bpf`")
        ctypes.memmove(at + offset, data, len(data))

    def update(self, descriptor: int, key: bytes, value: bytes) -> None:
        """Set an entry."""
        self._status("set map entry", "bpf_map_update_elem", descriptor, key, value, 0)

    def delete(self, descriptor: int, key: bytes) -> bool:
        """Remove an entry; False when there is none."""
        return bool(self._lib.bpf_map_delete_elem(descriptor, key) == 0)

    # links

    def attach_uprobe(
        self, program: Handle, path: str, offset: int, *, at_return: bool, cookie: int | None
    ) -> Handle:
        """Attach through a perf event; *cookie* None for kernels without cookies."""
        opts = _UprobeOpts(sz=ctypes.sizeof(_UprobeOpts), bpf_cookie=cookie or 0, retprobe=at_return)
        return self._pointer(
            f"attach to {path}+{offset:#x}",
            "bpf_program__attach_uprobe_opts",
            program,
            -1,
            path.encode(),
            offset,
            ctypes.byref(opts),
        )

    def attach_multi(
        self, program: Handle, path: str, offsets: Sequence[int], cookies: Sequence[int], *, at_return: bool
    ) -> int:
        """Attach to many places of one file; returns a descriptor whose closing detaches."""
        count = len(offsets)
        offset_array = (ctypes.c_uint64 * count)(*offsets)
        cookie_array = (ctypes.c_uint64 * count)(*cookies)
        name = ctypes.create_string_buffer(path.encode())
        attr = _MultiLink(
            prog_fd=self._lib.bpf_program__fd(program),
            attach_type=UPROBE_MULTI,
            path=ctypes.addressof(name),
            offsets=ctypes.addressof(offset_array),
            cookies=ctypes.addressof(cookie_array),
            cnt=count,
            multi_flags=_UPROBE_MULTI_RETURN if at_return else 0,
        )
        self._words.clear()
        descriptor = self._libc.syscall(
            ctypes.c_long(self._bpf_number),
            ctypes.c_long(_BPF_LINK_CREATE),
            ctypes.byref(attr),
            ctypes.c_ulong(ctypes.sizeof(attr)),
        )
        if descriptor < 0:
            raise self._fail(f"attach to {count} places of {path}", ctypes.get_errno())
        return int(descriptor)

    def attach_tracepoint(self, program: Handle, number: int) -> Handle:
        """Attach to the tracepoint with this id."""
        attr = _PerfAttr(
            type=_PERF_TYPE_TRACEPOINT,
            size=ctypes.sizeof(_PerfAttr),
            config=number,
            sample_period=1,
            wakeup_events=1,
        )
        event = self._libc.syscall(
            ctypes.c_long(self._perf_number),
            ctypes.byref(attr),
            ctypes.c_long(-1),
            ctypes.c_long(0),
            ctypes.c_long(-1),
            ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC),
        )
        if event < 0:
            raise self._fail(f"open tracepoint {number}", ctypes.get_errno())
        try:
            # On success the link owns the event.
            return self._pointer(
                f"attach to tracepoint {number}", "bpf_program__attach_perf_event", program, int(event)
            )
        except SourceError:
            os.close(int(event))
            raise

    def attach_raw_tracepoint(self, program: Handle, name: str) -> Handle:
        """Attach to a tracepoint by name; needs no tracefs."""
        return self._pointer(
            f"attach to {name}", "bpf_program__attach_raw_tracepoint", program, name.encode()
        )

    def destroy(self, link: Handle) -> None:
        """Detach and free a link."""
        self._lib.bpf_link__destroy(link)

    def ring(self, descriptor: int, callback: SampleCallback) -> Ring:
        """Return a reader of a ring buffer map."""
        return Ring(self._lib, descriptor, callback)

    def call_probe_target(self) -> None:
        """Call the library function that the loader probes to see whether probes fire."""
        self._lib.libbpf_major_version()

    @property
    def path(self) -> str:
        """Where the library was loaded from."""
        address = ctypes.cast(self._lib.libbpf_major_version, ctypes.c_void_p).value or 0
        with Path("/proc/self/maps").open() as maps:
            for line in maps:
                fields = line.split(maxsplit=5)
                start, _, end = fields[0].partition("-")
                if int(start, 16) <= address < int(end, 16) and len(fields) == 6:
                    return fields[5].strip()
        raise SourceError("unsupported", "eBPF: libbpf is not in this process's memory map")


class Ring:
    """Reader of a ring buffer. `consume` raises what the callback raised, after the rest was read."""

    def __init__(self, lib: ctypes.CDLL, descriptor: int, callback: SampleCallback) -> None:
        self._lib = lib
        self._callback = callback
        self._error: Exception | None = None
        self._sample = _SAMPLE(self._got)
        self._ring = lib.ring_buffer__new(descriptor, self._sample, None, None)
        if not self._ring:
            raise SourceError("unsupported", f"eBPF: ring buffer: {os.strerror(ctypes.get_errno())}")

    def _got(self, _context: int, data: int, size: int) -> int:
        try:
            self._callback(ctypes.string_at(data, size))
        except Exception as err:  # noqa: BLE001 - must not unwind through C; raised again by consume()
            self._error = err
        return 0

    def consume(self) -> int:
        """Hand all waiting records to the callback and return how many there were."""
        count = int(self._lib.ring_buffer__consume(self._ring))
        error, self._error = self._error, None
        if error is not None:
            raise error
        return count

    def close(self) -> None:
        """Free the reader."""
        if self._ring:
            self._lib.ring_buffer__free(self._ring)
            self._ring = None
