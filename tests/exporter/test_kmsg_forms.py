"""Forms in which the kernel log speaks of devices."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import json
import random

import pytest

from tocsin_exporter.kmsg import xid_classes
from tocsin_exporter.kmsg.parse import Parser

Fields = dict[str, str | int]

XID_79: Fields = {"line": 1, "kind": "xid", "code": 79, "pci": "0000:3b:00.0", "class": "reboot", "count": 1}


def events(*lines: str) -> list[Fields]:
    parser = Parser()
    found = [event for line in lines for event in parser.feed(line)]
    return [event.to_dict() for event in (*found, *parser.finish())]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            "3,901,100,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", id="raw record"
        ),
        pytest.param(
            "3,901,100,-,caller=T12;NVRM: Xid (PCI:0000:3b:00): 79, GPU lost", id="raw record with caller"
        ),
        pytest.param("[   12.345678] NVRM: Xid (PCI:0000:3b:00): 79, GPU lost", id="dmesg"),
        pytest.param(
            "[   12.345678][ T1234] NVRM: Xid (PCI:0000:3b:00): 79, GPU lost", id="dmesg with caller"
        ),
        pytest.param("[Mon Nov 30 10:00:00 2026] NVRM: Xid (PCI:0000:3b:00): 79, GPU lost", id="dmesg -T"),
        pytest.param(
            "2026-11-30T10:00:00,123456+00:00 NVRM: Xid (PCI:0000:3b:00): 79, GPU lost", id="dmesg ISO"
        ),
        pytest.param("kern  :err   : [   12.3] NVRM: Xid (PCI:0000:3b:00): 79, GPU lost", id="dmesg -x"),
        pytest.param("<3>[   12.345678] NVRM: Xid (PCI:0000:3b:00): 79, GPU lost", id="dmesg -r"),
        pytest.param(
            "\x1b[32m[   12.345678] \x1b[0mNVRM: Xid (PCI:0000:3b:00): 79, GPU lost", id="dmesg in colour"
        ),
        pytest.param("Nov  3 10:00:00 gpu-001 kernel: [12.3] NVRM: Xid (PCI:0000:3b:00): 79, x", id="syslog"),
        pytest.param(
            "2026-11-30T10:00:00.1+00:00 gpu-001 kernel: NVRM: Xid (PCI:0000:3b:00): 79, x", id="syslog ISO"
        ),
        pytest.param(
            "<3>1 2026-11-30T10:00:00Z gpu-001 kernel - - - NVRM: Xid (PCI:0000:3b:00): 79, x", id="RFC 5424"
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU lost", id="no prefix"
        ),
        pytest.param("NVRM: Xid (PCI:00000000:3B:00.0): 79, GPU lost", id="long domain, capitals, function"),
        pytest.param("NVRM: Xid (0000:3b:00): 79, GPU lost", id="old form without PCI:"),
    ],
)
def test_prefixes(line: str) -> None:
    """Every usual prefix gives the same event."""
    assert [XID_79] == events(line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
            {"kind": "xid", "code": 45, "pci": "0000:dc:00.0", "pid": 1818990, "process": "python3",
             "caused_by": 149, "class": "sympathetic"},
            id="caused by another",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No",
            {"kind": "xid", "code": 94, "pci": "0000:01:00.0", "gpu_instance": 5, "pid": 7194, "class": "contained"},
            id="MIG instance",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:01:00 GPU-I:02 GPU-CI:01): 31, pid=7, name=my job, Ch 1, intr 0",
            {"kind": "xid", "code": 31, "pci": "0000:01:00.0", "gpu_instance": 2, "compute_instance": 1, "pid": 7,
             "process": "my job", "class": "application"},
            id="MIG compute instance, name with a space",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            {"kind": "recovery_action", "code": 154, "pci": "0008:01:00.0", "from": 0, "to": 2},
            id="recovery action",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:01:00): 999, whatever",
            {"kind": "xid", "code": 999, "pci": "0000:01:00.0", "class": "unknown"},
            id="never-seen code",
        ),
        pytest.param(
            "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
            {"kind": "gpu_lost", "pci": "0000:01:00.0"},
            id="lost in one record",
        ),
        pytest.param(
            "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
            {"kind": "sxid", "code": 20034, "pci": "0000:c2:00.0", "class": "fatal"},
            id="fatal SXid",
        ),
        pytest.param(
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
            {"kind": "sxid", "code": 28006, "pci": "0000:c1:00.0", "class": "nonfatal"},
            id="non-fatal SXid",
        ),
        pytest.param(
            "Out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:1kB",
            {"kind": "oom_kill", "pid": 4242, "process": "python", "scope": "global"},
            id="global out of memory",
        ),
        pytest.param(
            "Memory cgroup out of memory: Killed process 4242 (pt (main)) total-vm:1kB",
            {"kind": "oom_kill", "pid": 4242, "process": "pt (main)", "scope": "cgroup"},
            id="out of memory of a cgroup, name with parentheses",
        ),
        pytest.param(
            "mlx5_core 0000:0b:00.0: Port module event: module 0, Cable unplugged",
            {"kind": "port", "pci": "0000:0b:00.0", "device": "0000:0b:00.0", "state": "module"},
            id="cable unplugged",
        ),
        pytest.param(
            "mlx5_core 0000:01:00.0 enp1s0f0np0: Link down",
            {"kind": "port", "pci": "0000:01:00.0", "device": "enp1s0f0np0", "state": "down"},
            id="link down",
        ),
        pytest.param(
            "ice 0000:17:00.0 ens1f0: NIC Link is Up 100 Gbps Full Duplex",
            {"kind": "port", "pci": "0000:17:00.0", "device": "ens1f0", "state": "up"},
            id="link up again",
        ),
        pytest.param(
            "mlx5_core 0000:81:00.0: mlx5_pcie_event:299:(pid 0): Detected insufficient power on the PCIe slot (27W).",
            {"kind": "port", "pci": "0000:81:00.0", "device": "0000:81:00.0", "state": "power"},
            id="too little power",
        ),
        pytest.param(
            "nfs: server nas-1 not responding, still trying",
            {"kind": "nfs", "server": "nas-1", "state": "lost"},
            id="NFS lost",
        ),
        pytest.param("nfs: server nas-1 OK", {"kind": "nfs", "server": "nas-1", "state": "restored"}, id="NFS back"),
        pytest.param(
            "Lustre: lfs-OST0001-osc-ffff88: Connection to lfs-OST0001 (at 10.0.0.1@o2ib) was lost; in progress",
            {"kind": "lustre", "target": "lfs-OST0001", "state": "lost"},
            id="Lustre lost",
        ),
        pytest.param(
            "Lustre: lfs-OST0001-osc-ffff88: Connection restored to lfs-OST0001 (at 10.0.0.1@o2ib)",
            {"kind": "lustre", "target": "lfs-OST0001", "state": "restored"},
            id="Lustre back",
        ),
    ],
)  # fmt: skip
def test_kinds(line: str, expected: Fields) -> None:
    """One record of each kind gives its fields and nothing else."""
    assert [{"line": 1, **expected, "count": 1}] == events(line)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("14,902,100,-;NVRM: Xid (PCI:0000:3b:00): 79, forged", id="raw record of facility user"),
        pytest.param("<14>[   1.0] NVRM: Xid (PCI:0000:3b:00): 79, forged", id="dmesg -r of facility user"),
        pytest.param(
            "user  :notice: [   1.0] NVRM: Xid (PCI:0000:3b:00): 79, forged", id="dmesg -x of facility user"
        ),
        pytest.param(
            "Nov 30 10:00:00 gpu-001 job[77]: NVRM: Xid (PCI:0000:3b:00): 79, forged",
            id="syslog of a program",
        ),
        pytest.param(
            "<14>1 2026-11-30T10:00:00Z h job 7 - - NVRM: Xid (PCI:0000:3b:00): 79, x",
            id="RFC 5424 of a program",
        ),
        pytest.param(
            "usb 1-1: product: NVRM: Xid (PCI:0000:3b:00): 79, forged", id="a device that calls itself so"
        ),
        pytest.param(
            "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Data {0x50610001, 0x0}", id="SXid data"
        ),
        pytest.param(" SUBSYSTEM=pci", id="dictionary line"),
        pytest.param("NVRM: Xid (PCI:0000:66:00): abc, pid=2280636", id="a code that is no number"),
        pytest.param("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.172.08", id="driver start"),
        pytest.param("pcieport 0000:00:00.0: AER: enabled with IRQ 329", id="AER start"),
        pytest.param("", id="empty line"),
    ],
)
def test_what_is_no_event(line: str) -> None:
    """What user space wrote, data lines and other messages accuse nobody."""
    assert [] == events(line)


def test_lost_over_several_records() -> None:
    """A report over three records is one event and carries its first line."""
    found = events(
        "[ 1.0] unrelated",
        "[ 2.0] NVRM: The NVIDIA GPU 0000:b3:00.0",
        "[ 2.0] NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "[ 2.0] NVRM: fallen off the bus and is not responding to commands.",
    )

    assert [{"line": 2, "kind": "gpu_lost", "pci": "0000:b3:00.0", "count": 1}] == found


def test_one_event_per_aer_report() -> None:
    """Header, details and bits of one report are one event; a report without details is one too."""
    found = events(
        "pcieport 0000:00:01.1: AER: Corrected error message received from 0000:01:00.0",
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)",
        "nvidia 0000:01:00.0:   device [10de:2330] error status/mask=00000001/0000a000",
        "nvidia 0000:01:00.0:    [ 0] RxErr                  (First)",
        "pcieport 0000:00:01.1: AER: Uncorrectable (Non-Fatal) error message received from 0000:02:00.0",
        "pcieport 0000:00:01.1: AER: found no error details for 0000:02:00.0",
        "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: id=0018",
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, id=0018",
    )

    assert [
        (1, "0000:01:00.0", "corrected"),
        (5, "0000:02:00.0", "nonfatal"),
        (7, "0000:00:03.0", "fatal"),
    ] == sorted((int(e["line"]), str(e["pci"]), str(e["severity"])) for e in found)


def test_repeats_are_counted_in_an_event_of_their_own() -> None:
    """A line that speaks for many is one event with their number."""
    found = events(
        "Nov 30 10:00:00 h kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=a, Ch 1",
        "Nov 30 10:00:01 h kernel: message repeated 3 times: [ NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=a, Ch 1]",
    )

    assert [1, 3] == [event["count"] for event in found]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *((code, "application") for code in (13, 31, 32, 68, 69, 80, *range(126, 136))),
        (94, "contained"),
        *((code, "info") for code in (43, 44, 63, 92, 121, 137)),
        *((code, "sympathetic") for code in (45, 159)),
        *((code, "reset") for code in (46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158)),
        (79, "reboot"),
        *((code, "rma") for code in (157, 168)),
        *((code, "check") for code in (74, *range(144, 151))),
        *((code, "unknown") for code in (0, 173, 500)),
    ],
)
def test_settled_classes(code: int, expected: str) -> None:
    """The classes on which sources disagree are the settled ones; a code nobody lists is unknown."""
    assert expected == xid_classes.classify(code, "")


@pytest.mark.parametrize(
    ("code", "detail", "expected"),
    [
        pytest.param(
            145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000080)", "reset", id="remap fatal"
        ),
        pytest.param(
            145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000100)", "info", id="remap harmless"
        ),
        pytest.param(
            145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001)", "check", id="follows 154"
        ),
        pytest.param(
            149, "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x004505c6 0x00000000)", "reset", id="link down"
        ),
        pytest.param(
            149,
            "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x026005c6 0x00000000)",
            "info",
            id="link down, harmless",
        ),
        pytest.param(144, "SAW_MVB", "check", id="without registers"),
        pytest.param(
            74, "NVLink: fatal error on link 4(0x10000, 0x0, 0x0, 0x0)", "reset", id="Hopper hardware bit"
        ),
        pytest.param(
            74, "NVLink: fatal error on link 4(0x100000, 0x0, 0x0)", "sympathetic", id="the other end"
        ),
        pytest.param(74, "NVLink: fatal error on link 4(0x1, 0x0, 0x0)", "info", id="Hopper harmless bit"),
    ],
)
def test_nvlink_is_decoded(code: int, detail: str, expected: str) -> None:
    """Registers in the message decide over the class of an NVLink error."""
    assert expected == xid_classes.classify(code, detail)


def test_the_table_has_only_known_classes_and_says_its_source() -> None:
    """Each code has one of the nine classes, an action and a source."""
    for row in xid_classes.table().values():
        assert row.kind in xid_classes.CLASSES
        assert row.action
        assert row.source in ("catalogue", "tocsin")


def test_noise_never_raises() -> None:
    """Random and mutilated lines give no exception, and every event is JSON."""
    rng = random.Random(7)
    seeds = [
        "3,901,100,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x004505c6 0x00000000)",
        "pcieport 0000:00:01.1: AER: Multiple Corrected error message received from 0000:01:00.0",
        "message repeated 3 times: [ Out of memory: Killed process 1 (a)]",
        "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
    ]
    parser = Parser()
    for _ in range(3000):
        line = list(rng.choice(seeds))
        for _ in range(rng.randrange(6)):
            line[rng.randrange(len(line))] = chr(rng.randrange(0x20, 0x2FF))
        text = "".join(line)[rng.randrange(10) :] * rng.choice((1, 1, 40))
        for event in parser.feed(text):
            json.dumps(event.to_dict(), allow_nan=False)
