"""The case file as people read it."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin_remediator.casefile import render
from tocsin_remediator.casefile.statement import extent, shown

HOSTILE = '<img src=x onerror="alert(1)">`**'


def case(**more: Any) -> dict[str, Any]:
    """A case file with something hostile wherever text comes from outside."""
    statement = {
        "id": "S1",
        "text": HOSTILE,
        "query": f'm{{a="{HOSTILE}"}}',
        "values": [{"series": HOSTILE, "value": 1.0}],
        "left_out": 3,
        "at": 1.0,
    }
    plot = {
        "title": HOSTILE,
        "query": "q",
        "start": 0.0,
        "end": 100.0,
        "step": 10.0,
        "onset": 50.0,
        "left_out": 0,
        "series": [{"name": HOSTILE, "points": [[0.0, 1.0], [10.0, 2.0], [50.0, "NaN"], [60.0, 3.0]]}],
    }
    return {
        "case": 1,
        "incident": 2,
        "family": "DeadRank",
        "target": HOSTILE,
        "at": 1.0,
        "moment": "onset",
        "summary": HOSTILE,
        "description": HOSTILE,
        "verdict": {"labels": {"verdict": "job", "x": HOSTILE}, "statement": statement},
        "contributors": statement,
        "fired": [statement],
        "quiet": [statement],
        "missing": [statement],
        "cannot_see": ["the other end"],
        "plots": [plot],
        **more,
    }


def test_html_is_inert() -> None:
    """
    Nothing from outside is markup, and no script or style attribute is needed.
    """
    text = render.html(case())

    assert "<img" not in text
    assert "&lt;img" in text
    assert " style=" not in text
    assert "<script" not in text


def test_a_gap_in_the_data_is_a_gap_in_the_line() -> None:
    """
    The line begins anew after missing points.
    """
    text = render.html(case())

    assert 2 == text.split('<path d="')[1].split('"')[0].count("M")


def test_markdown_is_inert() -> None:
    """
    HTML is not let through, and a code span cannot be left from inside.
    """
    text = render.markdown(case())

    outside = [line for line in text.splitlines() if HOSTILE in line and "`" not in line.replace(HOSTILE, "")]
    assert [] == outside
    assert "**S1**" in text
    assert "and 3 more" in text


@pytest.mark.parametrize(
    ("value", "query", "expected"),
    [
        pytest.param(0.123456789, "m", "0.123457", id="six digits"),
        pytest.param("NaN", "m", "NaN", id="not a number"),
        pytest.param(1796083493.0, "t_timestamp_seconds", "2026-12-01 00:04:53 UTC", id="a time"),
        pytest.param(1796083493.0, "bytes", "1.79608e+09", id="a large number"),
    ],
)
def test_a_value_for_people(value: float | str, query: str, expected: str) -> None:
    """
    As short as it can be without saying something else.
    """
    assert expected == shown(value, query)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([0.0, 0.0], "2 series, all 0", id="one value"),
        pytest.param([0.5, 2.0], "2 series, 0.5 to 2", id="a range"),
        pytest.param([0.5, "NaN"], "2 series", id="one is no number"),
    ],
)
def test_many_values_are_summed_up(values: list[float | str], expected: str) -> None:
    """
    What they have in common.
    """
    assert expected == extent([{"series": "", "value": value} for value in values], "m")
