"""The whole way: alert, case, approval, action, verification, end; against real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.remediator.conftest import Helpers, Site


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
    assert "job_id=torchrun/demo" == waiting["target"]

    approved = remediator.command("approve", str(waiting["id"]), "--by", "operator")
    assert 0 == approved.returncode, approved.stderr
    done = remediator.reaches("closed", "needs_human", "escalated", seconds=30)

    assert ("closed", "fixed") == (done["state"], done["close_code"]), done
    assert 1 == site.count()
    states = [event["kind"] for event in done["timeline"]]
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
    assert [*expected, "closed"] == [state for state in states if state in {*expected, "closed"}]
