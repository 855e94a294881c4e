"""Events of a simulated node, through the real exporter: kernel log and driver at once, and each alone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.exporter.running import Running

from tocsin_lab.sim import kmsg, trouble
from tocsin_lab.sim.node import gpus_of


class Node(Running):
    """The exporter with ways to let things happen."""

    @property
    def pci(self) -> str:
        return gpus_of(self.paths.run_dir, self.paths.name)[0].pci

    def driver(self, code: int) -> None:
        trouble.emit(self.paths.devices, 0, trouble.EVENT_XID, code)

    def kernel(self, code: int) -> None:
        kmsg.xid(self.paths.kmsg, self.pci, code)

    def count(self, text: str, code: int) -> float:
        found = re.search(
            rf'tocsin_gpu_xid_code_errors_total{{gpu="0",gpu_uuid="[^"]*",code="{code}"}} (\S+)', text
        )
        return float(found[1]) if found else 0.0

    def hears(self) -> None:
        """Wait until the driver's events arrive: one of before the registration is nobody's."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            self.driver(14)
            time.sleep(2.5)
            if self.count(self.scrape(), 14):
                return
        raise AssertionError("no event was heard")


@pytest.fixture
def node(tmp_path: Path, nvml_library: Path) -> Iterator[Node]:
    running = Node(tmp_path, nvml_library)
    yield running
    running.close()


def test_both_sources_tell_of_one_event(node: Node) -> None:
    """Told by log and driver it counts once; three equal ones in a second count thrice; each alone counts."""
    node.start()
    node.hears()
    node.kernel(62)
    for _ in range(3):
        node.kernel(31)
        node.driver(31)
    node.driver(48)
    text = node.until(lambda text: node.count(text, 48) == 1)
    time.sleep(2)

    text = node.scrape()
    assert (1, 3, 1) == tuple(node.count(text, code) for code in (62, 31, 48))
    assert 'tocsin_exporter_device_events_total{source="both"} 3' in text


def test_without_the_log_the_drivers_events_are_served(node: Node) -> None:
    """What is missing is said in the collector's state, and what is known is served all the same."""
    node.paths.kmsg.unlink()
    node.start()
    node.hears()
    node.driver(79)
    text = node.until(lambda text: node.count(text, 79) == 1)

    assert 'tocsin_collector_success{collector="gpu_events"} 0' in text
    assert 'tocsin_collector_error_info{collector="gpu_events",reason="unsupported"} 1' in text


def test_without_a_driver_the_log_is_enough(node: Node, tmp_path: Path) -> None:
    """A node without a driver has no error in its events for ever: `gpu` alone says what is missing."""
    node._library = tmp_path / "none.so"
    node._library.write_text("no library")
    node.start(ready=False)
    missing = 'tocsin_collector_error_info{collector="gpu",reason="no_library"} 1'
    text = node.until(lambda text: missing in text)

    assert 'tocsin_collector_success{collector="gpu_events"} 1' in text
    assert 'tocsin_visibility{layer="device"} 0.5' in text


def test_a_reset_clears_what_the_driver_wanted(node: Node) -> None:
    """The active condition is the driver's own word: it goes when the word is taken back, the counts stay."""
    node.start()
    node.kernel(48)
    trouble.recovery_action(node.paths.devices, 0, 1)
    kmsg.recovery_action(node.paths.kmsg, node.pci, 0, 1)
    wants = re.compile(r'tocsin_gpu_recovery_action{gpu="0",[^}]*action="gpu_reset"} 1')
    node.until(wants.search)
    trouble.recovery_action(node.paths.devices, 0, 0)
    kmsg.recovery_action(node.paths.kmsg, node.pci, 1, 0)

    well = re.compile(r'tocsin_gpu_recovery_action{gpu="0",[^}]*action="none"} 1')
    text = node.until(lambda text: well.search(text) and 'class="recovery_action"' in text)
    assert not wants.search(text)
    assert 1 == node.count(text, 48)
