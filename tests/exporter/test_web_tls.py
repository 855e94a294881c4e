"""TLS: certificates of both sides, with real clients, and what happens when the files change."""

from __future__ import annotations

import http.client
import logging
import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import cast

import pytest
from tests.exporter.web_support import (
    TEXT,
    Authority,
    Registry,
    ask,
    connect,
    eventually,
    limits,
    read_all,
    serving,
    stat,
)

from tocsin_exporter.errors import ConfigError
from tocsin_exporter.web.reload import Reloader
from tocsin_exporter.web.stats import WebStats

PAIR = "  cert_file: server.pem\n  key_file: server.key\n"
MUTUAL = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n"
OK = "tocsin_exporter_web_config_success"
SINCE = "tocsin_exporter_web_config_last_success_timestamp_seconds"
CUT = "tocsin_exporter_http_cut_connections_total"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.issue("server")
    return made


def _config(folder: Path, text: str) -> Path:
    path = folder / "web.yml"
    fresh = folder / "web.yml.new"
    fresh.write_text(text)
    fresh.replace(path)
    return path


def _name(port: int, client: ssl.SSLContext) -> str:
    """Return the common name of the certificate that the server shows."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as raw,
        client.wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        subject = cast("tuple[tuple[tuple[str, str], ...], ...]", (tls.getpeercert() or {})["subject"])
        return subject[0][0][1]


def test_a_scrape_over_tls(tmp_path: Path, authority: Authority) -> None:
    """A client that checks the certificate gets the scrape, again on the same connection."""
    with serving(config=_config(tmp_path, f"tls_server_config:\n{PAIR}")) as server:
        connection = http.client.HTTPSConnection(
            "localhost", server.ports[0], timeout=10, context=authority.client()
        )
        for _ in range(3):
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            assert (200, TEXT) == (answer.status, answer.read().decode())
        connection.close()

        assert "https" == server.scheme


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_curl_over_tls(tmp_path: Path, authority: Authority, version: str) -> None:
    """curl, with TLS 1.2 and 1.3, checks the certificate and sees HTTP/1.1."""
    curl = shutil.which("curl") or pytest.skip("needs curl")
    with serving(config=_config(tmp_path, f"tls_server_config:\n{PAIR}")) as server:
        done = subprocess.run(
            [curl, "-sS", "--noproxy", "*", "--http2", "--compressed",
             f"--tlsv{version}", "--tls-max", version, "--cacert", str(authority.certificate),
             "-w", "%{http_version} %{http_code}",
             f"https://localhost:{server.ports[0]}/metrics"],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip

    assert (f"{TEXT}1.1 200", "") == (done.stdout, done.stderr)


def test_a_large_answer_over_tls_is_whole(tmp_path: Path, authority: Authority) -> None:
    """Megabytes arrive whole at a reader that is slower than the server."""
    registry = Registry("# " + "x" * 4_000_000 + "\n")
    with serving(registry, _config(tmp_path, f"tls_server_config:\n{PAIR}")) as server:
        assert registry.text.encode() == ask(server, tls=authority.client())[2]


def test_who_speaks_no_tls_is_told(tmp_path: Path, authority: Authority) -> None:
    """Plain HTTP at a port with TLS gets a sentence, and the scrape after it is served."""
    with serving(config=_config(tmp_path, f"tls_server_config:\n{PAIR}")) as server:
        with connect(server, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") as raw:
            answer = read_all(raw)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"https://" in answer
        assert TEXT.encode() not in answer
        assert 200 == ask(server, tls=authority.client())[0]


def _refused(port: int, client: ssl.SSLContext) -> bool:
    """Say whether the server ends a connection before it answers."""
    connection = http.client.HTTPSConnection("localhost", port, timeout=10, context=client)
    try:
        connection.request("GET", "/metrics")
        connection.getresponse().read()
    except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
        return True
    finally:
        connection.close()
    return False


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_mutual_tls_lets_in_who_has_a_certificate(
    tmp_path: Path, authority: Authority, version: ssl.TLSVersion
) -> None:
    """A certificate of the authority lets in; none, and one of another authority, do not."""
    good = authority.client(authority.issue("prometheus"))
    stranger = Authority(tmp_path, "stranger")
    none, other = authority.client(), authority.client(stranger.issue("thief"))
    stats = WebStats()
    for client in (good, none, other):
        client.maximum_version = client.minimum_version = version
    with serving(config=_config(tmp_path, f"tls_server_config:\n{PAIR}{MUTUAL}"), stats=stats) as server:
        assert 200 == ask(server, tls=good)[0]
        assert _refused(server.ports[0], none)
        assert _refused(server.ports[0], other)
        assert eventually(lambda: stat(stats, CUT, "handshake") == 2)
        assert 200 == ask(server, tls=good)[0]


def test_a_certificate_that_is_optional_is_checked_when_it_comes(
    tmp_path: Path, authority: Authority
) -> None:
    """VerifyClientCertIfGiven lets in who has none and keeps out who has a stranger's."""
    optional = (
        f"tls_server_config:\n{PAIR}  client_auth_type: VerifyClientCertIfGiven\n"
        "  client_ca_file: authority.pem\n"
    )
    thief = authority.client(Authority(tmp_path, "stranger").issue("thief"))
    with serving(config=_config(tmp_path, optional)) as server:
        assert 200 == ask(server, tls=authority.client())[0]
        assert 200 == ask(server, tls=authority.client(authority.issue("prometheus")))[0]
        assert _refused(server.ports[0], thief)


