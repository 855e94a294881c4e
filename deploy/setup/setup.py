"""
Make a checkout ready to run: ``python3 deploy/setup/setup.py run|dev``.

Standard library only. Each step says in one line what it did; a step that is already done is
recognised by a stamp and costs nothing, so a second run is quick and needs no network.

``run`` is what ``make up`` needs, ``dev`` adds the tools of the tests and the renderers.
Exit status: 0 ready (perhaps with less, each lack is one line), 1 something needed is missing.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import archive

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("prometheus", "promtool", "alertmanager", "amtool")
TARGET_SUITES = ("sid", "trixie")
EXTRAS = {"run": "lab", "dev": "dev"}
MINIMUM_PYTHON = (3, 11)


class SetupError(Exception):
    """The checkout cannot be made ready; the text says what, why and what to do."""


@dataclass(frozen=True)
class Need:
    """A Debian package, a probe that tells whether what it brings is there, and what its lack costs."""

    package: str
    present: Callable[[], bool]
    lack: str
    required: bool = False


def _header(name: str) -> bool:
    roots = [Path("/usr/include"), *Path("/usr/include").glob("*-linux-gnu")]
    return any((root / name).is_file() for root in roots)


def _library(name: str) -> bool:
    roots = [Path("/usr/lib"), Path("/lib"), *Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib64")]
    return any((root / name).exists() for root in roots)


def _venv_module(python: str) -> bool:
    probe = [python, "-c", "import venv, ensurepip"]
    return subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def needs(python: str) -> tuple[Need, ...]:
    """Return what the machine must offer before anything is built."""
    bpf = "the exporter runs without eBPF: no CUDA, NCCL, job output and exit evidence"
    lab = "the simulated GPU node cannot be built"
    return (
        Need("python3-venv", lambda: _venv_module(python), "no virtual environment", required=True),
        Need("gcc", lambda: shutil.which("gcc") is not None, lab),
        Need("libc6-dev", lambda: _header("stdio.h"), lab),
        Need("clang", lambda: shutil.which("clang") is not None, bpf),
        Need("libbpf-dev", lambda: _header("bpf/bpf_helpers.h"), bpf),
        Need("libbpf1", lambda: _library("libbpf.so.1"), bpf),
        Need("openssl", lambda: shutil.which("openssl") is not None, "the tests of TLS have no certificates"),
        Need("ca-certificates", lambda: Path("/etc/ssl/certs").is_dir(), "packages may not download"),
    )


def os_release(text: str) -> dict[str, str]:
    """Return the fields of an os-release file."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}


def digest(paths: Sequence[Path], extra: str = "") -> str:
    """Return a hash over the names and bytes of *paths*, for stamps."""
    whole = hashlib.sha256(extra.encode())
    for path in sorted(paths):
        whole.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()


class Stamps:
    """What was done for which input, in one JSON file under the build folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            loaded = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            loaded = {}
        self._known: dict[str, str] = loaded if isinstance(loaded, dict) else {}

    def get(self, step: str) -> str:
        return str(self._known.get(step, ""))

    def put(self, step: str, value: str) -> None:
        self._known[step] = value
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self._known, indent=1, sort_keys=True), "utf-8")
        fresh.replace(self._path)


def say(step: str, text: str) -> None:
    """Print one line of progress."""
    sys.stdout.write(f"setup: {step:<9} {text}\n")
    sys.stdout.flush()


def run(argv: Sequence[str], what: str, *, env: dict[str, str] | None = None, seconds: float = 900) -> str:
    """Run a command quietly and return its standard output; SetupError with its last lines otherwise."""
    try:
        done = subprocess.run(
            argv,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise SetupError(f"{what}: {err}") from err
    if done.returncode != 0:
        tail = "\n  ".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise SetupError(f"{what} ended with {done.returncode}:\n  {tail}")
    return done.stdout


def check_system(path: Path = Path("/etc/os-release")) -> str:
    """Say which system this is and return Debian's codename ('' elsewhere)."""
    fields = os_release(path.read_text("utf-8")) if path.is_file() else {}
    codename = fields.get("VERSION_CODENAME", "")
    if fields.get("ID") == "debian" and codename in {"bookworm", "trixie"}:
        say("system", f"{fields.get('PRETTY_NAME', codename)}, Python {sys.version.split()[0]}")
    else:
        name = fields.get("PRETTY_NAME", "unknown")
        say("system", f"{name}: tested on Debian 12 and 13 only, going on")
    return codename if fields.get("ID") == "debian" else ""


