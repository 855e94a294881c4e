"""``tocsin-exporter parse-log FILE|-``: one JSON object a line for every event."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import BinaryIO, TextIO

from tocsin_exporter.parser.clean import MAX_LINE
from tocsin_exporter.parser.logparser import LogParser

__all__ = ["run"]


def run(path: str, output: TextIO | None = None, errors: TextIO | None = None) -> int:
    """
    Print the events of the file *path* (``-``: standard input) and return the exit status.

    0 also when nothing was recognised, 2 when the file cannot be read. Lines longer than 1 MiB
    are cut, which is told at the end.
    """
    output, errors = output or sys.stdout, errors or sys.stderr
    try:
        if path == "-":
            cut = _print(sys.stdin.buffer, output)
        else:
            with open(path, "rb") as file:
                cut = _print(file, output)
    except BrokenPipeError:
        return 0
    except OSError as err:
        print(f"parse-log: {path}: {err.strerror or err}", file=errors)
        return 2
    if cut:
        print(f"parse-log: {cut} lines were longer than {MAX_LINE} bytes and were cut", file=errors)
    return 0


def _print(file: BinaryIO, output: TextIO) -> int:
    parser, cut = LogParser(), 0
    for line, whole in _lines(file):
        cut += not whole
        for event in parser.feed(line):
            output.write(json.dumps(event.to_json(), allow_nan=False) + "\n")
    for event in parser.flush():
        output.write(json.dumps(event.to_json(), allow_nan=False) + "\n")
    output.flush()
    return cut


def _lines(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    while True:
        line = file.readline(MAX_LINE + 1)
        if not line:
            return
        whole = len(line) <= MAX_LINE or line.endswith(b"\n")
        rest = line
        while not rest.endswith(b"\n") and rest:
            rest = file.readline(MAX_LINE)
        yield line, whole
