"""The webhook's answers, over a real socket; no Prometheus is running."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import requests

if TYPE_CHECKING:
    from tests.remediator.conftest import Helpers, Site

ALERT = {"status": "firing", "labels": {"alertname": "TocsinDeadRank", "job_id": "torchrun/x"}}


def body(**more: Any) -> dict[str, Any]:
    """A notice as Alertmanager 0.33 sends it, with changes."""
    return {
        "version": "4",
        "receiver": "w",
        "status": "firing",
        "groupKey": "{}:{}",
        "externalURL": "http://am",
        "truncatedAlerts": 0,
        "notification_reason": "new alerts",
        "alerts": [
            {**ALERT, "startsAt": "2026-01-01T00:00:00Z", "endsAt": "0001-01-01T00:00:00Z", "annotations": {}}
        ],
        **more,
    }


def post(url: str, data: bytes, **headers: str) -> requests.Response:
    """Send these bytes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.post(
        f"{url}/api/v1/alerts", data=data, headers={"Content-Type": "application/json", **named}, timeout=10
    )


def test_a_notice_is_recorded(shared: tuple[str, Site]) -> None:
    """
    200, with the number of alerts that are in the journal.
    """
    answer = post(shared[0], json.dumps(body()).encode())

    assert (200, {"recorded": 1, "truncated": 0}) == (answer.status_code, answer.json())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "not JSON", id="nothing"),
        pytest.param(b"{", "not JSON", id="half an object"),
        pytest.param(b"[]", "not a JSON object", id="a list"),
        pytest.param(b"\xff\xfe", "UTF-8", id="no UTF-8"),
        pytest.param(b'{"version": "3", "alerts": []}', "version", id="version 3"),
        pytest.param(b'{"alerts": []}', "version", id="no version"),
        pytest.param(b'{"version": "4"}', "alerts is not a list", id="no alerts"),
        pytest.param(b'{"version": "4", "alerts": [1]}', "alerts[0]", id="an alert that is a number"),
        pytest.param(
            b'{"version": "4", "alerts": [{"status": "odd", "labels": {"alertname": "X"}}]}',
            "status",
            id="odd status",
        ),
        pytest.param(b'{"version": "4", "alerts": [{"status": "firing"}]}', "alertname", id="no labels"),
        pytest.param(
            b'{"version": "4", "alerts": [{"status": "firing", "labels": {"alertname": 4}}]}',
            "is not text",
            id="a label that is a number",
        ),
        pytest.param(b'{"version": "4", "version": "4", "alerts": []}', "stands twice", id="a key twice"),
        pytest.param(b'{"version": "4", "alerts": [], "x": NaN}', "no JSON number", id="NaN"),
        pytest.param(b'{"version":"4","alerts":[],"x":' + b"9" * 5000 + b"}", "not JSON", id="5,000 digits"),
        pytest.param(b'{"version":"4","alerts":' + b"[" * 40000, "nested deeper", id="nested 40,000 deep"),
        pytest.param(
            b'{"version":"4","alerts":[{"status":"firing","labels":{"alertname":"a\\u0000b"}}]}',
            "NUL",
            id="NUL",
        ),
        pytest.param(
            b'{"version":"4","alerts":[{"status":"firing","labels":{"alertname":"\\ud800"}}]}',
            "not Unicode",
            id="a lone surrogate",
        ),
    ],
)
def test_what_can_never_be_read_is_400_with_the_reason(
    shared: tuple[str, Site], data: bytes, reason: str
) -> None:
    """
    400 names what is wrong, and the process lives.
    """
    answer = post(shared[0], data)

    assert 400 == answer.status_code, answer.text
    assert reason in answer.json()["error"]
    assert 200 == requests.get(f"{shared[0]}/-/ready", timeout=5).status_code


