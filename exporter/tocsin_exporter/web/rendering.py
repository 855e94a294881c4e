"""Makes scrapes in a thread, one at a time, and hands each to all who were waiting when it was begun."""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Callable
from http import HTTPStatus

from tocsin_exporter.web.connection import Connection
from tocsin_exporter.web.http import Answer, text
from tocsin_exporter.web.negotiation import Variant
from tocsin_exporter.web.pages import Registry

__all__ = ["Renderer", "render"]

log = logging.getLogger(__name__)


def render(registry: Registry, variant: Variant) -> Answer:
    """Return one scrape in the form *variant*."""
    body = registry.scrape(openmetrics=variant.openmetrics).encode()
    fields = {"Content-Type": variant.content_type, "Vary": "Accept, Accept-Encoding"}
    if variant.gzip:
        # Level 1: nine times cheaper than the default for a tenth more bytes.
        body = gzip.compress(body, compresslevel=1)
        fields["Content-Encoding"] = "gzip"
    return Answer(HTTPStatus.OK, fields, body)


class Renderer:
    """
    Those who ask for the same form while a scrape is made share the next one.

    So an answer is never older than its question, and any number of scrapers costs what two cost.
    *deliver* is called from the thread.
    """

    def __init__(self, registry: Registry, deliver: Callable[[list[Connection], Answer], None]) -> None:
        self._registry = registry
        self._deliver = deliver
        self._change = threading.Condition()
        self._waiting: dict[Variant, list[Connection]] = {}
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="scrape", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the scrape that is being made."""
        with self._change:
            self._ended = True
            self._change.notify()

    def ask(self, variant: Variant, connection: Connection) -> None:
        """Have *connection* answered by a scrape that begins after now."""
        with self._change:
            self._waiting.setdefault(variant, []).append(connection)
            self._change.notify()

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._waiting and not self._ended:
                    self._change.wait()
                if self._ended:
                    return
                variant = next(iter(self._waiting))
                connections = self._waiting.pop(variant)
            try:
                answer = render(self._registry, variant)
            except Exception:
                log.exception("scrape failed")
                answer = text(HTTPStatus.INTERNAL_SERVER_ERROR, "the scrape failed; see the exporter's log")
            self._deliver(connections, answer)
