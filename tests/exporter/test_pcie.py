"""PCI functions from complete sysfs trees: what is found, what is read, and what is left alone."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.exporter import pci_tree
from tests.exporter.pci_tree import GPU, HCA, PORT, ROOT, aer, function, link, server

from tocsin_exporter.collectors.pcie import function_samples
from tocsin_exporter.errors import SourceError
from tocsin_exporter.sources import pcie
from tocsin_exporter.sources.latest import ErrorCounter, Latest
from tocsin_exporter.sources.pcie import Function, PcieSource, Reader, find_endpoints
from tocsin_exporter.sources.procfs import read_small

TOP, GPU_AT = "0000:00:01.0", "0000:01:00.0"
GEN4 = "16.0 GT/s PCIe"


def read(root: Path, errors: ErrorCounter | None = None, told: tuple[str, ...] = ()) -> dict[str, Function]:
    """Return the functions of the tree by address."""
    errors = errors or ErrorCounter()
    found = Reader(root, errors).read(find_endpoints(root, told, errors).values())
    return {row.pci: row for row in found}


def slot(root: Path, files: Mapping[str, Any] | None = None, port: Mapping[str, Any] | None = None, **more: Any) -> Path:
    """Write a GPU right below a root port and return its folder."""
    function(root, TOP, files={**PORT, **link(), **aer(), **ROOT, **(port or {})})
    return function(root, TOP, GPU_AT, files={**GPU, **link(), **aer(), **(files or {})}, **more)


def test_a_server_with_switches_shows_devices_and_both_ends_of_their_links(tmp_path: Path) -> None:
    """Each endpoint knows the port above it and its root port, and a port that three devices share is told once."""
    server(tmp_path)
    found = read(tmp_path)

    assert 6 + 6 + 2 + 2 == len(found)
    assert ("endpoint", "gpu", "0000:12:01.0", "0000:10:01.0") == _where(found["0000:1b:00.0"])
    assert ("endpoint", "gpu", "0000:92:02.0", "0000:90:01.0") == _where(found["0000:9c:00.0"])
    assert ("endpoint", "hca", "0000:12:03.0", "0000:10:01.0") == _where(found["0000:18:00.0"])
    assert "mlx5_1" == found["0000:98:00.0"].device
    assert ("upstream", "port", "0000:11:00.0", "0000:10:01.0") == _where(found["0000:12:01.0"])
    assert ("upstream", "port", "0000:10:01.0", "0000:10:01.0") == _where(found["0000:11:00.0"])
    assert ("root", "port", "", "") == _where(found["0000:10:01.0"])
    names = [(sample.family, sample.labels) for row in found.values() for sample in function_samples(row)]
    assert len(names) == len(set(names))


def _where(row: Function) -> tuple[str, str, str, str]:
    return (row.role, row.kind, row.upstream, row.root)


def test_errors_are_told_where_they_were_noticed(tmp_path: Path) -> None:
    """An error that only the link partner counted is seen there, by severity and by the kernel's name."""
    server(tmp_path)
    port = tmp_path / "bus/pci/devices/0000:12:01.0"
    for name, text in aer(BadTLP=7, Timeout=2, MalfTLP=1).items():
        (port / name).write_text(f"{text}\n")
    (tmp_path / "bus/pci/devices/0000:10:01.0/aer_rootport_total_err_cor").write_text("9\n")
    found = read(tmp_path)

    assert {"corrected": 9, "nonfatal": 0, "fatal": 1} == found["0000:12:01.0"].errors
    assert {("corrected", "BadTLP"): 7, ("corrected", "Timeout"): 2, ("fatal", "MalfTLP"): 1} == found["0000:12:01.0"].named
    assert {"corrected": 0, "nonfatal": 0, "fatal": 0} == found["0000:1b:00.0"].errors
    assert {"corrected": 9, "nonfatal": 0, "fatal": 0} == found["0000:10:01.0"].received
    assert {} == found["0000:12:01.0"].received