@pytest.mark.parametrize(
    ("sans", "let_in"),
    [
        ("DNS:prometheus.example", True),
        ("DNS:other.example,DNS:prometheus.example", True),
        ("IP:10.0.0.1", True),
        ("IP:fd00::1", True),
        ("email:ops@example.org", True),
        ("URI:spiffe://example/prometheus", True),
        ("DNS:other.example", False),
        ("DNS:10.0.0.1.example", False),
    ],
)
def test_only_the_allowed_names_are_let_in(
    tmp_path: Path, authority: Authority, sans: str, let_in: bool
) -> None:
    """client_allowed_sans holds names, addresses, e-mail addresses and URIs; one exact match is enough."""
    allowed = (
        '  client_allowed_sans: [prometheus.example, 10.0.0.1, "fd00::1", ops@example.org, '
        '"spiffe://example/prometheus"]\n'
    )
    client = authority.client(authority.issue("client", sans))
    with serving(config=_config(tmp_path, f"tls_server_config:\n{PAIR}{MUTUAL}{allowed}")) as server:
        assert let_in != _refused(server.ports[0], client)


def test_versions_suites_and_curves_are_those_of_the_file(tmp_path: Path, authority: Authority) -> None:
    """What the file rules out cannot be negotiated, and what it names is."""
    text = (
        f"tls_server_config:\n{PAIR}  max_version: TLS12\n  curve_preferences: [CurveP384]\n"
        "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n"
    )
    newest, other = authority.client(), authority.client()
    newest.minimum_version = ssl.TLSVersion.TLSv1_3
    other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    curve = authority.client()
    curve.set_ecdh_curve("prime256v1")
    with serving(config=_config(tmp_path, text)) as server:
        with (
            socket.create_connection(("127.0.0.1", server.ports[0]), timeout=10) as raw,
            authority.client().wrap_socket(raw, server_hostname="localhost") as tls,
        ):
            assert ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384") == (tls.version(), (tls.cipher() or ("",))[0])
        for client in (newest, other, curve):
            assert _refused(server.ports[0], client)


def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path, authority: Authority) -> None:
    """A replaced pair is in use for the next connection, also while it is half replaced; scrapes go on."""
    stats = WebStats()
    with serving(config=_config(tmp_path, f"tls_server_config:\n{PAIR}"), stats=stats) as server:
        before = stat(stats, SINCE)
        assert "server" == _name(server.ports[0], authority.client())
        certificate, key = authority.issue("renewed")
        os.replace(certificate, tmp_path / "server.pem")
        assert eventually(lambda: stat(stats, OK) == 0)
        assert "server" == _name(server.ports[0], authority.client())
        os.replace(key, tmp_path / "server.key")

        assert eventually(lambda: stat(stats, OK) == 1)
        assert "renewed" == _name(server.ports[0], authority.client())
        after = stat(stats, SINCE)
        assert before is not None
        assert after is not None
        assert after > before


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        pytest.param("tls_server_config: {", "not YAML", id="half written"),
        pytest.param("", "would turn TLS off", id="empty"),
        pytest.param(f"tls_server_config:\n{PAIR}nonsense: 1\n", "unknown key", id="unknown key"),
        pytest.param("tls_server_config: {cert_file: none.pem, key_file: server.key}", "none.pem", id="gone"),
    ],
)
def test_a_broken_file_keeps_the_one_before(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, broken: str, reason: str
) -> None:
    """It is said once with its reason, shown as 0, and TLS goes on as it was; the good file heals it."""
    caplog.set_level(logging.INFO, "tocsin_exporter.web")
    stats = WebStats()
    good = f"tls_server_config:\n{PAIR}"
    with serving(config=_config(tmp_path, good), stats=stats, look=0.01) as server:
        _config(tmp_path, broken)
        assert eventually(lambda: stat(stats, OK) == 0)
        assert 200 == ask(server, tls=authority.client())[0]
        _config(tmp_path, good)
        assert eventually(lambda: stat(stats, OK) == 1)
        assert 200 == ask(server, tls=authority.client())[0]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]

    assert 1 == len(said)
    assert reason in said[0]