def install_packages(wanted: Sequence[Need]) -> None:
    """Install what is missing where root may; elsewhere say what to install and what the lack costs."""
    missing = [need for need in wanted if not need.present()]
    if not missing:
        say("packages", "all there")
        return
    names = [need.package for need in missing]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        started = time.monotonic()
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        apt = ["apt-get", "-qq", "-o", "Acquire::Retries=2"]
        try:
            run([*apt, "update"], "apt-get update", env=env)
            run(
                [*apt, "install", "-y", "--no-install-recommends", *names],
                f"apt-get install {' '.join(names)}",
                env=env,
            )
            say("packages", f"installed {' '.join(names)} ({time.monotonic() - started:.0f} s)")
        except SetupError as err:
            say("packages", f"{err}")
    still = [need for need in missing if not need.present()]
    if not still:
        return
    say("packages", f"missing; install with: apt-get install {' '.join(need.package for need in still)}")
    for need in still:
        say("packages", f"without {need.package}: {need.lack}")
    fatal = [need.package for need in still if need.required]
    if fatal:
        raise SetupError(f"cannot go on without {', '.join(fatal)}; install it and run this again")


def make_venv(python: str, level: str, stamps: Stamps) -> Path:
    """Create .venv and install the project editable with the extras of *level*; return its python."""
    venv = ROOT / ".venv"
    inside = venv / "bin" / "python"
    project = digest([ROOT / "pyproject.toml"])
    # What dev installs is a superset of run.
    done = {stamps.get("venv")}
    if inside.exists() and done & {f"{project} dev", f"{project} {level}"}:
        say("venv", "up to date")
        return inside
    started = time.monotonic()
    if not inside.exists():
        shutil.rmtree(venv, ignore_errors=True)
        run([python, "-m", "venv", str(venv)], f"{python} -m venv .venv")
    pip = [str(inside), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    run([*pip, "--editable", f".[{EXTRAS[level]}]"], f"pip install --editable '.[{EXTRAS[level]}]'")
    stamps.put("venv", f"{project} {level}")
    say("venv", f"installed .[{EXTRAS[level]}] ({time.monotonic() - started:.0f} s)")
    return inside


def version_of(program: Path) -> str:
    """Return the version that a Prometheus program prints, '' when it does not start."""
    try:
        done = subprocess.run(
            [str(program), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    words = (done.stdout + done.stderr).split()
    return words[2] if done.returncode == 0 and len(words) > 2 and words[1] == "version" else ""


def link_tools(root: Path, bin_dir: Path) -> dict[str, str]:
    """Offer the programs under *root* in *bin_dir*; return name → version, SetupError when one fails."""
    found: dict[str, str] = {}
    bin_dir.mkdir(parents=True, exist_ok=True)
    data = root / "usr" / "share" / "prometheus"
    for name in TOOLS:
        candidates = (root / "usr/bin" / name, root / "usr/bin" / f"prometheus-{name}")
        program = next((path for path in candidates if path.is_file()), None)
        if program is None:
            raise SetupError(f"{name} is not under {root}")
        link = bin_dir / name
        link.unlink(missing_ok=True)
        if data.is_dir() and archive.relocate(program):
            link.write_text(archive.wrapper(program, data, bin_dir), "utf-8")
            link.chmod(0o755)
        else:
            link.symlink_to(os.path.relpath(program, bin_dir))
        found[name] = version_of(link)
        if not found[name]:
            raise SetupError(f"{program} does not start")
    return found


def get_tools(codename: str, etc_apt: Path = Path("/etc/apt")) -> None:
    """Unpack Prometheus and Alertmanager into .tools: sid, else trixie, else the machine's own suite."""
    tools = ROOT / ".tools"
    bin_dir = tools / "bin"
    have = {name: version_of(bin_dir / name) for name in TOOLS}
    # A plain link to an unpacked server would miss its templates.
    whole = (
        not (bin_dir / "alertmanager").resolve().is_relative_to(tools)
        or not (bin_dir / "alertmanager").is_symlink()
    )
    if all(have.values()) and whole:
        say("tools", f"Prometheus {have['prometheus']}, Alertmanager {have['alertmanager']}")
        return
    started = time.monotonic()
    failures: list[str] = []
    source = archive.debian_archive(archive.read_sources(etc_apt), codename) if codename else None
    if source is None:
        failures.append(f"no archive that serves {codename or 'Debian'} in {etc_apt}")
    for suite in dict.fromkeys([*TARGET_SUITES, codename]):
        if source is None:
            break
        packages = ["prometheus", "prometheus-alertmanager"]
        if suite != "bookworm":
            packages.append("promtool")
        root = tools / suite
        shutil.rmtree(root, ignore_errors=True)
        try:
            archive.fetch(source, suite, packages, tools / f"apt-{suite}", root)
            have = link_tools(root, bin_dir)
        except (archive.FetchError, SetupError) as err:
            failures.append(f"{suite}: {err}")
            shutil.rmtree(root, ignore_errors=True)
            continue
        took = time.monotonic() - started
        say(
            "tools",
            f"Prometheus {have['prometheus']}, Alertmanager {have['alertmanager']} of {suite} ({took:.0f} s)",
        )
        if suite != TARGET_SUITES[0]:
            say("tools", f"an older suite, because {failures[0]}")
        return
    have = link_system_tools(bin_dir)
    if all(have.values()):
        say("tools", f"the system's own Prometheus {have['prometheus']}, because {'; '.join(failures)}")
        return
    raise SetupError(
        "Prometheus and Alertmanager could not be had: "
        + "; ".join(failures)
        + ". Check the network and /etc/apt, or install prometheus and prometheus-alertmanager yourself"
    )


def link_system_tools(bin_dir: Path) -> dict[str, str]:
    """Link programs that PATH offers; return name → version, '' for those that are not there."""
    found = {}
    for name in TOOLS:
        program = shutil.which(name) or shutil.which(f"prometheus-{name}")
        found[name] = version_of(Path(program)) if program else ""
        if program and found[name]:
            bin_dir.mkdir(parents=True, exist_ok=True)
            link = bin_dir / name
            link.unlink(missing_ok=True)
            link.symlink_to(program)
    return found


def build(
    step: str, sources: Sequence[Path], products: Sequence[str], argv: Sequence[str], stamps: Stamps
) -> bool:
    """Run a builder when its sources changed or a product is gone; False (and a line why) when it fails."""
    if not sources:
        say(step, "no sources in this checkout")
        return False
    state = digest(sources)
    there = all(any(ROOT.glob(pattern)) for pattern in products)
    if there and stamps.get(step) == state:
        say(step, "up to date")
        return True
    started = time.monotonic()
    try:
        run(argv, f"building {step}")
    except SetupError as err:
        say(step, str(err))
        return False
    stamps.put(step, state)
    say(step, f"built ({time.monotonic() - started:.0f} s)")
    return True


def build_all(python: Path, stamps: Stamps) -> None:
    """Build the BPF objects and the simulated driver libraries; each lack is said, none is fatal here."""
    bpf = ROOT / "exporter" / "tocsin_exporter" / "bpf"
    sources = [*bpf.glob("*.c"), *bpf.glob("*.h"), *bpf.glob("build.py")]
    argv = [str(python), "-m", "tocsin_exporter.bpf.build"]
    if not build("bpf", sources, ["exporter/tocsin_exporter/bpf/*.bpf.o"], argv, stamps):
        say("bpf", "going on with less evidence: no CUDA, NCCL, job output and exit series")
    native = ROOT / "lab" / "native"
    sources = [*native.rglob("*.c"), *native.rglob("*.h"), *(ROOT / "lab/tocsin_lab/sim").glob("build.py")]
    argv = [str(python), "-m", "tocsin_lab.sim.build", "--out", ".build/lib"]
    products = [f".build/lib/{name}" for name in ("libnvidia-ml.so.1", "libcuda.so.1", "libnccl.so.2")]
    if not build("simulator", sources, products, argv, stamps):
        say("simulator", "going on without: only a machine with a real driver can be served")


def prepare(level: str, python: str) -> None:
    """Do every step of *level*."""
    if sys.version_info < MINIMUM_PYTHON:
        raise SetupError(
            f"Python {sys.version.split()[0]} is too old, {MINIMUM_PYTHON[0]}.{MINIMUM_PYTHON[1]} is needed; "
            "set PYTHON to a newer one: make PYTHON=python3.12 …"
        )
    build_dir = ROOT / ".build"
    build_dir.mkdir(exist_ok=True)
    with (build_dir / "setup.lock").open("w") as lock:
        # Two makes at once would write one virtual environment.
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamps = Stamps(build_dir / "setup.json")
        codename = check_system()
        install_packages(needs(python))
        inside = make_venv(python, level, stamps)
        get_tools(codename)
        build_all(inside, stamps)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the level and run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="setup.py", description="Make this checkout ready to run.")
    parser.add_argument("level", choices=sorted(EXTRAS), nargs="?", default="dev")
    chosen = parser.parse_args(argv)
    try:
        prepare(chosen.level, sys.executable)
    except SetupError as err:
        sys.stderr.write(f"setup: {err}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("setup: interrupted; run it again to go on\n")
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
