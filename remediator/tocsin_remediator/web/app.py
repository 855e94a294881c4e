"""The HTTP surface: webhook, API, metrics and pages."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tocsin_remediator import webhook
from tocsin_remediator.engine import intake
from tocsin_remediator.errors import BadNotification, JournalError, NotFound, Refused
from tocsin_remediator.model import Stop
from tocsin_remediator.web import api, pages, security

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tocsin_remediator.engine.context import Context
    from tocsin_remediator.runbook.load import Library

_JSON_TYPES: Final = ("application/json",)
_BODY_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Surface:
    """What the HTTP side needs besides the context."""

    context: Context
    library: Library
    max_body: int
    webhook_tokens: Sequence[bytes]
    operator_tokens: Sequence[tuple[str, bytes]]
    csrf: security.Csrf
    # Started while halted: nothing is recorded until somebody turns the switch.
    halted_start: bool
    wake: Callable[[], None]
    worker_alive: Callable[[], bool]


class Guard:
    """Refuses foreign Host names and puts the headers of `security` on every answer."""

    def __init__(self, app: ASGIApp, open_to_all: bool, allowed: Sequence[str]) -> None:
        self._app = app
        self._open_to_all = open_to_all
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in security.PAGE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if not self._open_to_all and not security.host_allowed(Headers(scope=scope), self._allowed):
            problem = _problem(
                403, "this Host is not served without operators' tokens; see auth.allowed_hosts"
            )
            await problem(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers)


def build(surface: Surface) -> FastAPI:
    """The application. No documentation pages: they load scripts from elsewhere."""
    app = FastAPI(title="tocsin-remediator", docs_url=None, redoc_url=None, openapi_url=None)

    app.add_middleware(
        Guard,
        # Without an operator's token the Host is all that keeps a foreign page from deciding.
        open_to_all=bool(surface.operator_tokens),
        allowed=surface.context.config.auth.allowed_hosts,
    )

    @app.exception_handler(JournalError)
    async def journal_error(_request: Request, err: JournalError) -> Response:
        return _problem(503, str(err))

    @app.exception_handler(NotFound)
    async def not_found(_request: Request, err: NotFound) -> Response:
        return _problem(404, str(err))

    @app.exception_handler(Refused)
    async def refused(_request: Request, err: Refused) -> Response:
        return _problem(409, str(err))

    @app.exception_handler(HTTPException)
    async def http_error(_request: Request, err: HTTPException) -> Response:
        answer = _problem(err.status_code, str(err.detail))
        for name, value in (err.headers or {}).items():
            answer.headers[name] = value
        return answer

    @app.post("/api/v1/alerts")
    async def alerts(request: Request) -> Response:
        begun = time.perf_counter()
        try:
            answer = await _receive(surface, request)
        except JournalError as err:
            answer = _problem(503, str(err))
        surface.context.metrics.webhooks.labels(str(answer.status_code)).inc()
        surface.context.metrics.webhook_seconds.observe(time.perf_counter() - begun)
        return answer

    @app.get("/-/healthy")
    async def healthy() -> Response:
        return PlainTextResponse("tocsin-remediator is healthy\n")

    @app.get("/-/ready")
    async def ready() -> Response:
        return await run_in_threadpool(_ready, surface)

    @app.get("/metrics")
    async def metrics() -> Response:
        text = await run_in_threadpool(surface.context.metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    api.install(app, surface)
    pages.install(app, surface)
    return app


async def _receive(surface: Surface, request: Request) -> Response:
    refusal = _sender(surface, request) or _form(surface, request)
    if refusal is not None:
        return refusal
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > surface.max_body:
                    return _too_large(surface)
    except TimeoutError:
        return _problem(408, f"the body did not arrive within {_BODY_SECONDS:g}s")
    except ClientDisconnect:
        return _problem(400, "the sender went away")
    return await run_in_threadpool(_record, surface, bytes(body))


def _sender(surface: Surface, request: Request) -> Response | None:
    if not surface.webhook_tokens:
        return None
    token = security.bearer(request.headers)
    if token is None:
        answer = _problem(401, "a bearer token is needed: http_config.authorization in the receiver")
        answer.headers["WWW-Authenticate"] = 'Bearer realm="tocsin"'
        return answer
    if not security.matches(token, surface.webhook_tokens):
        return _problem(403, "this bearer token is not known here")
    return None


def _form(surface: Surface, request: Request) -> Response | None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _JSON_TYPES:
        return _problem(415, f"content type {kind!r} is not read; send application/json")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", ""):
        return _problem(415, f"content encoding {coding!r} is not read; send the body as it is")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > surface.max_body:
        return _too_large(surface)
    return None


def _too_large(surface: Surface) -> Response:
    return _problem(
        413, f"more than {surface.max_body} bytes; set max_alerts in the receiver or raise --max-body"
    )


def _record(surface: Surface, body: bytes) -> Response:
    try:
        notification = webhook.parse(body)
    except BadNotification as err:
        return _problem(400, str(err))
    journal = surface.context.journal
    if surface.halted_start and journal.settings.stop() is Stop.HALT:
        return _problem(503, "started while halted; `tocsin-remediator unfreeze` ends that")
    count = journal.inbox.record(notification, surface.context.now(), intake.settled)
    others = sum(intake.settled(alert) is not None for alert in notification.alerts)
    surface.context.metrics.inbox.labels("context").inc(others)
    if notification.truncated:
        # What was left out is fetched; absent from this notice is not resolved.
        journal.settings.set("refetch", secrets.token_hex(8))
    if count > others:
        surface.wake()
    return JSONResponse({"recorded": count, "truncated": notification.truncated})


def _ready(surface: Surface) -> Response:
    # Not Prometheus: without it alerts are still recorded, and asked about later.
    if not surface.worker_alive():
        return _problem(503, "the worker has ended; restart the remediator")
    journal = surface.context.journal
    # Written, not only read: on a full disk the journal can still be read, and no alert be recorded.
    journal.settings.set("ready_asked_at", f"{surface.context.now():.3f}")
    stop = journal.settings.stop()
    if surface.halted_start and stop is Stop.HALT:
        return _problem(503, "started while halted")
    return PlainTextResponse(f"tocsin-remediator is ready (stop switch: {stop})\n")


def _problem(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status_code=status)
