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
_RANKED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\[rank\s*(\d{1,6})\]\s*:\s?", re.I), "rank"),
    (re.compile(r"\[\d+,(\d{1,6})\]<std(?:out|err|diag)>:\s?"), "rank"),
    (re.compile(r"\[default(\d{1,6})\]\s*:\s?"), "local_rank"),
    # srun --label; a bare number and a colon is hardly anything else.
    (re.compile(r"\s{0,4}(\d{1,6}): (?=\S|\s)"), "rank"),
)
_PLAIN: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern)
    for pattern in (
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
    )
)
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
        for pattern, kind in _RANKED:
            match = pattern.match(text, at)
            if match:
                if kind == "rank" and rank is None:
                    rank = int(match.group(1))
                elif kind == "local_rank" and local_rank is None:
                    local_rank = int(match.group(1))
                break
        else:
            match = next((found for pattern in _PLAIN if (found := pattern.match(text, at))), None)
        if match is None or match.end() == at:
            break
        at = match.end()
    return Line(number, text[at:], rank, local_rank, earlier)
