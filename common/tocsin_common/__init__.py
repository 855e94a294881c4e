"""What several parts need: job ids, durations, whole files, process starts, vocabulary, the bundle."""

from __future__ import annotations

from importlib import metadata

__all__ = ["__version__"]

__version__ = metadata.version("tocsin")
