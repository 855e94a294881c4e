"""The examples under deploy/ are loaded by the programs that they configure."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tocsin_lab.errors import LabError
from tocsin_lab.stack import configs, programs


def _run(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout or done.stderr


def _program(name: str) -> str:
    try:
        return str(programs.program(name))
    except LabError as err:
        pytest.skip(str(err))


def test_promtool_accepts_the_prometheus_example(root: Path) -> None:
    text = _run([_program("promtool"), "check", "config", str(root / "deploy/prometheus/prometheus.yml")])

    assert "SUCCESS" in text


def test_amtool_accepts_the_alertmanager_example(root: Path) -> None:
    text = _run([_program("amtool"), "check-config", str(root / "deploy/alertmanager/alertmanager.yml")])

    assert "SUCCESS" in text


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        (("alertname=TocsinVerdict", "severity=critical"), "tocsin-remediator,people"),
        (("alertname=TocsinDeadRank", "severity=info"), "nobody"),
        (("alertname=TocsinEvidenceMissing", "severity=warning"), "people"),
    ],
)
def test_the_verdict_goes_to_the_remediator_and_context_to_nobody(
    root: Path, labels: tuple[str, ...], receivers: str
) -> None:
    config = root / "deploy/alertmanager/alertmanager.yml"
    text = _run([_program("amtool"), "config", "routes", "test", f"--config.file={config}", *labels])

    # A verdict that nobody but a machine hears of would be a silent one.
    assert sorted(receivers.split(",")) == sorted(text.strip().split(","))


def test_the_lab_writes_configurations_that_load(tmp_path: Path, root: Path) -> None:
    rules = root / "rules" / "rendered" / "*.yaml"
    prometheus = configs.prometheus({"gpu-001": 9836, "gpu-002": 9838}, 9837, 9093, [rules])
    first = configs.write(tmp_path / "prometheus.yml", prometheus)
    second = configs.write(tmp_path / "alertmanager.yml", configs.alertmanager(9837))

    assert "SUCCESS" in _run([_program("promtool"), "check", "config", str(first)])
    assert "SUCCESS" in _run([_program("amtool"), "check-config", str(second)])


def test_the_scrape_jobs_of_lab_and_example_have_the_names_that_rules_trust(root: Path) -> None:
    example = yaml.safe_load((root / "deploy/prometheus/prometheus.yml").read_text())

    jobs = {job["job_name"] for job in example["scrape_configs"]}

    assert jobs == {configs.EXPORTER_JOB, configs.REMEDIATOR_JOB}


@pytest.mark.parametrize("unit", ["tocsin-exporter", "tocsin-remediator"])
def test_a_unit_starts_a_command_that_the_wheel_has(root: Path, unit: str) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(root / "deploy" / "systemd" / f"{unit}.service")

    command = parser["Service"]["ExecStart"].split()[0]

    assert Path(command).name == unit
    assert parser["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.parametrize("unit", ["tocsin-exporter", "tocsin-remediator"])
def test_systemd_accepts_the_units(root: Path, unit: str) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    path = root / "deploy" / "systemd" / f"{unit}.service"
    done = subprocess.run(
        [analyze, "verify", str(path)], capture_output=True, text=True, timeout=60, check=False
    )

    # The command and the user are of the target machine; anything else would be a mistake of the unit.
    wrong = [
        line
        for line in (done.stdout + done.stderr).splitlines()
        if unit in line and "is not executable" not in line and "not found" not in line
    ]
    assert wrong == []
