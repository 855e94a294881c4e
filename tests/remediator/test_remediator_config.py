"""Configuration, child processes and the journal's own rules."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tocsin_common import procstat
from tocsin_remediator import config
from tocsin_remediator.adapters import process
from tocsin_remediator.adapters.base import Request
from tocsin_remediator.adapters.command import CommandScheduler
from tocsin_remediator.errors import (
    ActionError,
    Applied,
    InputFileError,
    JournalError,
    Refused,
    StaleIncident,
)
from tocsin_remediator.journal import Journal
from tocsin_remediator.model import CloseCode, Incident, State

if TYPE_CHECKING:
    from pathlib import Path

    from tests.remediator.conftest import Helpers

SCHEDULER = """\
levels: {DeadRank: approve}
schedulers:
  - name: lab
    kind: command
    job_prefix: torchrun/
    describe: {argv: [/bin/echo, "{job_id}"]}
    actions:
      restart: {argv: [/bin/echo, "{job_id}", "{request_id}"], timeout: 5s}
"""


def test_the_configuration_may_be_absent_or_empty(tmp_path: Path) -> None:
    """
    Everything has a default, and the default acts on nothing.
    """
    (tmp_path / "c.yaml").write_text("# nothing\n")

    assert config.load(None) == config.load(tmp_path / "c.yaml")
    assert ({}, []) == (config.load(None).levels, config.load(None).schedulers)


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        pytest.param("levels:", "level:", 1, "unknown key", id="unknown key"),
        pytest.param("approve", "always", 1, "recommend", id="unknown level"),
        pytest.param("kind: command", "kind: shell", 4, "command", id="unknown kind"),
        pytest.param("timeout: 5s", "timeout: 5", 8, "duration", id="no duration"),
        pytest.param("timeout: 5s", "timeuot: 5s", 8, "unknown key", id="unknown key deep down"),
        pytest.param(
            '"{job_id}", "{request_id}"', '"--job={job_id}"', 8, "whole argument", id="a part of an argument"
        ),
        pytest.param(
            '"{job_id}", "{request_id}"', '"{request_id}"', 8, "leaves {job_id} out", id="no target"
        ),
        pytest.param(
            '"{job_id}", "{request_id}"', '"{job_id}", "{rank}"', 8, "no argument", id="unknown placeholder"
        ),
        pytest.param("restart:", "reboot:", 8, "none of", id="unknown action"),
        pytest.param(
            '[/bin/echo, "{job_id}", ', '[/bin/sh, -c, "{job_id}", ', 8, "starts other programs", id="a shell"
        ),
        pytest.param(
            '[/bin/echo, "{job_id}", ', '[sudo, x, "{job_id}", ', 8, "starts other programs", id="sudo"
        ),
        pytest.param('[/bin/echo, "{job_id}", ', '[./x, "{job_id}", ', 8, "absolute", id="a relative path"),
        pytest.param(
            '[/bin/echo, "{job_id}", ', '[no-such-program, "{job_id}", ', 8, "not installed", id="not there"
        ),
        pytest.param(
            '[/bin/echo, "{job_id}", ', '["{job_id}", ', 8, "cannot be a placeholder", id="a label as program"
        ),
        pytest.param(
            "    kind: command", "    kind: command\n    kind: command", 5, "second time", id="a key twice"
        ),
    ],
)
def test_a_broken_configuration_is_refused(
    tmp_path: Path, old: str, new: str, line: int, reason: str
) -> None:
    """
    With file, line and reason.
    """
    file = tmp_path / "c.yaml"
    assert old in SCHEDULER
    file.write_text(SCHEDULER.replace(old, new, 1))

    with pytest.raises(InputFileError) as caught:
        config.load(file)

    assert reason in caught.value.reason
    # A rule over a whole scheduler points at where the scheduler begins.
    assert caught.value.line in (line, 3), str(caught.value)


def command(tmp_path: Path, helpers: type[Helpers]) -> CommandScheduler:
    """The lab's scheduler for one job."""
    root = tmp_path / "scheduler"
    helpers.scheduler(root, "torchrun/x")
    program = str(root / "scheduler")
    made = {
        "name": "lab",
        "kind": "command",
        "job_prefix": "torchrun/",
        "describe": {"argv": [program, str(root), "status", "--job", "{job_id}"]},
        "actions": {
            "move_rank": {
                "argv": [
                    program,
                    str(root),
                    "move",
                    "{job_id}",
                    "{rank}",
                    "{gpu_uuid}",
                    "--request-id",
                    "{request_id}",
                ]
            },
            "restart_without_node": {
                "argv": [program, str(root), "restart", "{job_id}", "{node}", "--request-id", "{request_id}"]
            },
        },
    }
    return CommandScheduler(config.Config.model_validate({"schedulers": [made]}), tmp_path / "out")


