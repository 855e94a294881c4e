"""Complaints about adapters and mounts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.exporter.complaints.node import Agent

ERRORS = "tocsin_fabric_errors_total"


@pytest.fixture
def own(make: Callable[..., Agent]) -> Iterator[Agent]:
    """An exporter of a test's own."""
    agent = make()
    yield agent
    agent.close()


def counters(agent: Agent, hca: int) -> object:
    return agent.paths.sysfs / f"class/infiniband/mlx5_{hca}/ports/1/counters"


@pytest.mark.complaint(23)
def test_an_unreadable_counter_costs_only_itself(own: Agent) -> None:
    """
    One file that cannot be read is one missing value and one counted error; all others stay.

    prometheus/node_exporter#3265, #966, #2769, #2846, #505.
    """
    folder = own.paths.sysfs / "class/infiniband/mlx5_0/ports/1/counters"
    (folder / "symbol_error").unlink()
    # A folder in its place fails to read for root too.
    (folder / "symbol_error").mkdir()
    (folder / "link_error_recovery").write_text("not a number\n")
    scrape = own.start().until(lambda one: one.series(ERRORS, port="mlx5_0/1"))

    assert 1 == scrape.value("tocsin_collector_success", collector="fabric")
    assert scrape.value(ERRORS, port="mlx5_0/1", counter="symbol_error") is None
    assert scrape.value(ERRORS, port="mlx5_0/1", counter="link_error_recovery") is None
    assert 0 == scrape.value(ERRORS, port="mlx5_1/1", counter="symbol_error")
    assert 0 == scrape.value(ERRORS, port="mlx5_0/1", counter="port_rcv_errors")
    for name in ("symbol_error", "link_error_recovery"):
        assert (scrape.value("tocsin_exporter_source_errors_total", source="sysfs", reason=name) or 0) >= 1


@pytest.mark.complaint(24)
def test_port_bytes_are_bytes_and_not_words(own: Agent) -> None:
    """
    The kernel counts port data in words of four bytes; the series are in bytes.

    prometheus/node_exporter#573; treydock/infiniband_exporter#33; netdata/netdata#11991.
    """
    folder = own.paths.sysfs / "class/infiniband/mlx5_1/ports/1/counters"
    (folder / "port_rcv_data").write_text("1000\n")
    (folder / "port_xmit_data").write_text("250\n")
    scrape = own.start().until(lambda one: one.series("tocsin_fabric_receive_bytes_total"))

    assert 4000 == scrape.value("tocsin_fabric_receive_bytes_total", port="mlx5_1/1")
    assert 1000 == scrape.value("tocsin_fabric_transmit_bytes_total", port="mlx5_1/1")
