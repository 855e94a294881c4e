"""The command ``tocsin-exporter``: serve, or look at one thing and print it."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tocsin_common import __version__
from tocsin_exporter import config as settings
from tocsin_exporter import memory
from tocsin_exporter.config import COLLECTORS, Config
from tocsin_exporter.errors import ConfigError, ExporterError
from tocsin_exporter.kmsg.parse import Event, Parser
from tocsin_exporter.metrics import Tier

__all__ = ["main"]

log = logging.getLogger("tocsin_exporter")

# A first reading of a hung driver ends well before this.
_ONCE_SECONDS = 15.0
_LISTEN = ":9836"
_LEVELS = ("debug", "info", "warning", "error")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tocsin-exporter",
        description="Serves what this node shows of its GPU jobs at /metrics.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tocsin-exporter {__version__}")
    add = parser.add_argument
    add(
        "--web.listen-address",
        dest="listen",
        action="append",
        metavar="ADDR",
        help=f"[host]:port, may be repeated (default: {_LISTEN})",
    )
    add(
        "--web.config.file",
        dest="web_config",
        default="",
        metavar="FILE",
        help="TLS, client certificates and passwords, in the form that all Prometheus exporters share",
    )
    add("--node.name", dest="node", default="", metavar="NAME", help="node label (default: short host name)")
    add("--path.procfs", dest="procfs", default="/proc", metavar="DIR", help="another proc tree")
    add("--path.sysfs", dest="sysfs", default="/sys", metavar="DIR", help="another sysfs")
    add("--path.kmsg", dest="kmsg", default="/dev/kmsg", metavar="FILE", help="kernel log, device or file")
    add("--path.state", dest="state", default="", metavar="FILE", help="keep event counts over restarts here")
    add(
        "--nvml.library",
        dest="nvml",
        default="",
        metavar="FILE",
        help="libnvidia-ml.so.1 (default: the system's)",
    )
    add(
        "--path.pod-resources",
        dest="pod_resources",
        default="/var/lib/kubelet/pod-resources/kubelet.sock",
        metavar="FILE",
        help="the kubelet's socket that tells which container has which device (default: %(default)s)",
    )
    add(
        "--nvml.deadline",
        dest="deadline",
        default="3s",
        metavar="DURATION",
        help="longest time for one GPU and about that of a cycle; then it hangs (default: %(default)s)",
    )
    add(
        "--nvml.call-deadline",
        dest="call_deadline",
        default="2s",
        metavar="DURATION",
        help="longest time for one call of the driver; then it hangs (default: %(default)s)",
    )
    add(
        "--control.socket",
        dest="control",
        default="/run/tocsin-exporter/control.sock",
        metavar="FILE",
        help="where root asks to quiesce; empty turns it off (default: %(default)s)",
    )
    add(
        "--collect.interval",
        dest="interval",
        default="5s",
        metavar="DURATION",
        help="time between two readings (default: %(default)s)",
    )
    add(
        "--identity.only-env",
        dest="only_env",
        default="",
        metavar="NAME=VALUE",
        help="only processes with this variable, for several virtual nodes on one machine",
    )
    add(
        "--ebpf.backend",
        dest="ebpf",
        default="libbpf",
        metavar="libbpf|off",
        help="what loads the probes (default: %(default)s)",
    )
    add("--tier", default="fabric", metavar="core|fabric|deep", help="which series (default: %(default)s)")
    add(
        "--log.level",
        dest="log_level",
        default="info",
        metavar="|".join(_LEVELS),
        help="least level that is logged (default: %(default)s)",
    )
    for name in COLLECTORS:
        add(
            f"--collector.{name}",
            dest=f"collector_{name}",
            action="store_true",
            default=True,
            help=argparse.SUPPRESS,
        )
        add(f"--no-collector.{name}", dest=f"collector_{name}", action="store_false", help=f"turn {name} off")
    add("--once", action="store_true", help="print one scrape and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    commands.add_parser("doctor", help="what this node offers and lacks, and what each lack costs")
    quiesce = commands.add_parser(
        "quiesce", help="let go of all devices for a while, for a reset or a MIG change"
    )
    choice = quiesce.add_mutually_exclusive_group(required=True)
    choice.add_argument("--for", dest="seconds", metavar="DURATION", help="let go for so long, at most 1h")
    choice.add_argument("--status", action="store_true", help="say whether and until when it has let go")
    choice.add_argument("--end", action="store_true", help="read the devices again now")
    quiesce.add_argument("--socket", default="", metavar="FILE", help="the exporter's --control.socket")
    one = commands.add_parser("identity", help="what is believed about a process, and from which source")
    one.add_argument("pid", metavar="PID", help="the process")
    for name, what in (("parse-log", "job output"), ("parse-kmsg", "a kernel log")):
        command = commands.add_parser(name, help=f"the events recognised in {what}, as JSON lines")
        command.add_argument("file", metavar="FILE", help="a file, or - for standard input")
    return parser


def _config(args: argparse.Namespace) -> Config:
    """Check the flags; raises ConfigError with the flag's name."""
    if args.log_level not in _LEVELS:
        raise ConfigError(f"--log.level: {args.log_level!r} is not one of {', '.join(_LEVELS)}")
    if args.ebpf not in ("libbpf", "off"):
        raise ConfigError(f"--ebpf.backend: {args.ebpf!r} is not one of libbpf, off")
    tiers = [tier.value for tier in Tier]
    if args.tier not in tiers:
        raise ConfigError(f"--tier: {args.tier!r} is not one of {', '.join(tiers)}")
    for flag, path in (("--path.procfs", args.procfs), ("--path.sysfs", args.sysfs)):
        if not Path(path).is_dir():
            raise ConfigError(f"{flag}: {path} is not a folder")
    if args.nvml and not Path(args.nvml).is_file():
        raise ConfigError(f"--nvml.library: {args.nvml} is not a file")
    if args.state and Path(args.state).is_dir():
        raise ConfigError(f"--path.state: {args.state} is a folder, a file is needed")
    return Config(
        listen=tuple(
            settings.parse_address("--web.listen-address", text) for text in args.listen or [_LISTEN]
        ),
        web_config=Path(args.web_config).absolute() if args.web_config else None,
        node=settings.parse_node("--node.name", args.node),
        procfs=Path(args.procfs),
        sysfs=Path(args.sysfs),
        kmsg=Path(args.kmsg),
        state=Path(args.state) if args.state else None,
        pod_resources=Path(args.pod_resources),
        nvml_library=Path(args.nvml).absolute() if args.nvml else None,
        interval=settings.parse_duration("--collect.interval", args.interval, 0.5, 300),
        nvml_deadline=settings.parse_duration("--nvml.deadline", args.deadline, 0.1, 60),
        nvml_call_deadline=settings.parse_duration("--nvml.call-deadline", args.call_deadline, 0.1, 60),
        control=settings.parse_socket("--control.socket", args.control),
        only_env=settings.parse_assignment("--identity.only-env", args.only_env) if args.only_env else None,
        collectors=frozenset(name for name in COLLECTORS if getattr(args, f"collector_{name}")),
        ebpf_backend=args.ebpf,
        tier=Tier(args.tier),
        log_level=args.log_level,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 on success, 1 when it could not do its work, 2 for unusable flags or files."""
    try:
        args = _parser().parse_args(argv)
        logging.basicConfig(
            level=args.log_level.upper() if args.log_level in _LEVELS else "INFO",
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
            stream=sys.stderr,
        )
        return _run(args)
    except ConfigError as err:
        print(f"tocsin-exporter: {err}", file=sys.stderr)
        return 2
    except ExporterError as err:
        print(f"tocsin-exporter: {err}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader had enough; the interpreter must not complain at exit.
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130


def _run(args: argparse.Namespace) -> int:
    if args.command == "parse-kmsg":
        return _parse_kmsg(args.file)
    if args.command == "parse-log":
        from tocsin_exporter.parser import cli as parser_cli

        return int(parser_cli.run(args.file))
    if args.command == "quiesce":
        return _quiesce(args)
    config = _config(args)
    if args.command == "doctor":
        from tocsin_exporter import doctor

        print(doctor.report(config))
        return 0
    if args.command == "identity":
        return _identity(config, args.pid)
    return _once(config) if args.once else _serve(config)


def _quiesce(args: argparse.Namespace) -> int:
    from tocsin_exporter import control

    path = settings.parse_socket("--socket", args.socket or args.control)
    if path is None:
        raise ConfigError("--socket: the control socket is off; name the exporter's --control.socket")
    request: dict[str, Any] = {"command": "status" if args.status else "end"}
    if args.seconds is not None:
        seconds = settings.parse_duration("--for", args.seconds, 1, control.LONGEST_SECONDS)
        request = {"command": "quiesce", "seconds": seconds}
    answer = control.ask(path, request)
    until = answer.get("until")
    when = f"until {datetime.fromtimestamp(until).astimezone():%Y-%m-%d %H:%M:%S %z}: " if until else ""
    print(f"{when}{answer.get('detail')}")
    return 0 if answer.get("ok") else 1


def _serve(config: Config) -> int:
    from tocsin_exporter.app import build
    from tocsin_exporter.control import ControlServer
    from tocsin_exporter.web.reload import Reloader
    from tocsin_exporter.web.server import MetricsServer

    memory.return_freed()
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    app = build(config)
    reloader = Reloader(config.web_config, app.web)
    server = MetricsServer(config.listen, app.registry, config.node, stats=app.web, reloader=reloader)
    # Listening comes first: a slow driver must not look like a dead exporter.
    server.start()
    for (host, _), port in zip(config.listen, server.ports, strict=True):
        log.info("listening %s address=%s port=%d node=%s", server.scheme, host or "*", port, config.node)
    control = ControlServer(config.control, app.nvml) if config.control is not None else None
    try:
        # Before the devices are read: what was asked before a restart still holds.
        if control is not None:
            control.start()
        app.start()
        memory.keep()
        done.wait()
    finally:
        if control is not None:
            control.stop()
        server.stop()
        app.stop()
    return 0


def _once(config: Config) -> int:
    from tocsin_exporter.app import build

    app = build(config)
    try:
        app.start()
        app.wait_first(_ONCE_SECONDS)
        app.read_again()
        text = app.registry.scrape()
    finally:
        app.stop()
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def _identity(config: Config, text: str) -> int:
    from tocsin_exporter.identity import show

    if not text.isascii() or not text.isdigit() or int(text) > 1 << 22:
        raise ConfigError(f"identity: {text!r} is not a pid")
    answer = show.describe(config, int(text))
    print(json.dumps(answer, indent=2))
    return 0 if answer.get("found") else 1


def _lines(path: str) -> Iterator[str]:
    """Yield the lines of *path* or standard input, bounded in length."""
    try:
        source = sys.stdin.buffer if path == "-" else Path(path).open("rb")  # noqa: SIM115 - closed below
    except OSError as err:
        raise ConfigError(f"{path}: {err.strerror}") from err
    with source:
        try:
            while line := source.readline(1 << 20):
                yield line.decode("utf-8", "replace")
        except OSError as err:
            raise ConfigError(f"{path}: {err.strerror}") from err


def _parse_kmsg(path: str) -> int:
    parser = Parser()
    whole = True
    for part in _lines(path):
        # What follows the bound is still the same line, and must not pass for one of its own.
        if whole:
            _print_events(parser.feed(part))
        whole = part.endswith("\n")
    _print_events(parser.finish())
    return 0


def _print_events(events: Iterable[Event]) -> None:
    for event in events:
        print(json.dumps(event.to_dict()))
