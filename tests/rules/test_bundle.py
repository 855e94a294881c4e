"""The bundle is found, rendered, compared and exported."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tocsin_common.bundle import BundleError, bundle_root, rendered_files
from tocsin_common.bundle.cli import main
from tocsin_common.bundle.promql import raw_selectors, series_names
from tocsin_common.bundle.render import indent, parse_setting, render, stale, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A bundle of its own that a test may change."""
    for folder in ("rules", "dashboards", "runbooks"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def test_what_is_committed_is_what_renders() -> None:
    """Nobody loads a rule that differs from its source, or that nothing renders any more."""
    assert () == stale(ROOT, render(ROOT))


def test_an_edited_a_missing_and_a_leftover_file_are_stale(copy: Path) -> None:
    """Each is named with what is wrong; git diff would miss the last."""
    texts = render(copy)
    edited, missing = sorted(name for name in texts if name.startswith("rules/"))
    (copy / edited).write_text("groups: []\n", encoding="utf-8")
    (copy / missing).unlink()
    (copy / "rules" / "rendered" / "old.yaml").write_text("groups: []\n", encoding="utf-8")

    reasons = stale(copy, texts)

    assert [
        f"{edited}: differs from its source",
        f"{missing}: missing",
        "rules/rendered/old.yaml: nothing renders it any more",
    ] == sorted(reasons, key=lambda reason: ("old" in reason, reason))
    write(copy, texts)
    assert () == stale(copy, texts)


def test_a_setting_reaches_every_selector(copy: Path) -> None:
    """The scrape job of the exporters is changed in one place."""
    texts = render(copy, dict([parse_setting('exporterSelector=job="nodes"')]))
    rules = "".join(text for name, text in texts.items() if name.startswith("rules/"))

    assert 'job="nodes"' in rules
    assert "tocsin-exporter" not in rules


def test_without_a_cluster_label_rules_have_none(copy: Path) -> None:
    """An empty clusterLabel leaves no empty name behind."""
    text = "".join(render(copy, {"clusterLabel": ""}).values())

    assert "cluster" not in "".join(line for line in text.split("\n") if " by (" in line or " on (" in line)
    assert "(, " not in text


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        pytest.param(
            {"keepFiring": "1m"},
            "keepFiring: unknown.*keepFiringFor",
            id="a misspelt key lists the known ones",
        ),
        pytest.param(
            {"evidenceWindow": "soon"}, "soon is not a duration", id="a duration that is none is named"
        ),
    ],
)
def test_a_bad_setting_is_refused(copy: Path, setting: dict[str, str], message: str) -> None:
    """The reason names the setting."""
    with pytest.raises(BundleError, match=message):
        render(copy, setting)


def test_set_needs_a_key() -> None:
    """A text without = is answered with an example."""
    with pytest.raises(BundleError, match="key=value, for example"):
        parse_setting("keepFiringFor")


def test_the_checkout_wins_over_the_copy_in_the_package(tmp_path: Path) -> None:
    """An edit is what runs; the wheel's copy serves where there is no checkout."""
    package = tmp_path / "common" / "tocsin_common"
    for root in (tmp_path, package / "_bundle"):
        (root / "rules").mkdir(parents=True)
        (root / "rules" / "mixin.libsonnet").write_text("{}", encoding="utf-8")

    assert tmp_path == bundle_root(package)
    (tmp_path / "rules" / "mixin.libsonnet").unlink()
    assert package / "_bundle" == bundle_root(package)
    (package / "_bundle" / "rules" / "mixin.libsonnet").unlink()
    with pytest.raises(BundleError, match="install tocsin again"):
        bundle_root(package)


def test_export_needs_no_jsonnet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A site copies what is rendered; only --set renders anew and says what it lacks."""
    monkeypatch.setitem(sys.modules, "rjsonnet", None)

    assert 0 == main(["export", str(tmp_path)])
    names = {file.name for file in rendered_files(ROOT)}
    assert names == {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert 2 == main(["export", str(tmp_path), "--set", "keepFiringFor=90s"])
    assert "pip install 'tocsin[dev]'" in capsys.readouterr().err


def test_export_writes_what_was_set(tmp_path: Path) -> None:
    """An override is in the exported rules, and the checkout stays as it is."""
    assert 0 == main(["export", str(tmp_path), "--set", "keepFiringFor=90s"])
    holds = {
        rule["keep_firing_for"]
        for path in (tmp_path / "rules").glob("*.yaml")
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "keep_firing_for" in rule
    }

    assert {"90s"} == holds
    assert () == stale(ROOT, render(ROOT))


def test_check_says_nothing_when_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    """`render --check` is silent and 0 on a clean checkout."""
    assert 0 == main(["render", "--check"])
    assert ("", "") == capsys.readouterr()


def test_expressions_are_indented_by_their_parentheses() -> None:
    """Parentheses in strings do not count."""
    assert 'max(\n  a{b="("}\n  or (\n    c\n  )\n)' == indent('max(\n a{b="("}\n\n or (\nc\n)\n  )')


def test_names_of_series_are_told_from_everything_else() -> None:
    """Functions, labels, durations, words and strings are no series."""
    expr = (
        'sum by (node, job_id) (rate(a_total{x="b{c}", y=~"max(d)"}[5m] offset 1h))'
        " > bool on (gpu) group_left () j:k:l or up"
    )

    assert {"a_total", "j:k:l", "up"} == series_names(expr)
    assert [("a_total", 'a_total{x="b{c}", y=~"max(d)"}'), ("up", "up")] == list(raw_selectors(expr))
