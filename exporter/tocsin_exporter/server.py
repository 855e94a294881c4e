"""The HTTP server: /metrics, /-/healthy and a landing page; nothing here changes state."""

from __future__ import annotations

import gzip
import html
import logging
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from tocsin_exporter.errors import ConfigError

__all__ = ["MetricsServer", "Registry", "render"]

log = logging.getLogger(__name__)

_TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

MAX_CONNECTIONS = 64
# A client that has not finished its request by then is cut off, however slowly it drips bytes.
REQUEST_SECONDS = 10.0
# Longer than any usual scrape interval, so that Prometheus keeps its connection.
IDLE_SECONDS = 75.0

_LANDING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>tocsin-exporter {node}</title></head>
<body><h1>tocsin-exporter</h1><p>Node <b>{node}</b>.</p>
<ul><li><a href="/metrics">/metrics</a></li><li><a href="/-/healthy">/-/healthy</a></li></ul></body></html>
"""


class Registry(Protocol):
    """What a scrape asks."""

    def scrape(self, *, openmetrics: bool = False) -> str:
        """Return the text of one scrape."""


def render(registry: Registry, accept: str, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
    """Return the body of one scrape and its headers, in the format and encoding the client asked for."""
    openmetrics = _prefers_openmetrics(accept)
    body = registry.scrape(openmetrics=openmetrics).encode()
    content_type = _OPENMETRICS_TYPE if openmetrics else _TEXT_TYPE
    headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
    if _accepts_gzip(accept_encoding):
        # Level 1: nine times cheaper than the default for a tenth more bytes.
        body = gzip.compress(body, compresslevel=1)
        headers["Content-Encoding"] = "gzip"
    return body, headers


def _prefers_openmetrics(accept: str) -> bool:
    """Say whether the client would rather have OpenMetrics than the text format."""
    best: dict[str, float] = {}
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                try:
                    weight = float(value)
                except ValueError:
                    weight = 0.0
        best[kind] = max(best.get(kind, 0.0), weight)
    plain = max(best.get("text/plain", 0.0), best.get("text/*", 0.0), best.get("*/*", 0.0))
    return (
        best.get("application/openmetrics-text", 0.0) > 0.0 and best["application/openmetrics-text"] >= plain
    )


def _accepts_gzip(accept_encoding: str) -> bool:
    for part in accept_encoding.split(","):
        name, _, weight = part.strip().partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "tocsin-exporter"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS
    # Headers and body leave in one segment.
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        self.server.watch(self.connection, REQUEST_SECONDS)

    def finish(self) -> None:
        self.server.unwatch(self.connection)
        try:
            super().finish()
        except OSError:
            log.debug("client went away address=%s", self.client_address)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True
            return
        # Between requests the connection may rest; within one it may not.
        self.server.watch(self.connection, IDLE_SECONDS)

    def parse_request(self) -> bool:
        self.server.watch(self.connection, REQUEST_SECONDS)
        ok = super().parse_request()
        if ok and (self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers):
            # The body is not read, so the next request would start in the middle of it.
            self.close_connection = True
        return ok

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            accept = ",".join(self.headers.get_all("Accept") or ())
            body, headers = render(self.server.registry, accept, self.headers.get("Accept-Encoding", ""))
            self._answer(HTTPStatus.OK, body, headers)
        elif path == "/-/healthy":
            self._text(HTTPStatus.OK, "ok\n")
        elif path == "/":
            page = _LANDING.format(node=html.escape(self.server.node))
            self._answer(HTTPStatus.OK, page.encode(), {"Content-Type": "text/html; charset=utf-8"})
        else:
            self._text(HTTPStatus.NOT_FOUND, "not found; see /metrics\n")

    do_HEAD = do_GET  # noqa: N815 - the base class looks these names up

    def _refuse(self) -> None:
        self.close_connection = True
        self._text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n", {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse  # noqa: N815

    def _text(self, status: HTTPStatus, text: str, more: dict[str, str] | None = None) -> None:
        self._answer(status, text.encode(), {"Content-Type": "text/plain; charset=utf-8", **(more or {})})

    def _answer(self, status: HTTPStatus, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        log.debug("%s %s", self.address_string(), format % args)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], registry: Registry, node: str) -> None:
        self.registry = registry
        self.node = node
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        if ":" in address[0] or (not address[0] and socket.has_dualstack_ipv6()):
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6 and not self.server_address[0]:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not HTTPServer.server_bind: it asks the resolver for the host's name, which can hang.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def watch(self, connection: socket.socket, seconds: float) -> None:
        """Cut *connection* off unless it is watched anew within *seconds*."""
        with self._lock:
            self._deadlines[connection] = time.monotonic() + seconds

    def unwatch(self, connection: socket.socket) -> None:
        """Stop watching *connection*."""
        with self._lock:
            self._deadlines.pop(connection, None)

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [connection for connection, deadline in self._deadlines.items() if deadline < now]
            for connection in late:
                del self._deadlines[connection]
        for connection in late:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            log.warning("too many connections, refused address=%s limit=%d", client_address, MAX_CONNECTIONS)
            try:
                request.settimeout(0.2)
                request.sendall(
                    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                )
            except OSError:
                log.debug("refusal not delivered address=%s", client_address)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No thread to be had: give the slot back, the client tries again.
            self._slots.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.exception("request failed address=%s", client_address)


class MetricsServer:
    """
    Serves *registry* on *host*:*port* ("" for all addresses, port 0 for any free one).

    Every *poll* seconds it looks for late clients and whether it shall stop.

    Raises:
        ConfigError: The address cannot be bound.

    """

    def __init__(self, host: str, port: int, registry: Registry, node: str, *, poll: float = 0.5) -> None:
        try:
            self._server = _Server((host, port), registry, node)
        except (OSError, OverflowError) as err:
            raise ConfigError(
                f"--web.listen-address: cannot listen on {host or '*'}:{port}: {err}; choose another address"
            ) from err
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": poll}, name="http", daemon=True
        )

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self._server.server_port)

    def start(self) -> None:
        """Serve from a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and close the socket."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(timeout=2.0)
        self._server.server_close()
