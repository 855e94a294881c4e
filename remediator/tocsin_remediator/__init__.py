"""From an alert to a verified fix, or to an escalation with proof."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tocsin")
except PackageNotFoundError:
    __version__ = "0"
