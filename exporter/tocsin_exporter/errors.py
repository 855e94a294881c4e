"""
What can go wrong in the exporter.

* ExporterError
  + ConfigError      a flag or a file the user gave cannot be used; exit status 2
  + CollectError     a collector has nothing to serve this time, with a reason from `REASONS`
  + SourceError      something outside could not be read; its series are a gap
"""

from __future__ import annotations

__all__ = ["REASONS", "CollectError", "ConfigError", "ExporterError", "SourceError"]

# The only values of `reason` on tocsin_collector_error_info.
REASONS = (
    "no_library",
    "no_driver",
    "no_permission",
    "timeout",
    "hung",
    "unsupported",
    "bad_data",
    "disabled",
)


class ExporterError(Exception):
    """Root of everything this package raises on purpose."""


class ConfigError(ExporterError):
    """A flag or a file that the user gave cannot be used."""


class _ReasonedError(ExporterError):
    def __init__(self, reason: str, detail: str) -> None:
        if reason not in REASONS:
            raise ValueError(f"unknown reason {reason!r}, expected one of {REASONS}")
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class CollectError(_ReasonedError):
    """A collector cannot serve its series now."""


class SourceError(_ReasonedError):
    """A source could not be read."""
