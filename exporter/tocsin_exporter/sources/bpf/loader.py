"""Brings the programs into the kernel by the best way that it offers, and attaches them."""

from __future__ import annotations

import enum
import logging
import mmap
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.metrics import family
from tocsin_exporter.sources.bpf import elf, layout
from tocsin_exporter.sources.bpf.libbpf import Handle, Libbpf, Ring, SampleCallback
from tocsin_exporter.sources.bpf.symbols import PROBE_OP, Site

__all__ = ["Attachment", "Limits", "Programs", "Rung", "load"]

log = logging.getLogger(__name__)

_UPROBES = (
    *("launch_enter", "call_enter", "call_leave", "nccl_enter", "nccl_leave"),
    *("comm_enter", "comm_leave", "async_enter", "async_leave"),
)
_SHARED_MAPS = ("targets", "ranks", "launches", "in_flight", "comms", "records", "scratch")
_LRU_MAPS = ("launches", "in_flight", "comms")
# An LRU map hands out its entries to CPUs in batches; with few per CPU it evicts what is in use.
_LRU_PER_CPU = 256
_LRU_LEAST = 16384

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC


class Rung(enum.Enum):
    """Ways to attach a uprobe, best first."""

    # Linux 6.6: all places of a file in one link. Only CAP_BPF and CAP_PERFMON.
    MULTI = "uprobe_multi"
    # Linux 5.15: one perf event per place, which tells the program its cookie.
    COOKIE = "perf_cookie"
    # Older: one copy of the programs per meaning, with the cookie as a constant.
    CONSTANT = "perf_constant"


@dataclass(frozen=True, slots=True)
class Limits:
    """Guards per rank and second: launches whose gaps are measured, bytes of output handed over."""

    launches: int = 250_000
    output_bytes: int = 1 << 18


