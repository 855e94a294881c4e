"""What the flags say, checked once at start."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path

from tocsin_common import durations
from tocsin_exporter.errors import ConfigError
from tocsin_exporter.metrics import Tier

__all__ = [
    "COLLECTORS",
    "Config",
    "parse_address",
    "parse_assignment",
    "parse_duration",
    "parse_node",
    "parse_socket",
]

# One name each: file, flag, label value, golden file.
COLLECTORS = (
    *("gpu", "gpu_events", "pcie", "identity", "cuda", "nccl", "output", "exits"),
    *("fabric", "storage", "host"),
)

_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Config:
    """
    The exporter's settings.

    ``listen`` holds host ("" for all) and port of each address, ``web_config`` the file with certificates
    and users, ``control`` the socket of `control`. ``interval`` and the deadlines are seconds. ``only_env``
    limits identity to processes with that variable, so that several virtual nodes can share one kernel.
    ``collectors`` are the names turned on.
    """

    listen: tuple[tuple[str, int], ...] = (("", 9836),)
    web_config: Path | None = None
    node: str = ""
    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    kmsg: Path = Path("/dev/kmsg")
    state: Path | None = None
    nvml_library: Path | None = None
    interval: float = 5.0
    nvml_deadline: float = 3.0
    nvml_call_deadline: float = 2.0
    control: Path | None = None
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    only_env: tuple[str, str] | None = None
    collectors: frozenset[str] = frozenset(COLLECTORS)
    ebpf_backend: str = "libbpf"
    tier: Tier = Tier.FABRIC
    log_level: str = "info"

    @property
    def max_age(self) -> float:
        """Seconds after which a reading is too old to serve."""
        return max(3 * self.interval, 60.0)


def parse_duration(flag: str, text: str, least: float, most: float) -> float:
    """Return the Prometheus duration *text* in seconds, between *least* and *most*."""
    try:
        value = durations.parse(text)
    except ValueError as err:
        raise ConfigError(f"{flag}: {err}") from err
    if not least <= value <= most:
        raise ConfigError(f"{flag}: {text} is out of range; it must lie between {least:g}s and {most:g}s")
    return value


def parse_address(flag: str, text: str) -> tuple[str, int]:
    """Return host ("" for all addresses) and port of ``[host]:port``."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{flag}: {text!r} is not an address; write [host]:port, for example :9836")
    host = host.removeprefix("[").removesuffix("]")
    if "/" in host or " " in host:
        raise ConfigError(
            f"{flag}: {text!r} is not an address; write [host]:port, for example 127.0.0.1:9836"
        )
    return host, int(port)


def parse_socket(flag: str, text: str) -> Path | None:
    """Return the path of a socket, None for an empty text."""
    if not text:
        return None
    # The kernel keeps it in 108 bytes with the end; what is written beside it needs a few more characters.
    if not text.startswith("/") or len(text.encode()) > 100 or "\0" in text:
        raise ConfigError(f"{flag}: {text!r} is not an absolute path of at most 100 bytes")
    return Path(text)


def parse_assignment(flag: str, text: str) -> tuple[str, str]:
    """Return name and value of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not _ENV_NAME.fullmatch(name):
        raise ConfigError(f"{flag}: {text!r} is not NAME=VALUE")
    return name, value


def parse_node(flag: str, text: str) -> str:
    """Return the node's name, by default the short host name, which is what Slurm and most clusters use."""
    name = text or socket.gethostname().split(".")[0] or "localhost"
    if not _NODE.fullmatch(name):
        raise ConfigError(f"{flag}: {name!r} is not a node name; use letters, digits, '.', '_' and '-'")
    return name
