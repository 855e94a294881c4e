"""
Errors of the lab.

LabError            something a person must do differently; the text says what, why and what to do
├── ScenarioError   a scenario file that cannot be used, with file and line
├── BuildError      the native libraries cannot be built
├── LayoutError     a shared file is missing or has another layout
├── TargetError     a fault names a kind, rank, node, GPU or value that does not exist
└── JobError        a request to a job cannot be met
"""

from __future__ import annotations


class LabError(Exception):
    """The lab cannot do what was asked."""


class ScenarioError(LabError):
    """A scenario file is unusable; the text starts with ``file:line:``."""


class BuildError(LabError):
    """The native libraries cannot be built."""


class LayoutError(LabError):
    """A shared file is missing, too short or of another layout."""


class TargetError(LabError):
    """A fault names a kind, rank, node, GPU or value that does not exist."""


class JobError(LabError):
    """A request to a job cannot be met."""
