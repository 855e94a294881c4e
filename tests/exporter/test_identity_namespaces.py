"""A job in namespaces of its own, as containers have them: real processes, seen from the host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin_exporter.identity.resolver import Resolver
from tocsin_exporter.sources.latest import ErrorCounter

PROC = Path("/proc")
TASK = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
MARK = "TOCSIN_TEST_NAMESPACE"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="namespaces need root and unshare"
)


@pytest.fixture
def inside() -> Iterator[tuple[int, int]]:
    """A rank in pid and mount namespaces of its own; its pid out here and in there."""
    rank = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "ns"}
    process = subprocess.Popen(
        ["unshare", "--pid", "--mount", "--fork", "--mount-proc", sys.executable, "-c", TASK],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={"PATH": os.environ["PATH"], MARK: str(os.getpid()), **rank},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        there = int(process.stdout.readline())
        children = (PROC / str(process.pid) / "task" / str(process.pid) / "children").read_text().split()
        yield int(children[0]), there
    finally:
        process.communicate()


def test_a_rank_in_a_pid_namespace_is_known_by_its_pid_out_here(inside: tuple[int, int]) -> None:
    """The driver of the host names pids of the host; inside, the rank is process 1 of its namespace."""
    outer, inner = inside
    view = Resolver(PROC, ErrorCounter(), (MARK, str(os.getpid())))
    try:
        view.note_devices({outer: (3,)}, {})
        view.scan()

        assert 1 == inner
        (who,) = [each for each in view.living() if each.rank]
        assert (outer, "torchrun/ns", "5", (3,)) == (who.pid, who.job_id, who.rank, who.gpu_indices)
        assert view.by_pid(inner) is None
    finally:
        view.stop()
