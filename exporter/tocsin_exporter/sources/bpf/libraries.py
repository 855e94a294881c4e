"""Finds CUDA and NCCL in the address space of a process, in whatever mount namespace it lives."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources.bpf import elf
from tocsin_exporter.sources.bpf.symbols import SYMBOLS, Site, sites

__all__ = ["Library", "Mapping", "is_probed_elsewhere", "mapped_libraries", "open_mapped", "read_library"]

# Besides their own libraries NCCL's functions may be linked into torch or a plugin.
_NAMES = re.compile(r"(libcuda\.so|libcudart|libnccl[^/]*\.so|nccl|torch)[^/]*$")
_NOT_ELF = re.compile(r"\.(py|pyc|json|txt|pt|bin|safetensors)$")
_MAX_MAPS = 16 << 20
_MAX_LIBRARIES = 64
_OVERLAYFS = 0x794C7630
_BREAKPOINT = b"\xcc"


@dataclass(frozen=True, slots=True)
class Mapping:
    """A file in a process's address space; ``device`` and ``inode`` as /proc/PID/maps prints them."""

    path: str
    device: str
    inode: int
    span: str
    executable_at: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Library:
    """What there is to probe in a file. ``layers`` are those whose symbols it has."""

    key: tuple[int, int]
    sites: tuple[Site, ...]
    layers: frozenset[str]


def mapped_libraries(proc: Path, pid: int) -> tuple[Mapping, ...]:
    """
    Return the files of *pid* that may hold CUDA or NCCL functions, each once.

    Raises `SourceError` when the process is gone or may not be read.
    """
    try:
        with (proc / str(pid) / "maps").open("rb") as file:
            text = file.read(_MAX_MAPS)
    except PermissionError as err:
        raise SourceError(
            "no_permission", f"{proc}/{pid}/maps: {err.strerror}; needs CAP_SYS_PTRACE"
        ) from err
    except OSError as err:
        raise SourceError("unsupported", f"{proc}/{pid}/maps: {err.strerror}") from err
    found: dict[tuple[str, int], Mapping] = {}
    for line in text.decode(errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or fields[4] == "0":
            continue
        path = fields[5].removesuffix(" (deleted)")
        if not _NAMES.search(path) or _NOT_ELF.search(path):
            continue
        key = (fields[3], int(fields[4]))
        spans: tuple[tuple[int, int, int], ...] = ()
        if "x" in fields[1]:
            start, _, end = fields[0].partition("-")
            spans = ((int(start, 16), int(end, 16), int(fields[2], 16)),)
        known = found.get(key)
        if known is not None:
            spans = known.executable_at + spans
        elif len(found) >= _MAX_LIBRARIES:
            break
        found[key] = Mapping(path, *key, known.span if known else fields[0], spans)
    # What is mapped but not executable is data.
    return tuple(mapping for mapping in found.values() if mapping.executable_at)


def open_mapped(proc: Path, pid: int, mapping: Mapping) -> BinaryIO:
    """
    Open the very file that *pid* has mapped, also when it was replaced or deleted since.

    The path is tried inside the process's root, and believed only with the mapped inode.
    """
    inside = proc / str(pid) / "root" / mapping.path.lstrip("/")
    try:
        file = _open(inside)
        if os.fstat(file.fileno()).st_ino == mapping.inode:
            return file
        file.close()
    except OSError:
        pass
    exact = proc / str(pid) / "map_files" / mapping.span
    try:
        return _open(exact)
    except PermissionError as err:
        raise SourceError("no_permission", f"{exact}: {err.strerror}; needs CAP_SYS_ADMIN") from err
    except OSError as err:
        raise SourceError("unsupported", f"{exact}: {err.strerror}") from err


def _open(path: Path) -> BinaryIO:
    # Whoever owns the process may have put a pipe at the path, which would wait for a writer.
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY))


def read_library(
    file: BinaryIO, mapping: Mapping, layers: Collection[str], without: Collection[str] = ()
) -> Library:
    """
    Return what is to be probed in an open file for *layers* (``cuda`` has the runtime's with it).

    Nothing for one without known symbols; operations *without* are left alone.
    """
    status = os.fstat(file.fileno())
    wanted = {*layers, *(("cudart",) if "cuda" in layers else ())}
    # Only the driver has driver calls; a shim that exports the names too would count twice.
    possible = {"nccl"}
    for part, layer in (("libcuda.so", "cuda"), ("libcudart", "cudart")):
        if part in mapping.path:
            possible.add(layer)
    names = {name for layer in possible & wanted for name in SYMBOLS[layer]}
    found = elf.read_dynamic(file, names)
    present = frozenset(layer for layer, known in SYMBOLS.items() if known & found.keys())
    return Library((status.st_dev, status.st_ino), sites(found, without), present)


def is_probed_elsewhere(proc: Path, pid: int, mapping: Mapping, file: BinaryIO, library: Library) -> bool:
    """
    Whether a breakpoint sits already at the first probe's place in *pid*, through another name of the file.

    Only asked on overlay filesystems, where one lower file has a device number per container.
    """
    if not library.sites or _filesystem(file) != _OVERLAYFS:
        return False
    offset = library.sites[0].offset
    for start, end, at in mapping.executable_at:
        if at <= offset < at + (end - start):
            try:
                with (proc / str(pid) / "mem").open("rb", buffering=0) as memory:
                    memory.seek(start + offset - at)
                    return memory.read(1) == _BREAKPOINT
            except (OSError, ValueError):
                return False
    return False


def _filesystem(file: BinaryIO) -> int:
    # Python's statvfs hides the type, which is the first word of the structure.
    buffer = (ctypes.c_long * 32)()
    libc = ctypes.CDLL(None, use_errno=True)
    return int(buffer[0]) if libc.fstatfs(file.fileno(), buffer) == 0 else 0
