"""Which files are probed, and where in them."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources.bpf.elf import Symbol, probe_offset, read_dynamic
from tocsin_exporter.sources.bpf.libraries import Mapping, mapped_libraries, open_mapped
from tocsin_exporter.sources.bpf.symbols import op_number, sites

Start = Callable[..., Any]


def launches(watched: Any) -> int:
    return int(watched.rank().stat.op(op_number("launch")).calls)


def test_a_deleted_library_is_probed_in_the_process_that_has_it(
    watch: Start, new_rank: Start, view: Any, native: Path, tmp_path: Path
) -> None:
    """
    A library that was deleted or replaced after it was loaded is probed all the same.
    """
    for name in ("libcuda.so.1", "libnccl.so.2"):
        shutil.copy(native / name, tmp_path / name)
    rank = new_rank(libraries=tmp_path)
    for name in ("libcuda.so.1", "libnccl.so.2"):
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(b"another file")
    view.add(rank.pid)
    watched = watch(view)
    watched.probed("cuda", "nccl")

    rank.do("launch 3")

    assert 3 == launches(watched)


def test_a_stripped_library_is_probed(
    watch: Start, new_rank: Start, view: Any, native: Path, tmp_path: Path
) -> None:
    """
    What a stripped library still exports is enough.
    """
    for name in ("libcuda.so.1", "libnccl.so.2"):
        subprocess.run(["strip", "-o", str(tmp_path / name), str(native / name)], check=True)
    rank = new_rank(libraries=tmp_path)
    view.add(rank.pid)
    watched = watch(view)
    watched.probed("cuda", "nccl")

    rank.do("launch 3")

    assert 3 == launches(watched)


def test_nccl_inside_another_library_is_found(
    watch: Start, new_rank: Start, view: Any, native: Path, tmp_path: Path
) -> None:
    """
    NCCL that is linked into a library of torch is probed there.
    """
    shutil.copy(native / "libcuda.so.1", tmp_path)
    shutil.copy(native / "libnccl.so.2", tmp_path / "libtorch_cuda.so")
    os.symlink("libtorch_cuda.so", tmp_path / "libnccl.so.2")
    rank = new_rank(libraries=tmp_path)
    view.add(rank.pid)
    watched = watch(view)
    watched.probed("nccl")

    rank.do("init", "use 0 4 10 7")

    assert 160 == watched.rank().stat.op(op_number("all_reduce")).bytes


def test_one_file_under_two_overlay_mounts_counts_once(
    watch: Start, new_rank: Start, view: Any, native: Path, tmp_path: Path
) -> None:
    """
    Containers that share a lower layer show one library under several device numbers: each call counts once.
    """
    ranks = []
    for name in ("a", "b"):
        merged = tmp_path / name
        merged.mkdir()
        script = (
            f"mount -t tmpfs none {merged} && mkdir {merged}/u {merged}/w {merged}/m && "
            f"mount -t overlay -olowerdir={native},upperdir={merged}/u,workdir={merged}/w none {merged}/m && "
            f'export LD_LIBRARY_PATH={merged}/m && exec "$0" "$@"'
        )
        before = ("unshare", "-m", "sh", "-c", script)
        if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no overlay mounts in a private mount namespace here")
        ranks.append(new_rank(before=before))
    for number, rank in enumerate(ranks):
        view.add(rank.pid, rank=str(number))
    watched = watch(view)
    watched.probed("cuda", rank="0")
    watched.probed("cuda", rank="1")

    for rank in ranks:
        rank.do("launch 10")

    assert {"0": 10, "1": 10} == {
        counts.rank: counts.stat.op(op_number("launch")).calls for counts in watched.source.counts()
    }


def test_the_lab_libraries_are_probed(root: Path) -> None:
    """
    The simulated driver and NCCL of the lab have what the probes look for.
    """
    folder = root / ".build" / "lib"
    if not (folder / "libcuda.so.1").exists():
        pytest.skip("the lab's libraries are not built; run `make setup`")
    names = {"cuLaunchKernel", "cuStreamSynchronize", "ncclAllReduce", "ncclCommInitRank"}
    found: dict[str, Symbol] = {}
    for library in ("libcuda.so.1", "libnccl.so.2"):
        with (folder / library).open("rb") as file:
            found |= read_dynamic(file, names)

    assert names == found.keys()


@pytest.mark.parametrize(
    ("code", "offset"),
    [
        pytest.param("55 48 89 e5", 0, id="push is emulated where it stands"),
        pytest.param("f3 0f 1e fa 55", 4, id="behind endbr64"),
        pytest.param("83 3d 11 22 33 44 00 74 06 55", 7, id="behind a comparison with a byte"),
        pytest.param("81 3d 11 22 33 44 00 00 00 00 0f 84 00 00 00 00", 10, id="behind one with a word"),
        pytest.param("f3 0f 1e fa 83 3d 11 22 33 44 00 75 06", 11, id="behind both"),
        pytest.param("83 3d 11 22 33 44 00 48 89 e5", 0, id="a comparison without a jump stays"),
        pytest.param("0f 1f 44 00 00 55", 5, id="behind a patchable nop"),
        pytest.param("48 83 ec 08", 0, id="what must be single-stepped anywhere"),
        pytest.param("", 0, id="nothing known"),
    ],
)
def test_probes_avoid_single_stepped_instructions(code: str, offset: int) -> None:
    """
    The probe goes behind what the kernel would single-step, as far as stack and arguments are untouched.
    """
    head = bytes.fromhex(code)

    assert offset == probe_offset(Symbol("f", 0x1000, 64, head, "x86_64"))
    assert 0 == probe_offset(Symbol("f", 0x1000, 64, head, "aarch64"))


def test_two_names_of_one_place_are_one_probe() -> None:
    """
    An alias is not probed a second time.
    """
    found = {
        name: Symbol(name, 0x1000, 16, b"\x55", "x86_64")
        for name in ("cuCtxSynchronize", "cuCtxSynchronize_v2")
    }

    assert ["call_enter", "call_leave"] == [site.program for site in sites(found)]


def test_files_that_are_no_libraries_are_refused(tmp_path: Path) -> None:
    """
    Anything but a whole 64-bit ELF file is an answer with the reason, whatever its header claims.
    """
    header = (
        b"\x7fELF\x02\x01"
        + bytes(10)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 1 << 60, 1 << 60, 0, 64, 56, 9, 64, 9, 1)
    )
    for number, content in enumerate(
        (b"", b"text", b"\x7fELF\x01\x01", header, header[:40], b"\x7fELF\x02\x01" + b"\xff" * 500)
    ):
        path = tmp_path / str(number)
        path.write_bytes(content)
        with path.open("rb") as file, pytest.raises(SourceError) as caught:
            read_dynamic(file, ["cuInit"])
        assert "bad_data" == caught.value.reason


def test_only_executable_mappings_of_known_names_are_looked_at(tmp_path: Path) -> None:
    """
    Data files, other libraries and anonymous memory are no candidates; one file is one.
    """
    maps = tmp_path / "7" / "maps"
    maps.parent.mkdir()
    maps.write_text(
        "55d0-55d1 r-xp 00000000 fe:00 11 /usr/bin/python3\n"
        "7f00-7f01 r--p 00000000 fe:00 12 /opt/lib/libcuda.so.550.1\n"
        "7f01-7f02 r-xp 00001000 fe:00 12 /opt/lib/libcuda.so.550.1\n"
        "7f03-7f04 r-xp 00000000 fe:00 13 /opt/lib/libnccl.so.2 (deleted)\n"
        "7f05-7f06 r--p 00000000 fe:00 14 /data/torch_weights\n"
        "7f07-7f08 r-xp 00000000 fe:00 15 /opt/torch/__init__.py\n"
        "7f09-7f0a rw-p 00000000 00:00 0\n"
        "7f0b-7f0c r-xp 00000000 fe:00 16 /opt/libcudart.so.12\n"
        "7f0d-7f0e r-xp 00000000 fe:00 17 /opt/libcublas.so.12\n"
    )

    assert [
        ("/opt/lib/libcuda.so.550.1", 12),
        ("/opt/lib/libnccl.so.2", 13),
        ("/opt/libcudart.so.12", 16),
    ] == [(mapping.path, mapping.inode) for mapping in mapped_libraries(tmp_path, 7)]


def test_a_pipe_in_place_of_a_library_holds_nobody_up(tmp_path: Path) -> None:
    """
    Its owner may swap the file after mapping it; opening a pipe would wait for a writer.
    """
    (tmp_path / "7" / "root" / "opt").mkdir(parents=True)
    os.mkfifo(tmp_path / "7" / "root" / "opt" / "libcuda.so.1")
    mapping = Mapping("/opt/libcuda.so.1", "fe:00", 12, "7f00-7f01")
    told: list[str] = []

    def look() -> None:
        with pytest.raises(SourceError) as caught:
            open_mapped(tmp_path, 7, mapping)
        told.append(caught.value.reason)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(10)

    assert ["unsupported"] == told


def test_a_process_that_is_gone_is_an_answer(tmp_path: Path) -> None:
    """
    The memory map of a process that ended is a reason, not a crash.
    """
    with pytest.raises(SourceError):
        mapped_libraries(tmp_path, 8)
