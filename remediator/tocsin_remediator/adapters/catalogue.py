"""The table of actions: nothing outside it can be run, whatever a runbook says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Effect(StrEnum):
    """What can be said of undoing it."""

    READ = "read"
    COMPENSABLE = "compensable"
    IRREVERSIBLE = "irreversible"


@dataclass(frozen=True)
class Action:
    """One action: its adapter is the part before the dot, `params` maps argument to value type."""

    name: str
    params: Mapping[str, str]
    effect: Effect
    says: str

    @property
    def adapter(self) -> str:
        """Which adapter carries it out."""
        return self.name.split(".", 1)[0]

    @property
    def verb(self) -> str:
        """The adapter's own name for it."""
        return self.name.split(".", 1)[1]


_ALL: Final = (
    Action(
        "scheduler.restart",
        {"job_id": "job_id"},
        Effect.IRREVERSIBLE,
        "Restart the job from its last checkpoint on the nodes it has.",
    ),
    Action(
        "scheduler.restart_without_node",
        {"job_id": "job_id", "node": "node"},
        Effect.IRREVERSIBLE,
        "Restart the job from its last checkpoint and keep it off one node.",
    ),
    Action(
        "scheduler.move_rank",
        {"job_id": "job_id", "rank": "rank", "gpu_uuid": "gpu_uuid"},
        Effect.IRREVERSIBLE,
        "Move one rank to a spare GPU, away from the one named, and resume from the last checkpoint.",
    ),
    Action("escalation.pack", {}, Effect.READ, "Build the evidence pack and tell who was configured."),
    Action("recommend.record", {"advice": "text"}, Effect.READ, "Record the advice in the case file."),
)

ACTIONS: Final[Mapping[str, Action]] = {action.name: action for action in _ALL}
