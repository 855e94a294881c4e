"""Was the verdict right? Pure: from what stood when, to an answer with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin_lab.scenario import BENIGN, Fault, Scenario

# A wrong row that stood no longer than this before the right one may be a flicker of one evaluation.
WRONG_ROW_SECONDS = 30.0
# Faults of the exporters themselves are not what a verdict is timed from.
WITNESS_FAULTS = frozenset({"exporter_down", "collector_down", "scrape_gaps"})
CLEAR_SECONDS = 300.0


@dataclass(frozen=True)
class Row:
    """One verdict row and when it stood, in seconds from the scenario's start."""

    labels: tuple[tuple[str, str], ...]
    first: float
    last: float

    def get(self, name: str) -> str:
        return dict(self.labels).get(name, "")


class Timeline:
    """Collects what stands at each look."""

    def __init__(self, gap: float) -> None:
        self._gap = gap
        self._rows: list[Row] = []
        self.families: dict[str, float] = {}
        self.looks = 0

    def look(self, at: float, rows: Iterable[Mapping[str, str]], families: Iterable[str]) -> None:
        """Add one look; a row that was away for longer than the gap counts as a new one."""
        self.looks += 1
        for labels in rows:
            key = tuple(sorted((name, value) for name, value in labels.items() if name != "__name__"))
            place = next(
                (
                    index
                    for index, row in enumerate(self._rows)
                    if row.labels == key and at - row.last <= self._gap
                ),
                None,
            )
            if place is None:
                self._rows.append(Row(key, at, at))
            else:
                self._rows[place] = Row(key, self._rows[place].first, at)
        for family in families:
            self.families.setdefault(family, at)

    @property
    def rows(self) -> list[Row]:
        return list(self._rows)


def first_fault(scenario: Scenario) -> Fault | None:
    """Return the fault that the deadline counts from."""
    counted = [one for one in scenario.faults if one.kind not in BENIGN | WITNESS_FAULTS]
    return min(counted, key=lambda one: one.at, default=None)


def step_during(scenario: Scenario, fault: Fault) -> float:
    """Return the seconds of a step while *fault* acts."""
    step = scenario.jobs[0].step_seconds
    return step / fault.magnitude if fault.kind in {"fail_slow_gpu", "throttle"} and fault.magnitude else step


def deadline(scenario: Scenario, fault: Fault) -> float:
    """Return the seconds that a verdict on *fault* may take."""
    slower_scrape = max(0.0, 3 * (scenario.scrape_interval - 5))
    if scenario.expect.within is not None:
        return scenario.expect.within
    step = step_during(scenario, fault)
    if fault.kind in {"fail_slow_gpu", "throttle"}:
        return max(90.0, 10 * step) + slower_scrape
    if fault.kind in {"loss_divergence", "nan_loss"}:
        return 50 * step + 60 + slower_scrape
    if fault.kind == "rank_exit":
        return 30.0 + slower_scrape
    return 15.0 + slower_scrape


def matches(row: Row, expected: Mapping[str, str]) -> bool:
    """Tell whether *row* has all expected labels; an empty value means that the label is absent."""
    return all(row.get(name) == value for name, value in expected.items())


def judge(scenario: Scenario, timeline: Timeline, struck: float | None, end: float) -> dict[str, Any]:
    """
    Return the scored case: ``ok``, ``why`` when it is not, the verdict, its delay and the families.

    *struck* is when the first fault acted, *end* the length of the run, in seconds from its start.
    """
    fault = first_fault(scenario)
    expected = scenario.expect.labels
    rows = timeline.rows
    wrong: str
    case: dict[str, Any] = {
        "name": scenario.name,
        "expected": expected if expected is not None else "none",
        "verdict": None,
        "families": sorted(timeline.families),
        "seconds_to_verdict": None,
        "steps_to_verdict": None,
    }
    loud = sorted(set(scenario.expect.quiet) & set(timeline.families))
    if timeline.looks == 0:
        wrong = "Prometheus was never asked with success"
    elif expected is None:
        wrong = _judge_none(rows, timeline)
    elif fault is None or struck is None:
        wrong = "the fault was never injected"
    else:
        right, wrong = _judge_rows(scenario, fault, rows, struck, end)
        if right is not None:
            taken = max(0.0, right.first - struck)
            case["verdict"] = dict(right.labels)
            case["seconds_to_verdict"] = round(taken, 1)
            case["steps_to_verdict"] = round(taken / step_during(scenario, fault), 1)
    if not wrong and loud:
        wrong = f"{', '.join(loud)} fired, which had to stay quiet"
    case["rows"] = [{"labels": dict(row.labels), "first": row.first, "last": row.last} for row in rows]
    case["ok"] = not wrong
    if wrong:
        case["why"] = wrong
    return case


def _judge_none(rows: Sequence[Row], timeline: Timeline) -> str:
    if rows:
        return f"{rows[0].get('family')} stood although nothing was wrong"
    if timeline.families:
        return f"{', '.join(sorted(timeline.families))} fired although nothing was wrong"
    return ""


def _judge_rows(
    scenario: Scenario, fault: Fault, rows: Sequence[Row], struck: float, end: float
) -> tuple[Row | None, str]:
    expected = scenario.expect.labels or {}
    early = [row for row in rows if row.first < struck]
    if early:
        return None, f"{early[0].get('family')} stood before anything was wrong"
    after = [row for row in rows if row.last >= struck]
    if not after:
        return None, f"no verdict within {end - struck:.0f} s"
    longest = max(after, key=lambda row: row.last - row.first)
    right = next((row for row in after if matches(row, expected)), None)
    if right is None or not matches(longest, expected):
        return None, f"the verdict was {_short(longest)}"
    allowed = deadline(scenario, fault)
    taken = right.first - struck
    if taken > allowed:
        return right, f"right, but after {taken:.0f} s instead of {allowed:.0f} s"
    for row in after:
        other = row.get("family") != expected.get("family", right.get("family"))
        if other and row.first < right.first and row.last - row.first > WRONG_ROW_SECONDS:
            return right, f"{_short(row)} stood {row.last - row.first:.0f} s before the right one"
    until = max((one.until for one in scenario.faults if one.until is not None), default=None)
    if until is not None and end >= until + CLEAR_SECONDS:
        standing = [row for row in after if row.last >= until + CLEAR_SECONDS]
        if standing:
            return right, f"{_short(standing[0])} still stands five minutes after the cause"
    return right, ""


def _short(row: Row) -> str:
    named = ("family", "verdict", "rank", "node", "gpu")
    return " ".join(f"{name}={row.get(name)}" for name in named if row.get(name))
