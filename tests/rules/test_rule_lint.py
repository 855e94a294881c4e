"""What every rendered rule has to hold, whatever it says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tocsin_common import vocabulary
from tocsin_common.bundle.promql import raw_selectors, series_names
from tocsin_exporter.metrics import FAMILIES, Kind

ROOT = Path(__file__).resolve().parents[2]
RENDERED = sorted((ROOT / "rules" / "rendered").glob("*.yaml"))
# PromQL of Prometheus 2.42 without feature flags, as far as the rules use it.
FUNCTIONS = {
    "abs", "avg", "avg_over_time", "bottomk", "clamp", "clamp_min", "count", "histogram_quantile", "increase",
    "label_replace", "last_over_time", "max", "max_over_time", "min", "min_over_time", "quantile",
    "quantile_over_time", "rate", "sum", "time", "vector",
}  # fmt: skip
WORDS = {"by", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "offset"}


def rules() -> Iterator[dict[str, Any]]:
    """Every rule of every rendered file."""
    for path in RENDERED:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]


ALERTS = [rule for rule in rules() if "alert" in rule]
FAMILY_ALERTS = [rule for rule in ALERTS if "order" in rule.get("labels", {})]
RECORDED = {rule["record"] for rule in rules() if "record" in rule}


def identity(rule: dict[str, Any]) -> str:
    """Name and static labels of a rule, for messages."""
    labels = ",".join(f"{key}={value}" for key, value in rule.get("labels", {}).items())
    return f"{rule.get('alert', rule.get('record'))}{{{labels}}}"


def test_promtool_finds_nothing_to_say(promtool: Path) -> None:
    """The files load, and no rule stands twice."""
    outcome = subprocess.run(
        [str(promtool), "check", "rules", "--lint-fatal", *map(str, RENDERED)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (0, "") == (outcome.returncode, outcome.stderr)


def test_files_use_only_fields_of_the_oldest_server() -> None:
    """Prometheus 2.42 refuses a file with group labels or query_offset as a whole."""
    allowed_rule = {"record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
    for path in RENDERED:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"groups"} == set(content)
        for group in content["groups"]:
            assert set() == set(group) - {"name", "interval", "rules"}
            assert set() == {key for rule in group["rules"] for key in rule} - allowed_rule


@pytest.mark.parametrize("rule", list(rules()), ids=identity)
def test_expressions_use_only_functions_of_the_oldest_server(rule: dict[str, Any]) -> None:
    """A function that came later makes the whole file fail there."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', rule["expr"])
    called = set(re.findall(r"\b([a-z_]+)\s*\(", bare)) - WORDS

    assert set() == called - FUNCTIONS
    assert "@" not in bare


@pytest.mark.parametrize("rule", list(rules()), ids=identity)
def test_every_raw_selector_names_the_exporters(rule: dict[str, Any]) -> None:
    """Any pod can expose our names; only the configured scrape job is believed."""
    without = [text for name, text in raw_selectors(rule["expr"]) if 'job="tocsin-exporter"' not in text]

    assert [] == without


@pytest.mark.parametrize("rule", list(rules()), ids=identity)
def test_every_series_exists(rule: dict[str, Any]) -> None:
    """A rule reads what the exporter's table lists, what another rule records, or the server's own series."""
    server = {"up", "ALERTS", "ALERTS_FOR_STATE"}

    assert set() == series_names(rule["expr"]) - set(FAMILIES) - RECORDED - server


@pytest.mark.parametrize("rule", list(rules()), ids=identity)
def test_counters_and_gauges_are_read_as_what_they_are(rule: dict[str, Any]) -> None:
    """rate and increase of a gauge, and averages of a counter, mean nothing."""
    for function, name in re.findall(r"\b(rate|increase|avg_over_time)\((tocsin_[a-z0-9_]+)\{", rule["expr"]):
        expected = Kind.GAUGE if function == "avg_over_time" else Kind.COUNTER
        assert expected == FAMILIES[name].kind, f"{function}({name})"


@pytest.mark.parametrize("rule", list(rules()), ids=identity)
def test_the_cluster_stays_beside_the_job(rule: dict[str, Any]) -> None:
    """Two clusters hand out the same job ids, so an aggregation or join by job keeps both."""
    for labels in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", rule["expr"]):
        names = [name.strip() for name in labels.split(",")]
        if "job_id" in names or "node" in names:
            assert "cluster" in names, labels


@pytest.mark.parametrize("rule", list(rules()), ids=identity)
def test_holders_of_a_shared_device_are_never_summed(rule: dict[str, Any]) -> None:
    """Every holder counts a shared device, so a sum over jobs counts it several times."""
    assert [] == re.findall(
        r"\bsum\b[^(]*\([^)]*\)?\s*\(?\s*(?:rate|increase)?\(?tocsin_job_gpu_", rule["expr"]
    )


