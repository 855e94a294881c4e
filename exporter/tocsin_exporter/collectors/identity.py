"""Jobs and ranks on this node: who they are, whether they live, what they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple

from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.errors import CollectError
from tocsin_exporter.identity.model import ProcessIdentity
from tocsin_exporter.identity.resolver import Resolver
from tocsin_exporter.identity.software import Software

__all__ = ["NAME", "IdentityCollector", "build"]

NAME = "identity"
Loaded = Callable[[], Mapping[tuple[int, int], Software]]
_NOTHING = Software()


class IdentityCollector:
    """Serves jobs from their living and lately ended processes."""

    name = NAME

    def __init__(self, resolver: Resolver, max_age: float, software: Loaded) -> None:
        self._resolver = resolver
        self._max_age = max_age
        self._software = software

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        age, error = self._resolver.state()
        if age is None:
            raise CollectError(error.reason if error else "timeout", error.detail if error else "no scan yet")
        if age > self._max_age:
            raise CollectError("hung", f"the last scan is {age:.0f} s old")
        living = self._resolver.living()
        yield from self._jobs(living)
        yield from self._ranks(living)
        for fact, count in self._resolver.conflicts().items():
            yield Sample("tocsin_identity_conflicts_total", (fact,), count)
        if error is not None:
            raise CollectError(error.reason, error.detail)

    def _jobs(self, living: tuple[ProcessIdentity, ...]) -> Iterator[Sample]:
        jobs: dict[str, list[ProcessIdentity]] = {}
        for who in living:
            jobs.setdefault(who.job_id, []).append(who)
        for job, members in jobs.items():
            first = min(members, key=lambda who: (who.start_ticks, who.pid))
            more = (first.allocator, first.inner_id, first.user, first.team, first.name)
            yield Sample("tocsin_job_info", (job, *more), 1)
            yield Sample("tocsin_job_start_timestamp_seconds", (job,), first.start_time)
            nodes = [who.nodes_expected for who in members if who.nodes_expected]
            ranks = [who.world_size for who in members if who.world_size]
            if nodes:
                yield Sample("tocsin_job_nodes_expected", (job,), max(nodes))
            if ranks:
                yield Sample("tocsin_job_ranks_expected", (job,), max(ranks))

    def _ranks(self, living: tuple[ProcessIdentity, ...]) -> Iterator[Sample]:
        usage = self._resolver.usage()
        software = self._software()
        alive: set[tuple[str, str]] = set()
        for who in living:
            if not who.rank:
                continue
            key = (who.job_id, who.rank)
            alive.add(key)
            yield Sample("tocsin_rank_up", key, 1)
            yield Sample(
                "tocsin_rank_info", (*key, str(who.pid), who.local_rank, who.attempt, who.framework), 1
            )
            yield Sample(
                "tocsin_rank_software_info",
                (*key, who.step, who.container, *astuple(software.get((who.pid, who.start_ticks), _NOTHING))),
                1,
            )
            yield Sample("tocsin_rank_start_timestamp_seconds", key, who.start_time)
            if (used := usage.get(who.pid)) is not None:
                yield Sample("tocsin_rank_cpu_seconds_total", key, used.cpu_seconds)
                yield Sample("tocsin_rank_resident_memory_bytes", key, used.resident_bytes)
        for who, _ in self._resolver.departed():
            key = (who.job_id, who.rank)
            if who.rank and key not in alive:
                alive.add(key)
                yield Sample("tocsin_rank_up", key, 0)


def build(resolver: Resolver, max_age: float, software: Loaded = dict) -> IdentityCollector:
    """Return the collector; *software* gives what ranks (pid, start) have loaded."""
    return IdentityCollector(resolver, max_age, software)