def test_the_total_is_the_kernels_and_not_a_sum(tmp_path: Path) -> None:
    """A total that differs from the sum of its names is served as it stands."""
    slot(tmp_path, {"aer_dev_correctable": "RxErr 1\nBadTLP 1\nTOTAL_ERR_COR 5"})

    assert 5 == read(tmp_path)[GPU_AT].errors["corrected"]


def test_an_error_without_a_name_goes_by_its_bit(tmp_path: Path) -> None:
    """The kernel prints the bit of an error that it has no name for, and only once it has happened."""
    slot(tmp_path, {"aer_dev_correctable": "RxErr 0\ndev_cor_errs_bit[4] 2\nTOTAL_ERR_COR 2"})
    errors = ErrorCounter()

    assert {("corrected", "dev_cor_errs_bit[4]"): 2} == read(tmp_path, errors)[GPU_AT].named
    assert {} == errors.counts()


def test_a_gpu_right_below_a_root_port(tmp_path: Path) -> None:
    """Without a switch the root port is the link's other end."""
    slot(tmp_path)
    found = read(tmp_path)

    assert ("endpoint", "gpu", TOP, TOP) == _where(found[GPU_AT])
    assert {"generation": 5, "width": 16, "generation_max": 5, "width_max": 16} == found[GPU_AT].link
    assert {} == found[TOP].link


def test_a_virtual_machine_shows_what_it_has(tmp_path: Path) -> None:
    """A GPU passed through without a port above it has no most of its link, and no errors where none are counted."""
    function(tmp_path, "0000:00:05.0", files={**GPU, **link("16.0 GT/s PCIe")})
    found = read(tmp_path)

    assert ["0000:00:05.0"] == list(found)
    row = found["0000:00:05.0"]
    assert ("endpoint", "gpu", "", "") == _where(row)
    assert ({}, {}, {"generation": 4, "width": 16}, True) == (row.errors, row.received, row.link, row.present)


def test_a_virtual_root_port_without_error_counters(tmp_path: Path) -> None:
    """The device's own counters are served, the port's are absent, not 0."""
    function(tmp_path, TOP, files={**PORT, **link()})
    function(tmp_path, TOP, GPU_AT, files={**GPU, **link(), **aer(RxErr=1)})
    errors = ErrorCounter()
    found = read(tmp_path, errors)

    assert ({}, {}, 1) == (found[TOP].errors, found[TOP].received, found[GPU_AT].errors["corrected"])
    assert {} == errors.counts()


def test_a_grace_system_has_a_domain_per_gpu(tmp_path: Path) -> None:
    """Domains other than 0 are addresses like any other."""
    for domain in (8, 9):
        top, pci = f"{domain:04x}:00:00.0", f"{domain:04x}:01:00.0"
        function(tmp_path, top, files={**PORT, **link(), **aer(), **ROOT}, bridge=f"pci{domain:04x}:00")
        function(tmp_path, top, pci, files={**GPU, **link(), **aer()}, bridge=f"pci{domain:04x}:00")
    found = read(tmp_path)

    assert ("endpoint", "gpu", "0009:00:00.0", "0009:00:00.0") == _where(found["0009:01:00.0"])
    assert 4 == len(found)


def test_a_bus_behind_a_pci_function_begins_anew(tmp_path: Path) -> None:
    """Behind a VMD controller the root port is the one of the inner bus; its domain has five digits."""
    inner = tmp_path / "devices/pci0000:00/0000:00:0e.0/pci10000:e0"
    function(tmp_path, "0000:00:0e.0", files={"vendor": "0x8086", "class": "0x010400"})
    function(tmp_path, "10000:e0:01.0", files={**PORT, **link()}, bridge=str(inner.relative_to(tmp_path / "devices")))
    function(tmp_path, "10000:e0:01.0", "10000:e1:00.0", files={**HCA, **link()}, bridge=str(inner.relative_to(tmp_path / "devices")))

    assert ("endpoint", "hca", "10000:e0:01.0", "10000:e0:01.0") == _where(read(tmp_path)["10000:e1:00.0"])


