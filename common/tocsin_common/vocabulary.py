"""The closed lists of the contract: what a verdict may say, of which layer, on whose side."""

from __future__ import annotations

__all__ = [
    "COLLECTORS",
    "LAYERS",
    "SEVERITIES",
    "SIDES",
    "TIERS",
    "VERDICTS",
]

VERDICTS = ("job", "infrastructure", "neighbour", "inconclusive")
# `yours`: fix it on the node or in the job; `below`: the provider's or the hardware team's.
SIDES = ("yours", "below")
LAYERS = ("workload", "serving", "host", "device", "fabric", "storage", "platform")
SEVERITIES = ("critical", "warning", "info")
TIERS = ("event", "pattern", "trend")
COLLECTORS = (
    "gpu",
    "gpu_events",
    "pcie",
    "identity",
    "cuda",
    "nccl",
    "output",
    "io",
    "exits",
    "fabric",
    "storage",
    "host",
    "platform",
    "serving",
)
