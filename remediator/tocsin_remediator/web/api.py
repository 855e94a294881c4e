"""The JSON API: read everything; decide with a token, or from the same machine when none is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool

from tocsin_remediator.casefile import render
from tocsin_remediator.casefile.assemble import assemble
from tocsin_remediator.model import State
from tocsin_remediator.web import security, views

if TYPE_CHECKING:
    from tocsin_remediator.web.app import Surface

_MAX_DECISION = 16384


class Decide(BaseModel):
    """Body of approve and reject. `plan_digest` binds an approval to the plan that was seen."""

    model_config = ConfigDict(extra="forbid")

    by: str = Field(default="", max_length=128)
    reason: str = Field(default="", max_length=2000)
    plan_digest: str = Field(default="", max_length=64)


def install(app: FastAPI, surface: Surface) -> None:
    """Add the API's paths."""
    journal = surface.context.journal

    @app.get("/api/v1/incidents")
    def incidents(state: str = "", limit: int = 200) -> Response:
        if state not in ("", "open", *State):
            raise HTTPException(400, f"state must be open or one of {', '.join(State)}")
        found = journal.incidents.all(
            only_open=state == "open",
            state=State(state) if state not in ("", "open") else None,
            limit=max(1, min(limit, 1000)),
        )
        return JSONResponse([views.brief(one) for one in found])

    @app.get("/api/v1/incidents/{number}")
    def incident(number: int) -> Response:
        return JSONResponse(views.full(journal, journal.incidents.get(number)))

    @app.get("/api/v1/incidents/{number}/case")
    def case(number: int, format: str = "json") -> Response:  # noqa: A002  the name in the address
        made = assemble(journal, journal.incidents.get(number))
        if format == "json":
            return JSONResponse(made)
        if format == "md":
            return PlainTextResponse(render.markdown(made))
        raise HTTPException(400, "format is json or md; the page of the incident is the HTML")

    @app.post("/api/v1/incidents/{number}/approve")
    async def approve(number: int, request: Request) -> Response:
        return await _decide(surface, request, number, approve=True)

    @app.post("/api/v1/incidents/{number}/reject")
    async def reject(number: int, request: Request) -> Response:
        return await _decide(surface, request, number, approve=False)


async def _decide(surface: Surface, request: Request, number: int, *, approve: bool) -> Response:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A page elsewhere cannot send this type without asking first, and is never allowed to.
    if kind != "application/json":
        raise HTTPException(415, "send application/json")
    if not security.same_site(request.headers):
        raise HTTPException(403, "requests from other sites are refused")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_DECISION:
            raise HTTPException(413, f"more than {_MAX_DECISION} bytes")
    try:
        wish = Decide.model_validate_json(bytes(body) or b"{}")
    except ValidationError as err:
        raise HTTPException(400, err.errors(include_url=False)[0]["msg"]) from None
    who = _who(surface, request, wish)
    if not approve and not wish.reason.strip():
        raise HTTPException(400, "a rejection needs a reason")
    result = await run_in_threadpool(
        lambda: surface.context.journal.incidents.decide(
            number,
            approve=approve,
            plan_digest=wish.plan_digest,
            who=who,
            reason=wish.reason,
            now=surface.context.now(),
        )
    )
    surface.wake()
    answer: dict[str, Any] = views.brief(result)
    return JSONResponse(answer)


def _who(surface: Surface, request: Request, wish: Decide) -> str:
    if not surface.operator_tokens:
        return security.unproven(wish.by)
    token = security.bearer(request.headers)
    if token is None:
        raise HTTPException(
            401, "an operator's bearer token is needed", headers={"WWW-Authenticate": 'Bearer realm="tocsin"'}
        )
    name = security.operator(token, surface.operator_tokens)
    if name is None:
        raise HTTPException(403, "this is no operator's token")
    return name
