"""What a job's own output says about its training: pure functions from lines to events."""

from __future__ import annotations

from tocsin_exporter.parser.event import Event
from tocsin_exporter.parser.logparser import LogParser

__all__ = ["Event", "LogParser"]
