"""Which request is answered with what. Nothing here changes state, whatever is asked."""

from __future__ import annotations

import html
from collections.abc import Iterable
from http import HTTPStatus
from typing import Protocol

from tocsin_common import __version__
from tocsin_exporter.web import negotiation
from tocsin_exporter.web.http import Answer, Request, text

__all__ = ["Registry", "respond"]

_LANDING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>tocsin-exporter on {node}</title>
<style>
body {{ font: 1rem/1.5 sans-serif; margin: 2rem auto; max-width: 42rem; padding: 0 1rem; }}
td, th {{ padding: .1rem 1.5rem .1rem 0; text-align: left; }}
</style></head>
<body><h1>tocsin-exporter</h1>
<p>Version {version} on node <b>{node}</b>.</p>
<ul><li><a href="/metrics">/metrics</a>: what Prometheus scrapes</li>
<li><a href="/-/healthy">/-/healthy</a>: this process answers; asks no device</li></ul>
<h2>Collectors</h2>
<table><tr><th>collector</th><th>at the last scrape</th></tr>
{rows}
</table>
<p>What this node lacks and what each lack costs: <code>tocsin-exporter doctor</code>.</p>
</body></html>
"""
_PAGE_FIELDS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
}


class Registry(Protocol):
    """What the pages ask."""

    def scrape(self, *, openmetrics: bool = False) -> str:
        """Return the text of one scrape."""

    def status(self) -> Iterable[tuple[str, str]]:
        """Return name and state of each collector, without running one."""


def respond(request: Request, registry: Registry, node: str) -> Answer | negotiation.Variant:
    """Return the answer, or which form of a scrape is the answer."""
    if request.method not in ("GET", "HEAD"):
        return text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", {"Allow": "GET, HEAD"})
    if request.path == "/metrics":
        try:
            return negotiation.choose(
                request.fields.get("accept", ""), request.fields.get("accept-encoding", "")
            )
        except negotiation.NotAcceptableError as err:
            return text(HTTPStatus.NOT_ACCEPTABLE, str(err))
    if request.path == "/-/healthy":
        return text(HTTPStatus.OK, "ok")
    if request.path == "/":
        return Answer(HTTPStatus.OK, _PAGE_FIELDS, _landing(registry, node).encode())
    return text(HTTPStatus.NOT_FOUND, "not found; see /metrics")


def _landing(registry: Registry, node: str) -> str:
    rows = "\n".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(state)}</td></tr>"
        for name, state in registry.status()
    )
    return _LANDING.format(node=html.escape(node), version=html.escape(__version__), rows=rows)
