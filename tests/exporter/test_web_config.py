"""The web configuration file: what is good, what is bad, and what only this server refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.exporter.web_support import Authority

from tocsin_exporter.errors import ConfigError
from tocsin_exporter.web.reload import Reloader
from tocsin_exporter.web.stats import WebStats

# Of the passwords "wunderbar" and "x"; made for these tests.
HASH = "$2y$04$q0PqYbZr2j7iYbBWjNZB1eXVp5cFq1Pn2hT0v5W0o0sZbqf1Z8y1e"
PAIR = "cert_file: server.pem, key_file: server.key"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates and keys, good and bad, for files that name them relative to their own folder."""
    made = tmp_path_factory.mktemp("web")
    Authority(made).issue("server")
    Authority(made, "stranger").issue("other")
    subprocess.run(
        ["openssl", "pkey", "-in", "server.key", "-aes256", "-passout", "pass:x", "-out", "encrypted.key"],
        cwd=made, check=True, capture_output=True,
    )  # fmt: skip
    (made / "junk.pem").write_text("junk\n")
    inline = "\n".join("    " + line for line in (made / "server.pem").read_text().splitlines())
    key = "\n".join("    " + line for line in (made / "server.key").read_text().splitlines())
    (made / "inline.part").write_text(f"tls_server_config:\n  cert: |\n{inline}\n  key: |\n{key}\n")
    return made


def _promtool(promtool: str, path: Path) -> bool:
    done = subprocess.run([promtool, "check", "web-config", str(path)], capture_output=True, timeout=60)
    return done.returncode == 0


def _ours(path: Path) -> str:
    """Return the reason for which the file is refused, empty when it is taken."""
    try:
        Reloader(path, WebStats())
    except ConfigError as err:
        return str(err)
    return ""


