"""A table of lines that are events, that nearly are, and that only look like it."""

# ruff: noqa: E501 - one case, one line
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tocsin_exporter.kmsg.parse import Parser

Row = tuple[str | int, ...]


def told(*lines: str) -> list[Row]:
    """Kind, line and what matters most of each event."""
    parser = Parser()
    found = [event for line in lines for event in parser.feed(line)] + parser.finish()
    rows: list[Row] = []
    for event in found:
        fields = event.fields
        keys = ("code", "class", "caused_by", "severity", "state", "scope", "from", "to")
        who = fields.get("device") or fields.get("server") or fields.get("target") or fields.get("pci") or ""
        rows.append((event.kind, event.line, who, *(fields[key] for key in keys if key in fields)))
    return rows


X79 = ("xid", 1, "0000:3b:00.0", 79, "reboot")
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "prefix",
    [
        "3,901,100,-;",
        "3,901,100,c;",
        "3,901,100,-,caller=C12;",
        "[    0.000001] ",
        "[123456.345678] ",
        "[12345.345678][   T77] ",
        "[   12.345678 <    0.000012>] ",
        "[Mon Nov 30 10:00:00 2026] ",
        "[Thu Nov  5 10:00:00 2026] ",
        "[Nov30 10:00] ",
        "[  +0.000012] ",
        "2026-11-30T10:00:00,123456+00:00 ",
        "2026-11-30T10:00:00,123456+0100 ",
        "kern  :err   : [Mon Nov 30 10:00:00 2026] ",
        "kern  :emerg : ",
        "<3>[   12.345678] ",
        "<0>",
        "Nov 30 10:00:00 gpu-001 kernel: ",
        "Nov 30 10:00:00.123456 gpu-001.site.example kernel: ",
        "Nov 30 10:00:00 kernel: ",
        "Nov 30 10:00:00 fe80::1 kernel: [   12.345678] ",
        "Nov 30 10:00:00 gpu-001 kernel: [   12.345678][ T1234] ",
        "<3>Nov 30 10:00:00 gpu-001 kernel: ",
        "2026-11-30T10:00:00+0000 gpu-001 kernel: ",
        "2026-11-30T10:00:00.123456+00:00 gpu-001 kernel: [12.3] ",
        "2026-11-30T10:00:00.123456Z gpu-001 kernel: ",
        "Mon 2026-11-30 10:00:00 UTC gpu-001 kernel: ",
        "2026-11-30 10:00:00 gpu-001 kernel: ",
        "[   12.345678] gpu-001 kernel: ",
        "[   12.345678 <    0.000001 >] gpu-001 kernel: ",
        "1701338400.123456 gpu-001 kernel: ",
        "2026-11-30T10:00:00.123456789Z [   12.345678] ",
        "<3>1 2026-11-30T10:00:00.123Z gpu-001 kernel - - - ",
        '<3>1 2026-11-30T10:00:00Z gpu-001 kernel - - [meta sequenceId="1"] ',
        "\x1b[31m\x1b[1m[   12.345678] \x1b[0m",
    ],
)
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (XID, X79),
        ("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up", ("sxid", 1, "0000:c2:00.0", 20034, "fatal")),
        ("infiniband mlx5_0: Port 1 is down", ("port", 1, "mlx5_0", "down")),
        ("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE", ("port", 1, "mlx5_5", "up")),
        ("nfs: server nas-1 not responding, timed out", ("nfs", 1, "nas-1", "lost")),
        ("Lustre: lfs-OST0001-osc-ffff88: Connection to lfs-OST0001 (at 10.0.0.1@o2ib) was lost; in progress", ("lustre", 1, "lfs-OST0001", "lost")),
        ("Out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:1kB", ("oom_kill", 1, "", "global")),
        ("nvidia 0000:01:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)", ("aer", 1, "0000:01:00.0", "fatal")),
    ],
    ids=["xid", "sxid", "ib", "mlx5", "nfs", "lustre", "oom", "aer"],
)
def test_every_prefix_carries_every_kind(prefix: str, message: str, expected: Row) -> None:
    """What a program put before the message changes nothing about the event."""
    assert [expected] == told(prefix + message)


