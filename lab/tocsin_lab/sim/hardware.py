"""The hardware outside rank processes: HCA port counters, PCIe links and errors, written to sysfs trees.

``python -m tocsin_lab.sim.hardware --run-dir $RUN`` serves every node of a run directory until SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path

from tocsin_lab.errors import LabError
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import NodePaths, gpus_of, nodes_of
from tocsin_lab.sim.sysfs import LOST_SPEED, LOST_WIDTH, add_errors, hca_name, speed_text

__all__ = ["CounterFile", "NodeHardware", "main"]

# The kernel counts port data in units of four bytes; an InfiniBand packet here carries 4 KiB.
_WORD, _PACKET = 4, 4096
# By severity: where `pcie_errors` has the total, and where those that the kernel calls by name.
_ERRORS = (
    ("corrected", 0, (("RxErr", 2), ("BadTLP", 3), ("BadDLLP", 5))),
    ("nonfatal", 6, (("UnsupReq", 8),)),
    ("fatal", 7, ()),
)


class CounterFile:
    """A sysfs attribute that is written often.

    It stays one inode and its text never gets shorter while it counts: a reader never sees half of it.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._text = os.pread(self._descriptor, 64, 0)

    def write(self, value: object) -> None:
        """Write the value unless it is there already."""
        text = f"{value}\n".encode()
        if text == self._text:
            return
        os.pwrite(self._descriptor, text, 0)
        if len(text) < len(self._text):
            os.ftruncate(self._descriptor, len(text))
        self._text = text

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class NodeHardware:
    """Mirrors one node's shared state into its sysfs tree at each ``tick``."""

    def __init__(self, run_dir: Path, name: str) -> None:
        self._paths = NodePaths(run_dir, name)
        self._node = Node(self._paths.devices)
        self._files: dict[Path, CounterFile] = {}
        self._pci = [gpu.pci for gpu in gpus_of(run_dir, name)]
        state = self._node.state
        self._errors = [list(state.devices[index].pcie_errors) for index in range(state.device_count)]

    def _put(self, relative: str, value: object) -> None:
        path = self._paths.sysfs / relative
        if path not in self._files:
            self._files[path] = CounterFile(path)
        self._files[path].write(value)

    def tick(self) -> None:
        """Bring the files up to date."""
        state = self._node.state
        sent = [0] * state.hca_count
        received = [0] * state.hca_count
        for index in range(state.device_count):
            device = state.devices[index]
            if state.hca_count:
                sent[device.hca] += device.fabric_tx_bytes
                received[device.hca] += device.fabric_rx_bytes
            pci = f"bus/pci/devices/{self._pci[index]}"
            lost = bool(device.lost)
            speed = LOST_SPEED if lost else speed_text(device.pcie_generation)
            self._put(f"{pci}/current_link_speed", speed)
            self._put(f"{pci}/current_link_width", LOST_WIDTH if lost else device.pcie_width)
            self._book_errors(index, list(device.pcie_errors))
        for hca in range(state.hca_count):
            counters = f"class/infiniband/{hca_name(hca)}/ports/1/counters"
            for way, total in (("xmit", sent[hca]), ("rcv", received[hca])):
                self._put(f"{counters}/port_{way}_data", total // _WORD)
                self._put(f"{counters}/port_{way}_packets", total // _PACKET)
                self._put(f"{counters}/unicast_{way}_packets", total // _PACKET)

    def _book_errors(self, index: int, now: list[int]) -> None:
        """Add what a device has counted since the last time to the kernel's counters."""
        grown = [count - before for count, before in zip(now, self._errors[index], strict=True)]
        self._errors[index] = now
        for severity, total, names in _ERRORS:
            named = {error: grown[at] for error, at in names if grown[at] > 0}
            for error, count in {**named, "": grown[total] - sum(named.values())}.items():
                if count > 0:
                    add_errors(self._paths.sysfs, self._pci[index], severity, error, count)

    def close(self) -> None:
        """Release files and mapping."""
        for file in self._files.values():
            file.close()
        self._node.close()


def main(argv: list[str] | None = None) -> int:
    """Serve all nodes until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m tocsin_lab.sim.hardware", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between updates (%(default)s)")
    arguments = parser.parse_args(argv)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    names = nodes_of(arguments.run_dir)
    if not names:
        parser.error(f"no nodes in {arguments.run_dir}: create them first")
    try:
        nodes = [NodeHardware(arguments.run_dir, name) for name in names]
    except LabError as error:
        parser.error(str(error))
    while not stop.is_set():
        for node in nodes:
            node.tick()
        stop.wait(arguments.interval)
    for node in nodes:
        node.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
