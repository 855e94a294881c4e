"""Xid code to class, from the table beside this file, and the decoding of NVLink errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["CLASSES", "XidRow", "classify", "table"]

CLASSES = ("application", "contained", "info", "sympathetic", "reset", "reboot", "rma", "check", "unknown")


@dataclass(frozen=True, slots=True)
class XidRow:
    """One code: its class, what to do, and who says so (`catalogue` or `tocsin`)."""

    code: int
    kind: str
    action: str
    source: str


@cache
def table() -> dict[int, XidRow]:
    """Return all known codes."""
    text = (resources.files("tocsin_exporter.kmsg") / "xid.tsv").read_text(encoding="utf-8")
    rows: dict[int, XidRow] = {}
    for line in text.splitlines():
        if not line or line.startswith(("#", "code\t")):
            continue
        code, kind, action, source = line.split("\t")
        if kind not in CLASSES or int(code) in rows:
            raise ValueError(f"xid.tsv: bad row {line!r}")
        rows[int(code)] = XidRow(int(code), kind, action, source)
    return rows


# NVLink of Blackwell and newer, facts of NVIDIA's catalogue: per unit the error status values that ask
# for a reset, those that only inform, and those that follow the recovery action of Xid 154 ("check").
_NVLINK5: dict[tuple[int, str], dict[str, frozenset[int]]] = {
    (144, "SAW_MVB"): {"reset": frozenset({0x2, 0x10}), "info": frozenset({0x1, 0x4, 0x8, 0x20})},
    (145, "RLW_CTRL"): {"info": frozenset({0x80000000})},
    (145, "RLW_REMAP"): {
        "reset": frozenset({0x40, 0x80}),
        "info": frozenset({0x100, 0x200, 0x80000000}),
        "check": frozenset({0x1, 0x2, 0x4, 0x8, 0x10, 0x20}),
    },
    (145, "RLW_RSPCOL"): {"reset": frozenset({0x2}), "info": frozenset({0x1, 0x80000000})},
    (145, "RLW_RXPIPE"): {"info": frozenset({0x1, 0x2, 0x4, 0x8, 0x80000000})},
    (145, "RLW_SRC_TRACK"): {
        "reset": frozenset({0x1, 0x10, 0x20}),
        "info": frozenset({0x2, 0x80000000}),
        "check": frozenset({0x4, 0x8}),
    },
    (145, "RLW_TAGSTATE"): {
        "reset": frozenset({0x2, 0x20000, 0x100000}),
        "info": frozenset({0x1, 0x10000, 0x80000000}),
    },
    (146, "TLW_CTRL"): {"reset": frozenset({0x4}), "info": frozenset({0x1, 0x2, 0x80000000})},
    (146, "TLW_RX"): {"reset": frozenset({0x4}), "info": frozenset({0x1, 0x2, 0x80000000})},
    (146, "TLW_TX"): {"reset": frozenset({0x4}), "info": frozenset({0x1, 0x2, 0x80000000})},
    (147, "TREX"): {"info": frozenset({0x1, 0x80000000})},
    (148, "NVLPW"): {"info": frozenset({0x80000000})},
    (149, "NETIR_INT"): {"reset": frozenset({0x0})},
    (149, "NETIR_BER"): {"info": frozenset({0x0, 0x1, 0x2, 0x3})},
    (149, "NETIR_MFDE"): {"reset": frozenset({0x1, 0x4, 0x5, 0x7}), "info": frozenset({0x3})},
    (150, "MSE_WATCHDOG"): {"reset": frozenset({0x0})},
}
# A link that went down: bits 20 to 25 of the first register say why; these two reasons need nothing here.
_LINK_DOWN_HARMLESS = frozenset({0b100110, 0b101000})
_NVLINK5_TEXT = re.compile(r"^([A-Z][A-Z0-9_]*)\b([^(]*)(?:\(([^)]*)\))?")

# Xid 74, register 0 of seven: bits by what they mean.
_LINK_HARD = sum(1 << bit for bit in (4, 5, 8, 9, 12, 16, 17, 24, 28))
_LINK_IGNORE = sum(1 << bit for bit in (0, 23, 30))
_LINK_SYMPATHETIC = sum(1 << bit for bit in (1, 20))
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
    match = _REGISTERS.search(detail)
    if match is None:
        return "check"
    bits = int(match[1], 16)
    if bits & _LINK_HARD:
        return "reset"
    if bits & _LINK_SYMPATHETIC and not bits & ~(_LINK_SYMPATHETIC | _LINK_IGNORE):
        return "sympathetic"
    if bits and not bits & ~_LINK_IGNORE:
        return "info"
    return "check"


def _nvlink5(code: int, detail: str) -> str:
    match = _NVLINK5_TEXT.match(detail.strip())
    registers = _REGISTERS.search(detail)
    if match is None or registers is None:
        return "check"
    unit, first = match[1], int(registers[1], 16)
    if code == 149 and unit.startswith(("NETIR_LINK_EVT", "NETIR_LINK_DOWN")):
        return "info" if (first >> 20) & 0x3F in _LINK_DOWN_HARMLESS else "reset"
    if registers[2] is None:
        return "check"
    status = int(registers[2], 16)
    for (known, prefix), outcomes in _NVLINK5.items():
        if known == code and unit.startswith(prefix):
            for outcome, statuses in outcomes.items():
                if status in statuses:
                    return outcome
    return "check"
