"""
Errors of the lab.

LabError            something a person must do differently; the text says what, why and what to do
└── ScenarioError   a scenario file that cannot be used, with file and line
"""

from __future__ import annotations


class LabError(Exception):
    """The lab cannot do what was asked."""


class ScenarioError(LabError):
    """A scenario file is unusable; the text starts with ``file:line:``."""
