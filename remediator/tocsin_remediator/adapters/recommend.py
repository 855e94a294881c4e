"""Advice for a person: recorded, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tocsin_remediator.adapters.base import Outcome, Request

if TYPE_CHECKING:
    from collections.abc import Mapping


class Recommend:
    """The journal's own step row is the record."""

    def preview(self, verb: str, args: Mapping[str, str]) -> list[str]:
        """The advice."""
        return [verb, args["advice"]]

    def confirm_target(self, verb: str, args: Mapping[str, str]) -> str:
        """Advice has no target beyond its incident."""
        return ""

    def idempotent(self, verb: str, args: Mapping[str, str]) -> bool:
        """Saying it twice changes nothing."""
        return True

    def run(self, request: Request) -> Outcome:
        """Nothing to do."""
        return Outcome(request.args["advice"])
