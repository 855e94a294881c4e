"""The engine's safety over a real journal: budgets, dry runs, recovery; and answers that break off."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import requests

from tocsin_common import procstat
from tocsin_remediator import alertmanager
from tocsin_remediator.adapters.recommend import Recommend
from tocsin_remediator.config import Config
from tocsin_remediator.decide import Decision
from tocsin_remediator.engine import acting, steps
from tocsin_remediator.engine.context import Context
from tocsin_remediator.errors import PrometheusError, QueryFailure
from tocsin_remediator.journal import Journal
from tocsin_remediator.metrics import Metrics
from tocsin_remediator.model import ACTING, Incident, State
from tocsin_remediator.prometheus import Prometheus
from tocsin_remediator.runbook.load import load_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.remediator.conftest import Helpers, Site


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An empty journal."""
    made = Journal(f"sqlite:///{tmp_path}/journal.db")
    yield made
    made.close()


def world(journal: Journal, helpers: type[Helpers], **changes: Any) -> Context:
    """A context whose Prometheus is not there, with the one runbook that asks nothing before it begins."""
    book = load_file(helpers.repo / "runbooks" / "GpuThrottled.yaml")
    values: dict[str, Any] = {
        "config": Config(max_concurrent=2),
        "journal": journal,
        "prometheus": Prometheus(f"http://127.0.0.1:{helpers.free_port()}", timeout=1.0),
        "books": {"GpuThrottled": book},
        "adapters": {"recommend": Recommend()},
        "metrics": Metrics(journal, lambda: 100.0),
        "alertmanager_url": "",
        "now": lambda: 100.0,
        "dry_run": False,
        "ended": lambda job: False,
        **changes,
    }
    return Context(**values)


def queued(journal: Journal, job: str, rank: int = 0) -> Incident:
    """An incident that may begin."""
    incident, _ = journal.incidents.open(
        family="GpuThrottled",
        target=f"job_id={job},rank={rank}",
        subject=job,
        labels={},
        annotations={},
        now=99.0,
    )
    return journal.incidents.move(incident, State.QUEUED, "approved", 99.0)


def begin(context: Context, incidents: list[Incident]) -> list[Incident]:
    """Let a thread each begin them at the same moment; how they stand afterwards."""
    together = threading.Barrier(len(incidents))

    def one(incident: Incident) -> None:
        together.wait(10)
        steps._start(context, incident, context.books["GpuThrottled"], {})

    threads = [threading.Thread(target=one, args=(incident,)) for incident in incidents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [context.journal.incidents.get(incident.id) for incident in incidents]


def test_jobs_that_begin_at_once_do_not_pass_the_budget_together(
    journal: Journal, helpers: type[Helpers]
) -> None:
    """
    Eight are approved in one moment and two may be acted on: two begin, six wait.
    """
    context = world(journal, helpers)

    found = begin(context, [queued(journal, f"torchrun/job-{place}") for place in range(8)])

    assert 2 == sum(one.state in ACTING for one in found)
    assert 6 == sum(one.state is State.QUEUED for one in found)


def test_two_incidents_of_one_job_never_act_together(journal: Journal, helpers: type[Helpers]) -> None:
    """
    Both are allowed; one begins.
    """
    context = world(journal, helpers)

    found = begin(context, [queued(journal, "torchrun/x", rank) for rank in range(6)])

    assert 1 == sum(one.state in ACTING for one in found)


def test_a_dry_run_does_not_finish_what_was_approved_before(journal: Journal, helpers: type[Helpers]) -> None:
    """
    Started again with --dry-run, a queued run waits and a run under way goes to a person; nothing is sent.
    """
    context = world(journal, helpers, dry_run=True)
    waiting = queued(journal, "torchrun/x")
    running = queued(journal, "torchrun/y")
    plan = {"steps": [step(timeout=10.0)], "rollback": []}
    running = journal.runs.begin(running, "attempt 1", 99.0, 1000.0)
    running = journal.incidents.touch(running, 99.0, 99.0, plan=plan)

    steps._start(context, waiting, context.books["GpuThrottled"], {})
    found = acting.advance(context, running, rollback=False)

    assert (State.QUEUED, "this is a dry run") == (
        journal.incidents.get(waiting.id).state,
        journal.incidents.get(waiting.id).reason,
    )
    assert found is not None
    assert State.QUEUED is found.state
    assert [] == journal.runs.steps(running.id)


def step(timeout: float) -> dict[str, Any]:
    """One step of a plan."""
    return {
        "id": "say",
        "action": "recommend.record",
        "args": {"advice": "look at it"},
        "timeout": timeout,
        "on_failure": "needs_human",
    }


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [
        pytest.param(60.0, None, id="within its time it is waited for"),
        pytest.param(0.5, State.NEEDS_HUMAN, id="past it a person is asked"),
    ],
)
def test_an_action_that_outlives_its_remediator_is_not_waited_for_without_end(
    journal: Journal, helpers: type[Helpers], timeout: float, expected: State | None
) -> None:
    """
    Whoever would have ended it at its timeout was killed; while it runs nothing is sent again.
    """
    context = world(journal, helpers)
    incident = journal.runs.begin(queued(journal, "torchrun/x"), "attempt 1", 99.0, 1000.0)
    plan = {"steps": [step(timeout)], "rollback": []}
    incident = journal.incidents.touch(incident, 99.0, 99.0, plan=plan)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        record = journal.runs.intend(
            run=journal.runs.latest(incident.id),
            incident=incident.id,
            position=0,
            step="say",
            action="recommend.record",
            args={"advice": "look at it"},
            request_id="r1",
            rollback=False,
            now=99.0,
        )
        journal.runs.started(record.id, child.pid, procstat.start(child.pid))

        found = acting.advance(context, incident, rollback=False)
    finally:
        child.kill()
        child.wait()

    assert isinstance(found, Decision)
    assert expected is found.state
    statuses = [one.status for one in journal.runs.steps(incident.id)]
    assert ["intent" if expected is None else "unknown"] == statuses


