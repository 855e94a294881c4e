"""What the engine's parts share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tocsin_remediator.decide import Waits
from tocsin_remediator.model import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tocsin_remediator.adapters.base import Adapter
    from tocsin_remediator.config import Config
    from tocsin_remediator.journal import Journal
    from tocsin_remediator.metrics import Metrics
    from tocsin_remediator.model import Incident
    from tocsin_remediator.prometheus import Prometheus
    from tocsin_remediator.runbook.model import Runbook


@dataclass(frozen=True)
class Context:
    """The world as the engine sees it; `now` is the wall clock in Unix seconds."""

    config: Config
    journal: Journal
    prometheus: Prometheus
    books: Mapping[str, Runbook]
    adapters: Mapping[str, Adapter]
    metrics: Metrics
    alertmanager_url: str
    now: Callable[[], float]
    dry_run: bool
    # Whether the scheduler says that a job is over.
    ended: Callable[[str], bool]
    # Held from the look at what is under way to the start of a run: budgets are counted by all threads.
    starting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def waits(self) -> Waits:
        """The site's waits."""
        timing = self.config.timing
        return Waits(timing.poll, timing.confirm_quiet, timing.confirm_deadline, timing.clear_quiet)

    def stop(self) -> tuple[Stop, str]:
        """The stop switch and its words; a dry run does nothing, also for what was approved before it."""
        if self.dry_run:
            return Stop.HALT, "this is a dry run"
        stop = self.journal.settings.stop()
        return stop, f"the stop switch is at {stop}"

    def book(self, incident: Incident) -> Runbook | None:
        """The runbook of an incident's family."""
        return self.books.get(incident.family)
