"""Pages for people: incidents, one incident with its case file, runbooks. No scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Form, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from tocsin_remediator.casefile import render
from tocsin_remediator.casefile.assemble import assemble
from tocsin_remediator.errors import NotFound
from tocsin_remediator.model import ACTING, State
from tocsin_remediator.web import security

if TYPE_CHECKING:
    from tocsin_remediator.web.app import Surface

_YEAR = 365 * 86400


def install(app: FastAPI, surface: Surface) -> None:
    """Add the pages."""
    journal = surface.context.journal
    templates = render.environment()
    css = render.stylesheet()

    def page(request: Request, name: str, **values: Any) -> Response:
        cookie = surface.csrf.cookie(request.cookies.get(security.COOKIE))
        text = templates.get_template(name).render(
            csrf=surface.csrf.token(cookie),
            needs_token=bool(surface.operator_tokens),
            stop=str(journal.settings.stop()),
            dry_run=surface.context.dry_run,
            **values,
        )
        answer = HTMLResponse(text)
        answer.set_cookie(
            security.COOKIE,
            cookie,
            max_age=_YEAR,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    @app.get("/")
    def root() -> Response:
        return RedirectResponse("/incidents", status_code=307)

    @app.get("/static/tocsin.css")
    def stylesheet() -> Response:
        return Response(css, media_type="text/css", headers={"Cache-Control": "max-age=300"})

    @app.get("/incidents")
    def incidents(request: Request) -> Response:
        return page(
            request,
            "incidents.html.j2",
            incidents=journal.incidents.all(limit=200),
            refused=journal.inbox.refused(),
        )

    @app.get("/incidents/{number}")
    def incident(request: Request, number: int) -> Response:
        found = journal.incidents.get(number)
        return page(
            request,
            "incident.html.j2",
            incident=found,
            others=[one for one in journal.incidents.of_case(found.case_id) if one.id != number],
            approvals=journal.records.approvals(number),
            has_runbook=found.family in surface.library.books,
            can_approve=found.state is State.AWAITING_APPROVAL,
            can_close=found.is_open and found.state not in ACTING,
            case=assemble(journal, found),
        )

    @app.post("/incidents/{number}/approve")
    async def approve(
        request: Request,
        number: int,
        csrf: str = Form(""),
        by: str = Form("", max_length=128),
        token: str = Form("", max_length=512),
        plan_digest: str = Form("", max_length=64),
    ) -> Response:
        who = _who(surface, request, csrf, by, token)
        if not plan_digest:
            raise HTTPException(400, "the form names no plan")
        return await _decided(surface, number, True, plan_digest, who, "")

    @app.post("/incidents/{number}/reject")
    async def reject(
        request: Request,
        number: int,
        csrf: str = Form(""),
        by: str = Form("", max_length=128),
        token: str = Form("", max_length=512),
        reason: str = Form("", max_length=2000),
    ) -> Response:
        who = _who(surface, request, csrf, by, token)
        if not reason.strip():
            raise HTTPException(400, "a rejection needs a reason")
        return await _decided(surface, number, False, "", who, reason)

    @app.get("/runbooks")
    def runbooks(request: Request) -> Response:
        books = sorted(surface.library.books.values(), key=lambda book: book.metadata.family)
        return page(request, "runbooks.html.j2", books=books, refused=surface.library.refused)

    @app.get("/runbooks/{family}")
    def runbook(request: Request, family: str) -> Response:
        book = surface.library.books.get(family)
        if book is None:
            raise NotFound(f"there is no runbook for {family[:80]}")
        level = surface.context.config.levels.get(family, "recommend")
        return page(request, "runbook.html.j2", book=book, level=level)


def _who(surface: Surface, request: Request, csrf: str, by: str, token: str) -> str:
    if not security.same_site(request.headers):
        raise HTTPException(403, "forms of other sites are refused")
    if not surface.csrf.valid(request.cookies.get(security.COOKIE), csrf):
        raise HTTPException(403, "the form is not from a page of this server; load the page again")
    if not surface.operator_tokens:
        return security.unproven(by)
    name = security.operator(token.strip().encode(), surface.operator_tokens)
    if name is None:
        raise HTTPException(403, "this is no operator's token")
    return name


async def _decided(
    surface: Surface, number: int, approve: bool, plan_digest: str, who: str, reason: str
) -> Response:
    await run_in_threadpool(
        lambda: surface.context.journal.incidents.decide(
            number,
            approve=approve,
            plan_digest=plan_digest,
            who=who,
            reason=reason,
            now=surface.context.now(),
        )
    )
    surface.wake()
    return RedirectResponse(f"/incidents/{number}", status_code=303)