def test_a_device_that_the_driver_names_is_found_whatever_its_class(tmp_path: Path) -> None:
    """The driver's address wins over class and vendor; one that is not on the bus costs nothing."""
    function(tmp_path, GPU_AT, files={"vendor": "0x1234", "class": "0xff0000"})

    assert {} == read(tmp_path)
    assert [GPU_AT] == list(read(tmp_path, told=(GPU_AT, "0000:77:00.0", "../../etc")))


@pytest.mark.parametrize(
    ("files", "found"),
    [
        pytest.param({"vendor": "0x10de", "class": "0x030000"}, True, id="a GPU with a display"),
        pytest.param({"vendor": "0x10de", "class": "0x040300"}, False, id="its sound device"),
        pytest.param({"vendor": "0x1a03", "class": "0x030000"}, False, id="the management controller's display"),
        pytest.param({"vendor": "0x15b3", "class": "0x020000"}, False, id="an Ethernet port without RDMA"),
        pytest.param({"vendor": "0x10de"}, False, id="a function without a class"),
    ],
)  # fmt: skip
def test_only_gpus_and_hcas_are_looked_for(tmp_path: Path, files: dict[str, str], found: bool) -> None:
    """Class and vendor tell a GPU from what else is on its board or on the mainboard."""
    function(tmp_path, GPU_AT, files=files)

    assert found == bool(read(tmp_path))


def test_an_ethernet_port_with_rdma_is_an_hca(tmp_path: Path) -> None:
    """RoCE ports have the class of Ethernet; the RDMA device tells."""
    folder = function(tmp_path, GPU_AT, files={"vendor": "0x15b3", "class": "0x020000"})
    pci_tree.rdma(tmp_path, folder, "mlx5_4")

    assert ("hca", "mlx5_4") == (read(tmp_path)[GPU_AT].kind, read(tmp_path)[GPU_AT].device)


def test_virtual_functions_are_left_out(tmp_path: Path) -> None:
    """Hundreds of virtual functions share one link; it is told for the device alone."""
    folder = function(tmp_path, TOP, GPU_AT, files={**HCA, **link()})
    virtual = function(tmp_path, TOP, "0000:01:00.2", files={**HCA, **link()})
    (virtual / "physfn").symlink_to(os.path.relpath(folder, virtual))
    pci_tree.rdma(tmp_path, virtual, "mlx5_9")

    assert "0000:01:00.2" not in read(tmp_path)


@pytest.mark.parametrize("where", ["", "bus", "bus/pci", "bus/pci/devices"])
def test_a_missing_tree_is_no_error(tmp_path: Path, where: str) -> None:
    """A container without /sys, or a machine without a PCI bus, has no functions and no fault."""
    (tmp_path / where).mkdir(parents=True, exist_ok=True)
    errors = ErrorCounter()

    assert {} == read(tmp_path, errors)
    assert {} == errors.counts()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_bus_that_may_not_be_listed_is_an_error(tmp_path: Path) -> None:
    """It is told with its reason, as a gap of this source."""
    slot(tmp_path)
    (tmp_path / "bus/pci/devices").chmod(0)
    with pytest.raises(SourceError, match="Permission denied"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "lost", "counted"),
    [
        pytest.param("current_link_speed", "Unknown", "generation", False, id="speed unknown"),
        pytest.param("current_link_speed", "Unknown speed", "generation", False, id="speed unknown, older kernel"),
        pytest.param("current_link_speed", "", "generation", False, id="speed empty"),
        pytest.param("current_link_speed", "fast", "generation", True, id="speed of another form"),
        pytest.param("current_link_speed", "17.0 GT/s PCIe", "generation", True, id="a speed that no generation has"),
        pytest.param("current_link_width", "255", "width", False, id="width unknown"),
        pytest.param("current_link_width", "0", "width", False, id="no link"),
        pytest.param("current_link_width", "-1", "width", True, id="negative width"),
        pytest.param("current_link_width", "9" * 60, "width", True, id="endless width"),
        pytest.param("max_link_width", "255", "width_max", False, id="most lanes unknown"),
        pytest.param("max_link_speed", "Unknown", "generation_max", False, id="most speed unknown"),
    ],
)  # fmt: skip
def test_a_link_value_that_is_none_is_absent(tmp_path: Path, name: str, text: str, lost: str, counted: bool) -> None:
    """What a file does not tell costs its own value; only a form that nobody knows is an error."""
    slot(tmp_path, {name: text, "config": "abcd"})
    errors = ErrorCounter()
    row = read(tmp_path, errors)[GPU_AT]

    assert {"generation", "width", "generation_max", "width_max"} - {lost} == set(row.link)
    assert ({("pcie", name): 1} if counted else {}) == errors.counts()


