"""Complaints about values: invented zeros, wrong types and units, sentinels, labels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

import pytest
from tests.exporter.complaints.node import Agent, Scrape

from tocsin_exporter.metrics import FAMILIES, Kind

# What GPM alone tells, on Hopper and newer.
ACTIVITY = ("tocsin_gpu_sm_active_ratio", "tocsin_gpu_tensor_active_ratio", "tocsin_gpu_dram_active_ratio")
IDENTITY = frozenset({"node", "gpu", "gpu_uuid", "mig"})


@pytest.fixture(scope="module")
def ampere(make: Callable[..., Agent]) -> Iterator[Agent]:
    """An exporter on a node with A100s, which have no GPM."""
    agent = make(model="A100-SXM", flags=("--tier", "deep")).start()
    yield agent
    agent.close()


@pytest.fixture(scope="module")
def hopper(make: Callable[..., Agent]) -> Iterator[Agent]:
    """An exporter on a node with H100s that serves all it has."""
    agent = make(flags=("--tier", "deep")).start()
    yield agent
    agent.close()


def activity(scrape: Scrape) -> bool:
    return all(scrape.series(name) for name in ACTIVITY)


@pytest.mark.complaint(11)
def test_what_a_device_cannot_tell_is_absent_and_never_zero(ampere: Agent, hopper: Agent) -> None:
    """
    Activity counters are probed per device: there on Hopper, absent and not 0 before.

    NVIDIA/DCGM#303, #173; DataDog/datadog-agent#55966.
    """
    hopper.until(activity)
    old = ampere.cycles(3)

    assert 1 == old.value("tocsin_gpu_up", gpu="0")
    for name in ACTIVITY:
        assert not old.series(name)


@pytest.mark.complaint(13)
def test_every_type_and_unit_is_what_its_name_says(hopper: Agent) -> None:
    """
    A counter is called one, carries a base unit, and has never a smaller value than before.

    NVIDIA/dcgm-exporter#417, #87, PR #658.
    """
    hopper.job("typed", [0, 1])
    scrapes = [hopper.cycles(1) for _ in range(4)]
    for row in FAMILIES.values():
        assert row.name.endswith("_total") == (row.kind is Kind.COUNTER), row.name
    for scrape in scrapes:
        for name, kind in scrape.types.items():
            assert FAMILIES[name].kind.value == kind
    counted = 0
    for before, after in itertools.pairwise(scrapes):
        then = {(name, *sorted(labels.items())): value for name, labels, value in before.rows}
        for name, labels, value in after.rows:
            was = then.get((name, *sorted(labels.items())))
            if was is not None and name.endswith("_total"):
                counted += 1
                assert value >= was, (name, labels)
    assert counted > 100


@pytest.mark.complaint(34)
def test_versions_and_names_are_on_info_series_alone(hopper: Agent) -> None:
    """
    A device series carries the device's identity and what its family adds, no driver version or host name.

    NVIDIA/dcgm-exporter#655; canonical/hardware-observer-operator PR #489.
    """
    hopper.job("named", [0])
    scrape = hopper.until(lambda one: one.series("tocsin_job_gpu_power_watts", job_id="torchrun/named"))
    versions = {
        value for labels, _ in scrape.series("tocsin_gpu_info") for value in (labels["driver_version"],)
    }

    assert versions
    for name, labels, _ in scrape.rows:
        family = name if name in FAMILIES else re.sub("_(bucket|sum|count)$", "", name)
        allowed = set(FAMILIES[family].labels)
        assert set(labels) <= allowed | {"le"}, name
        assert "node" in labels
        if "info" not in name:
            assert not versions & set(labels.values()), name
            assert not {"hostname", "Hostname", "driver_version", "model"} & set(labels), name
        if name.startswith("tocsin_gpu_") and name not in ("tocsin_gpu_owner",):
            assert not {"job_id", "pod", "namespace"} & set(labels), name
