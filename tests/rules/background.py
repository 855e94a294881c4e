"""
A healthy training job as series, five seconds apart, from which cases depart.

Six ranks on two nodes take a step a second. A sixth or so of noise is on everything that has noise
on hardware, from a fixed seed. Time 0 of a case is the start of job and exporters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

__all__ = ["INTERVAL", "STALE", "Change", "Job", "Series", "build", "lines", "parse_duration"]

INTERVAL = 5
_SELECTOR = {"job": "tocsin-exporter"}
_COLLECTORS = ("gpu", "gpu_events", "identity", "cuda", "nccl", "output", "exits", "fabric", "host")
_REASONS = ("sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")
_UNITS = {"s": 1, "m": 60, "h": 3600}

# None: no sample in this place; STALE: the series has ended, as a failed scrape marks it.
STALE = "stale"
Value = float | str | None

_NOISY = ("_active_ratio", "_power_watts")
Series = dict[tuple[tuple[str, str], ...], list[Value]]


@dataclass(frozen=True, slots=True)
class Job:
    """What stands before anything goes wrong; ``seconds`` is how long the series are."""

    ranks: int = 6
    per_node: int = 3
    seconds: int = 600
    step_seconds: float = 1.0
    job_id: str = "torchrun/demo"
    # Without them: A100 and older (no activity), a driver that tells activity only, a job nobody reads.
    gpm: bool = True
    tensor: bool = True
    output: bool = True
    # A second exporter of each node under the same scrape job.
    twice: bool = False
    models: tuple[str, ...] = ("H100",)
    nodes_expected: int = 2


@dataclass(frozen=True, slots=True)
class Change:
    """
    What departs: the series of ``metric`` that carry ``labels``, between two times.

    ``value`` replaces the value, ``cycle`` replaces it sample by sample, ``slope`` adds per second from
    ``start`` on, ``hold`` keeps the last value, ``gone`` takes the series away. ``add`` puts a series
    with exactly ``labels`` where there was none. Values of activity and power keep their noise.
    """

    metric: str
    labels: dict[str, str] = field(default_factory=dict)
    start: int = 0
    end: int | None = None
    value: float | None = None
    slope: float | None = None
    gone: bool = False
    hold: bool = False
    cycle: tuple[float, ...] = ()
    add: bool = False


def parse_duration(text: str) -> int:
    """Return the seconds of ``4m30s``; ValueError for anything else."""
    total, digits = 0, ""
    for character in text:
        if character.isdigit():
            digits += character
        elif character in _UNITS and digits:
            total, digits = total + int(digits) * _UNITS[character], ""
        else:
            raise ValueError(f"{text!r} is not a duration")
    if digits:
        raise ValueError(f"{text!r} has no unit")
    return total


def build(job: Job, changes: Iterable[Change] = ()) -> Series:
    """Return the healthy job with *changes* applied in order; one that hits nothing is a ValueError."""
    series: Series = {}
    _nodes(series, job)
    for rank in range(job.ranks):
        _rank(series, job, rank)
    if job.output:
        _output(series, job)
    for change in changes:
        _apply(series, change)
    if job.twice:
        for labels, values in list(series.items()):
            series[tuple(sorted({**dict(labels), "instance": "second:" + dict(labels)["node"]}.items()))] = (
                values
            )
    return series


def lines(series: Series) -> list[dict[str, str]]:
    """Return promtool's ``input_series`` of *series*."""
    rows = []
    for labels, values in series.items():
        named = dict(labels)
        name = named.pop("__name__")
        inside = ", ".join(f'{key}="{value}"' for key, value in named.items() if value != "")
        rows.append({"series": f"{name}{{{inside}}}", "values": " ".join(map(_number, values))})
    return rows


def _number(value: Value) -> str:
    if value is None:
        return "_"
    if isinstance(value, str):
        return value
    return f"{value:.6g}" if abs(value) < 100_000 else f"{value:.0f}"


def _put(series: Series, job: Job, name: str, value: Callable[[int], Value], **labels: str) -> None:
    named = {"__name__": name, **_SELECTOR, "instance": labels["node"] + ":9836", **labels}
    times = range(0, job.seconds + 1, INTERVAL)
    series[tuple(sorted(named.items()))] = [value(at) for at in times]


def _node(job: Job, rank: int) -> str:
    return f"gpu-{rank // job.per_node + 1:03d}"


def _nodes(series: Series, job: Job) -> None:
    for node in sorted({_node(job, rank) for rank in range(job.ranks)}):
        _put(series, job, "up", lambda at: 1, node=node)
        _put(series, job, "tocsin_exporter_info", lambda at: 1, node=node, version="0.1.0")
        _put(series, job, "tocsin_host_oom_kills_total", lambda at: 3, node=node)
        _put(series, job, "tocsin_exporter_unattributed_increments_total", lambda at: 0, node=node)
        for collector in _COLLECTORS:
            name = "tocsin_collector_last_success_timestamp_seconds"
            _put(series, job, name, lambda at: max(at - 2, 1), node=node, collector=collector)
        held = {"node": node, "job_id": job.job_id}
        _put(series, job, "tocsin_job_start_timestamp_seconds", lambda at: 1, **held)
        _put(series, job, "tocsin_job_ranks_expected", lambda at: job.ranks, **held)
        _put(series, job, "tocsin_job_nodes_expected", lambda at: job.nodes_expected, **held)


