"""CUDA and NCCL calls, job output and process exits, seen from the kernel."""

from __future__ import annotations

from tocsin_exporter.sources.bpf.checks import doctor
from tocsin_exporter.sources.bpf.loader import Limits, Rung
from tocsin_exporter.sources.bpf.records import ExitEvent, OutputChunk, RankCounts
from tocsin_exporter.sources.bpf.source import BpfSource

__all__ = ["BpfSource", "ExitEvent", "Limits", "OutputChunk", "RankCounts", "Rung", "doctor"]
