"""Lines in, events out: the one entrance to the parser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tocsin_exporter.parser import composer
from tocsin_exporter.parser.announce import announcement
from tocsin_exporter.parser.bars import keras, progress, read_bar
from tocsin_exporter.parser.clean import MAX_LINE, Line, clean
from tocsin_exporter.parser.context import Context
from tocsin_exporter.parser.event import Event
from tocsin_exporter.parser.failures import failure, transport
from tocsin_exporter.parser.huggingface import huggingface
from tocsin_exporter.parser.megatron import megatron, nemo
from tocsin_exporter.parser.plain import plain

__all__ = ["LogParser"]

_RECOGNIZERS: tuple[Callable[[Line, Context], Event | None], ...] = (
    failure,
    transport,
    announcement,
    nemo,
    megatron,
    huggingface,
    progress,
    keras,
    plain,
)

# No record is longer; patterns look no further, so that a hostile line costs little.
_LONGEST_RECORD = 16384

# Ranks that share one stream have a memory each; a stream that names more is no log of ours.
_MOST_RANKS = 4096


_CRI = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) std(?:out|err) ([FP]) ")
_JSON_FILE = b'{"log":"'


class LogParser:
    """Parser of one stream. Feeding never raises, whatever the bytes are."""

    def __init__(self) -> None:
        self._number = 0
        self._partial = b""
        self._contexts: dict[tuple[int | None, int | None], Context] = {}

    def feed(self, raw: bytes) -> Iterator[Event]:
        """Yield the events that *raw*, one line, completes; a record over several lines comes late."""
        self._number += 1
        whole = self._container(raw)
        if whole is None:
            return
        line = clean(whole, self._number)
        if len(line.text) > _LONGEST_RECORD:
            line = replace(line, text=line.text[:_LONGEST_RECORD])
        key = (line.rank, line.local_rank)
        context = self._contexts.get(key)
        if context is None:
            if len(self._contexts) >= _MOST_RANKS:
                self._contexts.clear()
            context = self._contexts[key] = Context()
        event, taken = composer.block(line, context)
        if event is not None:
            yield event
        if taken or composer.head(line, context):
            return
        if line.earlier and (bar := read_bar(line.earlier)):
            # Overwritten on the screen, but it tells where the record behind it stands.
            context.bar = bar
        for recognize in _RECOGNIZERS:
            event = recognize(line, context)
            if event is not None:
                yield self._known(event, context)
                return

    def _container(self, raw: bytes) -> bytes | None:
        """Return what a container runtime's record holds; None while its line is not complete."""
        match = _CRI.match(raw)
        if match:
            text, last = raw[match.end() :], match[1] == b"F"
        elif raw.startswith(_JSON_FILE):
            try:
                text = json.loads(raw)["log"].encode(errors="replace")
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                return raw
            last = text.endswith(b"\n")
        else:
            return raw
        self._partial = (self._partial + text.rstrip(b"\n"))[:MAX_LINE]
        if not last:
            return None
        whole, self._partial = self._partial, b""
        return whole

    def flush(self) -> Iterator[Event]:
        """Yield what waits for more lines at the end of the stream."""
        for context in self._contexts.values():
            event, _ = composer.block(None, context)
            if event is not None:
                yield event

    def _known(self, event: Event, context: Context) -> Event:
        if event.framework and event.framework != "generic":
            context.framework = event.framework
        elif event.framework is None and context.framework and event.event in ("step", "eval"):
            return replace(event, framework=context.framework)
        return event