def _rank(series: Series, job: Job, rank: int) -> None:
    noise = random.Random(rank)
    node, gpu = _node(job, rank), str(rank % job.per_node)
    labels = {"node": node, "job_id": job.job_id, "rank": str(rank)}
    device = {"node": node, "gpu": gpu, "gpu_uuid": f"GPU-{node}-{gpu}"}
    both = {**labels, **device}

    def around(level: float) -> Callable[[int], Value]:
        return lambda at: level * noise.gauss(1, 0.02)

    _put(series, job, "tocsin_rank_up", lambda at: 1, **labels)
    _put(series, job, "tocsin_rank_start_timestamp_seconds", lambda at: 1, **labels)
    _put(series, job, "tocsin_nccl_last_call_timestamp_seconds", lambda at: at, **labels)
    _put(series, job, "tocsin_gpu_owner", lambda at: 1, **both)
    model = job.models[rank % len(job.models)]
    _put(series, job, "tocsin_gpu_info", lambda at: 1, **device, model=model)
    _put(series, job, "tocsin_gpu_utilization_ratio", lambda at: 1, **device)
    for most in ("", "_max"):
        _put(series, job, f"tocsin_gpu_pcie_link_generation{most}", lambda at: 5, **device)
        _put(series, job, f"tocsin_gpu_pcie_link_width{most}", lambda at: 16, **device)
    _put(series, job, "tocsin_job_gpu_utilization_ratio", lambda at: 1, **both)
    _put(series, job, "tocsin_job_gpu_power_watts", around(600), **both)
    if job.gpm:
        _put(series, job, "tocsin_job_gpu_sm_active_ratio", around(0.83), **both)
    if job.gpm and job.tensor:
        _put(series, job, "tocsin_job_gpu_tensor_active_ratio", around(0.54), **both)
    _put(
        series,
        job,
        "tocsin_job_gpu_ecc_errors_total",
        lambda at: 0,
        **both,
        severity="uncorrected",
        memory="dram",
    )
    _put(series, job, "tocsin_job_gpu_row_remaps_total", lambda at: 0, **both, severity="uncorrected")
    for reason in _REASONS:
        _put(series, job, "tocsin_job_gpu_throttle_active", lambda at: 0, **both, reason=reason)
        _put(series, job, "tocsin_job_gpu_throttle_seconds_total", lambda at: 0, **both, reason=reason)


def _output(series: Series, job: Job) -> None:
    last = job.ranks - 1
    labels = {"node": _node(job, last), "job_id": job.job_id, "rank": str(last)}
    noise = random.Random("loss")
    span = job.step_seconds

    def after(prints: int, value: Callable[[int], float]) -> Callable[[int], Value]:
        return lambda at: value(at) if at >= prints * span else None

    _put(series, job, "tocsin_training_step", lambda at: at // span, **labels)
    _put(series, job, "tocsin_training_steps_total", lambda at: at // span, **labels)
    _put(series, job, "tocsin_training_step_seconds", lambda at: span * noise.gauss(1, 0.01), **labels)
    _put(
        series, job, "tocsin_training_last_progress_timestamp_seconds", lambda at: at // span * span, **labels
    )
    _put(series, job, "tocsin_training_phase", lambda at: 1, **labels, phase="train")
    _put(series, job, "tocsin_training_loss", lambda at: 2.5 + noise.gauss(0, 0.05), **labels)
    _put(
        series, job, "tocsin_training_loss_mean", after(10, lambda at: 2.5 + noise.gauss(0, 0.016)), **labels
    )
    _put(series, job, "tocsin_training_loss_best_mean", after(10, lambda at: 2.46), **labels)
    _put(series, job, "tocsin_training_loss_noise", after(20, lambda at: 0.05), **labels)
    _put(series, job, "tocsin_training_loss_recent_min", after(40, lambda at: 2.4), **labels)
    _put(series, job, "tocsin_training_nonfinite_losses_total", lambda at: 0, **labels)


def _apply(series: Series, change: Change) -> None:
    wanted = {"__name__": change.metric, **change.labels}
    hit = [key for key in series if wanted.items() <= dict(key).items()]
    length = len(next(iter(series.values())))
    if change.add:
        node = {"instance": change.labels.get("node", "gpu-001") + ":9836"}
        key = tuple(sorted({**_SELECTOR, **node, **wanted}.items()))
        series[key] = [None] * length
        hit = [key]
    if not hit:
        raise ValueError(f"no series {change.metric} with {change.labels} to change")
    end = change.end if change.end is not None else length * INTERVAL
    for key in hit:
        values = series[key]
        noise = random.Random(repr(key))
        known = values[max(change.start // INTERVAL - 1, 0)]
        before = known if isinstance(known, float | int) else 0.0
        for index in range(length):
            at = index * INTERVAL
            if not change.start <= at < end:
                continue
            if change.gone:
                values[index] = STALE
            elif change.slope is not None:
                base = change.value if change.value is not None else before
                values[index] = base + change.slope * (at - change.start)
            elif change.hold:
                values[index] = before
            elif change.cycle:
                values[index] = change.cycle[index % len(change.cycle)]
            elif change.value is not None and change.metric.endswith(_NOISY):
                values[index] = change.value * noise.gauss(1, 0.02)
            else:
                values[index] = change.value
