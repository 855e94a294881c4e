"""Real processes, real probes: a small rank program, an identity view, sources that always stop."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tocsin_exporter.bpf import build
from tocsin_exporter.identity.model import ProcessIdentity, ProcessListener
from tocsin_exporter.sources.bpf import BpfSource, ExitEvent, OutputChunk, RankCounts
from tocsin_exporter.sources.latest import ErrorCounter

HERE = Path(__file__).parent


class View:
    """An identity view that the test fills."""

    def __init__(self) -> None:
        self._living: dict[int, ProcessIdentity] = {}
        self._gone: list[tuple[ProcessIdentity, float]] = []
        self._listeners: list[tuple[ProcessListener, ProcessListener]] = []

    def living(self) -> tuple[ProcessIdentity, ...]:
        return tuple(self._living.values())

    def departed(self) -> tuple[tuple[ProcessIdentity, float], ...]:
        return tuple(self._gone)

    def by_pid(self, pid: int) -> ProcessIdentity | None:
        return self._living.get(pid)

    def subscribe(self, arrived: ProcessListener, left: ProcessListener) -> None:
        self._listeners.append((arrived, left))
        for process in self.living():
            arrived(process)

    def add(self, pid: int, rank: str = "0", job_id: str = "torchrun/test") -> ProcessIdentity:
        """Make *pid* a known rank."""
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        process = ProcessIdentity(pid, ticks, time.time(), job_id, rank, "torchrun")
        self._living[pid] = process
        for arrived, _ in self._listeners:
            arrived(process)
        return process

    def remove(self, pid: int) -> None:
        """Say that *pid* has ended."""
        process = self._living.pop(pid)
        self._gone.append((process, time.time()))
        for _, left in self._listeners:
            left(process)


class Rank:
    """A process that makes the calls it is told to make."""

    def __init__(
        self, program: Path, libraries: Path, stdout: int | None = None, before: tuple[str, ...] = ()
    ) -> None:
        read, write = os.pipe()
        out = subprocess.DEVNULL if stdout is None else stdout
        self._process = subprocess.Popen(
            [*before, str(program), str(write)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.DEVNULL,
            pass_fds=[write],
            env={"LD_LIBRARY_PATH": str(libraries), "PATH": os.environ["PATH"]},
        )
        os.close(write)
        self._answers = read
        self.pid = self._process.pid
        self.do("noop")

    def do(self, *commands: str) -> None:
        """Run commands, each to its end."""
        for command in commands:
            self.say(command)
            assert os.read(self._answers, 1) == b"."

    def say(self, command: str) -> None:
        """Run a command that may not answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def wait(self) -> int:
        """Wait for the end and return the status."""
        return self._process.wait(10)

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.close(self._answers)


@dataclass
class Watched:
    """A source and everything it has told."""

    source: BpfSource
    errors: ErrorCounter
    output: list[OutputChunk] = field(default_factory=list)
    exits: list[ExitEvent] = field(default_factory=list)

    def rank(self, rank: str = "0") -> RankCounts:
        """Return the counts of one rank."""
        return next(counts for counts in self.source.counts() if counts.rank == rank)

    def probed(self, *layers: str, rank: str = "0") -> None:
        """Wait until the rank's libraries are probed."""
        self.until(lambda: set(layers) <= self.rank(rank).layers)

    def until(self, done: Callable[[], bool]) -> None:
        """Wait until *done*; what never comes fails the test."""
        for _ in range(500):
            if done():
                return
            time.sleep(0.01)
        raise AssertionError("it did not happen within 5 s")

    def needs_output(self) -> None:
        """Skip the test where the output of processes cannot be captured."""
        if "output" in self.source.failures:
            pytest.skip(f"no output capture here: {self.source.failures['output'].detail}")

    def text(self, fd: int = 1) -> bytes:
        """Return everything seen of one descriptor."""
        return b"".join(chunk.data for chunk in self.output if chunk.fd == fd)


@pytest.fixture(scope="session")
def bpf_object(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The object, compiled from this checkout's source."""
    path = tmp_path_factory.mktemp("bpf") / "tocsin.bpf.o"
    try:
        build.build(output=path)
    except build.BuildError as err:
        pytest.skip(f"eBPF: {err}")
    return path


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libcuda.so.1, libnccl.so.2 and the program `rank`."""
    folder = tmp_path_factory.mktemp("native")
    common = ["gcc", "-O1", "-w", "-fPIC"]
    for layer, name in (("CUDA", "libcuda.so.1"), ("NCCL", "libnccl.so.2")):
        library = ["-shared", f"-DAS_{layer}", f"-Wl,-soname,{name}", str(HERE / "calls.c")]
        subprocess.run([*common, *library, "-o", str(folder / name)], check=True)
    program = [str(HERE / "rank.c"), "-L", str(folder), "-l:libcuda.so.1", "-l:libnccl.so.2", "-pthread"]
    subprocess.run([*common, *program, "-o", str(folder / "rank")], check=True)
    return folder


@pytest.fixture
def view() -> View:
    """An empty identity view."""
    return View()


@pytest.fixture
def new_rank(native: Path) -> Iterator[Callable[..., Rank]]:
    """Start rank processes that end with the test."""
    ranks: list[Rank] = []

    def start(stdout: int | None = None, libraries: Path | None = None, before: tuple[str, ...] = ()) -> Rank:
        ranks.append(Rank(native / "rank", libraries or native, stdout, before))
        return ranks[-1]

    yield start
    for rank in ranks:
        rank.close()


@pytest.fixture
def watch(bpf_object: Path) -> Iterator[Callable[..., Watched]]:
    """Start sources that stop with the test; skip where the kernel or the rights do not allow them."""
    started: list[BpfSource] = []

    def start(view: View, **options: object) -> Watched:
        errors = ErrorCounter()
        source = BpfSource(view, errors, object_path=bpf_object, poll=0.02, **options)  # type: ignore[arg-type]
        watched = Watched(source, errors)
        source.listen_output(watched.output.append)
        source.listen_exits(watched.exits.append)
        source.start()
        started.append(source)
        failure = source.failures.get("probes")
        if failure is not None and failure.reason in ("no_permission", "no_library", "unsupported"):
            pytest.skip(f"no eBPF here: {failure.detail}")
        return watched

    yield start
    for source in started:
        source.stop()