@pytest.mark.parametrize(
    ("line", "who"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 31, Ch 00000010, intr 10000000", {}),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=77, Ch 00000010", {"pid": 77}),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid='77', name='python3', Ch 00000010", {"pid": 77, "process": "python3"}),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=tmux: server, Ch 00000010", {"pid": 77, "process": "tmux: server"}),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=a,b c, Ch 00000010", {"pid": 77, "process": "a,b c"}),
        ('NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name="q", Ch 00000010', {"pid": 77, "process": "q"}),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=x): 79, Ch 00000010", {"pid": 77, "process": "x): 79"}),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid='<unknown>', name=<unknown>", {}),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=python3", {"pid": 77, "process": "python3"}),
        ("3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=caf\\xc3\\xa9, Ch 1", {"pid": 77, "process": "café"}),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 31, pid=7194, name=a, Ch 1", {"gpu_instance": 5, "pid": 7194, "process": "a"}),
        ("NVRM: Xid (PCI:0000:3b:00.0 GPU-I:02 GPU-CI:01): 31", {"gpu_instance": 2, "compute_instance": 1}),
        ("NVRM: Xid (PCI:00000000:3B:00.0): 31", {}),
        ("NVRM: Xid (0000:3b:00): 31, 0003 00000000 0000902d 00000824", {}),
    ],
)  # fmt: skip
def test_who_was_hit(line: str, who: dict[str, str | int]) -> None:
    """Process and instance are those of the message, whatever the process calls itself."""
    (event,) = Parser().feed(line)

    assert {"code": 31, "pci": "0000:3b:00.0", "class": "application", **who} == event.fields


def test_a_process_cannot_speak_in_the_drivers_name() -> None:
    """A name that reads like registers or like a cause decides nothing."""
    assert [("xid", 1, "0000:3b:00.0", 74, "check")] == told(
        "NVRM: Xid (PCI:0000:3b:00): 74, pid=7, name=(0x10000, 0x0), NVLink: error without registers"
    )
    assert [("xid", 1, "0000:3b:00.0", 31, "application")] == told(
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=caused by previous Xid 79, Ch 1"
    )


