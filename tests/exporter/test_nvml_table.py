"""The table of quantities and the structures, held against nvidia-ml-py, which knows nvml.h."""

from __future__ import annotations

import ctypes
import inspect
import re
import struct
from pathlib import Path

import pynvml
import pytest

from tocsin_exporter.sources.nvml import fields, gpm, structures
from tocsin_exporter.sources.nvml.calls import version
from tocsin_exporter.sources.nvml.driver_events import EVENT_TYPES
from tocsin_exporter.sources.nvml.quantities import QUANTITIES
from tocsin_exporter.sources.nvml.reads import CALL, FIELD, GPM, OWN, TIERS, Quantity
from tocsin_exporter.sources.nvml.results import ERRORS
from tocsin_exporter.sources.nvml.throttle import THROTTLE_REASONS

ROWS = tuple(QUANTITIES.values())
READS = tuple((row, read) for row in ROWS for read in row.reads)
NVIDIA = Path(inspect.getfile(pynvml)).read_text()
SOURCES = "".join(path.read_text() for path in Path(inspect.getfile(structures)).parent.glob("*.py"))
# Answers without meaning on Hopper, deprecated fields.
NEVER_FIELDS = {*range(32, 74), *range(84, 91), *range(96, 138), 205, 216, 217, 218, 226, 227}
# 20 ms each; seconds; an attestation is no measurement.
NEVER_CALLS = ("GetPcieThroughput", "ValidateInforom", "AttestationReport")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Quantity) -> None:
    """A counter is called so, a tier and a rhythm exist, and there is a way to read it."""
    assert row.counter == row.name.endswith("_total")
    assert row.tier in TIERS
    assert row.every in (0.0, 30.0, 60.0, 600.0)
    assert row.reads
    assert row.source or all(read.kind == OWN for read in row.reads)
    assert all(0 <= read.since <= read.until for read in row.reads)
    if row.event or row.timed:
        assert row.counter
        assert row.held
    if row.held:
        assert not {"link", "pid", "lane"} & set(row.labels), "too many per holder"


def test_each_field_is_the_one_that_it_is_called_after() -> None:
    """Numbers and names of fields and activity metrics belong together, as nvml.h has them."""
    for row, read in READS:
        if read.kind == FIELD:
            known = getattr(pynvml, f"NVML_FI_DEV_{read.name}", getattr(pynvml, f"NVML_FI_{read.name}", None))
            assert read.number == known, row.name
        elif read.kind == GPM:
            assert read.number == getattr(pynvml, f"NVML_GPM_METRIC_{read.name}"), row.name


def test_each_function_exists() -> None:
    """Every function that is called is one of NVML's."""
    called = {read.name.partition("/")[0] for _, read in READS if read.kind == CALL}
    for name in called | set(re.findall(r'"(nvml[A-Z]\w+)(?:/\d)?"', SOURCES)):
        assert hasattr(pynvml, name.removesuffix("_v2")) or f'"{name}"' in NVIDIA, name


def test_what_must_never_be_read_is_not() -> None:
    """No field that answers 0 without counting, none that is deprecated, and no call that blocks for long."""
    assert set() == NEVER_FIELDS & {read.number for _, read in READS if read.kind == FIELD}
    assert not [read.name for _, read in READS if read.kind == CALL and read.name.endswith(NEVER_CALLS)]


def test_a_question_is_asked_once() -> None:
    """No two series are the same question with the same labels."""
    seen: set[object] = set()
    for row, read in READS:
        key = (row.name, read)
        assert key not in seen, row.name
        seen.add(key)


def test_labels_of_reads_fit_their_quantity() -> None:
    """Labels of a read, its link and its state together are as many as the quantity has."""
    for row, read in READS:
        if read.kind != OWN:
            link = bool(read.per) and read.kind != GPM
            assert len(row.labels) == len(read.labels) + link + bool(read.states), row.name


@pytest.mark.parametrize(
    ("record", "name"),
    [(fields.RECORD, "c_nvmlFieldValue_t"), (gpm.METRIC, "c_nvmlGpmMetric_t")],
    ids=["field value", "activity metric"],
)
def test_records_taken_apart_by_position_have_nvmls_layout(record: struct.Struct, name: str) -> None:
    """A record that is unpacked rather than read by member is as long as the structure is."""
    assert ctypes.sizeof(getattr(pynvml, name)) == record.size


@pytest.mark.parametrize("form", structures.VERSIONS)
def test_version_words_are_nvmls(form: str) -> None:
    """The version that a structure announces is one that nvml.h has for a structure of its size."""
    numbers = [value for name, value in vars(pynvml).items() if name.startswith("nvml")]
    known = {value for value in numbers if isinstance(value, int)}
    [result, *_] = structures.RESULTS.get(form) or structures.RESULTS[form.partition("/")[0]]

    assert version(result, structures.VERSIONS[form]) in known


def test_attributes_are_parts_of_the_answer() -> None:
    """What is taken of an answer is a member or a position that the function fills."""
    for row, read in READS:
        if read.kind == CALL:
            form = read.name if read.name in structures.RESULTS else read.name.partition("/")[0]
            results = structures.RESULTS.get(form, (ctypes.c_uint,))
            position, _, member = read.attribute.partition(".")
            if position.isdigit():
                assert int(position) < len(results), row.name
            else:
                position, member = "0", read.attribute
            assert hasattr(results[int(position)], member or "value"), row.name


def test_errors_and_events_are_nvmls() -> None:
    """Numbers of errors, events and clock reasons are those of nvml.h."""
    codes = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    events = {
        value for name, value in vars(pynvml).items() if name.startswith(("nvmlEventType", "nvmlEventMig"))
    }
    reasons = {value for name, value in vars(pynvml).items() if name.startswith("nvmlClocksEventReason")}

    for number, text in ERRORS.items():
        if number:
            assert codes[number] == f"NVML_ERROR_{text.upper()}"
    assert set(EVENT_TYPES) <= events
    assert set(THROTTLE_REASONS.values()) <= reasons
