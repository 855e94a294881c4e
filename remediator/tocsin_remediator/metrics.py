"""The remediator's own series. Labels are bounded: families, states and closed lists of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from tocsin_remediator import __version__
from tocsin_remediator.errors import JournalError
from tocsin_remediator.model import ACTING, State, Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tocsin_remediator.journal import Journal


class Metrics:
    """Counters of this process, and gauges read from the journal at each scrape."""

    def __init__(self, journal: Journal, now: Callable[[], float]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        name = "tocsin_remediator"
        build = Gauge(
            f"{name}_build_info", "Always 1: the program's version.", ["version"], registry=self.registry
        )
        build.labels(__version__).set(1)
        self.webhooks = Counter(
            f"{name}_webhook_requests_total",
            "Webhook deliveries by answer.",
            ["code"],
            registry=self.registry,
        )
        self.webhook_seconds = Histogram(
            f"{name}_webhook_seconds",
            "Time to answer a webhook delivery.",
            registry=self.registry,
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0),
        )
        self.inbox = Counter(
            f"{name}_inbox_total",
            "Alerts dealt with: opened, merged, recheck, context, refused.",
            ["result"],
            registry=self.registry,
        )
        for result in ("opened", "merged", "recheck", "context", "refused"):
            self.inbox.labels(result)
        self.plans = Counter(
            f"{name}_plans_total", "Plans made.", ["family", "level"], registry=self.registry
        )
        self.actions = Counter(
            f"{name}_actions_total",
            "Actions by what is known of their effect: applied, not_applied, unknown.",
            ["family", "action", "result"],
            registry=self.registry,
        )
        self.verifications = Counter(
            f"{name}_verify_samples_total",
            "Samples of verifications: pass, fail, inconclusive.",
            ["family", "verdict"],
            registry=self.registry,
        )
        self.queries = Counter(
            f"{name}_prometheus_queries_total", "Queries by result.", ["result"], registry=self.registry
        )
        self.errors = Counter(
            f"{name}_worker_errors_total", "Unexpected errors of the worker.", registry=self.registry
        )
        self.tick = Gauge(
            f"{name}_worker_last_round_timestamp_seconds",
            "When the worker last went over the open incidents.",
            registry=self.registry,
        )
        self.registry.register(_FromJournal(journal, now))

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)


class _FromJournal:
    def __init__(self, journal: Journal, now: Callable[[], float]) -> None:
        self._journal = journal
        self._now = now

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Gauges; absent, except for the one that says so, while the journal cannot be read."""
        up = GaugeMetricFamily("tocsin_remediator_journal_up", "1 while the journal can be used.")
        try:
            counts = self._journal.incidents.counts()
            still = self._journal.incidents.all(only_open=True)
            waiting, age = self._journal.inbox.lag(self._now())
            stop = self._journal.settings.stop()
        except JournalError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1 if self._journal.database.writable else 0)
        yield up
        incidents = GaugeMetricFamily(
            "tocsin_remediator_incidents", "Incidents by state and family.", labels=["state", "family"]
        )
        for (state, family), count in sorted(counts.items()):
            incidents.add_metric([state, family], count)
        yield incidents
        oldest = GaugeMetricFamily(
            "tocsin_remediator_oldest_open_seconds",
            "Longest time an incident has been in a state.",
            labels=["state"],
        )
        for state in State:
            since = [one.state_since for one in still if one.state is state]
            if since:
                oldest.add_metric([state], max(self._now() - min(since), 0.0))
        yield oldest
        yield GaugeMetricFamily(
            "tocsin_remediator_in_progress",
            "Jobs that are being acted on or verified.",
            value=len({one.subject for one in still if one.state in ACTING}),
        )
        yield GaugeMetricFamily(
            "tocsin_remediator_inbox_waiting", "Alerts not yet dealt with.", value=waiting
        )
        yield GaugeMetricFamily(
            "tocsin_remediator_inbox_lag_seconds", "Age of the oldest of them.", value=age
        )
        switch = GaugeMetricFamily(
            "tocsin_remediator_stop", "1 for the setting of the stop switch.", labels=["mode"]
        )
        for mode in Stop:
            switch.add_metric([mode], float(mode is stop))
        yield switch
