"""Xid code to class, from the table beside this file, and the decoding of NVLink errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["CLASSES", "XidRow", "classify", "nvlink5", "table"]

CLASSES = ("application", "contained", "info", "sympathetic", "reset", "reboot", "rma", "check", "unknown")


@dataclass(frozen=True, slots=True)
class XidRow:
    """One code: its class, what to do, and who says so (`catalogue` or `tocsin`)."""

    code: int
    kind: str
    action: str
    source: str


def _rows(name: str, columns: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the rows of a data file beside this one; ValueError for one that is not as the head says."""
    text = (resources.files("tocsin_exporter.kmsg") / name).read_text(encoding="utf-8")
    lines = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    if not lines or tuple(lines[0]) != columns:
        raise ValueError(f"{name}: the columns are not {', '.join(columns)}")
    for cells in lines[1:]:
        # A blank cell would move every later one to the wrong column.
        if len(cells) != len(columns) or not all(cell.strip() for cell in cells):
            raise ValueError(f"{name}: bad row {cells!r}")
        yield cells


@cache
def table() -> dict[int, XidRow]:
    """Return all known codes."""
    rows: dict[int, XidRow] = {}
    for code, kind, action, source in _rows("xid.tsv", ("code", "class", "action", "source")):
        if kind not in CLASSES or int(code) in rows:
            raise ValueError(f"xid.tsv: bad row of code {code}")
        rows[int(code)] = XidRow(int(code), kind, action, source)
    return rows


@cache
def nvlink5() -> dict[tuple[int, str, int, int], str]:
    """Return the class by code, unit, reason and error status, for NVLink of Blackwell and newer."""
    rules: dict[tuple[int, str, int, int], str] = {}
    columns = ("code", "unit", "reason", "status", "class", "source")
    for code, unit, reason, status, kind, _ in _rows("nvlink5.tsv", columns):
        key = (int(code), unit, int(reason, 2), int(status, 16))
        if kind not in CLASSES or key in rules:
            raise ValueError(f"nvlink5.tsv: bad row {key}")
        rules[key] = kind
    return rules


_NVLINK5_TEXT = re.compile(r"([A-Z][A-Z0-9_]*)\b([^(]*)(?:\(([^)]*)\))?")

# Xid 74: bits of the seven registers in its message, by what they mean. What is in no set (among it ECC,
# which asks for something only when it repeats, and signal integrity) is "check".
_LINK_HARD = {0: (8, 9, 12, 16, 17, 24, 28), 3: (18,)}
_LINK_SYMPATHETIC = {0: (1, 20), 3: (16, 17)}
_LINK_IGNORE = {0: (0, 23, 30), 4: (20, 23, 26, 29)}
_LINK_REGISTERS = re.compile(r"\(\s*(0x[0-9a-fA-F]{1,8}(?:[ ,]+0x[0-9a-fA-F]{1,8}){0,15})\s*\)?")
_REGISTERS = re.compile(r"\(\s*(0x[0-9a-fA-F]+)(?:[ ,]+(0x[0-9a-fA-F]+))?")


def classify(code: int, detail: str) -> str:
    """Return the class of *code*; *detail* is the message after the code."""
    row = table().get(code)
    if row is None:
        return "unknown"
    if code == 74:
        return _nvlink4(detail)
    if 144 <= code <= 150:
        return _nvlink5(code, detail)
    return row.kind


def _nvlink4(detail: str) -> str:
    match = _LINK_REGISTERS.search(detail)
    if match is None:
        return "check"
    words = [int(word, 16) for word in match[1].replace(",", " ").split()]
    found = {(at, bit) for at, word in enumerate(words) for bit in range(32) if word >> bit & 1}
    hard, sympathetic, ignore = (
        {(at, bit) for at, bits in meaning.items() for bit in bits}
        for meaning in (_LINK_HARD, _LINK_SYMPATHETIC, _LINK_IGNORE)
    )
    if found & hard:
        return "reset"
    if not found or found - sympathetic - ignore:
        return "check"
    return "sympathetic" if found & sympathetic else "info"


def _nvlink5(code: int, detail: str) -> str:
    match = _NVLINK5_TEXT.match(detail.strip())
    registers = _REGISTERS.search(detail)
    if match is None or registers is None or registers[2] is None:
        return "check"
    reason = (int(registers[1], 16) >> 20) & 0x3F
    return nvlink5().get((code, match[1], reason, int(registers[2], 16)), "check")
