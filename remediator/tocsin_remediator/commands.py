"""The commands that work directly on the journal, whether or not a server runs."""

from __future__ import annotations

import getpass
import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tocsin_remediator.casefile import render
from tocsin_remediator.casefile.assemble import assemble
from tocsin_remediator.casefile.statement import moment
from tocsin_remediator.errors import InputFileError, JournalError, NotFound, Refused
from tocsin_remediator.journal import Journal
from tocsin_remediator.journal.settings import Promotion
from tocsin_remediator.model import Level, Stop
from tocsin_remediator.runbook.load import load_dir, load_file, schema_text
from tocsin_remediator.web import views

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


@contextmanager
def _journal(args: argparse.Namespace) -> Iterator[Journal]:
    file = str(args.journal).removeprefix("sqlite:///")
    if file != args.journal and not Path(file).exists():
        raise JournalError(f"there is no journal {file}; name the one of the server with --journal")
    journal = Journal(args.journal)
    try:
        yield journal
    finally:
        journal.close()


def _dump(value: Any) -> None:
    print(json.dumps(value, indent=2, sort_keys=True, allow_nan=False))


def _by(args: argparse.Namespace) -> str:
    if args.by:
        return str(args.by)[:128]
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown user"


def incidents(args: argparse.Namespace) -> int:
    """List incidents."""
    with _journal(args) as journal:
        found = [views.brief(one) for one in journal.incidents.all(only_open=args.open)]
    if args.json:
        _dump(found)
        return 0
    for one in found:
        code = f" {one['close_code']}" if one["close_code"] else ""
        print(
            f"{one['id']:>4}  case {one['case']:<4} {one['state']}{code}: {one['family']} on {one['target']}"
        )
        print(f"      {one['reason']}")
    if not found:
        print("no incidents")
    return 0


def show(args: argparse.Namespace) -> int:
    """Everything about one incident."""
    with _journal(args) as journal:
        one = views.full(journal, journal.incidents.get(args.id))
    if args.json:
        _dump(one)
        return 0
    print(f"incident {one['id']} (case {one['case']}): {one['family']} on {one['target']}")
    print(f"state     {one['state']} {one['close_code']}\nbecause   {one['reason']}")
    for name in ("verdict", "side", "layer", "rank", "node", "level"):
        if one[name]:
            print(f"{name:<9} {one[name]}")
    for step in (one["plan"] or {}).get("steps", ()):
        print(f"plan      {step['action']}: {' '.join(step['argv'])}")
    if one["plan_digest"]:
        print(f"digest    {one['plan_digest']}")
    for step in one["steps"]:
        print(f"step      {step['action']} {step['status']}: {step['output']}")
    for event in one["timeline"]:
        print(f"{moment(event['at'])}  {event['kind']:<18} {event['message']}")
    return 0


def approve(args: argparse.Namespace) -> int:
    """Approve a plan."""
    with _journal(args) as journal:
        one = journal.incidents.decide(
            args.id, approve=True, plan_digest=args.plan, who=_by(args), reason="", now=time.time()
        )
    print(f"incident {one.id} is {one.state}: {one.reason}")
    return 0


def reject(args: argparse.Namespace) -> int:
    """Reject a plan or close an incident."""
    if not args.reason.strip():
        raise Refused("a rejection needs a reason")
    with _journal(args) as journal:
        one = journal.incidents.decide(
            args.id, approve=False, plan_digest="", who=_by(args), reason=args.reason, now=time.time()
        )
    print(f"incident {one.id} is {one.state} ({one.close_code}): {one.reason}")
    return 0


def shadow(args: argparse.Namespace) -> int:
    """What would have been done."""
    with _journal(args) as journal:
        rows: list[dict[str, Any]] = []
        for record in journal.records.shadows(args.runbook):
            incident = journal.incidents.get(record.incident_id)
            rows.append(
                {
                    "incident": record.incident_id,
                    "runbook": record.runbook,
                    "digest": record.digest,
                    "at": record.at,
                    "would_run": [step["argv"] for step in record.plan.get("steps", ())],
                    "why": record.why,
                    "state": str(incident.state),
                    "close_code": incident.close_code,
                    "open_seconds": incident.updated_at - incident.opened_at,
                }
            )
    if args.json:
        _dump(rows)
        return 0
    for row in rows:
        how = f"{row['state']} {row['close_code']}"
        print(f"{moment(row['at'])}  incident {row['incident']} {row['runbook']}: {how}")
        for argv in row["would_run"]:
            print(f"    would have run: {' '.join(argv)}")
    if not rows:
        print("no shadow records")
    return 0


def promote(args: argparse.Namespace) -> int:
    """Bind a level to a runbook's present content."""
    book = load_file(args.runbooks / f"{args.runbook}.yaml")
    level = Level.of(args.level)
    if level > Level.of(book.spec.automation.ceiling):
        raise Refused(f"{args.runbook} allows no more than {book.spec.automation.ceiling}")
    with _journal(args) as journal:
        journal.settings.promote(Promotion(book.metadata.name, level, book.digest, _by(args), time.time()))
    print(f"{args.runbook} version {book.metadata.version} ({book.digest[:16]}) is at {level.word}")
    return 0


def switch(args: argparse.Namespace) -> int:
    """freeze, unfreeze, halt."""
    stop = {"freeze": Stop.FREEZE, "unfreeze": Stop.NONE, "halt": Stop.HALT}[args.command]
    with _journal(args) as journal:
        journal.settings.set_stop(stop)
        now = journal.settings.stop()
    if now is not stop:
        raise Refused(
            f"a file in the journal's folder keeps the switch at {now}; remove HALT or FREEZE there"
        )
    print(f"the stop switch is at {now}")
    return 0


def check_runbooks(args: argparse.Namespace) -> int:
    """Exit 0 when every runbook is fine, 1 when one is refused, 2 when the folder cannot be read."""
    if args.schema:
        sys.stdout.write(schema_text())
        return 0
    if args.dir is None:
        raise InputFileError("check-runbooks", 1, "name a folder")
    library = load_dir(args.dir)
    for problem in library.refused:
        print(problem, file=sys.stderr)
    if library.refused:
        print(f"{len(library.refused)} findings, {len(library.books)} runbooks are fine", file=sys.stderr)
        return 1
    if not library.books:
        raise NotFound(f"{args.dir} holds no runbook")
    print(f"{len(library.books)} runbooks are fine: {', '.join(sorted(library.books))}")
    return 0


def case(args: argparse.Namespace) -> int:
    """Print a case file."""
    with _journal(args) as journal:
        made = assemble(journal, journal.incidents.get(args.id))
    if args.format == "json":
        _dump(made)
    else:
        sys.stdout.write(render.html(made) if args.format == "html" else render.markdown(made))
    return 0
