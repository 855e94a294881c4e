"""Mounts that answer, hang, fail and go away: none keeps another, or a scrape, waiting."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.exporter.support import collector_set, series

from tocsin_exporter.collectors import storage
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_exporter.sources.storage import StorageSource
from tocsin_exporter.sources.storage.space import SpaceProbe

ROOT = os.geteuid() == 0


def until(done: Callable[[], object], seconds: float = 10) -> None:
    """Wait until *done*."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


class Servers:
    """File systems that answer when told to."""

    def __init__(self) -> None:
        self.hung: set[str] = set()
        self.errors: dict[str, int] = {}
        self.asked: list[str] = []
        self.go = threading.Event()

    def statvfs(self, path: str) -> os.statvfs_result:
        self.asked.append(path)
        if path in self.hung:
            self.go.wait(30)
        if path in self.errors:
            raise OSError(self.errors[path], "as told")
        return os.statvfs("/")


@pytest.fixture
def servers() -> Iterator[Servers]:
    one = Servers()
    yield one
    one.go.set()


def test_a_hung_mount_has_one_thread_and_others_are_asked_on(servers: Servers) -> None:
    """
    However often it is asked, one thread waits for a mount that hangs; the others go on answering.
    """
    probe = SpaceProbe(statvfs=servers.statvfs)
    servers.hung = {"/hung"}
    before = threading.active_count()
    for _ in range(20):
        probe.ask({"/hung", "/good"})
        until(lambda: probe.answers()["/good"].waiting is None)

    answers = probe.answers()

    assert (1, 20) == (servers.asked.count("/hung"), servers.asked.count("/good"))
    assert threading.active_count() <= before + 1
    assert answers["/hung"].waiting is not None
    assert answers["/good"].space is not None
    servers.go.set()
    until(lambda: probe.answers()["/hung"].waiting is None)
    assert probe.answers()["/hung"].space is not None


def test_a_mount_that_fails_tells_its_error_until_it_works(servers: Servers) -> None:
    """
    An error takes the place of the space, and goes with the next good answer.
    """
    probe = SpaceProbe(statvfs=servers.statvfs)
    servers.errors = {"/data": errno.ESTALE}
    probe.ask({"/data"})
    bad = probe.answers(5)["/data"]
    servers.errors = {}
    probe.ask({"/data"})
    good = probe.answers(5)["/data"]

    assert (errno.ESTALE, None) == (bad.error, bad.space)
    assert good.error is None
    assert good.space is not None


def test_a_mount_that_went_is_forgotten_once_its_question_is_answered(servers: Servers) -> None:
    """
    An unmounted path leaves nothing behind, and one that still hangs is kept, so that no second thread waits.
    """
    probe = SpaceProbe(statvfs=servers.statvfs)
    servers.hung = {"/hung"}
    probe.ask({"/hung", "/good"})
    until(lambda: probe.answers()["/good"].waiting is None)
    probe.ask(set())
    assert {"/hung"} == set(probe.answers())
    servers.go.set()
    until(lambda: probe.answers()["/hung"].waiting is None)
    probe.ask(set())

    assert {} == probe.answers()


def test_too_many_mounts_are_counted(servers: Servers) -> None:
    """
    Beyond the bound no thread is made, and how many were left out is told.
    """
    probe = SpaceProbe(most=3, statvfs=servers.statvfs)

    assert 7 == probe.ask({f"/m{number}" for number in range(10)})
    assert 3 == len(probe.answers(5))


def node(root: Path, *lines: str) -> tuple[Path, Path]:
    """Write a /proc of one process with these mounts, and a /sys."""
    proc, sysfs = root / "proc", root / "sys"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text("\n".join(lines) + "\n")
    (sysfs / "block/sda").mkdir(parents=True)
    (proc / "diskstats").write_text("8 0 sda 1 0 8 2 3 0 16 4 0 5 6\n")
    return proc, sysfs


def scrape(source: StorageSource) -> dict[str, float]:
    lines = series(collector_set(storage.build(source)).scrape().replace('node="gpu-001",', ""))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def source_of(proc: Path, sysfs: Path, **options: object) -> StorageSource:
    return StorageSource(proc, sysfs, 5.0, 60.0, ErrorCounter(), **options)  # type: ignore[arg-type]


def test_without_mountstats_or_lustre_the_rest_is_served(tmp_path: Path) -> None:
    """
    A node that has neither NFS nor Lustre has mounts, space and disks, and no error.
    """
    source = source_of(*node(tmp_path, "1 0 8:1 / / rw - ext4 /dev/sda1 rw"))
    source.read_once()

    found = scrape(source)

    assert 1 == found['tocsin_storage_responds{mount="/"}']
    assert found['tocsin_storage_size_bytes{mount="/"}'] > 0
    assert 4096 == found['tocsin_storage_disk_bytes_total{disk="sda",direction="read"}']
    assert source.latest.read()[1] is None


def test_no_mounts_at_all_is_an_error(tmp_path: Path) -> None:
    """
    A /proc without mountinfo is told as one, with its path.
    """
    source = source_of(tmp_path, tmp_path)
    source.read_once()

    error = source.latest.read()[1]
    assert error is not None
    assert ("unsupported", True) == (error.reason, "mountinfo" in error.detail)


_SERVER = """
import ctypes, os, sys
descriptor = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"hung", sys.argv[1].encode(), b"fuse.hung", 0, options):
    print("no:", os.strerror(ctypes.get_errno()), flush=True)
    sys.exit(1)
print("mounted", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hung_mount(tmp_path: Path) -> Iterator[Path]:
    """A FUSE file system whose server never answers, not even the first question."""
    if not ROOT or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs root and /dev/fuse for a mount that hangs")
    point = tmp_path / "hung"
    point.mkdir()
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(point)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    said = server.stdout.readline().strip()
    if said != "mounted":
        server.wait()
        pytest.skip(f"no FUSE mount here: {said}")
    yield point
    server.kill()
    server.wait()
    server.stdout.close()
    assert server.stdin is not None
    server.stdin.close()
    ctypes.CDLL(None).umount2(str(point).encode(), 2)


def test_a_real_mount_that_hangs_delays_nothing_and_is_evidence(tmp_path: Path, hung_mount: Path) -> None:
    """
    With a FUSE server that never answers every reading ends, the good mount is told, and the hung one stands
    at 0 with the time it has been silent.
    """
    clock = [0.0]
    lines = ("1 0 8:1 / / rw - ext4 /dev/sda1 rw", f"2 1 0:99 / {hung_mount} rw - fuse.hung hung rw")
    source = source_of(*node(tmp_path / "node", *lines), probe=SpaceProbe(clock=lambda: clock[0]))
    threads = threading.active_count()
    for _ in range(5):
        clock[0] += 5
        source.read_once()
    found = scrape(source)

    assert 0 == found[f'tocsin_storage_responds{{mount="{hung_mount}"}}']
    assert 20 == found[f'tocsin_storage_response_seconds{{mount="{hung_mount}"}}']
    assert f'tocsin_storage_size_bytes{{mount="{hung_mount}"}}' not in found
    assert 1 == found['tocsin_storage_responds{mount="/"}']
    assert threading.active_count() <= threads + 1
