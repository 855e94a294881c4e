"""The whole way: alert, case, approval, action, verification, end; against real servers."""

from __future__ import annotations

import re
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests

if TYPE_CHECKING:
    from tests.remediator.conftest import Helpers, Site

GPU = "GPU-00000000-0000-0000-0000-000000000002"


def test_a_dead_rank_is_restarted_once_after_approval_and_the_fix_is_verified(
    site: Site, helpers: type[Helpers]
) -> None:
    """
    One incident opens, waits for a person, restarts the job once and closes as fixed.
    """
    remediator = site.remediator()
    remediator.start()
    site.job.breaks("DeadRank", **helpers.dead_rank)

    waiting = remediator.reaches("awaiting_approval")
    assert 0 == site.count()
    assert f"job_id={site.job.id}" == waiting["target"]

    approved = remediator.command("approve", str(waiting["id"]), "--by", "operator")
    assert 0 == approved.returncode, approved.stderr
    done = remediator.reaches("closed", "needs_human", "escalated", seconds=30)

    assert ("closed", "fixed") == (done["state"], done["close_code"]), done
    assert 1 == site.count()
    expected = [
        "received",
        "correlated",
        "awaiting_approval",
        "queued",
        "evidence",
        "executing",
        "verifying",
        "held",
    ]
    kinds = [event["kind"] for event in done["timeline"]]
    assert [*expected, "closed"] == [kind for kind in kinds if kind in {*expected, "closed"}]
    case = remediator.command("case", str(done["id"]), "--format", "md").stdout
    assert "FailSlowGpu does not fire for this job" in case
    assert "approved by operator" in case


@pytest.mark.long
def test_a_slow_gpu_is_left_by_its_rank_when_the_page_is_used(site: Site, helpers: type[Helpers]) -> None:
    """
    The approve button sends the plan that was shown; the scheduler gets exactly rank and GPU.
    """
    remediator = site.remediator()
    (site.root / "describe.json").write_text(
        (site.root / "describe.json").read_text().replace('"spare": []', '"spare": [{"node": "gpu-001"}]')
    )
    remediator.start()
    labels = {"verdict": "infrastructure", "side": "below", "layer": "device", "rank": "2", "gpu_uuid": GPU}
    site.job.breaks("FailSlowGpu", **labels)
    waiting = remediator.reaches("awaiting_approval")
    address = f"{remediator.url}/incidents/{waiting['id']}"

    browser = requests.Session()
    page = browser.get(address, timeout=5)
    fields = dict(re.findall(r'name="(csrf|plan_digest)" value="([0-9a-f]+)"', page.text))
    forged = requests.post(f"{address}/approve", data={**fields, "by": "x"}, timeout=5)
    elsewhere = browser.post(
        f"{address}/approve", data={**fields, "by": "x"}, headers={"Sec-Fetch-Site": "cross-site"}, timeout=5
    )
    pressed = browser.post(f"{address}/approve", data={**fields, "by": "operator"}, timeout=5)

    assert [403, 403, 200] == [forged.status_code, elsewhere.status_code, pressed.status_code], pressed.text
    done = remediator.reaches("closed", "needs_human", "escalated", seconds=30)
    assert "fixed" == done["close_code"], done
    call = site.calls()[0]
    assert ["move-rank", "--job", site.job.id, "--rank", "2", "--avoid-gpu", GPU] == call[:7]


@pytest.mark.long
def test_killed_again_and_again_it_is_done_once(site: Site, helpers: type[Helpers]) -> None:
    """
    Approved while the server is down, kill -9 while the action runs, kill -9 while verifying: after
    each restart it goes on, asks under the same request id, and the action is carried out once.
    """
    site.delay(2)
    site.runbooks(**{"settle: 1s": "settle: 2s"})
    remediator = site.remediator()
    remediator.start()
    site.job.breaks("DeadRank", **helpers.dead_rank)
    waiting = remediator.reaches("awaiting_approval")

    remediator.kill()
    assert 0 == remediator.command("approve", str(waiting["id"])).returncode
    remediator.start()
    helpers.until(lambda: site.calls())
    remediator.kill()
    remediator.start()
    verifying = remediator.reaches("verifying")
    remediator.kill()
    remediator.start()
    done = remediator.reaches("closed", "needs_human", "escalated", seconds=30)

    assert "fixed" == done["close_code"], done
    assert 1 == site.count()
    assert 1 == len({tuple(call) for call in site.calls()})
    assert ["applied"] == [step["status"] for step in done["steps"]]
    assert verifying["facts"]["progress"]["since"] == done["facts"]["progress"]["since"]


