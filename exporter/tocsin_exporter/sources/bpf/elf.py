"""Reads symbols and first instructions of ELF files, so that a probe is placed at a file offset."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import BinaryIO

from tocsin_exporter.errors import SourceError

__all__ = ["Symbol", "probe_offset", "read_dynamic", "read_static"]

_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_PT_LOAD = 1
_STT_OBJECT, _STT_FUNC = 1, 2
_MACHINES = {62: "x86_64", 183: "aarch64"}

# Far above any real library; a crafted file must not keep the exporter busy.
_MAX_SYMBOLS = 2_000_000
_MAX_STRINGS = 1 << 30
_MAX_NAME_HITS = 64
_PROLOGUE = 32

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True, slots=True)
class Symbol:
    """
    A symbol of a file.

    ``offset`` is its place in the file in bytes (for `read_static`: in its section), ``size`` its
    length, ``head`` up to 32 bytes from there.
    """

    name: str
    offset: int
    size: int
    head: bytes
    machine: str


def read_dynamic(file: BinaryIO, names: Collection[str]) -> dict[str, Symbol]:
    """
    Return those of *names* that *file* exports as functions.

    A stripped library keeps these. Raises `SourceError` (``bad_data``) for anything that is no
    readable 64-bit little-endian ELF file.
    """
    return _read(file, names, _SHT_DYNSYM, _STT_FUNC, in_file=True)


def read_static(file: BinaryIO, names: Collection[str]) -> dict[str, Symbol]:
    """Return those of *names* that are data in the full symbol table of an object file."""
    return _read(file, names, _SHT_SYMTAB, _STT_OBJECT, in_file=False)


def _read(
    file: BinaryIO, names: Collection[str], table: int, kind: int, *, in_file: bool
) -> dict[str, Symbol]:
    try:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            return _symbols(image, names, table, kind, in_file=in_file)
    except (OSError, ValueError, OverflowError, struct.error, IndexError) as err:
        raise SourceError(
            "bad_data", f"{getattr(file, 'name', 'file')}: no readable ELF file: {err}"
        ) from err


def _symbols(
    image: mmap.mmap, names: Collection[str], table: int, kind: int, *, in_file: bool
) -> dict[str, Symbol]:
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not 64-bit little-endian ELF")
    machine = _MACHINES.get(struct.unpack_from("<H", image, 18)[0], "")
    segments_at, sections_at = struct.unpack_from("<QQ", image, 32)
    segment_size, segment_count, section_size, section_count = struct.unpack_from("<HHHH", image, 54)
    sections = [_SECTION.unpack_from(image, sections_at + i * section_size) for i in range(section_count)]
    loads = [
        (vaddr, offset, filesz)
        for kind_, _, offset, vaddr, _, filesz, _, _ in (
            _SEGMENT.unpack_from(image, segments_at + i * segment_size) for i in range(segment_count)
        )
        if kind_ == _PT_LOAD
    ]
    found: dict[str, Symbol] = {}
    for section in sections:
        if section[1] != table:
            continue
        _, _, _, _, at, length, link, _, _, _ = section
        strings_at, strings_size = sections[link][4], sections[link][5]
        if strings_size > _MAX_STRINGS:
            raise ValueError(f"{strings_size} bytes of names, more than {_MAX_STRINGS}")
        wanted = _name_offsets(image, names, strings_at, strings_size)
        if not wanted:
            continue
        if length // _SYMBOL.size > _MAX_SYMBOLS:
            raise ValueError(f"{length // _SYMBOL.size} symbols, more than {_MAX_SYMBOLS}")
        block = image[at : at + length - length % _SYMBOL.size]
        for name_at, info, _, index, value, size in _SYMBOL.iter_unpack(block):
            name = wanted.get(name_at)
            if name is None or index == 0 or info & 0xF != kind or name in found:
                continue
            offset = _file_offset(loads, value) if in_file else value
            if offset is not None:
                head = image[offset : offset + min(size or _PROLOGUE, _PROLOGUE)] if in_file else b""
                found[name] = Symbol(name, offset, size, head, machine)
    return found


def _name_offsets(image: mmap.mmap, names: Collection[str], at: int, size: int) -> dict[int, str]:
    # Linkers merge tails: "ncclSend" may be stored only inside "pncclSend", so every place
    # where the text ends right may be the one that a symbol points to.
    offsets: dict[int, str] = {}
    for name in names:
        needle = name.encode() + b"\0"
        place = image.find(needle, at, at + size)
        for _ in range(_MAX_NAME_HITS):
            if place < 0:
                break
            offsets[place - at] = name
            place = image.find(needle, place + 1, at + size)
    return offsets


def _file_offset(loads: list[tuple[int, int, int]], address: int) -> int | None:
    for vaddr, offset, filesz in loads:
        if vaddr <= address < vaddr + filesz:
            return address - vaddr + offset
    return None


def probe_offset(symbol: Symbol) -> int:
    """
    Return how many bytes after the symbol's start the probe goes.

    The kernel emulates some instructions (0.5 us per hit) and single-steps all others (about
    10 us on a virtual machine). What may be skipped leaves the stack and the arguments as they
    were at entry: ``endbr64``, a patchable five-byte nop, and a compare of a global with a
    constant up to the conditional jump behind it, which is emulated. Elsewhere: 0.
    """
    if symbol.machine != "x86_64":
        return 0
    code, at = symbol.head, 0
    if code.startswith(b"\xf3\x0f\x1e\xfa"):
        at = 4
    if code.startswith(b"\x0f\x1f\x44\x00\x00", at):
        at += 5
    length = _compare_length(code[at:])
    if length and _is_conditional_jump(code[at + length :]):
        at += length
    # A probe behind the symbol's end would sit in another function.
    return at if at < (symbol.size or len(code)) else 0


def _compare_length(code: bytes) -> int:
    # cmp{b,l} $imm,disp32(%rip): opcode, modrm 0x3d (/7, rip-relative), disp32, immediate.
    for opcode, immediate in ((b"\x80\x3d", 1), (b"\x81\x3d", 4), (b"\x83\x3d", 1)):
        if code.startswith(opcode):
            return 6 + immediate
    return 0


def _is_conditional_jump(code: bytes) -> bool:
    return (len(code) > 1 and 0x70 <= code[0] <= 0x7F) or (
        len(code) > 1 and code[0] == 0x0F and 0x80 <= code[1] <= 0x8F
    )
