"""The figures: nanoseconds per call, a node's launches, memory, reading of the maps, capture of output."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from bench.ebpf.contenders import Exporter, backends, bpftrace, exporter
from bench.ebpf.load import UNPROBED, Rank
from bench.exporter import process
from bench.exporter.figures import Figures, tell

__all__ = ["Settings", "measure"]

# Kind of call → the symbol that stands for it.
KINDS = {
    "launch": "cuLaunchKernel",
    "sync_stream": "cuStreamSynchronize",
    "alloc": "cuMemAlloc_v2",
    "memcpy_async": "cuMemcpyAsync",
    "all_reduce": "ncclAllReduce",
    "not_probed": UNPROBED["nccl"],
}
_LINE = 100


@dataclass(frozen=True)
class Settings:
    """Rounds over all contenders, calls per timed batch, launches per second and rank and for how long."""

    rounds: int = 5
    calls: int = 300_000
    rate: int = 40_000
    seconds: float = 10.0
    ranks: int = 8


def _bpftrace_script(library: Path, nccl: Path) -> str:
    return (
        f"uprobe:{library}:cuLaunchKernel {{ @launch[pid] = count(); }} "
        f"uprobe:{nccl}:ncclAllReduce {{ @all_reduce[pid] = count(); @bytes[pid] = sum(arg2); }} "
        f"uprobe:{library}:cuStreamSynchronize {{ @start[tid] = nsecs; }} "
        f"uretprobe:{library}:cuStreamSynchronize /@start[tid]/ "
        "{ @wait = hist(nsecs - @start[tid]); delete(@start[tid]); }"
    )


class Bench:
    """One run on one set of ranks."""

    def __init__(
        self, settings: Settings, work: Path, program: Path, libraries: dict[str, Path], figures: Figures
    ) -> None:
        self._settings = settings
        self._work = work
        self._libraries = libraries
        self._figures = figures
        self._ranks = [
            Rank(number, settings.ranks, program, list(libraries.values()))
            for number in range(settings.ranks)
        ]
        self._per_call: dict[tuple[str, str], list[float]] = defaultdict(list)

    def close(self) -> None:
        """End the ranks."""
        for rank in self._ranks:
            rank.close()

    def run(self) -> None:
        """Measure everything."""
        (bare,) = self._ranks[0].do(f"write {_LINE} 200000")
        self._figures.add("none_capture_flood_write", "ns", bare)
        found = backends()
        for number in range(self._settings.rounds):
            self._batches("none", KINDS)
            for backend in found:
                with exporter(backend, self._ranks, self._work) as running:
                    if running is None:
                        continue
                    self._batches(backend, KINDS)
                    if number == 0:
                        self._memory(backend, running)
            script = _bpftrace_script(self._libraries["cuda"], self._libraries["nccl"])
            with bpftrace(script, self._work) as there:
                if there:
                    self._batches("bpftrace", ("launch", "sync_stream", "all_reduce"))
            tell(f"round {number + 1} of {self._settings.rounds} done")
        self._per_call_figures()
        base = self._rate("none", None)
        for backend in found:
            with exporter(backend, self._ranks, self._work) as running:
                if running is not None:
                    self._rate(backend, running, base)
                    self._read_time(backend, running)
                    self._capture(backend, running)

    def _batches(self, who: str, kinds: dict[str, str] | tuple[str, ...]) -> None:
        for kind in kinds:
            (took,) = self._ranks[0].do(f"batch {KINDS[kind]} {self._settings.calls}")
            self._per_call[who, kind].append(took)

    def _per_call_figures(self) -> None:
        for (who, kind), values in self._per_call.items():
            self._figures.add(f"{who}_{kind}_best", "ns", min(values))
            self._figures.add(f"{who}_{kind}_median", "ns", statistics.median(values))
        for who, kind in self._per_call:
            if who not in ("none", "bpftrace"):
                self._figures.ratio(
                    f"bpftrace_over_{who}_{kind}", f"bpftrace_{kind}_median", f"{who}_{kind}_median"
                )

    def _memory(self, backend: str, running: Exporter) -> None:
        used = process.memory(process.family(running.child.id.pid))
        self._figures.add(f"{backend}_pss", "MiB", used.pss / 2**20)
        self._figures.add(f"{backend}_memory_alone", "MiB", used.alone / 2**20)

    def _rate(self, who: str, running: Exporter | None, base: float = 0.0) -> float:
        """Let every rank launch at the set rate; return the CPU time that the calls took, in cores."""
        settings = self._settings
        before = running.total("tocsin_cuda_calls_total", op="launch") if running else 0.0
        own = process.cpu_seconds(process.family(running.child.id.pid)) if running else 0.0
        begin = time.monotonic()
        for rank in self._ranks:
            rank.say(f"rate {KINDS['launch']} {settings.rate} {settings.seconds * 1000:.0f}")
        made = used = 0.0
        for rank in self._ranks:
            calls, cpu = rank.numbers()
            made += calls
            used += cpu / 1e9
        took = time.monotonic() - begin
        self._figures.add(f"{who}_node_launches", "1/s", made / took)
        self._figures.add(f"{who}_node_cpu", "cores", used / took)
        if running is not None:
            own = process.cpu_seconds(process.family(running.child.id.pid)) - own
            counted = running.total("tocsin_cuda_calls_total", op="launch") - before
            self._figures.add(f"{who}_node_launches_lost", "", made - counted)
            self._figures.add(f"{who}_node_probe_cpu", "cores", used / took - base)
            self._figures.add(f"{who}_node_exporter_cpu", "cores", own / took)
        return used / took

    def _read_time(self, backend: str, running: Exporter) -> None:
        times = defaultdict(list)
        for _ in range(30):
            for name, labels, value in running.series():
                if name == "tocsin_collector_duration_seconds":
                    times[labels["collector"]].append(value)
        for collector in ("cuda", "nccl"):
            self._figures.add(f"{backend}_{collector}_read", "ms", statistics.median(times[collector]) * 1e3)

    def _capture(self, backend: str, running: Exporter) -> None:
        """One rank prints as fast as it can, then at a rate within the exporter's bound."""
        rank = self._ranks[0]
        if running.value("tocsin_collector_success", collector="output") != 1:
            tell(f"{backend}: output is not captured")
            return
        lines = "tocsin_training_output_lines_total"
        dropped = "tocsin_training_output_dropped_bytes_total"
        for name, count in (("flood", 200_000), ("burst", 1_000)):
            before = running.total(lines, rank="0"), running.total(dropped, rank="0")
            (took,) = rank.do(f"write {_LINE} {count}")
            time.sleep(2.0)
            seen = running.total(lines, rank="0") - before[0]
            lost = running.total(dropped, rank="0") - before[1]
            self._figures.add(f"{backend}_capture_{name}_write", "ns", took)
            self._figures.add(f"{backend}_capture_{name}_lines_seen", "ratio", seen / count)
            self._figures.add(f"{backend}_capture_{name}_bytes_told_lost", "ratio", lost / (count * _LINE))
            # The next one begins with a fresh second of the bound.
            time.sleep(1.0)


def measure(
    settings: Settings, work: Path, program: Path, libraries: dict[str, Path], figures: Figures
) -> None:
    """Run everything and add the figures."""
    bench = Bench(settings, work, program, libraries, figures)
    try:
        bench.run()
    finally:
        bench.close()
