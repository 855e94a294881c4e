"""Who is compared: the exporter in its tiers, Debian's node_exporter, and a plain collector over pynvml."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.exporter.figures import tell

from tocsin_exporter.config import COLLECTORS
from tocsin_lab.stack import components, ports, simulated
from tocsin_lab.stack.rundir import RunDir

__all__ = ["Contender", "contenders", "node_exporter"]

ROOT = Path(__file__).resolve().parents[2]
# What the plain collector reads too.
_DEVICE_COLLECTORS = ("gpu", "gpu_events", "pcie")


@dataclass(frozen=True)
class Contender:
    """One exporter under measurement; ``ours`` ones survive a hung driver, or claim to."""

    name: str
    part: components.Part
    ours: bool

    @property
    def url(self) -> str:
        """Where it is scraped."""
        return self.part.url


def contenders(run: RunDir, node: str, interval: float, tiers: Sequence[str]) -> list[Contender]:
    """Return all that can run here; what cannot is said by name."""
    flags, env = simulated.exporter_flags(run, node)
    flags = (*flags, "--collect.interval", f"{interval:g}s", "--control.socket", "")
    program = node_exporter()
    chosen = iter(ports.choose([0] * (len(tiers) + 3)))
    found = []
    for tier in tiers:
        part = components.exporter(f"{node}", next(chosen), (*flags, "--tier", tier), env)
        found.append(Contender(f"tocsin_{tier}", _named(part, f"tocsin-{tier}"), True))
    off = [f"--no-collector.{name}" for name in COLLECTORS if name not in _DEVICE_COLLECTORS]
    part = components.exporter(node, next(chosen), (*flags, *off, "--ebpf.backend", "off"), env)
    found.append(Contender("tocsin_devices", _named(part, "tocsin-devices"), True))
    found.append(Contender("plain", _plain(run, next(chosen), env), False))
    if program is not None:
        found.append(Contender("node_exporter", _node(run, node, program, next(chosen)), True))
    return found


def _named(part: components.Part, name: str) -> components.Part:
    return components.Part(name, part.argv, part.env, part.url, part.ready)


def _plain(run: RunDir, port: int, env: dict[str, str]) -> components.Part:
    url = f"http://{ports.LOOPBACK}:{port}/metrics"
    library = simulated.library_folder(run) / "libnvidia-ml.so.1"
    script = Path(__file__).with_name("plain.py")
    return components.Part("plain", (sys.executable, str(script), str(port), str(library)), env, url, url)


def _node(run: RunDir, node: str, program: Path, port: int) -> components.Part:
    url = f"http://{ports.LOOPBACK}:{port}/metrics"
    argv = (
        str(program),
        f"--web.listen-address={ports.LOOPBACK}:{port}",
        f"--path.sysfs={run.node(node) / 'sys'}",
        "--collector.infiniband",
        "--log.level=error",
    )
    return components.Part("node_exporter", argv, {}, url, url)


def node_exporter() -> Path | None:
    """Return Debian's node_exporter, unpacked beside the tools; None, and why, where it cannot be had."""
    found = shutil.which("prometheus-node-exporter")
    if found is not None:
        return Path(found)
    root = ROOT / ".tools" / "node-exporter"
    program = root / "usr" / "bin" / "prometheus-node-exporter"
    if program.is_file():
        return program
    sys.path.insert(0, str(ROOT / "deploy" / "setup"))
    import archive
    import setup

    release = Path("/etc/os-release")
    fields = setup.os_release(release.read_text("utf-8")) if release.is_file() else {}
    codename = fields.get("VERSION_CODENAME", "")
    source = archive.debian_archive(archive.read_sources(Path("/etc/apt")), codename)
    try:
        if source is None:
            raise archive.FetchError(f"no archive that serves {codename or 'Debian'} in /etc/apt")
        archive.fetch(source, codename, ["prometheus-node-exporter"], ROOT / ".tools/apt-node-exporter", root)
    except (archive.FetchError, OSError) as err:
        tell(f"node_exporter is left out: {err}")
        return None
    return program if program.is_file() else None