def test_other_answers(shared: tuple[str, Site]) -> None:
    """
    405 for other methods, 415 for other types and encodings, 413 over --max-body, 404 elsewhere.
    """
    url, _ = shared
    good = json.dumps(body()).encode()

    codes = {
        "get": requests.get(f"{url}/api/v1/alerts", timeout=5).status_code,
        "put": requests.put(f"{url}/api/v1/alerts", data=good, timeout=5).status_code,
        "type": post(url, good, Content_Type="text/plain").status_code,
        "gzip": post(url, good, Content_Encoding="gzip").status_code,
        "large": post(url, b" " * 100_001).status_code,
        "chunked": requests.post(
            f"{url}/api/v1/alerts",
            data=iter([b" " * 60_000, b" " * 60_000]),
            headers={"Content-Type": "application/json"},
            timeout=5,
        ).status_code,
        "elsewhere": requests.get(f"{url}/api/v1/nothing", timeout=5).status_code,
    }

    assert {
        "get": 405,
        "put": 405,
        "type": 415,
        "gzip": 415,
        "large": 413,
        "chunked": 413,
        "elsewhere": 404,
    } == codes


@pytest.mark.parametrize("number", ["9999", "-1", str(2**63), str(-(2**63)), "9" * 40])
@pytest.mark.parametrize("path", ["/incidents/{}", "/api/v1/incidents/{}", "/api/v1/incidents/{}/case"])
def test_a_number_without_an_incident(shared: tuple[str, Site], path: str, number: str) -> None:
    """
    A number of any size that is no incident's is 404.
    """
    answer = requests.get(shared[0] + path.format(number), timeout=5)

    assert (404, f"there is no incident {number}") == (answer.status_code, answer.json()["error"])


def test_a_decision_on_a_number_without_an_incident(shared: tuple[str, Site]) -> None:
    """
    So is the decision on one that no database can hold.
    """
    answer = requests.post(
        f"{shared[0]}/api/v1/incidents/{2**63}/approve", json={"by": "somebody"}, timeout=5
    )

    assert 404 == answer.status_code, answer.text


def test_a_foreign_host_name_is_refused_without_tokens(shared: tuple[str, Site]) -> None:
    """
    A name that somebody points at the loopback address gets no page and no form token.
    """
    answer = requests.get(f"{shared[0]}/incidents", headers={"Host": "evil.example"}, timeout=5)

    assert 403 == answer.status_code


def test_idle_connections_do_not_keep_others_out(shared: tuple[str, Site]) -> None:
    """
    With 300 connections that send half a request, health answers, and they are closed in the end.
    """
    where = urlsplit(shared[0])
    held = [socket.create_connection((where.hostname, where.port), timeout=10) for _ in range(300)]
    try:
        for one in held:
            one.sendall(b"POST /api/v1/alerts HTTP/1.1\r\n")
        begun = time.monotonic()
        answer = requests.get(f"{shared[0]}/-/healthy", timeout=5)
        took = time.monotonic() - begun

        assert 200 == answer.status_code
        assert took < 4
        held[-1].settimeout(15)
        assert b"" == held[-1].recv(100)
    finally:
        for one in held:
            one.close()


def test_pages_escape_what_comes_from_outside(shared: tuple[str, Site], helpers: type[Helpers]) -> None:
    """
    Markup in labels and annotations is text on every page, and the policy allows no script.
    """
    url, site = shared
    hostile = "<script>alert(1)</script>"
    alert = {
        "status": "firing",
        "labels": {
            "alertname": "TocsinVerdict",
            "job_id": "torchrun/y",
            "family": "Unknown",
            "team": hostile,
        },
        "annotations": {"summary": hostile, "description": f"`{hostile}`"},
    }
    requests.post(f"{url}/api/v1/alerts", json=body(alerts=[alert]), timeout=5)
    listed = helpers.until(
        lambda: [
            one
            for one in requests.get(f"{url}/api/v1/incidents", timeout=5).json()
            if one["job_id"] == "torchrun/y"
        ]
    )
    number = listed[0]["id"]

    pages = [requests.get(f"{url}{path}", timeout=5) for path in ("/incidents", f"/incidents/{number}")]
    files = site.remediator().command("case", str(number), "--format", "html").stdout

    for text in (*(page.text for page in pages), files):
        assert "<script" not in text
    assert "&lt;script&gt;" in pages[1].text
    assert "default-src 'none'" in pages[1].headers["Content-Security-Policy"]
    assert "unsafe" not in pages[1].headers["Content-Security-Policy"]


