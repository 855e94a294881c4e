"""The rendered dashboards are whole, and every query of theirs can be asked."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rules.conftest import find_promtool

from tocsin_common.bundle import BundleError
from tocsin_common.bundle.dashboards import load, panels, queries, substitute, variable_queries
from tocsin_common.bundle.promql import raw_selectors, series_names
from tocsin_exporter.metrics import FAMILIES, Kind

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "dashboards" / "rendered").glob("*.json"))
BOARDS = [pytest.param(load(path), id=path.stem) for path in FILES]
# Units of Grafana's list that the panels use; a misspelt one would be shown behind the number.
UNITS = {"none", "short", "percentunit", "s", "ops", "Bps", "bytes", "watt", "hertz", "celsius"}
RECORDED = {
    rule["record"]
    for path in (ROOT / "rules" / "rendered").glob("*.yaml")
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "record" in rule
}


def test_both_dashboards_are_there() -> None:
    """A board that nothing renders would pass every test below."""
    assert ["tocsin-fleet", "tocsin-job"] == [path.stem for path in FILES]


def test_uids_are_unique_and_those_of_the_files() -> None:
    """Links and provisioning go by uid."""
    assert [path.stem for path in FILES] == [load(path)["uid"] for path in FILES]


@pytest.mark.parametrize("board", BOARDS)
def test_panels_have_ids_of_their_own(board: dict[str, Any]) -> None:
    """Grafana drops a panel whose id stands twice."""
    counts = Counter(panel["id"] for panel in board["panels"])

    assert [] == [number for number, times in counts.items() if times > 1]


@pytest.mark.parametrize("board", BOARDS)
def test_panels_neither_overlap_nor_leave_the_grid(board: dict[str, Any]) -> None:
    """Twenty-four columns, each cell taken once."""
    cells = Counter(
        (x, y)
        for panel in board["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )

    assert 1 == max(cells.values())
    assert 24 > max(x for x, _y in cells)


@pytest.mark.parametrize("board", BOARDS)
def test_panels_say_what_they_show_and_in_which_unit(board: dict[str, Any]) -> None:
    """A number without a unit is read wrongly; a panel without a text is not read."""
    for panel in panels(board):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        if panel["type"] in {"timeseries", "stat"}:
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]


@pytest.mark.parametrize("board", BOARDS)
def test_every_panel_asks_the_chosen_data_source(board: dict[str, Any]) -> None:
    """A board that is imported elsewhere must not keep a data source of ours."""
    sources = [panel["datasource"] for panel in panels(board)]
    sources += [target["datasource"] for panel in panels(board) for target in panel["targets"]]

    assert [] == [source for source in sources if source != {"type": "prometheus", "uid": "${datasource}"}]
    assert "datasource" == board["templating"]["list"][0]["type"]


@pytest.mark.parametrize("board", BOARDS)
def test_queries_of_a_panel_have_letters_of_their_own(board: dict[str, Any]) -> None:
    """A refId that stands twice hides a query."""
    for panel in panels(board):
        letters = [target["refId"] for target in panel["targets"]]
        assert sorted(set(letters)) == letters


@pytest.mark.parametrize("board", BOARDS)
def test_every_query_parses(board: dict[str, Any], tmp_path: Path) -> None:
    """promtool reads each as a rule, after the variables are filled in."""
    promtool = find_promtool()
    if promtool is None:
        pytest.skip("promtool is not unpacked; `make setup` does it")
    rules = [{"record": f"q:n:{number}", "expr": expr} for number, expr in enumerate(queries(board))]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": rules}]}), encoding="utf-8")
    outcome = subprocess.run(
        [str(promtool), "check", "rules", str(path)], capture_output=True, text=True, timeout=60, check=False
    )

    assert (0, "") == (outcome.returncode, outcome.stderr)
    assert len(rules) > 20


@pytest.mark.parametrize("board", BOARDS)
def test_every_series_exists(board: dict[str, Any]) -> None:
    """A panel shows what the exporter serves or the rules record; histograms by their parts."""
    parts = {
        row.name + suffix
        for row in FAMILIES.values()
        if row.kind is Kind.HISTOGRAM
        for suffix in ("_bucket", "_sum", "_count")
    }
    asked = {name for expr in queries(board) for name in series_names(expr)}
    asked |= {re.split(r"[({,]", text)[1] for text in variable_queries(board)}

    assert set() == asked - set(FAMILIES) - parts - RECORDED - {"up"}


@pytest.mark.parametrize("board", BOARDS)
def test_raw_series_are_read_from_the_exporters_only(board: dict[str, Any]) -> None:
    """As in the rules: any pod can expose our names."""
    raw = [text for expr in queries(board) for _name, text in raw_selectors(expr)]

    assert [] == [text for text in raw if 'job="tocsin-exporter"' not in text]


@pytest.mark.parametrize("board", BOARDS)
def test_rates_follow_the_scrape_interval(board: dict[str, Any]) -> None:
    """A fixed window is empty on a slow scrape and blind on a fast one."""
    for panel in panels(board):
        for target in panel["targets"]:
            assert [] == re.findall(r"\brate\([^[]*\[(?!\$__rate_interval)", target["expr"])


def test_a_variable_without_a_value_is_named() -> None:
    """The live check must not ask Prometheus for a literal dollar."""
    with pytest.raises(BundleError, match=r"\$nodes.*known are .*job_id"):
        substitute('up{node="$nodes"}')


def test_values_take_the_place_of_their_variables() -> None:
    """Both spellings, and the longer name before the shorter."""
    assert 'a{j="slurm/1"}[2m]' == substitute(
        'a{j="${job_id}"}[$__rate_interval]', {"job_id": "slurm/1", "__rate_interval": "2m"}
    )