@pytest.mark.parametrize("rule", [rule for rule in rules() if "record" in rule], ids=identity)
def test_recorded_names_have_three_parts(rule: dict[str, Any]) -> None:
    """level:metric:operations, and the level is one of ours."""
    assert re.fullmatch(r"tocsin_(job|rank|node|gpu|model):[a-z0-9_]+:[a-z0-9_]+", rule["record"])


@pytest.mark.parametrize("rule", FAMILY_ALERTS, ids=identity)
def test_family_alerts_carry_the_vocabulary(rule: dict[str, Any]) -> None:
    """Labels come from the closed lists, and an inconclusive row takes no side."""
    labels = rule["labels"]

    assert rule["alert"] == "Tocsin" + labels["family"]
    assert labels["verdict"] in vocabulary.VERDICTS
    assert (labels["verdict"] == "inconclusive") == ("side" not in labels)
    assert labels.get("side", "yours") in vocabulary.SIDES
    assert labels["layer"] in vocabulary.LAYERS
    assert labels["severity"] == "info"
    assert labels["tier"] in vocabulary.TIERS
    assert labels["order"].isdigit()


def test_the_orders_are_those_of_the_contract() -> None:
    """Causes come before symptoms: throttling before a slow GPU, a death before both."""
    orders = {rule["labels"]["family"]: int(rule["labels"]["order"]) for rule in FAMILY_ALERTS}

    assert {"DeadRank": 40, "GpuThrottled": 50, "FailSlowGpu": 55, "LossDivergence": 80} == orders


def test_only_the_verdict_pages() -> None:
    """Family alerts are context; node warnings warn; nothing else has a severity of its own."""
    severities = {rule["alert"]: rule.get("labels", {}).get("severity") for rule in ALERTS}

    assert {"TocsinVerdict": None, "TocsinEvidenceMissing": "warning"} == {
        name: severity for name, severity in severities.items() if severity != "info"
    }


@pytest.mark.parametrize("rule", ALERTS, ids=identity)
def test_alerts_say_what_where_and_how_they_know(rule: dict[str, Any]) -> None:
    """Four annotations; the summary is a fixed sentence except on the verdict."""
    notes = rule["annotations"]

    assert {"summary", "description", "evidence", "runbook_url"} == set(notes)
    assert rule["alert"] == "TocsinVerdict" or "{{" not in notes["summary"]
    assert notes["runbook_url"].rsplit("/", 2)[1:] == [
        "runbooks",
        rule.get("labels", {}).get("family", "{{ $labels.family }}"),
    ]


@pytest.mark.parametrize(
    "family", sorted({rule["labels"]["family"] for rule in ALERTS if "family" in rule.get("labels", {})})
)
def test_every_family_has_a_runbook(family: str) -> None:
    """The link of an alert leads somewhere."""
    assert (ROOT / "runbooks" / f"{family}.yaml").is_file()


@pytest.mark.parametrize("rule", FAMILY_ALERTS, ids=identity)
def test_stickiness_is_keep_firing_for_alone(rule: dict[str, Any]) -> None:
    """A family lingers for a minute."""
    assert rule["keep_firing_for"] == "60s"


def test_the_verdict_does_not_linger() -> None:
    """A verdict that a cause has taken over would stay beside the new one."""
    (verdict,) = [rule for rule in ALERTS if rule["alert"] == "TocsinVerdict"]

    assert set() == {"for", "keep_firing_for"} & set(verdict)


def test_causes_are_recorded_before_what_reads_them() -> None:
    """Within a group a rule sees what the rules before it wrote in the same evaluation, and only that."""
    late = []
    for path in RENDERED:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            position: dict[str | None, int] = {}
            for index, rule in enumerate(group["rules"]):
                position.setdefault(rule.get("record"), index)
            for index, rule in enumerate(group["rules"]):
                late += [
                    f"{identity(rule)} reads {name}"
                    for name in series_names(rule["expr"])
                    if position.get(name, -1) > index
                ]

    assert [] == late


def test_every_knob_says_when_to_turn_it() -> None:
    """A value of config.libsonnet stands under a comment, with nothing between."""
    lines = (ROOT / "rules" / "config.libsonnet").read_text(encoding="utf-8").split("\n")
    knobs = [index for index, line in enumerate(lines) if re.match(r"    [a-zA-Z0-9]+: ", line)]
    bare = [
        lines[index].strip()
        for index in knobs
        # A second knob may share the comment of the one right above it.
        if not lines[index - 1].strip().startswith("//") and index - 1 not in knobs
    ]

    assert len(knobs) > 20
    assert [] == bare
