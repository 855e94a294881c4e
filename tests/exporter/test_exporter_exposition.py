"""The text of a scrape, read back with the client library's own parsers."""

from __future__ import annotations

import gc
import math
import subprocess
import tracemalloc

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tocsin_exporter.collectors.base import HistogramSample, Sample
from tocsin_exporter.exposition import LONGEST_VALUE, AnySample, DroppedLabels, Exposition
from tocsin_exporter.metrics import FAMILIES, Kind, Tier

NASTY = 'a "quoted" \\ back\\nslash, {brace} \u00fc'


def one_of_each() -> list[AnySample]:
    """Return a sample of every family in the table."""
    samples: list[AnySample] = []
    for row in FAMILIES.values():
        labels = tuple(f"v{i}" for i in range(len(row.labels) - 1))
        if row.kind is Kind.HISTOGRAM:
            samples.append(HistogramSample(row.name, labels, tuple(range(len(row.buckets) + 1)), 12.5))
        else:
            samples.append(Sample(row.name, labels, 3))
    return samples


def render(samples: list[AnySample], *, openmetrics: bool = False, tier: Tier = Tier.DEEP) -> str:
    return Exposition("gpu-001", tier, DroppedLabels()).render(samples, openmetrics=openmetrics)


def values(families: list[Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_both_formats_carry_the_same_series() -> None:
    """Text format and OpenMetrics of the whole table parse, and hold the same values."""
    text = values(list(parse_text(render(one_of_each()))))
    openmetrics = values(
        list(
            parse_openmetrics(  # type: ignore[no-untyped-call]
                render(one_of_each(), openmetrics=True)
            )
        )
    )

    assert text == openmetrics
    assert {sample.family for sample in one_of_each()} <= {
        name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name, _ in text
    }


def test_types_are_those_of_the_table() -> None:
    """Each family is exposed under the type that the table gives it."""
    found = {family.name: family.type for family in parse_text(render(one_of_each()))}

    assert {row.name.removesuffix("_total"): row.kind.value for row in FAMILIES.values()} == {
        name.removesuffix("_total"): kind for name, kind in found.items()
    }


def test_label_values_survive_the_way() -> None:
    """Quotes, backslashes and other letters come out as they went in."""
    family = next(iter(parse_text(render([Sample("tocsin_collector_success", (NASTY,), 1)]))))

    assert NASTY == family.samples[0].labels["collector"]


def test_empty_labels_are_left_out_and_control_characters_become_spaces() -> None:
    """An unknown rank has no label, and no value can break a line."""
    text = render([Sample("tocsin_rank_up", ("slurm/1\nx 2", ""), 1)])

    assert 'tocsin_rank_up{node="gpu-001",job_id="slurm/1 x 2"} 1' in text.splitlines()


def test_long_values_are_cut_and_counted() -> None:
    """A label value from outside has a bounded length."""
    dropped = DroppedLabels()
    exposition = Exposition("gpu-001", Tier.DEEP, dropped)

    text = exposition.render([Sample("tocsin_collector_success", ("x" * 5000,), 1)], openmetrics=False)

    assert f'collector="{"x" * LONGEST_VALUE}"' in text
    assert 1 == dropped.counts()["too_long"]


def test_bytes_that_are_no_text_do_not_break_a_scrape() -> None:
    """A name that is not UTF-8 is served with a mark in its place."""
    assert 'collector="a?b"' in render([Sample("tocsin_collector_success", ("a\udcffb",), 1)])


def test_a_series_is_exposed_once() -> None:
    """A second sample of one series is dropped and counted, since Prometheus would refuse the scrape."""
    dropped = DroppedLabels()
    exposition = Exposition("gpu-001", Tier.DEEP, dropped)

    text = exposition.render(
        [Sample("tocsin_host_load1", (), 1), Sample("tocsin_host_load1", (), 2)], openmetrics=False
    )

    assert ['tocsin_host_load1{node="gpu-001"} 1'] == [
        line for line in text.splitlines() if line.startswith("tocsin")
    ]
    assert 1 == dropped.counts()["duplicate"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (0.1, "0.1"),
        (2**53 + 1, "9007199254740993"),
    ],
)
def test_numbers_are_written_as_prometheus_reads_them(value: float, expected: str) -> None:
    """Special values and large counts keep their value."""
    assert f'tocsin_host_load1{{node="gpu-001"}} {expected}' in render(
        [Sample("tocsin_host_load1", (), value)]
    )


def test_histogram_buckets_are_cumulative() -> None:
    """Buckets add up to the count, the last one is +Inf."""
    row = FAMILIES["tocsin_cuda_sync_seconds"]
    sample = HistogramSample(row.name, ("j", "0"), (1,) * (len(row.buckets) + 1), 4.0)

    lines = [line for line in render([sample]).splitlines() if not line.startswith("#")]

    assert (
        f'{row.name}_bucket{{node="gpu-001",job_id="j",rank="0",le="+Inf"}} {len(row.buckets) + 1}' in lines
    )
    assert f'{row.name}_count{{node="gpu-001",job_id="j",rank="0"}} {len(row.buckets) + 1}' in lines
    assert [int(line.split()[-1]) for line in lines if "_bucket" in line] == list(
        range(1, len(row.buckets) + 2)
    )


def test_a_line_is_made_anew_when_its_value_changes() -> None:
    """What is kept from scrape to scrape is the line of an unchanged value only; NaN is no such value."""
    exposition = Exposition("n", Tier.DEEP, DroppedLabels())
    row = FAMILIES["tocsin_cuda_sync_seconds"]
    counts = (1,) * (len(row.buckets) + 1)

    texts = [
        exposition.render(
            [Sample("tocsin_host_load1", (), load), HistogramSample(row.name, ("j", "0"), counts, total)],
            openmetrics=False,
        )
        for load, total in ((1.5, 4.0), (1.5, 4.0), (2.5, 4.0), (math.nan, 5.0), (math.nan, 5.0), (1.5, 4.0))
    ]

    assert texts[0] == texts[1] == texts[5]
    assert 'tocsin_host_load1{node="n"} 2.5' in texts[2]
    assert 'tocsin_host_load1{node="n"} NaN' in texts[3]
    assert texts[3] == texts[4]
    assert f'{row.name}_sum{{node="n",job_id="j",rank="0"}} 5.0' in texts[3]


def test_series_that_ended_leave_nothing_behind() -> None:
    """A node that has seen a hundred thousand jobs holds no more than one that has seen ten."""
    exposition = Exposition("n", Tier.DEEP, DroppedLabels())

    def serve(first: int, jobs: int) -> int:
        for job in range(first, first + jobs, 100):
            exposition.render(
                [Sample("tocsin_rank_up", (f"slurm/{job + one}", "0"), 1) for one in range(100)],
                openmetrics=False,
            )
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = serve(0, 1000)
        many = serve(1000, 50_000)
    finally:
        tracemalloc.stop()

    assert many - few < 50_000


def test_a_tier_serves_what_it_names() -> None:
    """The core tier leaves the fabric's own series out, and the rules' series in."""
    samples: list[AnySample] = [
        Sample("tocsin_fabric_port_active", ("mlx5_0/1",), 1),
        Sample("tocsin_job_port_active", ("mlx5_0/1", "slurm/1"), 1),
    ]

    core = render(samples, tier=Tier.CORE)

    assert "tocsin_job_port_active" in core
    assert "tocsin_fabric_port_active" not in core
    assert "tocsin_fabric_port_active" in render(samples, tier=Tier.FABRIC)


def test_promtool_finds_nothing_to_say(promtool: str) -> None:
    """`promtool check metrics` is clean on a scrape with every family."""
    done = subprocess.run(
        [promtool, "check", "metrics"], input=render(one_of_each()), text=True, capture_output=True
    )

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