@pytest.mark.parametrize(
    "line",
    [
        "14,902,100,-;" + XID,
        "30,902,100,-;" + XID,
        "<14>Nov 30 10:00:00 gpu-001 kernel: " + XID,
        "<14>1 2026-11-30T10:00:00Z gpu-001 kernel - - - " + XID,
        "<3>1 2026-11-30T10:00:00Z gpu-001 trainer 77 - - " + XID,
        "Nov 30 10:00:00 gpu-001 kernel[77]: " + XID,
        "Nov 30 10:00:00 gpu-001 trainer: " + XID,
        "Nov 30 10:00:00 gpu-001 my-kernel: " + XID,
        "2026-11-30T10:00:00+0000 gpu-001 trainer[77]: " + XID,
        "[   12.345678] gpu-001 trainer[77]: " + XID,
        "daemon:err   : [   12.3] " + XID,
        "2026-11-30T10:00:00,123456+00:00 trainer: " + XID,
        "usb 1-1: Product: " + XID,
        "process 'trainer' launched '/tmp/" + XID + "' with NULL argv: empty string added",
        "3,901,100,-;process 'a' launched '/tmp/x\\x0a" + XID + "' with NULL argv: empty string added",
        "> " + XID,
        '"' + XID + '"',
        "EXT4-fs error (device sda1): htree_dirblock_to_tree: " + XID,
        "NVRM: Xid [PCI:0000:3b:00]: 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:3b:00) 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:3b:00: 79, GPU has fallen off the bus.",
        "NVRM: Xid PCI:0000:3b:00: 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:3b): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:3b:00 and more): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:000:3b:00): 79, x",
        "NVRM: Xid (PCI:0000:3g:00): 79, x",
        "NVRM: Xid (PCI:0000:3b:00.9): 79, x",
        "NVRM: Xid (PCI:0000:3b:00): -79, x",
        "NVRM: Xid (PCI:0000:3b:00): 0x4f, x",
        "NVRM: Xid (PCI:0000:3b:00): 79.5, x",
        "NVRM: Xid (PCI:0000:3b:00): 79x, x",
        "NVRM: Xid (PCI:0000:3b:00): 7999999, x",
        "NVRM: Xid (PCI:0000:3b:00): \u0667\u0669, x",
        "NVRM: Xid (PCI:0000:3b:00):",
        "NVRM: Xid (PCI:0000:3b",
        "nvrm: xid (pci:0000:3b:00): 79, x",
        "NVRM Xid (PCI:0000:3b:00): 79, x",
        "NVRM: xid: 79",
        "NVRM: GPU at PCI:0000:3b:00: GPU-b850f46d-d5ea-c752-ddf3-c6697461d8b2",
        "NVRM: GPU Board Serial Number: 0324915012345",
        "NVRM: A GPU crash dump has been created. If possible, please run nvidia-bug-report.sh as root",
        "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x24:0x72:1568)",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: docs say that a GPU has fallen off the bus when Xid 79 comes",
        "trainer: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        "NVRM: 12 callbacks suppressed",
        "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00",
        "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 28006, Data {0x00140004, 0x00000000}",
        "nvidia-nvswitch0: SXid (PCI:0000:c2): 20034, Fatal, x",
        "nvidia-nvswitch: SXid (PCI:0000:c2:00.0): 20034, Fatal, x",
        "nvidia-nvswitch0: open (major=509)",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
        "pcieport 0000:00:01.1: AER: enabled with IRQ 30",
        "pcieport 0000:00:01.1: AER: device recovery successful",
        "nvidia 0000:01:00.0: AER: can't recover (no error_detected callback)",
        "pcieport 0000:00:01.0: pciehp: Slot(1): Link Down",
        "nvidia 0000:3b:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:00:01.0",
        "Out of memory: Killed process",
        "Memory cgroup out of memory: OOM victim 1 (a) is already exiting. Skip killing the task",
        "oom_reaper: reaped process 4242 (python), now anon-rss:0kB",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,task=python,pid=4242,uid=0",
        "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "CUDA out of memory: Killed process 1 (a)",
        "Killed process 4242 (python) total-vm:1kB",
        "mlx5_core 0000:0b:00.0: firmware version: 28.39.3004",
        "mlx5_core 0000:0b:00.0: PCIe slot advertised sufficient power (75W).",
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link INIT",
        "ata1: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "nfs: server nas-1 is fine",
        "nfs: server nas-1 OKAY",
        "NFS: Registering the id_resolver key type",
        "trainer: nfs: server nas-1 not responding, still trying",
        "Lustre: Lustre: Build Version: 2.15.3",
        "Lustre: Mounted lfs-client",
        "Lustre: Skipped 4 previous similar messages",
        "net_ratelimit: 12 callbacks suppressed",
        "message repeated 3 times: [ audit: something ]",
        "last message repeated 3 times",
        " SUBSYSTEM=pci",
        " DEVICE=+pci:0000:3b:00.0",
        "\x00\x01\x02\xff",
        "-----",
        ";;;,,,",
        "3,901,100,-;",
        "99999999999999999999,1,1,-;" + XID[:10],
    ],
)  # fmt: skip
def test_what_only_looks_like_an_event(line: str) -> None:
    """Forged, quoted, broken and harmless lines tell nothing."""
    assert [] == told(line)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            ["NVRM: GPU at PCI:0000:3b:00: GPU-b850f46d", "NVRM: GPU Board Serial Number: 1", XID,
             "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "NVRM: GPU 0000:3b:00.0: GPU serial number is 1."],
            [("xid", 3, "0000:3b:00.0", 79, "reboot"), ("gpu_lost", 4, "0000:3b:00.0")],
            id="what the driver prints for one lost GPU",
        ),
        pytest.param(["NVRM: GPU at 0000:3b:00.0 has fallen off the bus."], [("gpu_lost", 1, "0000:3b:00.0")], id="older form"),
        pytest.param(
            ["[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0", "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
             "               NVRM: fallen off the bus and is not responding to commands."],
            [("gpu_lost", 1, "0000:b3:00.0")], id="lines of one record, indented by dmesg",
        ),
        pytest.param(
            [r"3,9,9,-;NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands."],
            [("gpu_lost", 1, "0000:b3:00.0")], id="line breaks inside a raw record",
        ),
        pytest.param(
            ["NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: The NVIDIA GPU 0000:b4:00.0", "usb 1-1: new device",
             "NVRM: (PCI ID: 10de:26b5) installed in this system has", "NVRM: fallen off the bus and is not responding to commands.",
             "NVRM: (PCI ID: 10de:26b5) installed in this system has", "NVRM: fallen off the bus and is not responding to commands."],
            [("gpu_lost", 1, "0000:b3:00.0"), ("gpu_lost", 2, "0000:b4:00.0")], id="two GPUs at once",
        ),
        pytest.param(
            ["NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b80)", "NVRM: installed in this system is not supported by the",
             "NVRM: NVIDIA 570.172 driver release.", "NVRM: fallen off the bus and is not responding to commands."],
            [], id="a GPU that the driver does not support",
        ),
        pytest.param(
            ["pcieport 0000:00:1c.5: AER: Corrected error received: id=00e5",
             "pcieport 0000:00:1c.5: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=00e5(Receiver ID)",
             "pcieport 0000:00:1c.5:   device [8086:9d15] error status/mask=00000001/00002000",
             "pcieport 0000:00:1c.5:    [ 0] Receiver Error         (First)"],
            [("aer", 1, "0000:00:1c.5", "corrected")], id="AER up to Linux 4.19",
        ),
        pytest.param(
            ["pcieport 0000:00:1c.5: AER: Multiple Corrected error received: 0000:01:00.0",
             "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
             "nvidia 0000:01:00.0:   device [10de:2330] error status/mask=00001000/0000a000", "nvidia 0000:01:00.0:    [12] Timeout"],
            [("aer", 1, "0000:01:00.0", "corrected")], id="AER of Linux 5",
        ),
        pytest.param(
            ["pcieport 0000:00:1c.0: AER: Multiple Uncorrectable (Non-Fatal) error message received from 0000:73:00.1",
             "pcieport 0000:00:1c.0: DPC: containment event, status:0x1f01: unmasked uncorrectable error detected",
             "nvidia 0000:73:00.1: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Requester ID)",
             "nvidia 0000:73:00.1:    [20] UnsupReq               (First)", "nvidia 0000:73:00.1: AER:   TLP Header: 40000001 0000000f 90028090 00000000"],
            [("aer", 1, "0000:73:00.1", "nonfatal")], id="AER of Linux 6",
        ),
        pytest.param(
            ["pcieport 0000:00:1c.0: AER: Correctable error message received from 0000:73:00.0",
             "nvidia 0000:73:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)"],
            [("aer", 1, "0000:73:00.0", "corrected")], id="AER of the newest kernels",
        ),
        pytest.param(
            ["{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 514", "nvidia 0000:01:00.0: AER: aer_status: 0x00004000, aer_mask: 0x00000000",
             "nvidia 0000:01:00.0: AER:    [14] CmpltTO                (First)", "nvidia 0000:01:00.0: AER: aer_layer=Transaction Layer, aer_agent=Requester ID",
             "nvidia 0000:01:00.0: AER: aer_uncor_severity: 0x00462030"],
            [("aer", 2, "0000:01:00.0", "nonfatal")], id="AER through the firmware",
        ),
        pytest.param(
            ["nvidia 0000:01:00.0: AER: aer_status: 0x00000001, aer_mask: 0x00000000", "nvidia 0000:01:00.0: AER: aer_layer=Physical Layer, aer_agent=Receiver ID"],
            [("aer", 1, "0000:01:00.0", "corrected")], id="a corrected one through the firmware",
        ),
        pytest.param(
            ["python invoked oom-killer: gfp_mask=0x14200ca", "Out of memory: Kill process 4242 (python) score 900 or sacrifice child",
             "Killed process 4300 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB"],
            [("oom_kill", 2, "", "global")], id="out of memory up to Linux 4",
        ),
        pytest.param(["Memory cgroup out of memory: Kill process 9 (a) score 1 or sacrifice child"], [("oom_kill", 1, "", "cgroup")], id="its second record never came"),
        pytest.param(["Memory cgroup out of memory: Killed process 9 (a b), UID 1000, total-vm:1kB"], [("oom_kill", 1, "", "cgroup")], id="with the user"),
        pytest.param(
            ["Lustre: demo-MDT0001-mdc-ffff9: Connection restored to 192.168.234.11@tcp (at 192.168.234.11@tcp)", "Lustre: Skipped 3 previous similar messages"],
            [("lustre", 1, "demo-MDT0001", "restored"), ("lustre", 2, "demo-MDT0001", "restored")], id="Lustre repeats itself",
        ),
        pytest.param(
            ["Lustre: demo-MDT0001-mdc-ffff9: Connection restored to 1@tcp", "Lustre: Mounted demo-client", "Lustre: Skipped 3 previous similar messages"],
            [("lustre", 1, "demo-MDT0001", "restored")], id="Lustre repeats something else",
        ),
        pytest.param(
            ["LustreError: 167-0: lfs-MDT0000-mdc-ffff: This client was evicted by lfs-MDT0000; in progress operations using this service will fail."],
            [("lustre", 1, "lfs-MDT0000", "error")], id="evicted",
        ),
        pytest.param(
            [f"Nov 30 10:00:00 h kernel: {XID}", "Nov 30 10:00:09 h last message repeated 4 times"],
            [("xid", 1, "0000:3b:00.0", 79, "reboot"), ("xid", 2, "0000:3b:00.0", 79, "reboot")], id="last message repeated",
        ),
        pytest.param(["lockd: server nas-1 not responding, still trying", "lockd: server nas-1 OK"], [("nfs", 1, "nas-1", "lost"), ("nfs", 2, "nas-1", "restored")], id="lock manager"),
        pytest.param(
            ["mlx5_core 0000:5e:00.0: Port module event[error]: module 1, Cable error, Power budget exceeded",
             "mlx5_core 0000:5e:00.0: Port module event[error]: module 1, Cable error, Bus stuck (I2C or data shorted)",
             "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
             "mlx5_core 0000:5e:00.0: poll_health:797:(pid 0): device's health compromised - reached miss count",
             "mlx5_core 0000:5e:00.0 ens3f0np0: Link down", "mlx5_core 0000:5e:00.0 ens3f0np0: Link up",
             "mlx4_en: enp4s0: Link Down", "bnxt_en 0000:17:00.0 ens1f0: NIC Link is Up, 100000 Mbps full duplex",
             "igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down"],
            [("port", 1, "0000:5e:00.0", "power"), ("port", 2, "0000:5e:00.0", "error"), ("port", 3, "0000:5e:00.0", "module"),
             ("port", 4, "0000:5e:00.0", "error"), ("port", 5, "ens3f0np0", "down"), ("port", 6, "ens3f0np0", "up"),
             ("port", 7, "enp4s0", "down"), ("port", 8, "ens1f0", "up"), ("port", 9, "eno1", "down")],
            id="ports",
        ),
        pytest.param(
            ["NVRM: Xid (PCI:0000:3b:00): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
             "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
             "NVRM: Xid (PCI:0000:3b:00): 154, something else"],
            [("recovery_action", 1, "0000:3b:00.0", 154, 0, 1), ("recovery_action", 2, "0000:3b:00.0", 154, 1, 0), ("xid", 3, "0000:3b:00.0", 154, "info")],
            id="recovery action there and back",
        ),
        pytest.param(
            ["nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
             "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00",
             "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x00140004, 0x00100000}",
             "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Link 44 sourcetrack timeout error (First)"],
            [("sxid", 1, "0000:c1:00.0", 28006, "nonfatal"), ("sxid", 4, "0000:c1:00.0", 24007, "unknown")], id="SXid over three records, and one without a severity",
        ),
    ],
)  # fmt: skip
def test_reports_over_several_records(lines: list[str], expected: list[Row]) -> None:
    """One report is one event, carries its first line, and takes nothing from its neighbours."""
    assert expected == told(*lines)


