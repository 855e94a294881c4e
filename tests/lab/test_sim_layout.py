"""The Python mirror of the shared structures agrees with the C header."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from tocsin_lab.errors import LayoutError
from tocsin_lab.sim import layout
from tocsin_lab.sim.build import build

_MIRROR: dict[str, type[ctypes.Structure]] = {
    "sim_process": layout.SimProcess,
    "sim_link": layout.SimLink,
    "sim_instance": layout.SimInstance,
    "sim_rule": layout.SimRule,
    "sim_event": layout.SimEvent,
    "sim_device": layout.SimDevice,
    "sim_profile": layout.SimProfile,
    "sim_node": layout.SimNode,
    "sim_recipe": layout.SimRecipe,
    "sim_rendezvous": layout.SimRendezvous,
    "sim_rank": layout.SimRank,
    "sim_comm": layout.SimComm,
    "sim_job": layout.SimJob,
}


def test_sizes_and_offsets_agree(sim_lib: Path) -> None:
    """Each size and offset that the C compiler prints is the one of the mirror."""
    printed = subprocess.run([sim_lib / "sim-layout"], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in printed.splitlines()]

    for name, offset, size in rows:
        struct, _, field = name.partition(".")
        kind = _MIRROR[struct]
        mine = (getattr(kind, field).offset, getattr(kind, field).size) if field else (0, ctypes.sizeof(kind))
        assert (int(offset), int(size)) == mine, name
    assert set(_MIRROR) == {name for name, _, _ in rows if "." not in name}


def test_a_file_of_another_layout_is_refused(tmp_path: Path) -> None:
    """A file with another version names itself and what was expected."""
    path = tmp_path / "devices.shm"
    layout.Node.create(path)
    with path.open("r+b") as file:
        file.seek(8)
        file.write(b"\x63")

    with pytest.raises(LayoutError, match="another layout"):
        layout.Node(path)
    with pytest.raises(LayoutError, match="create"):
        layout.Node(tmp_path / "missing.shm")
    (tmp_path / "short.shm").write_bytes(b"TCSN")
    with pytest.raises(LayoutError, match="4 bytes"):
        layout.Node(tmp_path / "short.shm")


def test_a_second_build_does_nothing(sim_lib: Path) -> None:
    """Unchanged sources are not compiled again."""
    assert build(sim_lib) is False
