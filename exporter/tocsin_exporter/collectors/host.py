"""The host: pressure, memory, load, kills for lack of memory; and the host's side of each rank."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.sources.host import HostSource
from tocsin_exporter.sources.rank_host import RankHost, RankHostSource, Reading

__all__ = ["NAME", "HostCollector", "build"]

NAME = "host"

_RANK = {
    "threads": "tocsin_rank_threads",
    "cpus_allowed": "tocsin_rank_cpus_allowed",
    "cpu_local": "tocsin_rank_cpu_local_ratio",
    "ran_local": "tocsin_rank_ran_local_ratio",
    "memory_local": "tocsin_rank_memory_local_ratio",
    "memory_nodes_local": "tocsin_rank_memory_nodes_local_ratio",
    "last_cpu": "tocsin_rank_last_cpu",
    "run_wait_seconds": "tocsin_rank_run_wait_seconds_total",
    "first_run_wait_seconds": "tocsin_rank_first_thread_run_wait_seconds_total",
    "timeslices": "tocsin_rank_timeslices_total",
    "io_wait_seconds": "tocsin_rank_io_wait_seconds_total",
    "major_faults": "tocsin_rank_major_faults_total",
    "open_files": "tocsin_rank_open_files",
    "open_files_limit": "tocsin_rank_open_files_limit",
    "core_dumping": "tocsin_rank_core_dumping",
    "last_run": "tocsin_rank_last_run_timestamp_seconds",
    "blocked_seconds": "tocsin_rank_blocked_seconds_total",
}
_SWITCHES = {"voluntary": "voluntary_switches", "involuntary": "involuntary_switches"}
_CGROUP = {
    "cpu_quota": "tocsin_rank_cpu_quota",
    "cpu_periods": "tocsin_rank_cpu_periods_total",
    "throttled_periods": "tocsin_rank_cpu_throttled_periods_total",
    "throttled_seconds": "tocsin_rank_cpu_throttled_seconds_total",
    "memory_bytes": "tocsin_rank_cgroup_memory_bytes",
    "memory_limit_bytes": "tocsin_rank_cgroup_memory_limit_bytes",
    "memory_limit_hits": "tocsin_rank_cgroup_memory_limit_hits_total",
    "ooms": "tocsin_rank_cgroup_ooms_total",
    "oom_kills": "tocsin_rank_cgroup_oom_kills_total",
}
_WORKERS = {
    "count": "tocsin_rank_workers",
    "cpu_seconds": "tocsin_rank_worker_cpu_seconds_total",
    "run_wait_seconds": "tocsin_rank_worker_run_wait_seconds_total",
    "io_wait_seconds": "tocsin_rank_worker_io_wait_seconds_total",
    "blocked_seconds": "tocsin_rank_worker_blocked_seconds_total",
    "resident_bytes": "tocsin_rank_worker_resident_memory_bytes",
}


class HostCollector:
    """Serves the last readings of /proc."""

    name = NAME

    def __init__(self, source: HostSource, ranks: RankHostSource | None = None) -> None:
        self._source = source
        self._ranks = ranks

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        host, error = self._source.latest.read()
        if host is not None:
            for (resource, kind), seconds in host.pressure.items():
                yield Sample("tocsin_host_pressure_seconds_total", (resource, kind), seconds)
            for family, value in (
                ("tocsin_host_memory_total_bytes", host.memory_total),
                ("tocsin_host_memory_available_bytes", host.memory_available),
                ("tocsin_host_oom_kills_total", host.oom_kills),
                ("tocsin_host_boot_timestamp_seconds", host.boot_time),
                ("tocsin_host_load1", host.load1),
            ):
                if value is not None:
                    yield Sample(family, (), value)
        if self._ranks is not None:
            reading, failed = self._ranks.latest.read()
            if reading is not None:
                yield from _samples(reading)
            error = error or failed
        if error is not None:
            raise error


def _samples(reading: Reading) -> Iterator[Sample]:
    for rank in reading.ranks:
        yield from _rank(rank)
    for left in reading.defunct:
        key = (left.job_id, left.rank)
        if left.zombie_since is not None:
            yield Sample("tocsin_rank_zombie_since_timestamp_seconds", key, left.zombie_since)
        if left.left_over is not None:
            yield Sample("tocsin_rank_left_over_processes", key, left.left_over)


def _rank(rank: RankHost) -> Iterator[Sample]:
    key = (rank.job_id, rank.rank)
    for part, families in ((rank, _RANK), (rank.cgroup, _CGROUP), (rank.workers, _WORKERS)):
        if part is None:
            continue
        for fact, family in families.items():
            value = getattr(part, fact)
            if value is not None:
                yield Sample(family, key, value)
    for kind, fact in _SWITCHES.items():
        if (value := getattr(rank, fact)) is not None:
            yield Sample("tocsin_rank_context_switches_total", (*key, kind), value)
    for state, count in rank.states.items():
        yield Sample("tocsin_rank_processes", (*key, state), count)
    for resource, seconds in rank.cgroup.pressure.items():
        yield Sample("tocsin_rank_cgroup_pressure_seconds_total", (*key, resource), seconds)
    if rank.memory_policy is not None:
        yield Sample("tocsin_rank_memory_policy_info", (*key, *rank.memory_policy), 1)
    for wait in rank.blocked:
        labels = (*key, wait.process, wait.where)
        yield Sample("tocsin_rank_blocked_since_timestamp_seconds", labels, wait.since)
    if rank.stopped is not None:
        how = (*key, rank.stopped.where)
        yield Sample("tocsin_rank_stopped_since_timestamp_seconds", how, rank.stopped.since)


def build(source: HostSource, ranks: RankHostSource | None = None) -> HostCollector:
    """Return the collector; *ranks* reads the host's side of ranks."""
    return HostCollector(source, ranks)