@pytest.mark.long
def test_asked_to_end_it_does_not_wait_for_the_action_nor_end_it(site: Site, helpers: type[Helpers]) -> None:
    """
    SIGTERM while an action runs: the program is gone before the action, which is then carried out.
    """
    site.delay(8)
    remediator = site.remediator()
    remediator.start()
    site.job.breaks("DeadRank", **helpers.dead_rank)
    remediator.approve(remediator.reaches("awaiting_approval"))
    helpers.until(lambda: site.calls())

    assert remediator.child is not None
    remediator.child.terminate()
    remediator.child.wait(20)
    before = site.count()
    helpers.until(lambda: site.count() == 1)

    assert 0 == before


@pytest.mark.long
def test_an_action_that_cannot_be_asked_about_goes_to_a_person(site: Site, helpers: type[Helpers]) -> None:
    """
    kill -9 during an action whose command takes no request id: it is not sent again.
    """
    site.delay(1.5)
    config = site.config()
    restart = config["schedulers"][0]["actions"]["restart"]["argv"]
    # A constant where the id would be: the remediator cannot tell tries apart.
    restart[restart.index("{request_id}")] = "none"
    remediator = site.remediator(config=config)
    remediator.start()
    site.job.breaks("DeadRank", **helpers.dead_rank)
    waiting = remediator.reaches("awaiting_approval")
    remediator.approve(waiting)
    helpers.until(lambda: site.calls())

    remediator.kill()
    remediator.start()
    done = remediator.reaches("needs_human", "closed", "escalated", "verifying")

    assert "needs_human" == done["state"]
    assert "cannot ask what happened" in done["reason"]
    assert 1 == len(site.calls())


@pytest.mark.long
def test_a_dead_signal_is_no_success(site: Site, helpers: type[Helpers]) -> None:
    """
    The exporter dies after the action: the verdict row goes, `resolved` arrives, and still the fix
    is not called verified; at the deadline a person is asked.
    """
    site.runbooks(**{"deadline: 15m": "deadline: 5s"})
    (site.root / "useless").touch()
    remediator = site.remediator()
    remediator.start()
    site.job.breaks("DeadRank", **helpers.dead_rank)
    waiting = remediator.reaches("awaiting_approval")
    remediator.approve(waiting)
    remediator.reaches("verifying")
    site.job.silent = True

    done = remediator.reaches("needs_human", "closed", "escalated", "held")

    assert "needs_human" == done["state"]
    assert "guard signal-alive" in done["reason"]


@pytest.mark.long
def test_a_useless_fix_is_escalated_with_a_pack(site: Site, helpers: type[Helpers]) -> None:
    """
    The indicators do not come back: the run counts as failed and people get the evidence.
    """
    site.runbooks(**{"deadline: 15m": "deadline: 4s"})
    (site.root / "useless").touch()
    remediator = site.remediator()
    remediator.start()
    site.job.breaks("DeadRank", **helpers.dead_rank)
    waiting = remediator.reaches("awaiting_approval")
    remediator.approve(waiting)
    remediator.reaches("escalated")

    pack = helpers.until(lambda: remediator.only()["facts"].get("pack"), hint=lambda: remediator.log)

    with tarfile.open(Path(pack.removeprefix("evidence pack "))) as tar:
        names = sorted(Path(name).name for name in tar.getnames())
    assert ["case.html", "case.json", "manifest.json", "measurements.csv", "summary.md"] == names[:5]
    assert "A rank of" in remediator.command("case", str(waiting["id"]), "--format", "html").stdout