def at(second: float, code: int, bus: str = "3b", words: str = "Ch 1") -> str:
    return f"3,{int(second * 10)},{int(second * 1e6)},-;NVRM: Xid (PCI:0000:{bus}:00): {code}, pid=7, name=a, {words}"


@pytest.mark.parametrize(
    ("lines", "causes"),
    [
        pytest.param([at(1, 31), at(2, 45), at(3, 45)], [None, 31, 31], id="torn down after a page fault"),
        pytest.param([at(1, 48), at(2, 95), at(3, 45)], [None, 48, 48], id="a chain leads to its root"),
        pytest.param([at(1, 48), at(2, 94)], [None, 48], id="contained part of an uncorrected error"),
        pytest.param([at(1, 31), at(2, 95)], [None, None], id="an uncontained error explains itself"),
        pytest.param([at(1, 45)], [None], id="alone"),
        pytest.param([at(1, 45), at(2, 31)], [None, None], id="before the fault"),
        pytest.param([at(1, 31), at(40, 45)], [None, None], id="long after"),
        pytest.param([at(1, 31, "3c"), at(2, 45)], [None, None], id="another GPU"),
        pytest.param([at(1, 63), at(2, 45)], [None, None], id="a remapped row tears nothing down"),
        pytest.param([at(1, 43), at(2, 45)], [None, 43], id="a stopped channel does"),
        pytest.param([at(1, 31), at(2, 45, words="Ch 1 caused by previous Xid 149")], [None, 149], id="the driver's word first"),
        pytest.param([at(1, 79, "3c"), at(2, 137)], [None, 79], id="the peer of a lost GPU"),
        pytest.param([at(1, 31, "3c"), at(2, 137)], [None, None], id="a page fault elsewhere is no link fault"),
        pytest.param(
            ["Nov 30 10:00:00 h kernel: NVRM: Xid (PCI:0000:3b:00): 13, x", "Nov 30 10:00:05 h kernel: NVRM: Xid (PCI:0000:3b:00): 45, x",
             "Nov 30 10:01:05 h kernel: NVRM: Xid (PCI:0000:3b:00): 45, x"], [None, 13, None], id="by syslog's clock"),
        pytest.param(["NVRM: Xid (PCI:0000:3b:00): 13, x", "NVRM: Xid (PCI:0000:3b:00): 45, x"], [None, 13], id="without a clock"),
        pytest.param(["NVRM: Xid (PCI:0000:3b:00): 13, x", *["usb 1-1: x"] * 60, "NVRM: Xid (PCI:0000:3b:00): 45, x"], [None, None], id="without a clock, far apart"),
    ],
)  # fmt: skip
def test_sympathetic_events_name_their_root(lines: list[str], causes: list[int | None]) -> None:
    """What only follows from another fault of the same GPU within 30 s says from which; its class stays."""
    parser = Parser()
    found = [event for line in lines for event in parser.feed(line)]

    assert causes == [event.fields.get("caused_by") for event in found]
    assert all("sympathetic" == event.fields["class"] for event in found if event.fields["code"] == 45)


def test_a_long_line_is_one_line(tmp_path: Path) -> None:
    """Lines of megabytes are read in bounds, and no part of one passes for a line of its own."""
    log = tmp_path / "log"
    size = 1 << 20
    log.write_bytes(b"x" * (3 * size) + XID.encode() + b"\n" + b"y" * size + XID.encode() + b"\n" + XID.encode() + b"\n")
    done = subprocess.run(
        [sys.executable, "-m", "tocsin_exporter", "parse-kmsg", str(log)], capture_output=True, text=True, check=True
    )

    assert 1 == done.stdout.count("\n")
    assert '"line": 3' in done.stdout
