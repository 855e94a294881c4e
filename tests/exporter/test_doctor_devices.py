"""What `doctor` says of the devices: each lack by its cause, and the collectors agree with it."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporter.running import Running

from tocsin_lab.sim import trouble
from tocsin_lab.sim.layout import Node
from tocsin_lab.sim.node import NodePaths, create_node

COMMAND = (sys.executable, "-m", "tocsin_exporter", "--ebpf.backend", "off", "--nvml.call-deadline", "500ms")


@pytest.fixture
def node(tmp_path: Path) -> NodePaths:
    return create_node(tmp_path, "gpu-001", gpus=2, hcas=1)


def run(node: NodePaths, library: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    flags = ["--path.sysfs", str(node.sysfs), "--path.kmsg", str(node.kmsg), "--node.name", "n"]
    if library is not None:
        flags += ["--nvml.library", str(library)]
    if "--control.socket" not in arguments:
        flags += ["--control.socket", ""]
    return subprocess.run(
        [*COMMAND, *flags, *arguments],
        env={**os.environ, "TOCSIN_SIM_DEVICES": str(node.devices)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def findings(text: str) -> dict[str, tuple[str, str]]:
    """Mark and detail by name."""
    rows = re.findall(r"^(\S.*?)\s{2,}(ok|lacks|-)\s+(.*)$", text, re.MULTILINE)
    return {name: (mark, detail) for name, mark, detail in rows}


def reason(text: str) -> str:
    """Why the collector of the devices fails in a scrape, or an empty text."""
    found = re.search(r'^tocsin_collector_error_info\{node="n",collector="gpu",reason="(\w+)"\} 1', text, re.MULTILINE)
    ok = f'tocsin_collector_success{{node="n",collector="gpu"}} {0 if found else 1}\n'
    assert ok in text
    return found[1] if found else ""


def _code(code: int) -> Callable[[NodePaths], None]:
    def apply(node: NodePaths) -> None:
        with Node(node.devices) as mapped:
            mapped.state.init_code = code

    return apply


def _nothing(node: NodePaths) -> None:
    pass


def _no_gpu(node: NodePaths) -> None:
    with Node(node.devices) as mapped:
        for device in mapped.state.devices[:2]:
            device.absent = 1


def _lose(node: NodePaths) -> None:
    with Node(node.devices) as mapped:
        mapped.state.devices[1].lost = 1


@pytest.mark.parametrize(
    ("broken", "words", "collector"),
    [
        pytest.param(_nothing, "2 x NVIDIA H100", "", id="all is well"),
        pytest.param(_no_gpu, "0 x no GPU", "", id="no GPU"),
        pytest.param(_code(9), "no_driver: .*load the nvidia module", "no_driver", id="no driver"),
        pytest.param(_code(18), "no_driver: .*reload the module or reboot", "no_driver", id="versions"),
        pytest.param(_code(4), "no_permission: .*/dev/nvidia", "no_permission", id="no rights"),
        pytest.param(_code(999), "no_permission: .*start it anew", "no_permission", id="no access"),
    ],
)
def test_each_cause_has_its_words_and_the_collector_agrees(
    node: NodePaths, nvml_library: Path, broken: Callable[[NodePaths], None], words: str, collector: str
) -> None:
    """What keeps the devices from being seen is named with what to do, in `doctor` and in the scrape; both exit with 0."""
    broken(node)
    doctor, once = run(node, nvml_library, "doctor"), run(node, nvml_library, "--once")
    mark, detail = findings(doctor.stdout)["driver"]

    assert (0, 0) == (doctor.returncode, once.returncode)
    assert re.search(words, detail)
    assert ("lacks" if collector else "ok") == mark
    assert collector == reason(once.stdout)


def test_no_library(node: NodePaths) -> None:
    """A node without the driver's library says what to install."""
    if "libnvidia-ml.so.1" in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout:
        pytest.skip("this machine has a driver")
    doctor, once = run(node, None, "doctor"), run(node, None, "--once")

    assert findings(doctor.stdout)["driver"][1].startswith("no_library: ")
    assert "--nvml.library" in doctor.stdout
    assert "no_library" == reason(once.stdout)