@pytest.mark.parametrize(
    ("text", "generation"),
    [("2.5 GT/s PCIe", 1), ("5 GT/s", 2), ("8.0 GT/s PCIe", 3), ("8 GT/s", 3), (GEN4, 4), ("64.0 GT/s PCIe", 6)],
)
def test_speeds_of_old_and_new_kernels(tmp_path: Path, text: str, generation: int) -> None:
    """The words of every kernel since 4.13 are one generation."""
    slot(tmp_path, {"current_link_speed": text})

    assert generation == read(tmp_path)[GPU_AT].link["generation"]


def test_a_lesser_slot_is_no_degraded_link(tmp_path: Path) -> None:
    """The most of a link is what both of its ends can."""
    slot(tmp_path, link(GEN4, 8), link(GEN4, 8, GEN4, 8))

    assert {"generation": 4, "width": 8, "generation_max": 4, "width_max": 8} == read(tmp_path)[GPU_AT].link


def test_the_link_of_a_switch_is_told_at_its_upper_port(tmp_path: Path) -> None:
    """A switch that trained down towards its root port is seen, once."""
    server(tmp_path)
    (tmp_path / "bus/pci/devices/0000:11:00.0/current_link_width").write_text("8\n")
    found = read(tmp_path)

    assert {"generation": 5, "width": 8, "generation_max": 5, "width_max": 16} == found["0000:11:00.0"].link
    assert {} == found["0000:12:01.0"].link


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were opened, as they are."""
    names: list[str] = []

    def noted(path: Path | str, limit: int = 65536) -> bytes:
        names.append(str(path))
        return read_small(path, limit)

    monkeypatch.setattr(pcie, "read_small", noted)
    return names


@pytest.mark.complaint(31)
@pytest.mark.parametrize("status", ["suspended", "suspending", "resuming"])
def test_a_suspended_gpu_is_left_asleep(tmp_path: Path, opened: list[str], status: str) -> None:
    """
    Polling wakes no idle GPU: of a suspended one no file is opened that the kernel answers from the device.

    henrygd/beszel#1522; NVIDIA/k8s-device-plugin#110.
    """
    slot(tmp_path, {**aer(RxErr=3), "config": "x"}, status=status)
    found = read(tmp_path)
    row = found[GPU_AT]

    wakes = (*link(), "config")
    assert [] == [name for name in opened if GPU_AT in name and name.endswith(wakes)]
    assert ({}, None, True, 3) == (row.link, row.present, row.suspended, row.errors["corrected"])
    names = {sample.family for sample in function_samples(row)}
    assert {"tocsin_pcie_info", "tocsin_pcie_suspended", "tocsin_pcie_errors_total", "tocsin_pcie_named_errors_total"} == names


def test_a_suspended_port_is_left_asleep(tmp_path: Path, opened: list[str]) -> None:
    """Neither is the port above a device woken to learn what the link could do."""
    function(tmp_path, TOP, files={**PORT, **link()}, status="suspended")
    function(tmp_path, TOP, GPU_AT, files={**GPU, **link()})
    row = read(tmp_path)[GPU_AT]

    assert [] == [name for name in opened if f"{TOP}/max" in name or f"{TOP}/current" in name]
    assert {"generation": 5, "width": 16} == row.link


@pytest.mark.parametrize(
    ("files", "present"),
    [
        pytest.param({}, True, id="a link that is up"),
        pytest.param(link("Unknown", 63), False, id="all ones in the link's register"),
        pytest.param({"vendor": "0xffff"}, False, id="no vendor"),
        pytest.param({**link("Unknown", 255), "config": "\N{REPLACEMENT CHARACTER}"}, True, id="a head that is not all ones"),
        pytest.param({**link("Unknown", 255)}, None, id="nothing tells"),
    ],
)  # fmt: skip
def test_a_device_that_fell_off_the_bus_is_told(tmp_path: Path, files: dict[str, Any], present: bool | None) -> None:
    """What answers with all ones is gone; where nothing tells there is no value."""
    slot(tmp_path, files)


    assert present is read(tmp_path, told=(GPU_AT,))[GPU_AT].present


def test_a_head_of_all_ones_is_a_device_that_is_gone(tmp_path: Path) -> None:
    """Where the link tells nothing, the head of the configuration space does."""
    folder = slot(tmp_path, link("Unknown", 0))
    (folder / "config").write_bytes(b"\xff" * 64)

    assert False is read(tmp_path)[GPU_AT].present


def test_a_device_that_was_there_and_is_gone_stays_known(tmp_path: Path) -> None:
    """Taken off the bus while the exporter runs, it is told as not present, with its place; then it comes back."""
    folder = slot(tmp_path)
    now = [0.0]
    source = PcieSource(tmp_path, 5.0, 60.0, ErrorCounter(), clock=lambda: now[0])
    assert [True] == [row.present for row in source.read() if row.role == "endpoint"]
    (tmp_path / "bus/pci/devices" / GPU_AT).unlink()
    shutil.rmtree(folder)
    for now[0] in (5.0, 100.0):
        (row,) = (row for row in source.read() if row.role == "endpoint")
        assert (False, TOP, {}, {}) == (row.present, row.root, row.link, row.errors)
    function(tmp_path, TOP, GPU_AT, files={**GPU, **link(), **aer()})
    now[0] = 200.0

    assert [True] == [row.present for row in source.read() if row.role == "endpoint"]


def test_a_new_device_is_found_at_the_next_look_or_when_the_driver_names_it(tmp_path: Path) -> None:
    """The bus is looked through once a minute; an address that the driver names is looked for at once."""
    slot(tmp_path)
    now, told = [0.0], set[str]()
    source = PcieSource(tmp_path, 5.0, 60.0, ErrorCounter(), told=lambda: told, clock=lambda: now[0])
    source.read()
    function(tmp_path, "0000:00:02.0", files={**GPU, **link()})

    assert 2 == len(source.read())
    told.add("0000:00:02.0")
    assert 3 == len(source.read())
    function(tmp_path, "0000:00:03.0", files={**GPU, **link()})
    now[0] = 61.0
    assert 4 == len(source.read())


def test_a_read_that_hangs_holds_up_no_scrape(tmp_path: Path) -> None:
    """While the kernel does not answer, what was read last is given out, and then the reason why there is nothing."""
    slot(tmp_path)
    entered, release, now = threading.Event(), threading.Event(), [0.0]

    def told() -> tuple[str, ...]:
        if now[0]:
            entered.set()
            release.wait(30)
        return ()

    source = PcieSource(tmp_path, 0.01, 60.0, ErrorCounter(), told=told)
    source.latest = Latest(60.0, clock=lambda: now[0])
    source.start()
    assert source.wait_first(30)
    now[0] = 1.0
    assert entered.wait(30)
    value, error = source.latest.read()
    assert (2, None) == (len(value or ()), error)
    now[0] = 61.5
    value, error = source.latest.read()
    release.set()
    source.stop()

    assert (None, "hung") == (value, error and error.reason)


def test_one_odd_file_costs_one_series(tmp_path: Path) -> None:
    """Pipes, folders, garbage and endless lines cost their own value, are counted by file, and hold nobody up."""
    folder = slot(tmp_path)
    top = tmp_path / "bus/pci/devices" / TOP
    (folder / "aer_dev_correctable").unlink()
    os.mkfifo(folder / "aer_dev_correctable")
    (folder / "aer_dev_fatal").unlink()
    (folder / "aer_dev_fatal").mkdir()
    (folder / "aer_dev_nonfatal").write_bytes(os.urandom(100_000))
    (top / "aer_rootport_total_err_cor").write_text("many\n")
    (top / "aer_dev_nonfatal").write_text("DLP 1\nsome words\nTOTAL_ERR_NONFATAL 4\n")
    errors = ErrorCounter()
    found = read(tmp_path, errors)

    assert ({}, {"nonfatal": 4, "corrected": 0, "fatal": 0}) == (found[GPU_AT].errors, found[TOP].errors)
    assert {"nonfatal": 0, "fatal": 0} == found[TOP].received
    assert 4 == len(found[GPU_AT].link)
    assert {
        ("pcie", "aer_dev_correctable"): 1, ("pcie", "aer_dev_fatal"): 1, ("pcie", "aer_dev_nonfatal"): 2,
        ("pcie", "aer_rootport_total_err_cor"): 1,
    } == errors.counts()  # fmt: skip


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("/proc/self/mem", id="EIO"),
        pytest.param("/proc/self/clear_refs", id="EINVAL, or EACCES without rights"),
    ],
)
def test_a_read_that_the_kernel_refuses_costs_itself(tmp_path: Path, target: str) -> None:
    """An error of read(2) itself is a gap and a count, as an error of open(2) is."""
    folder = slot(tmp_path)
    (folder / "aer_dev_nonfatal").unlink()
    (folder / "aer_dev_nonfatal").symlink_to(target)
    errors = ErrorCounter()

    assert {"corrected": 0, "fatal": 0} == read(tmp_path, errors)[GPU_AT].errors
    assert {("pcie", "aer_dev_nonfatal"): 1} == errors.counts()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_costs_itself(tmp_path: Path) -> None:
    """It is counted, and its neighbours are served."""
    folder = slot(tmp_path)
    (folder / "aer_dev_fatal").chmod(0)
    errors = ErrorCounter()

    assert {"corrected": 0, "nonfatal": 0} == read(tmp_path, errors)[GPU_AT].errors
    assert {("pcie", "aer_dev_fatal"): 1} == errors.counts()


def test_counters_follow_the_files(tmp_path: Path) -> None:
    """What has changed since the reading before is read, also when only one of the files has."""
    folder = slot(tmp_path)
    reader, errors = Reader(tmp_path, ErrorCounter()), ErrorCounter()
    endpoints = list(find_endpoints(tmp_path, (), errors).values())
    reader.read(endpoints)
    (folder / "aer_dev_correctable").write_text(f"{aer(RxErr=1)['aer_dev_correctable']}\n")

    assert [{"corrected": 1, "nonfatal": 0, "fatal": 0}] == [
        row.errors for row in reader.read(endpoints) if row.pci == GPU_AT
    ]


def test_more_names_than_a_severity_has_are_cut(tmp_path: Path) -> None:
    """A file with endless names yields a bounded number of series."""
    slot(tmp_path, {"aer_dev_fatal": "\n".join(f"Name{at} 1" for at in range(300))})
    errors = ErrorCounter()

    assert 33 == len(read(tmp_path, errors)[GPU_AT].named)
    assert {("pcie", "aer_dev_fatal"): 1} == errors.counts()


def test_a_tree_of_ten_thousand_devices_is_bounded(tmp_path: Path, opened: list[str]) -> None:
    """Only so many functions are looked at and so many devices read; the driver's come first, the rest is counted."""
    base = tmp_path / "bus/pci/devices"
    base.mkdir(parents=True)
    folder = tmp_path / "devices/pci0000:00"
    told = tuple(f"0000:{bus:02x}:1f.7" for bus in range(8, 16))
    for at in range(10_000):
        pci = f"{at >> 8:04x}:{at & 0xFF:02x}:00.0"
        (folder / pci).mkdir(parents=True)
        (base / pci).symlink_to(folder / pci)
        (folder / pci / "class").write_text("0x030200\n")
        (folder / pci / "vendor").write_text("0x10de\n")
    for pci in told:
        function(tmp_path, pci, files={**GPU, **link()})
    errors = ErrorCounter()
    found = read(tmp_path, errors, told)

    assert 64 == len(found)
    assert set(told) <= set(found)
    assert len(opened) < 4096 * 2 + 64 * 12
    assert {("pcie", "too_many_functions"): 1, ("pcie", "too_many_endpoints"): 1} == errors.counts()