def test_a_forged_alert_costs_a_query(site: Site, helpers: type[Helpers]) -> None:
    """
    Prometheus does not know the verdict: the incident ends as stale, nothing is planned; a second
    delivery meanwhile is merged.
    """
    remediator = site.remediator()
    remediator.start()
    answers = [
        site.post(remediator.url, job_id=site.job.id, family="DeadRank", **helpers.dead_rank)
        for _ in range(2)
    ]

    done = remediator.reaches("closed", "awaiting_approval", "needs_human")

    assert [200, 200] == [answer.status_code for answer in answers]
    assert ("closed", "stale", None) == (done["state"], done["close_code"], done["plan"])


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param({"job_id": "--user=root"}, id="an option as job"),
        pytest.param({"job_id": "torchrun/a,b"}, id="two jobs"),
        pytest.param({"node": "ALL"}, id="every node"),
        pytest.param({"node": "node[1-8]"}, id="a node range"),
        pytest.param({"node": "-gpu-001"}, id="a leading dash"),
        pytest.param({"node": "gpu-001\n"}, id="a trailing newline"),
        pytest.param({"node": "gpu-001;reboot"}, id="a shell word"),
        pytest.param({"family": "../DeadRank"}, id="a path as family"),
    ],
)
def test_hostile_labels_are_refused_at_the_door(shared: tuple[str, Site], labels: dict[str, str]) -> None:
    """
    No incident is opened, the reason is on the page, and nothing is called.
    """
    url, site = shared
    good = {"job_id": "torchrun/x", "family": "DeadRank", "node": "gpu-001"}
    before = requests.get(f"{url}/metrics", timeout=5).text

    answer = site.post(url, **{**good, **labels})

    assert 200 == answer.status_code
    end = time.monotonic() + 5
    pattern = r'inbox_total\{result="refused"\} ([0-9.]+)'
    was = re.search(pattern, before)
    assert was
    while time.monotonic() < end:
        now = re.search(pattern, requests.get(f"{url}/metrics", timeout=5).text)
        if now and now[1] != was[1]:
            break
        time.sleep(0.05)
    assert now is not None
    assert float(was[1]) + 1 == float(now[1])
    assert [] == requests.get(f"{url}/api/v1/incidents", timeout=5).json()


@pytest.mark.long
def test_a_promoted_runbook_acts_alone_but_not_while_frozen(site: Site, helpers: type[Helpers]) -> None:
    """
    auto, given to exactly this content, needs no approval; the stop switch holds it in the queue.
    """
    remediator = site.remediator()
    remediator.start()
    books = str(site.runbooks())
    promoted = remediator.command("promote", "DeadRank", "--level", "auto", "--runbooks", books)
    assert 0 == promoted.returncode, promoted.stderr
    beyond = remediator.command("promote", "FailSlowGpu", "--level", "auto", "--runbooks", books)
    assert 1 == beyond.returncode
    assert "allows no more than approve" in beyond.stderr
    assert 0 == remediator.command("freeze").returncode
    site.job.breaks("DeadRank", **helpers.dead_rank)

    remediator.reaches("queued")
    time.sleep(1)
    assert 0 == site.count()
    assert "freeze" in remediator.only()["reason"]
    remediator.command("unfreeze")
    done = remediator.reaches("closed", "needs_human", "escalated", seconds=30)

    assert "fixed" == done["close_code"], done
    assert [] == done["approvals"]
    assert 1 == site.count()


@pytest.mark.long
def test_a_dry_run_records_what_it_would_have_done(site: Site, helpers: type[Helpers]) -> None:
    """
    Nothing is sent; the shadow record has the exact arguments; it ends when the fault clears.
    """
    remediator = site.remediator("--dry-run")
    remediator.start()
    site.job.breaks("DeadRank", **helpers.dead_rank)
    one = remediator.reaches("recommended")

    refused = remediator.command("approve", str(one["id"]))
    shadow = remediator.command("shadow", "DeadRank").stdout
    site.job.family = ""
    done = remediator.reaches("closed")

    assert 1 == refused.returncode
    assert "does not wait for approval" in refused.stderr
    assert f"restart --job {site.job.id}" in shadow
    assert "self" == done["close_code"]
    assert [] == site.calls()


@pytest.mark.long
def test_an_action_that_was_refused_is_escalated(site: Site, helpers: type[Helpers]) -> None:
    """
    The scheduler says that it did nothing: the runbook's onFailure follows, nothing is sent again.
    """
    (site.root / "refuse").touch()
    remediator = site.remediator()
    remediator.start()
    site.job.breaks("DeadRank", **helpers.dead_rank)
    remediator.approve(remediator.reaches("awaiting_approval"))

    done = remediator.reaches("escalated", "needs_human", "closed")

    assert "escalated" == done["state"]
    assert "exited 3" in done["reason"]
    assert 1 == len(site.calls())


@pytest.mark.long
def test_the_incident_of_a_job_that_ended_is_closed(site: Site, helpers: type[Helpers]) -> None:
    """
    Its signal is gone for good, which alone proves nothing; its scheduler says that it is over.
    """
    remediator = site.remediator()
    remediator.start()
    site.job.breaks("DeadRank", **helpers.dead_rank)
    remediator.reaches("awaiting_approval")
    file = site.root / "describe.json"

    site.job.silent = True
    time.sleep(3)
    assert "awaiting_approval" == remediator.only()["state"]
    file.write_text(file.read_text().replace('"state": "running"', '"state": "stopped"'))
    done = remediator.reaches("closed", "needs_human")

    assert ("closed", "self") == (done["state"], done["close_code"])
    assert [] == site.calls()