def test_a_lost_and_a_hanging_gpu_are_named(node: NodePaths, nvml_library: Path) -> None:
    """Each GPU that does not answer has a line with its reason and the call; the others' offers are told all the same."""
    _lose(node)
    trouble.hang_call(node.devices, "nvmlDeviceGetPowerUsage", 0)
    found = findings(run(node, nvml_library, "doctor").stdout)

    assert "lacks" == found["driver"][0]
    assert re.search("hung in nvmlDeviceGetPowerUsage for", found["GPU 0"][1])
    assert "gpu_lost" in found["GPU 1"][1]


def test_what_the_devices_offer_is_told(node: NodePaths, nvml_library: Path) -> None:
    """Activity, processes, events, and the fields that the driver keeps from this user."""
    trouble.fail_call(node.devices, 4, "nvmlDeviceGetSramEccErrorStatus")
    found = findings(run(node, nvml_library, "doctor").stdout)

    assert ("ok", "SM, tensor and DRAM activity on 2 of 2") == found["device activity (GPM)"]
    assert "ok" == found["device processes"][0]
    assert ("ok", "awaited on 2 of 2") == found["driver events"]
    assert "lacks" == found["device fields"][0]
    assert "sram_threshold_exceeded" in found["device fields"][1]


def test_mig_instances_are_counted(tmp_path: Path, nvml_library: Path) -> None:
    """How many there are, and of which profiles."""
    node = create_node(tmp_path, "gpu-001", gpus=1, hcas=0, mig_profiles=("3g.40gb", "3g.40gb"))
    found = findings(run(node, nvml_library, "doctor").stdout)

    assert ("-", "2 instances (3g.40gb)") == found["MIG"]


def test_a_control_socket_that_cannot_be_is_told(node: NodePaths, nvml_library: Path, tmp_path: Path) -> None:
    """A folder that others may enter, and a socket that is off, each with what it costs."""
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    there = findings(run(node, nvml_library, "--control.socket", str(folder / "s"), "doctor").stdout)
    off = findings(run(node, nvml_library, "doctor").stdout)

    assert "lacks" == there["control socket"][0]
    assert "chmod 700" in there["control socket"][1]
    assert ("lacks", "off (--control.socket)") == off["control socket"]


def test_a_quiesced_node_is_not_asked(tmp_path: Path, nvml_library: Path) -> None:
    """During a quiesce `doctor` touches no device either, and says why it knows nothing."""
    running = Running(tmp_path, nvml_library)
    running.start()
    try:
        answers = findings(run(running.paths, nvml_library, "--control.socket", str(running.socket), "doctor").stdout)
        running.quiesce("--for", "5m")
        with Node(running.paths.devices) as node:
            node.state.hang = 1
        found = findings(run(running.paths, nvml_library, "--control.socket", str(running.socket), "doctor").stdout)
    finally:
        running.close()

    assert "ok" == answers["control socket"][0]
    assert "ok" == answers["driver"][0]
    assert "let go until" in found["driver"][1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_one_without_rights_is_told_which(node: NodePaths, nvml_library: Path, tmp_path: Path) -> None:
    """Without capabilities the kernel log and the socket's folder are named with what they need, and it ends with 0."""
    log = tmp_path / "closed"
    log.write_text("")
    log.chmod(0)
    flags = ("--path.sysfs", str(node.sysfs), "--path.kmsg", str(log), "--control.socket", "/proc/none/socket")
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", *COMMAND, "--nvml.library", str(nvml_library),
         *flags, "doctor"],
        env={**os.environ, "TOCSIN_SIM_DEVICES": str(node.devices)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    found = findings(done.stdout)

    assert 0 == done.returncode
    assert "CAP_SYSLOG" in found["kernel log"][1]
    assert ("lacks", "/proc/none cannot be made by this user") == found["control socket"]
