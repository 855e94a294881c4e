"""The examples under deploy/, run: the exporter's command behind TLS, and a Prometheus that scrapes it."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
import yaml
from tests.exporter.web_support import Authority, eventually

PASSWORD = "change-me"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _query(port: int, query: str) -> dict[str, str]:
    """Return the value of each sample by its `job_id`, `code` or ''."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/api/v1/query?" + urllib.parse.urlencode({"query": query}))
        body = json.loads(connection.getresponse().read())
    except (OSError, ValueError):
        return {}
    finally:
        connection.close()
    return {row["metric"].get("code", ""): row["value"][1] for row in body.get("data", {}).get("result", [])}


@pytest.fixture
def prometheus(root: Path) -> str:
    found = root / ".tools/bin/prometheus"
    path = str(found) if found.exists() else shutil.which("prometheus")
    return path or pytest.skip("prometheus is not installed (make setup)")


def _install(root: Path, folder: Path) -> tuple[Path, Path]:
    """Put the two examples and what they name into *folder*; returns the paths of both files."""
    nodes, clients = Authority(folder, "node-ca"), Authority(folder, "prometheus-ca")
    nodes.issue("node")
    clients.issue("prometheus", "DNS:prometheus.example.org")
    for name in ("node-ca", "prometheus-ca", "node", "prometheus"):
        (folder / f"{name}.pem").rename(folder / f"{name}.crt")
    (folder / "exporter-password").write_text(PASSWORD)
    web = Path(shutil.copy(root / "deploy/web/web-config.yml", folder))
    text = (root / "deploy/prometheus/prometheus-tls.yml").read_text()
    return web, _written(folder / "prometheus.yml", text.replace("/etc/prometheus/tocsin", str(folder)))


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_promtool_accepts_the_examples(root: Path, tmp_path: Path, promtool: str) -> None:
    """Both sides' files are good for the tool that people check them with."""
    web, scrape = _install(root, tmp_path)
    for arguments in (("web-config", web), ("config", scrape)):
        done = subprocess.run(
            [promtool, "check", *map(str, arguments)], capture_output=True, text=True, timeout=60
        )
        assert 0 == done.returncode, done.stdout + done.stderr


def test_prometheus_scrapes_over_tls_with_certificate_and_password(
    root: Path, tmp_path: Path, prometheus: str
) -> None:
    """The exporter with one example is scraped by Prometheus with the other; nobody else gets in."""
    web, scrape = _install(root, tmp_path)
    exporter, server = _free_port(), _free_port()
    body = yaml.safe_load(scrape.read_text())
    job = body["scrape_configs"][0]
    job.update(scrape_interval="1s", scrape_timeout="1s")
    job["static_configs"] = [{"targets": [f"127.0.0.1:{exporter}"]}]
    scrape.write_text(yaml.safe_dump(body))
    exporter_log, prometheus_log = tmp_path / "exporter.log", tmp_path / "prometheus.log"
    stack = contextlib.ExitStack()
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tocsin_exporter", "--ebpf.backend", "off", "--no-collector.gpu_events",
             "--web.listen-address", f"127.0.0.1:{exporter}", "--web.config.file", str(web)],
            stderr=stack.enter_context(exporter_log.open("w")),
        ),
        subprocess.Popen(
            [prometheus, f"--config.file={scrape}", f"--storage.tsdb.path={tmp_path}/tsdb",
             f"--web.listen-address=127.0.0.1:{server}", "--log.level=warn"],
            stderr=stack.enter_context(prometheus_log.open("w")),
        ),
    ]  # fmt: skip
    name = "tocsin_exporter_http_requests_total"
    try:
        up = eventually(lambda: _query(server, "up") == {"": "1"}, 60)
        seen = eventually(lambda: "200" in _query(server, name), 30)
        client = ssl.create_default_context(cafile=str(tmp_path / "node-ca.crt"))
        statuses = []
        for certificate, password in ((False, PASSWORD), (True, "wrong"), (True, None), (True, PASSWORD)):
            if certificate:
                client.load_cert_chain(tmp_path / "prometheus.crt", tmp_path / "prometheus.key")
            headers = {}
            if password is not None:
                word = base64.b64encode(f"prometheus:{password}".encode()).decode()
                headers["Authorization"] = f"Basic {word}"
            connection = http.client.HTTPSConnection("localhost", exporter, timeout=10, context=client)
            try:
                connection.request("GET", "/metrics", headers=headers)
                statuses.append(connection.getresponse().status)
            except (ssl.SSLError, ConnectionError):
                statuses.append(0)
            finally:
                connection.close()
        shown = _query(server, "tocsin_exporter_web_config_success")
    finally:
        for process in running:
            process.terminate()
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
        stack.close()
    said = exporter_log.read_text()

    assert up, said + prometheus_log.read_text()
    assert seen
    assert [0, 401, 401, 200] == statuses
    assert {"": "1"} == shown
    assert PASSWORD not in said
