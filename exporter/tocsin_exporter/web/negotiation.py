"""What a client asked for, by its Accept and Accept-Encoding fields. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["NotAcceptableError", "Variant", "choose"]

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text; version={}; charset=utf-8"
# The two differ in nothing that is served here; one without a version gets the newer.
_VERSIONS = {"": "1.0.0", "0.0.1": "0.0.1", "1.0.0": "1.0.0"}
_WEIGHT = re.compile(r"(0(\.[0-9]{0,3})?|1(\.0{0,3})?)")
# Prometheus sends five alternatives.
_MOST_PARTS = 64


class NotAcceptableError(Exception):
    """The client refused every encoding that there is."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One form of a scrape: scrapes of the same form may share an answer."""

    content_type: str
    openmetrics: bool
    gzip: bool


def choose(accept: str, accept_encoding: str) -> Variant:
    """Return the form of the scrape for these two fields; NotAcceptableError when no encoding is left."""
    version = _openmetrics(accept)
    return Variant(
        content_type=_TEXT if version is None else _OPENMETRICS.format(version),
        openmetrics=version is not None,
        gzip=_gzip(accept_encoding),
    )


def _openmetrics(accept: str) -> str | None:
    """Return the version of OpenMetrics that the client would rather have than the text format."""
    best, chosen, plain = 0.0, None, 0.0
    for kind, parameters, weight in _parts(accept):
        if kind == "application/openmetrics-text":
            version = _VERSIONS.get(parameters.get("version", ""))
            if version is not None and weight > best:
                best, chosen = weight, version
        elif kind in ("text/plain", "text/*", "*/*"):
            # A later version of the text format differs from 0.0.4 in names that are not served here.
            plain = max(plain, weight)
    # Only those who name OpenMetrics get it; on a tie it has more to say.
    return chosen if best >= plain else None


def _gzip(accept_encoding: str) -> bool:
    """Say whether the body is packed; no field at all means that it is not."""
    weights = {name: weight for name, _, weight in _parts(accept_encoding)}
    rest = weights.get("*")
    packed = weights.get("gzip", weights.get("x-gzip", rest or 0.0))
    # Not named, plain text is the last resort, unless `*` refuses it.
    plain = weights.get("identity", 0.0 if rest == 0.0 else 0.001)
    if not packed and not plain:
        raise NotAcceptableError("only gzip and identity are offered, and Accept-Encoding refuses both")
    return packed >= plain and packed > 0.0


def _parts(field: str) -> list[tuple[str, dict[str, str], float]]:
    """Return name, parameters and weight of each alternative; one with a nonsensical weight is left out."""
    found: list[tuple[str, dict[str, str], float]] = []
    for part in field.lower().split(",")[:_MOST_PARTS]:
        name, *rest = (piece.strip() for piece in part.split(";"))
        parameters: dict[str, str] = {}
        for piece in rest:
            key, _, value = piece.partition("=")
            parameters[key.strip()] = value.strip().strip('"')
        weight = parameters.pop("q", "1")
        if name and _WEIGHT.fullmatch(weight):
            found.append((name, parameters, float(weight)))
    return found
