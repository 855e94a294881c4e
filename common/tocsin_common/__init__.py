"""What the exporter and the remediator both need: job ids, durations, the vocabulary, the bundle files."""

from __future__ import annotations

from importlib import metadata

__all__ = ["__version__"]

__version__ = metadata.version("tocsin")