GOOD = {
    "empty": "",
    "only a comment": "# nothing yet\n",
    "empty sections": "tls_server_config:\nbasic_auth_users:\nhttp_server_config: {}\nrate_limit: {}\n",
    "TLS": f"tls_server_config: {{{PAIR}}}",
    "TLS 1.3 only": f"tls_server_config: {{{PAIR}, min_version: TLS13, max_version: TLS13}}",
    "no client certificates": f"tls_server_config: {{{PAIR}, client_auth_type: NoClientCert}}",
    "mutual TLS": (
        f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert, "
        "client_ca_file: authority.pem, client_allowed_sans: [prometheus.example, 10.0.0.1]}"
    ),
    "optional client certificates": (
        f"tls_server_config: {{{PAIR}, client_auth_type: VerifyClientCertIfGiven, "
        "client_ca_file: authority.pem}"
    ),
    "suites of TLS 1.2": (
        f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256], prefer_server_cipher_suites: false}"
    ),
    "one curve": f"tls_server_config: {{{PAIR}, curve_preferences: [X25519]}}",
    "absolute paths": "tls_server_config: {cert_file: FOLDER/server.pem, key_file: FOLDER/server.key}",
    "users": f"basic_auth_users: {{prometheus: {HASH}, other: '{HASH}'}}",
    "hash of another tool": f"basic_auth_users: {{a: '{HASH.replace('$2y', '$2b')}'}}",
    "headers": (
        "http_server_config: {http2: false, headers: {Strict-Transport-Security: max-age=3600, "
        "X-Frame-Options: deny, X-Content-Type-Options: nosniff, X-XSS-Protection: 0, "
        "Content-Security-Policy: ''}}"
    ),
    "YAML's other booleans": "http_server_config: {http2: yes}",
    "rate limit": "rate_limit: {interval: 1m0.5s, burst: 20}",
    "rate limit in nanoseconds": "rate_limit: {interval: 1000000, burst: 20}",
    "no rate limit": "rate_limit: {interval: 0s}",
}
BAD = {
    "not YAML": "tls_server_config: {",
    "a list": "[]",
    "a word": "x",
    "unknown section": "tls_config: {}",
    "unknown key": f"tls_server_config: {{{PAIR}, cert_path: x}}",
    "unknown key of a section": "http_server_config: {http3: true}",
    "section twice": "http_server_config: {}\nhttp_server_config: {}",
    "user twice": f"basic_auth_users: {{a: {HASH}, a: {HASH}}}",
    "certificate without key": "tls_server_config: {cert_file: server.pem}",
    "key without certificate": "tls_server_config: {key_file: server.key}",
    "missing certificate": "tls_server_config: {cert_file: none.pem, key_file: server.key}",
    "missing key": "tls_server_config: {cert_file: server.pem, key_file: none.key}",
    "junk for a certificate": "tls_server_config: {cert_file: junk.pem, key_file: server.key}",
    "key of another": "tls_server_config: {cert_file: server.pem, key_file: other.key}",
    "switched": "tls_server_config: {cert_file: server.key, key_file: server.pem}",
    "encrypted key": "tls_server_config: {cert_file: server.pem, key_file: encrypted.key}",
    "junk inline": "tls_server_config: {cert: a, key: b}",
    "unknown version": f"tls_server_config: {{{PAIR}, min_version: TLS9}}",
    "unknown client policy": f"tls_server_config: {{{PAIR}, client_auth_type: Maybe}}",
    "authority without policy": f"tls_server_config: {{{PAIR}, client_ca_file: authority.pem}}",
    "missing authority": (
        f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert, "
        "client_ca_file: none.pem}"
    ),
    "unknown suite": f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_MADE_UP]}}",
    "weak suite": f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]}}",
    "a suite instead of a list": f"tls_server_config: {{{PAIR}, cipher_suites: TLS_AES_128_GCM_SHA256}}",
    "unknown curve": f"tls_server_config: {{{PAIR}, curve_preferences: [Curve25519]}}",
    "plain password": "basic_auth_users: {a: geheim}",
    "no password": "basic_auth_users: {a: }",
    "users in a list": "basic_auth_users: [a]",
    "cost out of range": f"basic_auth_users: {{a: '{HASH.replace('$04$', '$99$')}'}}",
    "unknown header": "http_server_config: {headers: {X-Powered-By: us}}",
    "header in another case": "http_server_config: {headers: {x-frame-options: deny}}",
    "header value": "http_server_config: {headers: {X-Frame-Options: allow}}",
    "no boolean": "http_server_config: {http2: maybe}",
    "a quoted boolean": "http_server_config: {http2: 'true'}",
    "no duration": "rate_limit: {interval: soon, burst: 1}",
    "days": "rate_limit: {interval: 1d, burst: 1}",
    "no number": "rate_limit: {interval: 1s, burst: many}",
}
# Good for promtool; refused here, by what the message must say.
REFUSED = {
    "unverified certificates": (
        f"tls_server_config: {{{PAIR}, client_auth_type: RequireAnyClientCert}}",
        "RequireAndVerifyClientCert",
    ),
    "requested certificates": (
        f"tls_server_config: {{{PAIR}, client_auth_type: RequestClientCert}}",
        "RequireAndVerifyClientCert",
    ),
    "no authority": (
        f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert}}",
        "needs client_ca_file",
    ),
    "authority without a certificate": (
        f"tls_server_config: {{{PAIR}, client_auth_type: VerifyClientCertIfGiven, client_ca_file: junk.pem}}",
        "client_ca_file is not a list of certificates",
    ),
    "names without a policy": (
        f"tls_server_config: {{{PAIR}, client_allowed_sans: [a]}}",
        "client_allowed_sans",
    ),
    "no names": (
        (
            f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert, "
            "client_ca_file: authority.pem, client_allowed_sans: []}"
        ),
        "client_allowed_sans",
    ),
    "no certificate at all": ("tls_server_config: {min_version: TLS13}", "no TLS"),
    "two certificates": (f"tls_server_config: {{{PAIR}, cert: x}}", "keep one"),
    "TLS 1.0": (f"tls_server_config: {{{PAIR}, min_version: TLS10}}", "TLS12"),
    "TLS 1.1 at most": (f"tls_server_config: {{{PAIR}, max_version: TLS11}}", "TLS12"),
    "no version left": (
        f"tls_server_config: {{{PAIR}, min_version: TLS13, max_version: TLS12}}",
        "min_version",
    ),
    "suites of TLS 1.3": (
        f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_AES_128_GCM_SHA256]}}",
        "belongs to TLS 1.3",
    ),
    "several curves": (f"tls_server_config: {{{PAIR}, curve_preferences: [X25519, CurveP256]}}", "one curve"),
    "a hash that matches nothing": (f"basic_auth_users: {{a: '{HASH}#'}}", "bcrypt"),
    "a cost that takes minutes": (f"basic_auth_users: {{a: '{HASH.replace('$04$', '$20$')}'}}", "cost 20"),
    "a name no client can send": (f"basic_auth_users: {{'a:b': {HASH}}}", "'a:b'"),
    "nobody is answered": ("rate_limit: {interval: 1s}", "burst"),
    "negative interval": ("rate_limit: {interval: -1s, burst: 1}", "positive"),
    "two documents": ("--- {}\n--- {}\n", "not YAML"),
}


