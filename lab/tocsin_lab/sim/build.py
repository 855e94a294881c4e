"""Builds the stand-ins of libnvidia-ml, libcuda and libnccl: ``python -m tocsin_lab.sim.build``."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tocsin_lab.errors import BuildError

__all__ = ["build", "main", "native_sources"]

# The frame-pointer and scheduling flags keep `push` the first instruction of the functions that uprobes
# attach to: the kernel emulates it (0.5 µs) and single-steps most others (10 µs). -fno-ipa-icf keeps equal
# functions apart.
_FLAGS = (
    "-std=gnu11", "-O2", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden",
    "-fno-omit-frame-pointer", "-fno-shrink-wrap", "-fno-optimize-sibling-calls",
    "-fno-ipa-icf", "-fno-schedule-insns2",
)  # fmt: skip

# Of one compiler and machine only: unknown to gcc elsewhere, and not needed there.
_X86_FLAGS = ("-mno-omit-leaf-frame-pointer", "-fcf-protection=none")

# name -> (sources, further arguments); in link order
_LIBRARIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "libnvidia-ml.so.1": (
        (
            "nvml_core.c",
            "nvml_identity.c",
            "nvml_telemetry.c",
            "nvml_ecc.c",
            "nvml_link.c",
            "nvml_fields.c",
            "nvml_processes.c",
            "nvml_gpm.c",
            "nvml_events.c",
            "nvml_rules.c",
            "nvml_unsupported.c",
            "shm.c",
        ),
        ("-lpthread", "-lm"),
    ),
    "libcuda.so.1": (("cuda_api.c", "cuda_device.c", "shm.c"), ("-lpthread", "-lm")),
    "libnccl.so.2": (("nccl.c", "shm.c"), ("-Wl,-rpath,$ORIGIN", "{out}/libcuda.so.1")),
}
_LAYOUT = "sim-layout"
_STAMP = "build.sha256"


def native_sources() -> Path:
    """The folder of the C sources: in the repository, or the copy a wheel carries."""
    here = Path(__file__).resolve()
    for candidate in (here.parents[2] / "native", here.parents[1] / "_native"):
        if (candidate / "sim.h").is_file():
            return candidate
    raise BuildError(f"no C sources beside {here.parents[1]}: reinstall the package or run from a checkout")


def _flags() -> tuple[str, ...]:
    return (*_FLAGS, *_X86_FLAGS) if os.uname().machine == "x86_64" else _FLAGS


def _digest(sources: Path) -> str:
    state = hashlib.sha256(repr((_flags(), _LIBRARIES)).encode())
    for path in sorted([*sources.glob("*.c"), *sources.glob("*.h")]):
        state.update(path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()


def _compile(compiler: str, sources: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [compiler, *_flags(), *arguments], cwd=sources, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(
            f"{compiler} failed in {sources} (exit status {done.returncode}):\n{done.stderr[-4000:]}"
        )


def build(out: Path, compiler: str = "gcc") -> bool:
    """Build the libraries into ``out``; False when they were up to date.

    Each file is replaced by rename: processes that have the old one mapped keep it.

    Raises:
        BuildError: no compiler, or it failed.
    """
    sources = native_sources()
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        digest = _digest(sources)
        stamp = out / _STAMP
        names = [*_LIBRARIES, _LAYOUT]
        if stamp.is_file() and stamp.read_text() == digest and all((out / name).exists() for name in names):
            return False
        found = shutil.which(compiler)
        if found is None:
            raise BuildError(
                f"no {compiler} on PATH: install gcc and libc6-dev, the simulated node needs them"
            )
        for name, (files, more) in _LIBRARIES.items():
            fresh = out / f".{name}.new"
            extra = [argument.format(out=out) for argument in more]
            _compile(found, sources, ["-shared", f"-Wl,-soname,{name}", "-o", str(fresh), *files, *extra])
            os.replace(fresh, out / name)
        fresh = out / f".{_LAYOUT}.new"
        _compile(found, sources, ["-o", str(fresh), "layout.c"])
        os.replace(fresh, out / _LAYOUT)
        stamp.write_text(digest)
    return True


def main(argv: list[str] | None = None) -> int:
    """Command line; exit status 1 with the compiler's words when it fails."""
    parser = argparse.ArgumentParser(prog="python -m tocsin_lab.sim.build", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path(".build/lib"), help="folder of the libraries (%(default)s)"
    )
    parser.add_argument("--compiler", default="gcc")
    arguments = parser.parse_args(argv)
    try:
        fresh = build(arguments.out, arguments.compiler)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.out}: {'built' if fresh else 'up to date'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
