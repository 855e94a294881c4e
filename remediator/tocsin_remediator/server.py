"""`serve`: puts the parts together and runs them until a signal."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from tocsin_remediator import config as configuration
from tocsin_remediator.adapters.command import CommandScheduler
from tocsin_remediator.adapters.escalation import EscalationPack
from tocsin_remediator.adapters.recommend import Recommend
from tocsin_remediator.casefile.assemble import pack_material
from tocsin_remediator.engine.context import Context
from tocsin_remediator.errors import JournalError, Refused
from tocsin_remediator.journal import Journal
from tocsin_remediator.metrics import Metrics
from tocsin_remediator.model import Stop
from tocsin_remediator.prometheus import Prometheus
from tocsin_remediator.runbook.load import load_dir
from tocsin_remediator.web import security
from tocsin_remediator.web.app import Surface, build
from tocsin_remediator.web.protocol import Protocol
from tocsin_remediator.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TextIO

    from tocsin_remediator.config import Config

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """The flags of `serve`."""

    host: str
    port: int
    prometheus_url: str
    alertmanager_url: str
    runbooks: Path
    journal: str
    config: Path | None
    dry_run: bool
    max_body: int


def serve(options: Options) -> None:
    """
    Serve until SIGTERM or SIGINT.

    InputFileError, JournalError or Refused when it cannot start; running actions are not ended
    with it, they are settled after the next start.
    """
    config = configuration.load(options.config)
    webhook_tokens = configuration.webhook_tokens(config.auth)
    operator_tokens = configuration.operator_tokens(config.auth)
    if not security.is_loopback(options.host) and not (webhook_tokens and operator_tokens):
        raise Refused(
            f"{options.host} can be reached from other machines: configure auth.webhook_token_file and "
            "auth.operator_token_file, or listen on 127.0.0.1"
        )
    library = load_dir(options.runbooks)
    for problem in library.refused:
        log.error("runbook refused, its family is only recommended: %s", problem)
    for family in sorted(config.levels.keys() - library.books.keys()):
        log.error(
            "levels names %s, for which %s has no sound runbook; it has no effect", family, options.runbooks
        )
    listener = _listen(options)
    journal = Journal(options.journal)
    lock = _alone(journal)
    try:
        context = _context(options, config, journal, dict(library.books))
        worker = Worker(context)
        app = build(
            Surface(
                context=context,
                library=library,
                max_body=options.max_body,
                webhook_tokens=webhook_tokens,
                operator_tokens=operator_tokens,
                csrf=security.Csrf(journal.settings.get("secret")),
                halted_start=journal.settings.stop() is Stop.HALT,
                wake=worker.wake,
                worker_alive=worker.alive,
            )
        )
        worker.start()
        try:
            _run(app, listener)
        finally:
            worker.stop()
    finally:
        listener.close()
        journal.close()
        if lock is not None:
            lock.close()


def _context(options: Options, config: Config, journal: Journal, books: Mapping[str, Any]) -> Context:
    metrics = Metrics(journal, time.time)
    folder = state_folder(journal)
    url = config.external_url or f"http://{options.host}:{options.port}"

    def material(incident: int) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        book = books.get(journal.incidents.get(incident).family)
        ask = book.spec.escalate.ask if book is not None else "Please look at this."
        return pack_material(journal, incident, ask, url.rstrip("/"))

    scheduler = CommandScheduler(config, folder / "actions")
    return Context(
        config=config,
        journal=journal,
        prometheus=Prometheus(
            options.prometheus_url,
            timeout=config.timing.query_timeout,
            observe=lambda result: metrics.queries.labels(result).inc(),
        ),
        books=books,
        adapters={
            "scheduler": scheduler,
            "escalation": EscalationPack(config.escalation, folder / "packs", material, time.time),
            "recommend": Recommend(),
        },
        metrics=metrics,
        alertmanager_url=options.alertmanager_url,
        now=time.time,
        dry_run=options.dry_run,
        ended=scheduler.ended,
    )


def state_folder(journal: Journal) -> Path:
    """Where files beside the journal go."""
    if journal.database.file is not None:
        return journal.database.file.parent
    return Path(os.environ.get("STATE_DIRECTORY", "/var/lib/tocsin-remediator").partition(":")[0])


def _listen(options: Options) -> socket.socket:
    # Before anything else starts: a taken port must not leave a worker acting behind it.
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # The protocol by name: asyncio switches Nagle's delay (44 ms an answer) off only where it sees TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host.strip("[]"), options.port))
    except OSError as err:
        listener.close()
        raise Refused(f"cannot listen on {options.host}:{options.port}: {err.strerror or err}") from err
    return listener


def _alone(journal: Journal) -> TextIO | None:
    """Two workers on one file would both send; the lock ends with the process, however it ends."""
    if journal.database.file is None:
        return None
    # Kept open for the life of the process.
    path = Path(f"{journal.database.file}.lock")
    try:
        lock = path.open("w", encoding="utf-8")
    except OSError as err:
        raise JournalError(f"{path} cannot be written: {err.strerror}") from err
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        lock.close()
        raise JournalError(f"another tocsin-remediator serves {journal.database.file}") from err
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _run(app: Any, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    log.info("listening on http://%s:%d", host, port)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=Protocol,
            limit_concurrency=1000,
            backlog=128,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=5,
            lifespan="off",
        )
    )
    server.run(sockets=[listener])