def test_a_wish_that_came_meanwhile_is_not_dropped(journal: Journal) -> None:
    """
    A second truncated notice during a fetch is fetched too.
    """
    journal.settings.set("refetch", "first")
    journal.settings.set("refetch", "second")

    journal.settings.drop("refetch", "first")
    kept = journal.settings.get("refetch")
    journal.settings.drop("refetch", "second")

    assert ("second", "") == (kept, journal.settings.get("refetch"))


@pytest.fixture
def breaks_off() -> Iterator[str]:
    """A server that promises more than it sends."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{")

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    # Closing alone does not wake a thread that waits in accept.
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def test_an_answer_that_breaks_off_is_no_answer(breaks_off: str) -> None:
    """
    Half a body is neither evidence nor an unexpected error.
    """
    with pytest.raises(PrometheusError) as half:
        Prometheus(breaks_off, timeout=2.0).instant("up")
    with pytest.raises(PrometheusError):
        alertmanager.verdicts(breaks_off)

    assert QueryFailure.UNREACHABLE is half.value.kind


def test_the_same_failure_has_the_same_words(helpers: type[Helpers]) -> None:
    """
    A reason that changed with each try would be a line of the timeline each; a password is in none.
    """
    asked = Prometheus(f"http://ada:s3cret@127.0.0.1:{helpers.free_port()}", timeout=1.0)
    reasons = []
    for _ in range(2):
        with pytest.raises(PrometheusError) as caught:
            asked.instant("up")
        reasons.append(str(caught.value))

    assert reasons[0] == reasons[1]
    assert "Connection refused" in reasons[0]
    assert "s3cret" not in reasons[0]


def test_a_senders_token_alone_does_not_open_the_pages_to_foreign_hosts(site_free: Site) -> None:
    """
    A foreign name that resolves to the loopback address could decide as soon as its page is served.
    """
    (site_free.folder / "senders").write_text("token\n")
    config = site_free.config(auth={"webhook_token_file": str(site_free.folder / "senders")})
    remediator = site_free.remediator(config=config)
    remediator.start()

    answers = [
        requests.get(f"{remediator.url}/incidents", headers={"Host": host}, timeout=5).status_code
        for host in ("evil.example", "127.0.0.1")
    ]

    assert [403, 200] == answers
