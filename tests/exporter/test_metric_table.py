"""The metric table obeys the naming rules."""

from __future__ import annotations

import re

import pytest

from tocsin_common import vocabulary
from tocsin_exporter.config import COLLECTORS
from tocsin_exporter.metrics import FAMILIES, Family, Kind
from tocsin_exporter.metrics.family import DEVICE, JOB_DEVICE, JOB_PORT

ROWS = tuple(FAMILIES.values())
UNITS = ("seconds", "bytes", "ratio", "watts", "joules", "celsius", "hertz", "")
# Dividing by one unit leaves a rate; these are the names that end in one and carry no unit of their own.
SCALED = re.compile(
    r"_(milli|micro|nano|kilo|mega|giga|kib|mib|gib|mb|gb|ms|us|ns|percent|fahrenheit|mhz)(_|$)"
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Family) -> None:
    """Name, type, unit, labels and help of a family follow the rules of the manual."""
    assert re.fullmatch(r"tocsin_[a-z0-9]+(_[a-z0-9]+)*", row.name)
    assert (row.kind is Kind.COUNTER) == row.name.endswith("_total")
    assert row.unit in UNITS
    if row.unit:
        assert row.name.removesuffix("_total").endswith(f"_{row.unit}")
    assert not SCALED.search(row.name)
    assert "node" == row.labels[0]
    assert len(set(row.labels)) == len(row.labels)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in row.labels)
    assert row.help.endswith(".")
    assert row.help[0].isupper() or row.help[0].isdigit()
    assert (row.kind is Kind.HISTOGRAM) == bool(row.buckets)
    assert list(row.buckets) == sorted(set(row.buckets))
    assert len(row.buckets) <= 12


def test_a_job_device_series_mirrors_a_device_series() -> None:
    """Each series of a job on a device has the type, unit and further labels of the device's own."""
    for row in ROWS:
        if row.name.startswith("tocsin_job_gpu_"):
            device = FAMILIES[row.name.replace("tocsin_job_gpu_", "tocsin_gpu_")]
            assert (device.kind, device.unit) == (row.kind, row.unit), row.name
            assert DEVICE == device.labels[: len(DEVICE)], row.name
            assert JOB_DEVICE == row.labels[: len(JOB_DEVICE)], row.name
            assert device.labels[len(DEVICE) :] == row.labels[len(JOB_DEVICE) :], row.name


def test_job_port_series_carry_the_job() -> None:
    """Series of a job on a port begin with port and job."""
    rows = [row for row in ROWS if row.name.startswith("tocsin_job_port_")]

    assert rows
    assert all(row.labels[: len(JOB_PORT)] == JOB_PORT for row in rows)


def test_collectors_are_named_as_everywhere() -> None:
    """Flags, labels and rules know one list of names."""
    assert set(COLLECTORS) <= set(vocabulary.COLLECTORS)
