"""Ranks that make calls at will, in libraries that have NVIDIA's names and return at once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tocsin_exporter.sources.bpf.symbols import SYMBOLS

__all__ = ["JOB", "UNPROBED", "Rank", "build"]

JOB = "bench-ebpf"
# A call of each library that no probe is on: what a call costs by itself.
UNPROBED = {"cuda": "cuDriverGetVersion", "cudart": "cudaGetLastError", "nccl": "ncclGetVersion"}
_HEAD = """
#ifdef __x86_64__
#define BEGIN __asm__ volatile("push %rbx\\n\\tpop %rbx");
#else
#define BEGIN
#endif
#define FUNCTION(name) int name(void) { BEGIN return 0; }
"""
_FILES = {"cuda": "libcuda.so.1", "cudart": "libcudart.so.12", "nccl": "libnccl.so.2"}


def build(folder: Path) -> tuple[Path, dict[str, Path]]:
    """
    Compile the load program and, per layer, a library with every probed name; return their paths.

    Raises CalledProcessError without a compiler. The functions begin with ``push``, as those of NCCL do and
    as the driver's do behind their first comparison.
    """
    libraries = {}
    for layer, names in SYMBOLS.items():
        source = folder / f"{layer}.c"
        lines = [_HEAD, *(f"FUNCTION({name})" for name in sorted({*names, UNPROBED[layer]}))]
        source.write_text("\n".join(lines) + "\n", "utf-8")
        libraries[layer] = folder / _FILES[layer]
        # Not -O2, which makes one function of equal ones.
        _compile("-O1", "-shared", "-fPIC", str(source), f"-Wl,-soname,{_FILES[layer]}", out=libraries[layer])
    program = folder / "load"
    _compile("-O2", str(Path(__file__).with_name("load.c")), "-ldl", out=program)
    return program, libraries


def _compile(*arguments: str, out: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("gcc is not installed (apt-get install gcc)")
    subprocess.run([compiler, "-w", "-fcf-protection=none", *arguments, "-o", str(out)], check=True)


class Rank:
    """One process that looks like a rank of torchrun; what it prints goes nowhere."""

    def __init__(self, number: int, ranks: int, program: Path, libraries: Sequence[Path]) -> None:
        self.number = number
        read, write = os.pipe()
        self._process = subprocess.Popen(
            [str(program), str(write), *map(str, libraries)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[write],
            env={
                **os.environ,
                "RANK": str(number),
                "LOCAL_RANK": str(number),
                "WORLD_SIZE": str(ranks),
                "TORCHELASTIC_RUN_ID": JOB,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29500",
            },
        )
        os.close(write)
        self._answers = os.fdopen(read)
        self.pid = self._process.pid
        self._answer()

    def say(self, command: str) -> None:
        """Begin a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        line = self._answers.readline().strip()
        if line in ("", "error"):
            raise RuntimeError(f"rank {self.number} of the load ended or knows no such call")
        return line

    def numbers(self) -> list[float]:
        """Wait for the end of the command and return what it measured."""
        return [float(word) for word in self._answer().split()]

    def do(self, command: str) -> list[float]:
        """Run a command to its end."""
        self.say(command)
        return self.numbers()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