def test_tokens_decide_who_may_send_and_who_may_approve(site_free: Site) -> None:
    """
    401 without a token, 403 with a wrong one, 200 with either of two valid ones; an approval needs
    an operator's token and records that operator's name.
    """
    (site_free.folder / "senders").write_text("old-token\nnew-token\n")
    (site_free.folder / "operators").write_text("ada s3cret-of-ada\n")
    auth = {
        "webhook_token_file": str(site_free.folder / "senders"),
        "operator_token_file": str(site_free.folder / "operators"),
    }
    remediator = site_free.remediator(config=site_free.config(auth=auth))
    remediator.start()
    good = json.dumps(body()).encode()
    decide = f"{remediator.url}/api/v1/incidents/1/approve"

    sent = [
        post(remediator.url, good).status_code,
        post(remediator.url, good, Authorization="Bearer wrong").status_code,
        post(remediator.url, good, Authorization="Bearer old-token").status_code,
        post(remediator.url, good, Authorization="Bearer new-token").status_code,
    ]
    decided = [
        requests.post(decide, json={}, timeout=5).status_code,
        requests.post(decide, json={}, headers={"Authorization": "Bearer new-token"}, timeout=5).status_code,
        requests.post(
            decide, json={}, headers={"Authorization": "Bearer s3cret-of-ada"}, timeout=5
        ).status_code,
    ]

    assert [401, 403, 200, 200] == sent
    # The third is let in, and there is no such incident.
    assert [401, 403, 404] == decided
    assert "s3cret-of-ada" not in remediator.log


def test_it_does_not_listen_to_others_without_tokens(site_free: Site) -> None:
    """
    0.0.0.0 without tokens is refused at start, with what to do.
    """
    remediator = site_free.remediator()
    argv = ["0.0.0.0:0" if word.startswith("127.0.0.1:") else word for word in remediator.argv]
    child = site_free.processes.start(argv, remediator.folder / "remediator.log")

    assert 1 == child.wait(20)
    assert "auth.webhook_token_file" in remediator.log


def test_a_journal_that_cannot_be_written_is_503(site_free: Site, helpers: type[Helpers]) -> None:
    """
    While another process holds the database the sender is asked to come again; then it works.
    """
    import sqlite3

    remediator = site_free.remediator()
    remediator.start()
    good = json.dumps(body()).encode()
    blocker = sqlite3.connect(remediator.folder / "journal.db", isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    try:
        busy = requests.post(
            f"{remediator.url}/api/v1/alerts",
            data=good,
            headers={"Content-Type": "application/json"},
            timeout=20,
        )
        healthy = requests.get(f"{remediator.url}/-/healthy", timeout=5)
        ready = requests.get(f"{remediator.url}/-/ready", timeout=20)
    finally:
        blocker.execute("ROLLBACK")
        blocker.close()

    assert (503, 200, 503) == (busy.status_code, healthy.status_code, ready.status_code)
    assert 200 == helpers.until(lambda: requests.get(f"{remediator.url}/-/ready", timeout=20)).status_code
    assert 200 == helpers.until(lambda: post(remediator.url, good)).status_code


def test_a_decision_without_a_name_is_refused(shared: tuple[str, Site]) -> None:
    """
    Nobody's approval stands in the journal.
    """
    nobody = requests.post(f"{shared[0]}/api/v1/incidents/1/approve", json={"by": "  "}, timeout=5)

    assert 400 == nobody.status_code
    assert "name" in nobody.text


def test_an_unknown_state_is_refused(shared: tuple[str, Site]) -> None:
    """
    A typo in the filter is no empty list.
    """
    assert 400 == requests.get(f"{shared[0]}/api/v1/incidents?state=opne", timeout=5).status_code


def test_a_second_server_on_the_journal_is_refused(site_free: Site) -> None:
    """
    Two workers would both act: the second one ends with the reason.
    """
    remediator = site_free.remediator()
    remediator.start()
    argv = ["127.0.0.1:0" if word.startswith("127.0.0.1:") else word for word in remediator.argv]
    child = site_free.processes.start(argv, remediator.folder / "second.log")

    assert 1 == child.wait(20)
    assert "another tocsin-remediator" in (remediator.folder / "second.log").read_text()
