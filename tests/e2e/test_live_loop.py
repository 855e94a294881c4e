"""One lab for what is asked of a running loop: dashboards, a hung driver, a remediator that is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tocsin_common.bundle import bundle_root
from tocsin_common.bundle.dashboards import queries
from tocsin_lab import inject
from tocsin_lab.errors import LabError
from tocsin_lab.job import control
from tocsin_lab.job.spec import JobPaths
from tocsin_lab.scenario import Fault
from tocsin_lab.stack import http, incidents
from tocsin_lab.stack.lab import Lab, Options, take_run_dir
from tocsin_lab.stack.plan import LabPlan
from tocsin_lab.stack.rundir import RunDir

pytestmark = pytest.mark.long

WARM_SECONDS = 150.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab whose job has trained long enough for baselines."""
    run = RunDir(tmp_path_factory.mktemp("loop") / "run")
    told: list[str] = []
    take_run_dir(run, told.append)
    running = Lab(run, Options(LabPlan(), simulate=True, any_ports=True), told.append)
    try:
        running.start()
        _watch(running, WARM_SECONDS)
        yield running
    finally:
        problems = running.stop(keep=False)
    assert problems == []


def _watch(lab: Lab, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
    """Keep the parts running for *seconds* or until the fact holds; tell whether it did."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        lab.stack.watch()
        if until():
            return True
        time.sleep(1)
    return until()


def _empty(lab: Lab) -> list[str]:
    """Return the dashboards' queries that have no data now."""
    boards = sorted((bundle_root() / "dashboards" / "rendered").glob("*.json"))
    asked = [query for board in boards for query in queries(board)]
    assert asked
    return [query for query in asked if not http.query(lab.prometheus, query)]


def test_every_dashboard_query_returns_data(lab: Lab) -> None:
    """While nothing is wrong, only the questions for what is wrong have no answer."""
    wrong = ("tocsin_job:verdict:info", "tocsin_job:contributor:info")

    assert [query for query in _empty(lab) if not any(name in query for name in wrong)] == []


def test_the_job_is_seen_from_devices_calls_and_output(lab: Lab) -> None:
    """Every kind of evidence names the same six ranks."""
    if any("no right to trace" in note for note in lab.notes):
        pytest.skip("no right to trace: root or CAP_BPF is needed")
    for expression in ("tocsin_rank_up", "tocsin_rank:sm_active:avg1m", "tocsin_cuda_calls_total"):
        ranks = {labels["rank"] for labels, _ in http.query(lab.prometheus, f"{expression} > 0")}
        assert ranks == {"0", "1", "2", "3", "4", "5"}, expression
    [(_, first)] = http.query(lab.prometheus, "tocsin_job:step:max")
    assert _watch(lab, 30, lambda: http.query(lab.prometheus, "tocsin_job:step:max")[0][1] > first)


def _values(url: str, name: str, **labels: str) -> list[float]:
    """Return the values of a series in a scrape of our own."""
    return [
        sample.value
        for family in text_string_to_metric_families(http.get(url))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def test_an_exporter_with_a_hung_driver_answers_and_says_so(lab: Lab) -> None:
    url = lab.wiring.url(lab.wiring.exporters["gpu-002"]) + "/metrics"
    fault = Fault.model_construct(kind="driver_hang", at=0.0, node="gpu-002")

    def success() -> list[float]:
        return _values(url, "tocsin_collector_success", collector="gpu")

    assert success() == [1.0]
    inject.strike(lab.run, fault)
    try:
        said = _watch(lab, 60, lambda: success() == [0.0])
        reasons = _values(url, "tocsin_collector_error_info", collector="gpu", reason="hung")
        # Everything that does not ask the driver is still there.
        ranks = _values(url, "tocsin_rank_up")
    finally:
        inject.clear(lab.run, fault)

    assert said
    assert reasons == [1.0]
    assert ranks == [1.0, 1.0, 1.0]
    assert _watch(lab, 90, lambda: success() == [1.0]), (
        "the driver answers again, the exporter does not see it"
    )


def _verdicts(lab: Lab) -> list[dict[str, str]]:
    return [labels for labels, _ in http.query(lab.prometheus, "tocsin_job:verdict:info")]


def _incident(lab: Lab, family: str) -> dict[str, Any]:
    """Return the family's last incident; its state is `unknown` while the remediator is down."""
    try:
        found = [one for one in incidents.listed(lab.remediator) if one["family"] == family]
    except LabError:
        return {"state": "unknown", "id": 0}
    return found[0] if found else {"state": "none", "id": 0}


def test_a_killed_remediator_finishes_what_was_approved_and_does_it_once(lab: Lab) -> None:
    """kill -9 right after the approval, and again while it verifies."""
    job = JobPaths(lab.run.root, lab.plan.job)
    _watch(lab, 180, lambda: not _verdicts(lab))
    before = control.status(job)["attempt"]
    inject.strike(lab.run, Fault.model_construct(kind="rank_exit", at=0.0, rank=1, signal=9))
    # Thirty seconds is the family's deadline; the first row must be the right one.
    assert _watch(lab, 30, lambda: bool(_verdicts(lab)))
    assert [(row["family"], row["verdict"], row["rank"]) for row in _verdicts(lab)] == [
        ("DeadRank", "job", "1")
    ]
    assert _watch(lab, 90, lambda: _incident(lab, "DeadRank")["state"] == "awaiting_approval")
    # Now the dashboards' questions for the verdict have their answer too.
    assert [query for query in _empty(lab) if "tocsin_job:contributor:info" not in query] == []

    incidents.approve(lab.run, str(_incident(lab, "DeadRank")["id"]))
    os.kill(lab.stack.pid("remediator"), signal.SIGKILL)
    final = {"closed", "needs_human", "rolled_back", "escalated"}
    assert _watch(lab, 240, lambda: _incident(lab, "DeadRank")["state"] in {"verifying", *final})
    os.kill(lab.stack.pid("remediator"), signal.SIGKILL)
    assert _watch(lab, 900, lambda: _incident(lab, "DeadRank")["state"] in final)

    # It finishes, or it asks a person; the restart happened once either way.
    assert _incident(lab, "DeadRank")["state"] in {"closed", "needs_human"}
    assert control.status(job)["attempt"] == before + 1
    assert len([one for one in incidents.listed(lab.remediator) if one["family"] == "DeadRank"]) == 1


def test_nothing_of_the_run_directory_is_outside_it(lab: Lab) -> None:
    """The lab writes into its own folder only: what the job mounts or links would show here."""
    run = str(lab.run.root)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]

    assert [mount for mount in mounts if mount.startswith(run)] == []
