"""Small line plots as SVG, without scripts and without inline styles (the pages forbid both)."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Mapping

_WIDTH: Final = 640
_HEIGHT: Final = 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 10, 8, 22
_COLOURS: Final = (
    "#1b6ca8", "#d1495b", "#2e8b57", "#8d5fd3", "#b8860b", "#008b8b", "#c2185b", "#5d6d7e",
)  # fmt: skip


def svg(plot: Mapping[str, Any]) -> Markup:
    """The plot of a case file; the dashed line marks when the incident was opened."""
    start, end = float(plot["start"]), float(plot["end"])
    lines = [
        (str(one["name"]), [(float(at), float(v)) for at, v in one["points"] if _usable(v)])
        for one in plot["series"]
    ]
    values = [value for _, points in lines for _, value in points]
    if not values or end <= start:
        return Markup("")
    low, high = _bounds(values)
    step = float(plot["step"])

    def x(at: float) -> float:
        return _LEFT + (at - start) / (end - start) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        Markup(
            '<svg viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}" class="plot">'
        ).format(_WIDTH, _HEIGHT, str(plot["title"]))
    ]
    for value in (low, (low + high) / 2, high):
        parts.append(
            Markup('<line x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}" stroke="#ddd"/>').format(
                _LEFT, _WIDTH - _RIGHT, y(value), y(value)
            )
            + Markup('<text x="{}" y="{:.1f}" font-size="10" text-anchor="end" fill="#666">{}</text>').format(
                _LEFT - 4, y(value) + 3, f"{value:.4g}"
            )
        )
    for at, anchor in ((start, "start"), (end, "end")):
        parts.append(
            Markup('<text x="{:.1f}" y="{}" font-size="10" text-anchor="{}" fill="#666">{}</text>').format(
                x(at), _HEIGHT - 6, anchor, datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")
            )
        )
    for place, (name, points) in enumerate(lines):
        parts.append(
            Markup('<path d="{}" fill="none" stroke="{}" stroke-width="1.5"><title>{}</title></path>').format(
                _path(points, step, x, y), _COLOURS[place % len(_COLOURS)], name
            )
        )
    onset = float(plot.get("onset") or start)
    if start < onset < end:
        parts.append(
            Markup(
                '<line x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}" stroke="#c0392b" stroke-dasharray="4 3"/>'
            ).format(x(onset), _TOP, _HEIGHT - _BOTTOM)
        )
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def colour(place: int) -> str:
    """The colour of the series at this place, for the legend."""
    return _COLOURS[place % len(_COLOURS)]


def legend(plot: Mapping[str, Any]) -> Markup:
    """The names of the series in their colours."""
    parts = [
        Markup('<tspan fill="{}">&#9632; {}  </tspan>').format(colour(place), str(one["name"])[:40])
        for place, one in enumerate(plot["series"])
    ]
    rows = [Markup("").join(parts[place : place + 6]) for place in range(0, len(parts), 6)]
    return Markup("").join(
        Markup(
            '<svg width="{}" height="14" class="legend"><text x="4" y="11" font-size="11">{}</text></svg>'
        ).format(_WIDTH, row)
        for row in rows
    )


def _usable(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _bounds(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low >= 0 and low < 0.5 * high:
        low = 0.0
    if high == low:
        pad = abs(high) * 0.1 or 1.0
        return low - pad, high + pad
    return low, high


def _path(points: list[tuple[float, float]], step: float, x: Any, y: Any) -> str:
    # A gap in the data is a gap in the line: drawing across it would claim what was not measured.
    out: list[str] = []
    before: float | None = None
    for at, value in points:
        move = before is None or at - before > 1.5 * step
        out.append(f"{'M' if move else 'L'}{x(at):.1f} {y(value):.1f}")
        before = at
    return str(escape("".join(out)))