@dataclass(slots=True)
class Attachment:
    """Probes of one file; ``close`` detaches them."""

    descriptors: list[int]
    links: list[Handle]
    lib: Libbpf

    def close(self) -> None:
        """Detach."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        for link in self.links:
            self.lib.destroy(link)
        self.descriptors, self.links = [], []


class Programs:
    """Loaded programs with their maps. Not thread-safe; ``close`` detaches and frees everything."""

    def __init__(self, lib: Libbpf, path: Path, rung: Rung, limits: Limits) -> None:
        self.rung = rung
        self.lib = lib
        self._path = path
        self._limits = limits
        self._objects: list[Handle] = []
        self._variants: dict[int, dict[str, Handle]] = {}
        self._attachments: list[Attachment] = []
        self._links: list[Handle] = []
        self._rings: list[Ring] = []
        self._view: mmap.mmap | None = None
        try:
            constant = PROBE_OP if rung is Rung.CONSTANT else layout.NO_COOKIE
            self._base, self._programs = self._load(constant, share=False)
            self._variants[PROBE_OP] = self._programs
            self._targets = lib.map_fd(lib.map(self._base, "targets"))
            ranks = lib.map(self._base, "ranks")
            if lib.value_size(ranks) != layout.RANK_STAT.size:
                raise SourceError("bad_data", f"eBPF: {path.name} is of another version; run `make bpf`")
            self._view = mmap.mmap(lib.map_fd(ranks), layout.SLOTS * layout.RANK_STAT.size)
        except BaseException:
            self.close()
            raise

    # loading

    def _load(self, constant: int, *, share: bool) -> tuple[Handle, dict[str, Handle]]:
        handle = self.lib.open(self._path)
        self._objects.append(handle)
        programs = self.lib.programs(handle)
        for name, program in programs.items():
            if name in _UPROBES:
                if self.rung is Rung.MULTI:
                    self.lib.set_multi(program)
            elif share:
                self.lib.set_autoload(program, False)
        self._configure(handle, constant)
        for name in _SHARED_MAPS if share else ():
            self.lib.reuse(self.lib.map(handle, name), self.lib.map_fd(self.lib.map(self._base, name)))
        if not share:
            entries = max(_LRU_LEAST, _LRU_PER_CPU * (os.cpu_count() or 1))
            for name in _LRU_MAPS:
                self.lib.set_max_entries(self.lib.map(handle, name), entries)
        self.lib.load(handle)
        return handle, programs

    def _configure(self, handle: Handle, constant: int) -> None:
        with self._path.open("rb") as file:
            symbol = elf.read_static(file, ["config"]).get("config")
        if symbol is None or symbol.size != layout.CONFIG.size:
            raise SourceError("bad_data", f"eBPF: {self._path.name} is of another version; run `make bpf`")
        namespace = Path("/proc/self/ns/pid").stat()
        outside = namespace.st_ino == _INITIAL_PID_NAMESPACE
        data = layout.CONFIG.pack(
            constant,
            self._limits.launches,
            self._limits.output_bytes,
            0 if outside else namespace.st_dev,
            0 if outside else namespace.st_ino,
            *_nanoseconds("tocsin_cuda_sync_seconds"),
            *_nanoseconds("tocsin_cuda_launch_gap_seconds"),
            *layout.SIZE_BOUNDS,
        )
        self.lib.write_initial(self.lib.map(handle, ".rodata"), symbol.offset, data)

    # attaching

    def attach(self, path: str, sites: Iterable[Site]) -> Attachment:
        """Attach *sites* of the file at *path*; raises `SourceError`, with nothing left attached."""
        attachment = Attachment([], [], self.lib)
        try:
            if self.rung is Rung.MULTI:
                self._attach_multi(path, sites, attachment)
            else:
                self._attach_each(path, sites, attachment)
        except BaseException:
            attachment.close()
            raise
        self._attachments.append(attachment)
        return attachment

    def _attach_multi(self, path: str, sites: Iterable[Site], attachment: Attachment) -> None:
        groups: dict[str, list[Site]] = defaultdict(list)
        for site in sites:
            groups[site.program].append(site)
        for program, group in groups.items():
            attachment.descriptors.append(
                self.lib.attach_multi(
                    self._programs[program],
                    path,
                    [site.offset for site in group],
                    [site.cookie for site in group],
                    at_return=group[0].at_return,
                )
            )

    def _attach_each(self, path: str, sites: Iterable[Site], attachment: Attachment) -> None:
        for site in sites:
            cookie: int | None = site.cookie
            programs = self._programs
            if self.rung is Rung.CONSTANT:
                if site.cookie not in self._variants:
                    self._variants[site.cookie] = self._load(site.cookie, share=True)[1]
                programs, cookie = self._variants[site.cookie], None
            attachment.links.append(
                self.lib.attach_uprobe(
                    programs[site.program], path, site.offset, at_return=site.at_return, cookie=cookie
                )
            )

    def detach(self, attachment: Attachment) -> None:
        """Detach one file's probes."""
        attachment.close()
        if attachment in self._attachments:
            self._attachments.remove(attachment)

    def attach_exit(self) -> None:
        """Have ends of processes reported."""
        self._links.append(self.lib.attach_raw_tracepoint(self._programs["on_exit"], "sched_process_exit"))

    def attach_output(self, numbers: dict[str, int]) -> None:
        """Have output reported; *numbers* are tracepoint ids by program (``on_write``, ``on_writev``)."""
        for program, number in numbers.items():
            self._links.append(self.lib.attach_tracepoint(self._programs[program], number))

    def ring(self, callback: SampleCallback) -> Ring:
        """Return a reader of the records; `close` frees it."""
        ring = self.lib.ring(self.lib.map_fd(self.lib.map(self._base, "records")), callback)
        self._rings.append(ring)
        return ring

    # targets and counts

    def add_target(self, pid: int, slot: int, token: int) -> None:
        """Count *pid* from now on in *slot*, from zero; its records carry *token*."""
        if self._view is None:
            raise SourceError("disabled", "eBPF: closed")
        start = slot * layout.RANK_STAT.size
        self._view[start : start + layout.RANK_STAT.size] = bytes(layout.RANK_STAT.size)
        self.lib.update(self._targets, pid.to_bytes(4, "little"), layout.TARGET.pack(slot, token))

    def remove_target(self, pid: int) -> None:
        """Count *pid* no longer."""
        self.lib.delete(self._targets, pid.to_bytes(4, "little"))

    def read(self, slot: int) -> layout.RankStat:
        """Return the counts of *slot*, from shared memory."""
        if self._view is None:
            raise SourceError("disabled", "eBPF: closed")
        return layout.RankStat.read(self._view, slot)  # type: ignore[arg-type]

    def verify(self) -> None:
        """
        Probe a function of this process, call it and see that it was counted under its cookie.

        Raises `SourceError` when this rung only claims to work here.
        """
        with Path(self.lib.path).open("rb") as file:
            symbol = elf.read_dynamic(file, ["libbpf_major_version"]).get("libbpf_major_version")
        if symbol is None:
            raise SourceError("unsupported", "eBPF: no probe target in libbpf")
        site = Site("call_enter", symbol.offset, PROBE_OP, symbol.name)
        attachment = self.attach(self.lib.path, [site])
        try:
            self.add_target(os.getpid(), 0, 0)
            self.lib.call_probe_target()
            calls = self.read(0).op(PROBE_OP).calls
        finally:
            self.remove_target(os.getpid())
            self.detach(attachment)
        if calls != 1:
            raise SourceError("unsupported", f"eBPF: a probed call was counted {calls} times")

    def close(self) -> None:
        """Detach everything and free programs and maps."""
        for ring in self._rings:
            ring.close()
        for link in self._links:
            self.lib.destroy(link)
        for attachment in self._attachments:
            attachment.close()
        if self._view is not None:
            self._view.close()
            self._view = None
        # Objects that share maps go first.
        for handle in reversed(self._objects):
            self.lib.close_object(handle)
        self._rings, self._links, self._attachments, self._objects = [], [], [], []


def _nanoseconds(name: str) -> tuple[int, ...]:
    return tuple(round(bound * 1e9) for bound in family(name).buckets)


def load(lib: Libbpf, path: Path, limits: Limits, rungs: Iterable[Rung] = tuple(Rung)) -> Programs:
    """
    Return the programs on the first of *rungs* that demonstrably works.

    Raises the last rung's `SourceError` when none does, or ``unsupported`` without kernel BTF.
    """
    if not Path("/sys/kernel/btf/vmlinux").exists():
        raise SourceError("unsupported", "eBPF: the kernel has no BTF (/sys/kernel/btf/vmlinux)")
    if not path.exists():
        raise SourceError("no_library", f"eBPF: {path} is not built; run `make bpf`")
    last = SourceError("unsupported", "eBPF: no way to attach was tried")
    for rung in rungs:
        try:
            programs = Programs(lib, path, rung, limits)
        except SourceError as err:
            last = err
        else:
            try:
                programs.verify()
            except SourceError as err:
                programs.close()
                last = err
            else:
                return programs
        log.info("ebpf rung=%s does not work: %s", rung.value, last)
    raise last
