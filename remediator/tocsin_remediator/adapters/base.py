"""What every adapter is given and gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Request:
    """
    One action to carry out.

    `args` are checked values. `request_id` is the same for every try of this step, for good.
    `started` is called with (pid, start time) as soon as a process exists that outlives us.
    """

    incident: int
    verb: str
    args: Mapping[str, str]
    request_id: str
    timeout: float
    started: Callable[[int, str], None]


@dataclass(frozen=True)
class Outcome:
    """An action that was accepted or done; `text` is what the other side said."""

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


class Adapter(Protocol):
    """Carries out the actions of one kind."""

    def preview(self, verb: str, args: Mapping[str, str]) -> list[str]:
        """
        What `run` would do, for the plan; Refused when it could not.

        The plan's digest covers it, so an approval is for exactly this.
        """
        ...

    def confirm_target(self, verb: str, args: Mapping[str, str]) -> str:
        """
        What the other side knows of the target. Refused when it is not exactly the one meant,
        ActionError(applied=no) when it cannot be asked.
        """
        ...

    def idempotent(self, verb: str, args: Mapping[str, str]) -> bool:
        """Whether the same request id may be sent twice and is done once."""
        ...

    def run(self, request: Request) -> Outcome:
        """Do it; ActionError when it did not succeed. Never called without a stored intent."""
        ...