UUID = "GPU-00000000-0000-0000-0000-00000000000"


@pytest.mark.parametrize(
    ("verb", "args", "reason"),
    [
        pytest.param("restart_without_node", {"node": "ALL"}, "names a set", id="every node"),
        pytest.param("restart_without_node", {"node": "node[1-8]"}, "form of one node", id="a range"),
        pytest.param("restart_without_node", {"node": "-1"}, "form of one node", id="an option"),
        pytest.param(
            "restart_without_node", {"node": "gpu-009"}, "no rank on node", id="a node without the job"
        ),
        pytest.param("move_rank", {"rank": "9", "gpu_uuid": f"{UUID}1"}, "knows 0 ranks", id="no such rank"),
        pytest.param("move_rank", {"rank": "2", "gpu_uuid": f"{UUID}1"}, "not on", id="moved since"),
        pytest.param("move_rank", {"rank": "2", "gpu_uuid": f"{UUID}2"}, "no spare GPU", id="nowhere to go"),
        pytest.param(
            "move_rank",
            {"rank": "2", "gpu_uuid": f"{UUID}2", "job_id": "torchrun/y"},
            "described",
            id="other",
        ),
        pytest.param(
            "move_rank",
            {"rank": "2", "gpu_uuid": f"{UUID}2", "job_id": "slurm/1"},
            "no scheduler",
            id="slurm",
        ),
    ],
)
def test_a_target_that_is_not_the_one_meant_is_refused(
    tmp_path: Path, helpers: type[Helpers], verb: str, args: dict[str, str], reason: str
) -> None:
    """
    The scheduler must know exactly this job, rank, GPU and node; nothing is run.
    """
    adapter = command(tmp_path, helpers)

    with pytest.raises(Refused, match=reason):
        adapter.confirm_target(verb, {"job_id": "torchrun/x", **args})

    assert not (tmp_path / "scheduler" / "calls").exists()


def test_an_action_over_its_time_is_ended_with_its_children(tmp_path: Path, helpers: type[Helpers]) -> None:
    """
    The whole process group ends, and what it did is not claimed to be known.
    """
    adapter = command(tmp_path, helpers)
    (tmp_path / "scheduler" / "delay").write_text("30")
    pids: list[int] = []
    request = Request(
        incident=1,
        verb="restart_without_node",
        args={"job_id": "torchrun/x", "node": "gpu-001"},
        request_id="r1",
        timeout=0.6,
        started=lambda pid, at: pids.append(pid),
    )
    begun = time.monotonic()

    with pytest.raises(ActionError) as caught:
        adapter.run(request)

    assert Applied.UNKNOWN == caught.value.applied
    assert time.monotonic() - begun < 10
    assert "" == procstat.start(pids[0])


