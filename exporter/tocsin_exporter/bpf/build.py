"""
Compiles the BPF object next to its source: ``python -m tocsin_exporter.bpf.build``.

Needs clang and libbpf's headers, neither kernel headers nor a BTF dump. Done only when the
object is missing or differs in source, headers or compiler from what it was built of.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["OBJECT", "BuildError", "build", "main"]

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "tocsin.bpf.c"
HEADERS = tuple(FOLDER / name for name in ("kernel.h", "abi.h", "bodies.h", "maps.h"))
OBJECT = FOLDER / "tocsin.bpf.o"

_ARCHITECTURES = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm64", "arm64": "arm64"}
_INSTALL = "install them with: apt-get install clang libbpf-dev"


class BuildError(Exception):
    """The object cannot be built here; the text says why and what to install."""


def build(machine: str | None = None, output: Path = OBJECT, *, force: bool = False) -> bool:
    """
    Build for *machine* (default: this one) and say whether anything was compiled.

    Raises `BuildError` when the compiler or the headers are missing or the compiler refuses.
    """
    machine = machine or platform.machine()
    architecture = _ARCHITECTURES.get(machine)
    if architecture is None:
        raise BuildError(f"no BPF programs for {machine}; known: {', '.join(sorted(_ARCHITECTURES))}")
    clang = shutil.which("clang")
    if clang is None:
        raise BuildError(f"clang is not installed; {_INSTALL}")
    command = [
        clang,
        "-target",
        "bpf",
        "-g",
        "-O2",
        "-Wall",
        "-Werror",
        f"-D__TARGET_ARCH_{architecture}",
        "-c",
        SOURCE.name,
        "-o",
    ]
    stamp = output.with_suffix(".o.stamp")
    digest = _digest(command)
    if not force and output.exists() and stamp.exists() and stamp.read_text() == digest:
        return False
    partial = output.with_suffix(".o.new")
    result = subprocess.run([*command, str(partial)], cwd=FOLDER, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        partial.unlink(missing_ok=True)
        text = result.stderr.strip()
        if "bpf/bpf_helpers.h" in text:
            raise BuildError(f"libbpf's headers are not installed; {_INSTALL}")
        raise BuildError(f"clang failed with status {result.returncode}:\n{text[-4000:]}")
    # Readers never see half an object.
    partial.replace(output)
    stamp.write_text(digest)
    return True


def _digest(command: list[str]) -> str:
    digest = hashlib.sha256("\0".join(command).encode())
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=False)
    digest.update(version.stdout.encode())
    for path in (SOURCE, *HEADERS):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status: 0 built or up to date, 1 not possible here."""
    parser = argparse.ArgumentParser(
        prog="python -m tocsin_exporter.bpf.build", description="Build the BPF object."
    )
    parser.add_argument("--machine", help="x86_64 or aarch64; default: this machine")
    parser.add_argument("--output", type=Path, default=OBJECT)
    parser.add_argument("--force", action="store_true", help="compile even when nothing changed")
    options = parser.parse_args(arguments)
    try:
        compiled = build(options.machine, options.output.resolve(), force=options.force)
    except BuildError as err:
        print(f"bpf: {err}", file=sys.stderr)
        return 1
    print(f"bpf: {options.output} {'built' if compiled else 'is up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
