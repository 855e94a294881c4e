"""One failing collector is a gap plus a signal."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from tocsin_exporter.collectors.base import HistogramSample, Sample
from tocsin_exporter.errors import CollectError
from tocsin_exporter.exposition import DroppedLabels, Exposition
from tocsin_exporter.metrics import Tier
from tocsin_exporter.registry import CollectorSet
from tocsin_exporter.sources.latest import Latest

AnySample = Sample | HistogramSample

LOAD = Sample("tocsin_host_load1", (), 1.5)


class Stub:
    """A collector made of one function."""

    def __init__(self, name: str, run: Callable[[], Iterator[AnySample]]) -> None:
        self.name = name
        self._run = run

    def collect(self) -> Iterator[AnySample]:
        """Run it."""
        return self._run()


def healthy() -> Iterator[AnySample]:
    yield LOAD


def broken() -> Iterator[AnySample]:
    yield Sample("tocsin_host_memory_total_bytes", (), 1)
    raise ZeroDivisionError("a bug")


def partly() -> Iterator[AnySample]:
    yield Sample("tocsin_host_memory_total_bytes", (), 7)
    raise CollectError("hung", "the driver does not answer")


def unlisted() -> Iterator[AnySample]:
    yield Sample("tocsin_host_nonsense", (), 1)


def mislabelled() -> Iterator[AnySample]:
    yield Sample("tocsin_host_load1", ("surplus",), 1)


def mistyped() -> Iterator[AnySample]:
    yield HistogramSample("tocsin_host_load1", (), (1, 2), 3.0)


def scrape(
    *collectors: Stub, wall: Callable[[], float] = lambda: 100.0, disabled: tuple[str, ...] = ()
) -> list[str]:
    registry = CollectorSet(
        collectors,
        Exposition("n1", Tier.DEEP, DroppedLabels()),
        wall=wall,
        clock=lambda: 0.0,
        disabled=disabled,
    )
    return [line for line in registry.scrape().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        pytest.param(broken, "bad_data", id="an exception"),
        pytest.param(unlisted, "bad_data", id="a family the table does not list"),
        pytest.param(mislabelled, "bad_data", id="a label too many"),
        pytest.param(mistyped, "bad_data", id="a histogram under a gauge's name"),
        pytest.param(partly, "hung", id="a reason of its own"),
    ],
)
def test_a_failing_collector_costs_only_itself(run: Callable[[], Iterator[AnySample]], reason: str) -> None:
    """The other collector's series are served, and the failure has a reason from the closed list."""
    lines = scrape(Stub("gpu", run), Stub("host", healthy))

    assert 'tocsin_host_load1{node="n1"} 1.5' in lines
    assert 'tocsin_collector_success{node="n1",collector="gpu"} 0' in lines
    assert 'tocsin_collector_success{node="n1",collector="host"} 1' in lines
    assert f'tocsin_collector_error_info{{node="n1",collector="gpu",reason="{reason}"}} 1' in lines
    assert not [line for line in lines if line.startswith("tocsin_collector_error_info") and '"host"' in line]


def test_what_came_before_a_reason_is_served_and_before_a_bug_is_not() -> None:
    """A collector that says why it stops keeps its samples; one that breaks cannot be believed."""
    assert 'tocsin_host_memory_total_bytes{node="n1"} 7' in scrape(Stub("gpu", partly))
    assert not [line for line in scrape(Stub("gpu", broken)) if "memory_total" in line]


@pytest.mark.parametrize("run", [partly, broken], ids=["a reason of its own", "an exception"])
def test_a_failing_collector_leaves_no_cycles(run: Callable[[], Iterator[AnySample]]) -> None:
    """What a failed scrape made is free at its end, so that no scrape waits for the garbage collector."""
    registry = CollectorSet([Stub("host", run)], Exposition("n1", Tier.DEEP, DroppedLabels()))
    registry.scrape()
    gc.collect()
    gc.disable()
    try:
        registry.scrape()

        assert gc.collect() == 0
    finally:
        gc.enable()


def test_the_last_success_stays_while_the_collector_fails() -> None:
    """The time of the last success is that of the last good run, not of the scrape."""
    now = [100.0]
    good = [True]

    def sometimes() -> Iterator[AnySample]:
        return healthy() if good[0] else broken()

    registry = CollectorSet(
        [Stub("host", sometimes)], Exposition("n1", Tier.DEEP, DroppedLabels()), wall=lambda: now[0]
    )
    registry.scrape()
    now[0], good[0] = 160.0, False

    text = registry.scrape()

    assert 'tocsin_collector_last_success_timestamp_seconds{node="n1",collector="host"} 100.0' in text


def test_a_collector_turned_off_says_so() -> None:
    """A layer that is missing on purpose is told from one that is healthy and silent."""
    lines = scrape(Stub("host", healthy), disabled=("gpu",))

    assert 'tocsin_collector_success{node="n1",collector="gpu"} 0' in lines
    assert 'tocsin_collector_error_info{node="n1",collector="gpu",reason="disabled"} 1' in lines


def test_the_state_of_the_collectors_is_told_without_running_one() -> None:
    """Not scraped yet, ok, the reason of a failure, or disabled."""

    def broken() -> Iterator[AnySample]:
        raise CollectError("hung", "no answer")
        yield

    registry = CollectorSet(
        [Stub("host", healthy), Stub("gpu", broken)],
        Exposition("n1", Tier.DEEP, DroppedLabels()),
        disabled=["pcie"],
    )
    first = registry.status()
    registry.scrape()

    assert [("gpu", "not scraped yet"), ("host", "not scraped yet"), ("pcie", "disabled")] == first
    assert [("gpu", "hung"), ("host", "ok"), ("pcie", "disabled")] == registry.status()


def test_two_collectors_of_one_name_are_refused() -> None:
    """A second collector of a name is an error at the start, not an overwrite."""
    with pytest.raises(ValueError, match="one name"):
        scrape(Stub("host", healthy), Stub("host", healthy))


def test_a_reading_is_given_out_until_it_is_too_old() -> None:
    """A value lives for the maximum age and is then a gap with the reason `hung`."""
    now = [0.0]
    latest: Latest[str] = Latest(60.0, clock=lambda: now[0])
    latest.put("value")

    now[0] = 60.0
    assert latest.read() == ("value", None)

    now[0] = 60.1
    value, error = latest.read()
    assert value is None
    assert error is not None
    assert error.reason == "hung"


def test_a_stored_reason_holds_nothing_of_the_scrapes_that_raised_it() -> None:
    """Each scrape raises an exception of its own, so that no traceback grows from scrape to scrape."""
    latest: Latest[int] = Latest(max_age=60.0)
    latest.fail("hung", "the driver does not answer")

    first, second = latest.read()[1], latest.read()[1]

    assert first is not None
    assert second is not None
    assert first is not second
    assert ("hung", "the driver does not answer") == (second.reason, second.detail)


def test_a_failed_read_keeps_the_value_and_tells_why() -> None:
    """Right after a failure the last value is still served, beside the reason."""
    latest: Latest[str] = Latest(60.0, clock=lambda: 0.0)
    latest.put("value")
    latest.fail("no_driver", "unloaded")

    value, error = latest.read()

    assert value == "value"
    assert error is not None
    assert error.reason == "no_driver"


def test_a_source_that_never_read_is_a_timeout() -> None:
    """Before the first reading there is no value, and nobody claims a fault of the device."""
    value, error = Latest[str](60.0, clock=lambda: 0.0).read()

    assert value is None
    assert error is not None
    assert error.reason == "timeout"