def test_a_child_gets_nothing_of_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Only what was configured, and no more than a bounded tail of its output is kept.
    """
    monkeypatch.setenv("SECRET", "s3cret")
    code = "import os; print('x' * 900000); print(sorted(os.environ))"
    done = process.run(
        [sys.executable, "-I", "-c", code], folder=tmp_path, name="a", timeout=20, environment={"A": "1"}
    )

    assert 0 == done.code
    assert "SECRET" not in done.stdout
    assert "'A'" in done.stdout
    assert len(done.stdout) <= 256 * 1024


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    """An empty journal."""
    made = Journal(f"sqlite:///{tmp_path}/journal.db")
    yield made
    made.close()


def opened(journal: Journal, family: str = "DeadRank", subject: str = "torchrun/x") -> tuple[Incident, bool]:
    """Open an incident of a job."""
    return journal.incidents.open(
        family=family, target=f"job_id={subject}", subject=subject, labels={}, annotations={}, now=1.0
    )


def test_one_open_incident_per_family_and_target_and_one_case_per_job(journal: Journal) -> None:
    """
    A second alert joins the first incident, another family joins the case; after the end of all
    a new case begins.
    """
    first, made = opened(journal)
    again, twice = opened(journal)
    other, _ = opened(journal, family="GpuThrottled")

    assert (True, False) == (made, twice)
    assert first.id == again.id
    assert first.case_id == other.case_id
    for one in (first, other):
        journal.incidents.move(one, State.CLOSED, "done", 2.0, code=CloseCode.SELF)
    new, _ = opened(journal)
    assert new.case_id != first.case_id


def test_a_limit_hides_no_open_incident(journal: Journal) -> None:
    """
    An old one that waits for a person stands before newer ones that are over.
    """
    old, _ = opened(journal)
    new, _ = opened(journal, subject="torchrun/y")
    journal.incidents.move(new, State.CLOSED, "done", 2.0, code=CloseCode.SELF)

    assert [old.id] == [one.id for one in journal.incidents.all(limit=1)]
    assert [new.id] == [one.id for one in journal.incidents.all(state=State.CLOSED, limit=1)]


def test_many_threads_open_one_incident(journal: Journal) -> None:
    """
    However many deliver at once.
    """
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(opened(journal)[0].id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [found[0]] * 8 == found


def test_a_change_on_old_knowledge_is_refused(journal: Journal) -> None:
    """
    Compare-and-set: the second writer reads again first.
    """
    first, _ = opened(journal)
    journal.incidents.move(first, State.CORRELATED, "a", 2.0)

    with pytest.raises(StaleIncident):
        journal.incidents.move(first, State.CLOSED, "b", 3.0)


def waiting(journal: Journal) -> Incident:
    """An incident whose plan waits for approval until 100."""
    one, _ = opened(journal)
    return journal.incidents.move(
        one, State.AWAITING_APPROVAL, "plan", 2.0, plan={"steps": []}, plan_digest="d1", deadline_at=100.0
    )


@pytest.mark.parametrize(
    ("digest", "now", "reason"),
    [
        pytest.param("d0", 50.0, "plan of incident 1 has changed", id="another plan was shown"),
        pytest.param("d1", 101.0, "time for approving", id="too late"),
    ],
)
def test_an_approval_is_for_one_plan_and_in_time(
    journal: Journal, digest: str, now: float, reason: str
) -> None:
    """
    Otherwise it is refused, and the incident goes on waiting.
    """
    one = waiting(journal)

    with pytest.raises(Refused, match=reason):
        journal.incidents.decide(one.id, approve=True, plan_digest=digest, who="a", reason="", now=now)

    assert State.AWAITING_APPROVAL == journal.incidents.get(one.id).state


def test_an_approval_counts_once(journal: Journal) -> None:
    """
    The second click finds that nothing waits.
    """
    one = waiting(journal)
    journal.incidents.decide(one.id, approve=True, plan_digest="d1", who="a", reason="", now=50.0)

    with pytest.raises(Refused, match="does not wait for approval"):
        journal.incidents.decide(one.id, approve=True, plan_digest="d1", who="b", reason="", now=50.0)


def test_a_journal_of_a_newer_program_is_left_alone(journal: Journal, tmp_path: Path) -> None:
    """
    It says which schema it found.
    """
    journal.settings.set("schema", "99")

    with pytest.raises(JournalError, match="schema 99"):
        Journal(f"sqlite:///{tmp_path}/journal.db")


def test_the_journal_is_nobody_elses_business(journal: Journal, tmp_path: Path) -> None:
    """
    Mode 0600.
    """
    assert 0o600 == os.stat(tmp_path / "journal.db").st_mode & 0o777
    assert 0.0 == journal.inbox.lag(1.0)[1]


def test_a_file_stops_it_too(journal: Journal, tmp_path: Path) -> None:
    """
    HALT or FREEZE beside the journal, for when the journal cannot be written.
    """
    (tmp_path / "FREEZE").touch()
    frozen = journal.settings.stop()
    (tmp_path / "HALT").touch()

    assert ("freeze", "halt") == (frozen, journal.settings.stop())
