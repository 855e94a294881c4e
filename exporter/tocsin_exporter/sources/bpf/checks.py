"""What the kernel side finds here, for `tocsin-exporter doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tocsin_exporter.bpf.build import OBJECT
from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources.bpf.libbpf import Libbpf
from tocsin_exporter.sources.bpf.loader import Limits, Rung, load
from tocsin_exporter.sources.bpf.tracefs import tracepoint_ids

__all__ = ["doctor"]

_COSTS = {
    "probes": "no CUDA and NCCL series: slow hosts and ranks that are behind are not told apart",
    "exits": "exit codes and signals of ranks are not seen; an end is known, its cause is not",
    "output": "job output is read only where it goes to a file; pipes and terminals are not seen",
}


def doctor(path: Path = OBJECT) -> Iterator[tuple[str, bool, str, str]]:
    """Yield (what, whether it works, detail, what a lack costs); loads and unloads the programs."""
    lib = programs = None
    try:
        lib = Libbpf()
        programs = load(lib, path, Limits())
    except SourceError as err:
        for part, cost in _COSTS.items():
            yield f"eBPF {part}", False, err.detail, cost
        if lib is not None:
            lib.close()
        return
    try:
        best = programs.rung is Rung.MULTI
        detail = programs.rung.value + ("" if best else ", slow to detach; uprobe_multi needs Linux 6.6")
        yield "eBPF probes", True, detail, _COSTS["probes"]
        try:
            programs.attach_exit()
        except SourceError as err:
            yield "eBPF exits", False, err.detail, _COSTS["exits"]
        else:
            yield "eBPF exits", True, "sched_process_exit", _COSTS["exits"]
        try:
            numbers = tracepoint_ids(["syscalls/sys_enter_write"])
            programs.attach_output({"on_write": numbers["syscalls/sys_enter_write"]})
        except SourceError as err:
            yield "eBPF output", False, err.detail, _COSTS["output"]
        else:
            yield "eBPF output", True, "sys_enter_write", _COSTS["output"]
    finally:
        programs.close()
        lib.close()
