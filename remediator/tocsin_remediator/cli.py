"""
`tocsin-remediator`: serve, and what a person decides.

Exit status: 0 done, 1 not possible (with the reason), 2 unusable input or flags.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tocsin_remediator import __version__, commands
from tocsin_remediator.errors import InputFileError, RemediatorError
from tocsin_remediator.server import Options, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

_JOURNAL: Final = "sqlite:////var/lib/tocsin-remediator/journal.db"
_MAX_BODY: Final = 8 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    args = _parser().parse_args(argv)
    logging.basicConfig(
        level=getattr(args, "log_level", "warning").upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        return int(args.run(args))
    except InputFileError as err:
        print(f"tocsin-remediator: {err}", file=sys.stderr)
        return 2
    except RemediatorError as err:
        print(f"tocsin-remediator: {err}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (a pager, head) has had enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _serve(args: argparse.Namespace) -> int:
    host, port = args.listen
    serve(
        Options(
            host=host,
            port=port,
            prometheus_url=args.prometheus_url,
            alertmanager_url=args.alertmanager_url,
            runbooks=args.runbooks,
            journal=args.journal,
            config=args.config,
            dry_run=args.dry_run,
            max_body=args.max_body,
        )
    )
    return 0


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  refused later without tokens


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is no http(s) address")
    return text


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


_LISTEN: Final = "address to serve on (default: 127.0.0.1:9837)"
_ASKED: Final = "default: %(default)s"
_LARGEST: Final = "largest webhook body (default: %(default)s)"
_LEVEL: Final = "how far it may go by itself"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tocsin-remediator", description="From an alert to a verified fix.")
    parser.add_argument("--version", action="version", version=f"tocsin-remediator {__version__}")
    every = argparse.ArgumentParser(add_help=False)
    every.add_argument(
        "--journal",
        default=os.environ.get("TOCSIN_REMEDIATOR_JOURNAL", _JOURNAL),
        help="sqlite:///FILE or postgresql://… (default: $TOCSIN_REMEDIATOR_JOURNAL or %(default)s)",
    )
    books = argparse.ArgumentParser(add_help=False)
    books.add_argument(
        "--runbooks", type=Path, default=Path("runbooks"), help="folder (default: %(default)s)"
    )
    sub = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    one = sub.add_parser("serve", parents=[every, books], help="take alerts and work on incidents")
    one.add_argument(
        "--listen", type=_address, default=("127.0.0.1", 9837), metavar="HOST:PORT", help=_LISTEN
    )
    one.add_argument("--prometheus-url", type=_url, default="http://127.0.0.1:9090", help=_ASKED)
    one.add_argument("--alertmanager-url", type=_url, default="http://127.0.0.1:9093", help=_ASKED)
    one.add_argument("--config", type=Path, help="YAML file (default: everything at its default)")
    one.add_argument("--dry-run", action="store_true", help="record what would be done, do nothing")
    one.add_argument("--max-body", type=_positive, default=_MAX_BODY, metavar="BYTES", help=_LARGEST)
    one.add_argument(
        "--log.level",
        dest="log_level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="least level that is logged (default: %(default)s)",
    )
    one.set_defaults(run=_serve)

    one = sub.add_parser("incidents", parents=[every], help="list incidents")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.add_argument("--open", action="store_true", help="only those that are not closed")
    one.set_defaults(run=commands.incidents)

    one = sub.add_parser("show", parents=[every], help="everything about one incident")
    one.add_argument("id", type=_positive, help="the incident's number")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=commands.show)

    one = sub.add_parser("approve", parents=[every], help="let the plan of an incident run")
    one.add_argument("id", type=_positive, help="the incident's number")
    one.add_argument("--by", default="", help="who approves (default: the user of this shell)")
    one.add_argument("--plan", default="", help="refuse unless the plan has this digest")
    one.set_defaults(run=commands.approve)

    one = sub.add_parser("reject", parents=[every], help="refuse a plan, or close an incident by hand")
    one.add_argument("id", type=_positive, help="the incident's number")
    one.add_argument("--reason", required=True, help="why, for the record")
    one.add_argument("--by", default="", help="who decides (default: the user of this shell)")
    one.set_defaults(run=commands.reject)

    one = sub.add_parser("shadow", parents=[every], help="what would have been done, by runbook")
    one.add_argument("runbook", nargs="?", help="only this one")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=commands.shadow)

    one = sub.add_parser("promote", parents=[every, books], help="give a runbook a level")
    one.add_argument("runbook", help="its name")
    one.add_argument("--level", required=True, choices=("recommend", "approve", "auto"), help=_LEVEL)
    one.add_argument("--by", default="", help="who decides (default: the user of this shell)")
    one.set_defaults(run=commands.promote)

    for name, text in (
        ("freeze", "start nothing new; what runs may be undone"),
        ("unfreeze", "end freeze or halt"),
        ("halt", "do nothing at all"),
    ):
        one = sub.add_parser(name, parents=[every], help=text)
        one.set_defaults(run=commands.switch)

    one = sub.add_parser("check-runbooks", help="check a folder of runbooks")
    one.add_argument("dir", type=Path, nargs="?", help="the folder")
    one.add_argument("--schema", action="store_true", help="print the JSON Schema instead")
    one.set_defaults(run=commands.check_runbooks)

    one = sub.add_parser("case", parents=[every], help="print a case file")
    one.add_argument("id", type=_positive, help="the incident's number")
    one.add_argument("--format", default="md", choices=("html", "json", "md"), help="default: %(default)s")
    one.set_defaults(run=commands.case)
    return parser
