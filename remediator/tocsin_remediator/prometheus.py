"""Prometheus as the judge: bounded queries with typed answers."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import requests

from tocsin_remediator import outbound
from tocsin_remediator.errors import PrometheusError, QueryFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MAX_ANSWER: Final = 16 << 20

# Names of the recorded series that the remediator itself asks for.
VERDICT: Final = "tocsin_job:verdict:info"
CONTRIBUTOR: Final = "tocsin_job:contributor:info"
EVIDENCE_MISSING: Final = "tocsin_job:evidence_missing:info"
EVIDENCE_COMPLETE: Final = "tocsin_job:evidence_complete:bool"
RANKS_UP: Final = "tocsin_job:ranks_up:count"
STEP: Final = "tocsin_job:step:max"


@dataclass(frozen=True)
class Sample:
    """One series at one time (Unix seconds)."""

    labels: Mapping[str, str]
    value: float
    at: float

    @property
    def name(self) -> str:
        """The labels as text, without the metric's name."""
        return ", ".join(f"{k}={v}" for k, v in sorted(self.labels.items()) if k != "__name__")


@dataclass(frozen=True)
class Series:
    """One series over a range: (Unix seconds, value)."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        """The labels as text, without the metric's name."""
        return ", ".join(f"{k}={v}" for k, v in sorted(self.labels.items()) if k != "__name__")


@dataclass(frozen=True)
class Answer:
    """An instant vector. Warnings mean that it may be partial."""

    query: str
    samples: tuple[Sample, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """An alerting rule as Prometheus evaluates it, with the alerts it has active."""

    name: str
    query: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    health: str
    last_error: str
    evaluated_at: str
    alerts: tuple[RuleAlert, ...]


@dataclass(frozen=True)
class RuleAlert:
    """One active alert of a rule."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    state: str
    active_at: str


class Prometheus:
    """
    Client of one Prometheus. Safe to use from several threads.

    Every method raises PrometheusError when there is no complete answer within `timeout`
    seconds; it never follows redirects and never asks a host that a payload named.
    """

    def __init__(
        self,
        url: str,
        timeout: float = 5.0,
        headers: Mapping[str, str] | None = None,
        observe: Callable[[str], None] = lambda result: None,
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._headers = dict(headers or {})
        self._observe = observe
        self._local = threading.local()

    def instant(self, query: str, at: float | None = None) -> Answer:
        """The instant vector (or scalar) of `query`."""
        form = {"query": query, "timeout": f"{self._timeout:g}s"}
        if at is not None:
            form["time"] = f"{at:.3f}"
        body = self._ask("/api/v1/query", form)
        data = body["data"]
        warnings = tuple(str(text) for text in body.get("warnings") or ())
        try:
            if data["resultType"] == "scalar":
                moment, text = data["result"]
                return Answer(query, (Sample({}, float(text), float(moment)),), warnings)
            if data["resultType"] != "vector":
                raise PrometheusError(QueryFailure.BAD_QUERY, f"the query gives a {data['resultType']}")
            samples = tuple(
                Sample(row["metric"], float(row["value"][1]), float(row["value"][0]))
                for row in data["result"]
                if "value" in row
            )
        except (KeyError, TypeError, ValueError, IndexError) as err:
            raise PrometheusError(QueryFailure.BAD_ANSWER, f"an answer of unknown form: {err}") from err
        return Answer(query, samples, warnings)

    def range(self, query: str, start: float, end: float, step: float) -> tuple[Series, ...]:
        """The series of `query` from `start` to `end` (Unix seconds)."""
        form = {
            "query": query,
            "start": f"{start:.3f}",
            "end": f"{end:.3f}",
            "step": f"{step:g}",
            "timeout": f"{self._timeout:g}s",
        }
        data = self._ask("/api/v1/query_range", form)["data"]
        try:
            return tuple(
                Series(row["metric"], tuple((float(at), float(value)) for at, value in row["values"]))
                for row in data["result"]
            )
        except (KeyError, TypeError, ValueError) as err:
            raise PrometheusError(QueryFailure.BAD_ANSWER, f"an answer of unknown form: {err}") from err

    def alerting_rules(self) -> tuple[Rule, ...]:
        """All alerting rules with their active alerts."""
        data = self._ask("/api/v1/rules?type=alert", None)["data"]
        try:
            return tuple(
                _rule(rule)
                for group in data["groups"]
                for rule in group["rules"]
                if rule["type"] == "alerting"
            )
        except (KeyError, TypeError) as err:
            raise PrometheusError(QueryFailure.BAD_ANSWER, f"an answer of unknown form: {err}") from err

    def _ask(self, path: str, form: Mapping[str, str] | None) -> dict[str, Any]:
        try:
            body = self._send(path, form)
        except PrometheusError as err:
            self._observe(str(err.kind))
            raise
        self._observe("ok")
        return body

    def _send(self, path: str, form: Mapping[str, str] | None) -> dict[str, Any]:
        try:
            # The server bounds the evaluation, this bounds everything else.
            status, raw = outbound.fetch(
                self._session(),
                "GET" if form is None else "POST",
                self.url + path,
                data=form,
                timeout=self._timeout + 1.0,
                limit=_MAX_ANSWER,
            )
        except outbound.Unanswered as err:
            kind = QueryFailure.TIMEOUT if err.timed_out else QueryFailure.UNREACHABLE
            raise PrometheusError(kind, str(err)) from err
        try:
            body = json.loads(raw)
        except ValueError as err:
            raise PrometheusError(
                QueryFailure.BAD_ANSWER,
                f"{outbound.shown(self.url)} answered {status} and no JSON; is it a Prometheus?",
            ) from err
        if not isinstance(body, dict) or body.get("status") != "success" or "data" not in body:
            kind = QueryFailure.BAD_QUERY if status in (400, 404) else QueryFailure.EXECUTION
            text = body.get("error") if isinstance(body, dict) else None
            raise PrometheusError(kind, f"{outbound.shown(self.url)} answered {status}: {text or 'no data'}")
        return body

    def _session(self) -> requests.Session:
        session = getattr(self._local, "session", None)
        if not isinstance(session, requests.Session):
            session = outbound.session(self._headers)
            self._local.session = session
        return session


def _rule(rule: Mapping[str, Any]) -> Rule:
    return Rule(
        name=str(rule["name"]),
        query=str(rule["query"]),
        labels=dict(rule.get("labels") or {}),
        annotations=dict(rule.get("annotations") or {}),
        health=str(rule.get("health") or "unknown"),
        last_error=str(rule.get("lastError") or ""),
        evaluated_at=str(rule.get("lastEvaluation") or ""),
        alerts=tuple(
            RuleAlert(
                labels=dict(alert.get("labels") or {}),
                annotations=dict(alert.get("annotations") or {}),
                state=str(alert.get("state") or ""),
                active_at=str(alert.get("activeAt") or ""),
            )
            for alert in rule.get("alerts") or ()
        ),
    )


def finite(value: float) -> bool:
    """Whether a sample carries a number that can be compared."""
    return math.isfinite(value)
