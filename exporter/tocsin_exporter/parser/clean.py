"""Takes off a line what terminals, launchers and loggers put around it."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["MAX_LINE", "Line", "clean"]

# What is longer is cut: no framework prints a longer record, but a dump may.
MAX_LINE = 1 << 20

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")

_DATE = r"\d{4}[-/]\d\d[-/]\d\d"
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|D|I|W|E)"
_RANKED: tuple[str, ...] = (
    r"\[[Rr]ank\s*(?P<a>\d{1,6})\]\s*:\s?",
    r"\[(?:[\w.-]{1,80}[@:])?\d{1,6},(?P<b>\d{1,6})\](?:\[[\w.:-]{1,80}\])?<std(?:out|err|diag)>:\s?",
    r"\[default(?P<local>\d{1,6})\]\s*:\s?",
    # srun --label; a bare number and a colon is hardly anything else.
    r"\s{0,4}(?P<c>\d{1,6}): (?=\S|\s)",
)
_PLAIN: tuple[str, ...] = (
    rf"{_DATE}T{_TIME}(?:Z|[+-]\d\d:?\d\d)\s+std(?:out|err) [FP] ",
    rf"\[?{_DATE}[T ]{_TIME}(?:\s?Z|[+-]\d\d:?\d\d| UTC)?\]?\s*(?:[-:|]\s+)?",
    rf"\d\d/\d\d/\d{{4}} {_TIME}\s+-\s+",
    rf"\d\d/\d\d {_TIME}\s+-\s+",
    rf"[DIWEF]\d{{4}} {_TIME}\s+\d+ [\w.]+:\d+\]\s?",
    r"\([A-Z]\w*(?:\[[^\]]*\])? ?pid=\d+(?:, ip=[\d.a-f:]+)?\)\s?",
    r"\[(?:titan|titan-\d+|root|train|trainer|__main__)\]\s+",
    rf"\[{_LEVEL}\]\s*(?:-\s+)?(?=\S)",
    rf"\[{_LEVEL}\|[\w./]+:\d+\]\s*(?:{_DATE} {_TIME})?\s*(?:>>\s*)?",
    rf"{_LEVEL}\s*:\s*[\w.]+\s*:\s*(?=\S)",
    rf"{_LEVEL}\s+-\s+(?:[\w.]+\s+-\s+)?",
    r"[\w.]+ - " + _LEVEL + r" - ",
    r"\[[\w./]+:\d+(?::[\w<>]+)?\]\s*",
    r"\[(?:pod|container)/[^\]]{1,200}\]\s*",
    r"[A-Za-z][A-Za-z0-9.-]{0,60}-\d+: (?=\S|\s)",
    rf"\[NeMo [A-Z] {_DATE} {_TIME} [\w.]+:\d+\]\s*(?:rank\d+:\s*)?",
    r"\[\d\d/\d\d \d\d:\d\d:\d\d [\w.]+\]:\s?",
    rf"{_LEVEL} \| fairseq[\w.]* \| ",
)
_PREFIX = re.compile("|".join((*_RANKED, *_PLAIN)))
_MOST_PREFIXES = 8
# A prefix sits at the start; more text than this need not be looked at for one.
_BACKSPACE_RUN = re.compile(r"\x08+")


@dataclass(frozen=True, slots=True)
class Line:
    """
    A line without its surroundings.

    ``text`` keeps its indentation. ``earlier`` is the frame before the last carriage return,
    which a progress bar overwrote.
    """

    number: int
    text: str
    rank: int | None = None
    local_rank: int | None = None
    earlier: str = ""


def clean(raw: bytes, number: int) -> Line:
    """
    Return *raw* (one line, with or without its end) as `Line`; never raises.

    Of several frames, separated by carriage returns or backspaces, the last one counts.
    """
    text = raw[:MAX_LINE].decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = text.rstrip("\r\n")
    earlier = ""
    if "\r" in text or "\x08" in text:
        frames = [frame for frame in _BACKSPACE_RUN.sub("\r", text).split("\r") if frame.strip()]
        text = frames[-1] if frames else ""
        earlier = frames[-2] if len(frames) > 1 else ""
    text = _CONTROL.sub("", text)
    rank = local_rank = None
    at = 0
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(text, at)
        if match is None or match.end() == at:
            break
        if match.lastgroup == "local":
            local_rank = int(match["local"]) if local_rank is None else local_rank
        elif match.lastgroup is not None and rank is None:
            rank = int(match[match.lastgroup])
        at = match.end()
    return Line(number, text[at:], rank, local_rank, earlier)