def _write(folder: Path, text: str) -> Path:
    path = folder / "web.yml"
    path.write_text(text.replace("FOLDER", str(folder)))
    return path


@pytest.mark.parametrize("name", GOOD)
def test_a_good_file_is_good_for_both(folder: Path, promtool: str, name: str) -> None:
    """What is taken here passes promtool too."""
    path = _write(folder, GOOD[name])

    assert "" == _ours(path)
    assert _promtool(promtool, path)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_bad_for_both(folder: Path, promtool: str, name: str) -> None:
    """What promtool refuses is refused here, in one line with flag and file and without the secret."""
    path = _write(folder, BAD[name])
    said = _ours(path)

    assert said.startswith("--web.config.file: ")
    assert "\n" not in said
    assert "geheim" not in said
    assert HASH[7:] not in said
    assert not _promtool(promtool, path)


@pytest.mark.parametrize("name", REFUSED)
def test_what_this_server_cannot_do_is_refused_with_the_reason(
    folder: Path, promtool: str, name: str
) -> None:
    """Nothing that promtool accepts is silently ignored."""
    text, reason = REFUSED[name]
    path = _write(folder, text)

    assert reason in _ours(path)
    assert _promtool(promtool, path)


def test_certificate_and_key_may_stand_in_the_file_itself(folder: Path) -> None:
    """Inline PEM text makes the same TLS, without a copy of the key on disk."""
    path = _write(folder, (folder / "inline.part").read_text())

    assert Reloader(path, WebStats()).current.tls is not None


@pytest.mark.parametrize(
    ("what", "reason"),
    [("none.yml", "No such file"), (".", "file"), ("large.yml", "1 MiB"), ("/dev/zero", "file")],
)
def test_a_file_that_cannot_be_read_is_named(folder: Path, what: str, reason: str) -> None:
    """Missing, a folder, too large or a device: flag, path and reason."""
    (folder / "large.yml").write_text("#" * (1 << 20) + "\n")
    said = _ours(folder / what)

    assert said.startswith("--web.config.file: the file")
    assert reason in said


def test_a_message_has_the_line(folder: Path) -> None:
    """Where in the file it is."""
    path = _write(folder, f"tls_server_config:\n  cert_file: server.pem\n  kee_file: x\n# {HASH}\n")

    assert f"{path}:3: unknown key 'kee_file'" in _ours(path)


def test_nothing_secret_is_in_a_representation(folder: Path) -> None:
    """Settings may be logged by accident; keys and hashes do not show."""
    from tocsin_exporter.web import webconfig

    text = (folder / "inline.part").read_text() + f"basic_auth_users: {{a: {HASH}}}\n"
    path = _write(folder, text)
    shown = repr(webconfig.parse(text.encode(), path)) + repr(Reloader(path, WebStats()).current)

    assert "PRIVATE" not in shown
    assert HASH[7:] not in shown