def test_a_broken_file_is_said_once(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it is looked at."""
    path = _config(tmp_path, f"tls_server_config:\n{PAIR}")
    reloader = Reloader(path, WebStats())
    for text in ("nonsense", "nonsense", "", "", "nonsense"):
        _config(tmp_path, text)
        reloader.look()
        reloader.look()

    assert 3 == sum("not taken over" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        pytest.param(PAIR, "would turn client certificates off", id="before the policy"),
        pytest.param(PAIR + MUTUAL, "would turn client_allowed_sans off", id="before the names"),
    ],
)
def test_a_file_cut_short_lets_in_nobody_more(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, cut: str, reason: str
) -> None:
    """What a writer has written half way may be a whole file of fewer rules: the rules before stay in use."""
    whole = f"tls_server_config:\n{PAIR}{MUTUAL}  client_allowed_sans: [prometheus.example]\n"
    reloader = Reloader(_config(tmp_path, whole), WebStats())
    before = reloader.current
    _config(tmp_path, f"tls_server_config:\n{cut}")
    reloader.look()

    assert before is reloader.current
    assert reason in caplog.text


def test_a_changed_client_policy_holds_for_open_connections_too(
    tmp_path: Path, authority: Authority
) -> None:
    """Who was let in before a certificate was needed is not served any more."""
    stats = WebStats()
    with serving(config=_config(tmp_path, f"tls_server_config:\n{PAIR}"), stats=stats) as server:
        connection = http.client.HTTPSConnection(
            "localhost", server.ports[0], timeout=10, context=authority.client()
        )
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        before = stat(stats, SINCE)
        _config(tmp_path, f"tls_server_config:\n{PAIR}{MUTUAL}")
        assert eventually(lambda: stat(stats, SINCE) != before)
        connection.request("GET", "/metrics")
        with pytest.raises(ConnectionError):
            connection.getresponse()
        connection.close()


def test_headers_of_the_file_are_sent(tmp_path: Path) -> None:
    """With every answer, also with a refusal, and again after a change."""
    one = "http_server_config: {headers: {X-Frame-Options: deny, Strict-Transport-Security: max-age=1}}"
    stats = WebStats()
    with serving(config=_config(tmp_path, one), stats=stats) as server:
        for path in ("/metrics", "/nowhere"):
            headers = ask(server, path)[1]
            assert ("deny", "max-age=1") == (headers["x-frame-options"], headers["strict-transport-security"])
        _config(tmp_path, one.replace("deny", "sameorigin"))
        assert eventually(lambda: ask(server)[1]["x-frame-options"] == "sameorigin")


def test_requests_beyond_the_rate_limit_are_told_to_come_later(tmp_path: Path) -> None:
    """429 after the burst, for every path; a new token comes with time."""
    with serving(config=_config(tmp_path, "rate_limit: {interval: 300ms, burst: 2}")) as server:
        statuses = [ask(server, "/-/healthy")[0] for _ in range(4)]

        assert statuses[:2] == [200, 200]
        assert 429 in statuses[2:]
        assert eventually(lambda: ask(server)[0] == 200)


def test_a_key_that_everyone_can_read_is_warned_of(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning has the path and not the key; a key for its group alone is fine."""
    path = _config(tmp_path, f"tls_server_config:\n{PAIR}")
    (tmp_path / "server.key").chmod(0o640)
    Reloader(path, WebStats())
    assert "can read the TLS key" not in caplog.text

    (tmp_path / "server.key").chmod(0o644)
    Reloader(path, WebStats())
    assert f"can read the TLS key path={tmp_path / 'server.key'}" in caplog.text
    assert "PRIVATE" not in caplog.text


def test_a_broken_file_at_the_start_ends_the_start(tmp_path: Path, authority: Authority) -> None:
    """There is no configuration to keep, and serving without TLS is not what was asked for."""
    with pytest.raises(ConfigError, match=r"--web\.config\.file"):
        Reloader(_config(tmp_path, "tls_server_config: {cert_file: x, key_file: y}"), WebStats())


def test_without_a_file_there_is_no_series_about_it() -> None:
    """Absent, not 0: nothing is broken."""
    stats = WebStats()
    with serving(stats=stats) as server:
        ask(server)

    assert stat(stats, OK) is None
    assert stat(stats, "tocsin_exporter_http_requests_total", "200") == 1


def test_a_handshake_that_stops_is_ended(tmp_path: Path, authority: Authority) -> None:
    """Half a greeting holds a connection until the deadline of a request, no longer."""
    stats = WebStats()
    config = _config(tmp_path, f"tls_server_config:\n{PAIR}")
    with (
        serving(config=config, stats=stats, limits=limits(request=0.3)) as server,
        connect(server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03") as raw,
    ):
        assert b"" == raw.recv(1)
    assert stat(stats, CUT, "late") == 1
