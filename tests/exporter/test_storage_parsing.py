"""What /proc and Lustre's files say of storage, in all their forms; what is odd costs only itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin_exporter.sources.storage import disks, lustre, mounts, nfs
from tocsin_exporter.sources.storage.source import shown_mounts

MOUNTS = r"""
22 28 0:21 / /sys rw,nosuid - sysfs sysfs rw
28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
31 28 0:27 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw
32 28 0:28 / /run rw,nosuid,nodev - tmpfs tmpfs rw
40 28 0:50 / /data rw,relatime shared:2 - nfs4 filer:/export/data rw,vers=4.2,hard,proto=tcp,addr=10.0.0.2
41 28 0:50 /team /home/my\040team rw,relatime - nfs4 filer:/export/data rw,vers=4.2
42 28 0:51 / /scratch rw,flock - lustre 10.0.0.3@o2ib:10.0.0.4@o2ib:/scratch rw,flock
43 28 0:52 / /bucket ro,nosuid - fuse.mountpoint-s3 mountpoint-s3 ro,user_id=0
44 28 0:53 / /weka rw - wekafs backend/fs rw
45 28 259:2 /var/lib/kubelet/pods/1/volumes/x /var/lib/kubelet/pods/1/volumes/x rw - ext4 /dev/nvme0n1p2 rw
46 28 0:60 / /var/lib/docker/overlay2/a/merged rw - overlay overlay rw,lowerdir=/a
47 28 0:61 / /mnt/\303\251t\303\251 rw - fuse.sshfs host:/x rw
48 28 259:9 / /ckpt ro,relatime - xfs /dev/nvme1n1 rw,attr2
nonsense
49 28 0:62
""".splitlines()


def test_mounts_that_hold_data_are_shown_once() -> None:
    """
    One mount per file system, whole before part, escapes decoded; plumbing and the kernel's own are left out.
    """
    shown = {mount.point: (mount.kind, mount.read_only) for mount in shown_mounts(mounts.parse(MOUNTS))}

    assert {
        "/": ("local", False),
        "/bucket": ("object", True),
        "/ckpt": ("local", True),
        "/data": ("nfs", False),
        "/dev/shm": ("memory", False),
        "/mnt/été": ("fuse", False),
        "/scratch": ("lustre", False),
        "/weka": ("weka", False),
    } == shown


def test_a_volume_of_a_pod_is_shown_where_it_is_the_only_mount() -> None:
    """
    A pod's NFS volume is mounted below the kubelet's folder alone, and is storage all the same.
    """
    line = "9 1 0:70 / /var/lib/kubelet/pods/a/volumes/kubernetes.io~nfs/pv rw - nfs4 filer:/pv rw"

    (mount,) = shown_mounts(mounts.parse([line]))

    assert ("nfs", "filer:/pv") == (mount.kind, mount.source)


def test_what_is_mounted_over_is_not_shown() -> None:
    """
    Of two mounts on one point the last is the one that programs see.
    """
    lines = ["1 0 0:1 / /data rw - nfs a:/x rw", "2 0 0:2 / /data rw - nfs b:/x rw"]

    assert ["b:/x"] == [mount.source for mount in mounts.parse(lines)]


@pytest.mark.parametrize(
    ("fstype", "source", "kind"),
    [
        ("nfs", "a:/b", "nfs"),
        ("fuse.s3fs", "s3fs", "object"),
        ("fuse", "gcsfuse#bucket", "object"),
        ("fuse.gcsfuse", "bucket", "object"),
        ("fuse.juicefs", "JuiceFS:vol", "object"),
        ("fuse.rclone", "remote:", "object"),
        ("fuse.glusterfs", "server:/vol", "fuse"),
        ("fuse.lxcfs", "lxcfs", ""),
        ("ceph", "10.0.0.1:/", "ceph"),
        ("beegfs", "beegfs_nodev", "beegfs"),
        ("gpfs", "gpfs0", "gpfs"),
        ("proc", "proc", ""),
        ("overlay", "overlay", ""),
        ("cgroup2", "cgroup2", ""),
    ],
)
def test_kinds(fstype: str, source: str, kind: str) -> None:
    assert kind == mounts.kind_of(fstype, source)


MOUNTSTATS = r"""
device rootfs mounted on / with fstype rootfs
device filer:/export/data mounted on /data with fstype nfs4 statvers=1.1
	opts:	rw,vers=4.2,rsize=1048576,wsize=1048576,hard,proto=tcp
	age:	7200
	caps:	caps=0x3fffdf,wtmult=512,dtsize=32768,bsize=0,namlen=255
	events:	52 226 0 0 1 13 398 0 0 331 0 47 77 0 0 77 2 0 0 331 0 0 0 0 0 0 0
	bytes:	1000 2000 300 400 1207640230 1210214218 295483 0
	RPC iostats version: 1.1  p/v: 100003/4 (nfs)
	xprt:	tcp 832 0 2 0 11 6428 6428 0 12154 77 2 24 26 5726
	xprt:	tcp 833 0 1 0 11 1000 1000 0 12154 23 2 24 26 5726
	per-op statistics
	NULL: 1 1 0 44 24 0 0 0 0
	READ: 1298 1300 2 207680 1210292152 6000 79386 92000 3
	WRITE: 10 10 0 5000 100 1 20 30 0
	COMMIT: 0 0 0 0 0 0 0 0 0
	GETATTR: 20 20 0 100 100 2 10 13 1
	broken: one two
	ACCESS: 5 3 0 100 100 1 1 1 0
	REMOVE: -1 0 0 0 0 0 0 0 0
	RENAME: 18446744073709551615 1 0 0 0 0 0 0 0

device old:/x mounted on /old\040place with fstype nfs statvers=1.1
	age:	5
	bytes:	1 -2 3
	xprt:	udp 832 0 6428 6428 0 12154 9
	per-op statistics
	READ: 1 1 0 1 1 1000 2000 4000
device tmpfs mounted on /run with fstype tmpfs
	per-op statistics
	READ: 7 7 0 1 1 1000 2000 4000
""".splitlines()


def test_nfs_operations_in_seconds_and_retransmissions() -> None:
    """
    Times are seconds; what was sent more often than it ended was sent again; connections are summed.
    """
    data, old = nfs.parse(MOUNTSTATS)
    read = data.operations["READ"]

    assert ("/data", "filer:/export/data", 7200) == (data.point, data.source, data.age)
    assert (1298, 2, 2, 3) == (read.calls, read.retransmissions, read.timeouts, read.errors)
    assert (6.0, 79.386, 92.0) == (read.queue, read.round_trip, read.all)
    assert {
        ("cached", "read"): 1000,
        ("cached", "write"): 2000,
        ("direct", "read"): 300,
        ("direct", "write"): 400,
        ("server", "read"): 1207640230,
        ("server", "write"): 1210214218,
    } == data.bytes
    assert (3, 7428, 100) == (data.connects, data.calls_sent, data.backlog)
    assert ("/old place", None, None, 9) == (
        old.point,
        old.operations["READ"].errors,
        old.connects,
        old.backlog,
    )


def test_nfs_values_below_zero_or_wrapped_are_dropped() -> None:
    """
    A counter that is negative, wrapped or no number costs its operation only; contradictions tell nothing.
    """
    data, old = nfs.parse(MOUNTSTATS)

    assert not {"broken", "REMOVE", "RENAME"} & set(data.operations)
    assert data.operations["ACCESS"].retransmissions is None
    assert {("cached", "read"): 1, ("direct", "read"): 3} == old.bytes


def test_only_nfs_has_operations() -> None:
    """
    What stands below another file system's head belongs to nobody.
    """
    assert ["/data", "/old place"] == [mount.point for mount in nfs.parse(MOUNTSTATS)]


@pytest.mark.parametrize("cut", range(0, 1400, 37))
def test_a_text_that_was_cut_anywhere_is_read(cut: int) -> None:
    """
    A table that ends in the middle gives what stood before the cut.
    """
    text = "\n".join(MOUNTSTATS)[:cut]

    assert len(nfs.parse(text.splitlines())) <= 2


LLITE = """snapshot_time             1700000000.123456789 secs.nsecs
read_bytes                10 samples [bytes] 4096 1048576 5242880
write_bytes               4 samples [bytes] 100 200 600
open                      7 samples [usecs] 10 90 350
close                     7 samples [regs]
fsync                     2 samples [usec] 1000 3000 4000
"""
IMPORT = "import:\n    name: scratch-OST0000-osc-ffff8800\n    target: scratch-OST0000_UUID\n    state: {}\n"


def lustre_tree(root: Path) -> tuple[Path, Path]:
    """Write a client whose parts stand in two trees, as since Lustre 2.12."""
    proc, debug = root / "proc/fs/lustre", root / "sys/kernel/debug/lustre"
    llite = debug / "llite/scratch-ffff8800"
    llite.mkdir(parents=True)
    (llite / "stats").write_text(LLITE)
    for kind, target, state in (
        ("osc", "OST0000", "FULL"),
        ("osc", "OST0001", "DISCONN"),
        ("mdc", "MDT0000", "IDLE"),
    ):
        for tree in (proc, debug):
            (tree / kind / f"scratch-{target}-{kind}-ffff8800").mkdir(parents=True)
        (proc / kind / f"scratch-{target}-{kind}-ffff8800/import").write_text(IMPORT.format(state))
        (debug / kind / f"scratch-{target}-{kind}-ffff8800/stats").write_text(
            "req_waittime              100 samples [usec] 10 20000 1500000 99\n"
        )
    (proc / "osc/nonsense").mkdir()
    return proc, debug


def test_lustre_is_put_together_from_all_trees(tmp_path: Path) -> None:
    """
    Counts of the mount stand in one tree and the states of its servers in another.
    """
    (client,), problems = lustre.clients(lustre_tree(tmp_path))

    assert () == problems
    assert ("scratch", {"read": 5242880, "write": 600}) == (client.filesystem, client.bytes)
    assert {
        "read": (10, None),
        "write": (4, None),
        "open": (7, 0.00035),
        "close": (7, None),
        "fsync": (2, 0.004),
    } == (client.operations)
    assert [("mdc", "MDT0000", "IDLE"), ("osc", "OST0000", "FULL"), ("osc", "OST0001", "DISCONN")] == [
        (target.kind, target.target, target.state) for target in client.targets
    ]
    assert {(100, 1.5)} == {(target.waits, target.wait_seconds) for target in client.targets}


def test_one_unreadable_file_of_lustre_costs_itself(tmp_path: Path) -> None:
    """
    A file that is a folder is an error of its own; all else is read.
    """
    proc, debug = lustre_tree(tmp_path)
    odd = proc / "osc/scratch-OST0000-osc-ffff8800/import"
    odd.unlink()
    odd.mkdir()

    (client,), problems = lustre.clients((proc, debug))

    assert ["bad_data"] == [problem.reason for problem in problems]
    assert ["IDLE", "", "DISCONN"] == [target.state for target in client.targets]


def test_disks_count_whole_ones_only() -> None:
    """
    Partitions, loops and odd lines are left out; sectors are 512 bytes; flushes came with Linux 5.5.
    """
    lines = (
        " 259 0 nvme0n1 100 1 2000 300 50 2 4000 600 3 700 900 0 0 0 0 5 60",
        " 259 1 nvme0n1p1 100 1 2000 300 50 2 4000 600 3 700 900 0 0 0 0 5 60",
        " 7 0 loop0 1 1 1 1 1 1 1 1 1 1 1",
        " 8 0 sda 1 0 8 2 3 0 16 4 0 5 6",
        " 8 16 sdb -1 0 8 2 3 0 16 4 0 5 6",
        " 8 32 sdc 1",
    )

    new, old = disks.parse(lines, {"nvme0n1", "loop0", "sda", "sdb", "sdc"})

    assert ("nvme0n1", {"read": 100, "write": 50, "flush": 5}) == (new.name, new.calls)
    assert ({"read": 1024000, "write": 2048000}, {"read": 0.3, "write": 0.6, "flush": 0.06}) == (
        new.bytes,
        new.seconds,
    )
    assert (3, 0.7, 0.9) == (new.in_flight, new.busy, new.weighted)
    assert ("sda", {"read": 1, "write": 3}) == (old.name, old.calls)
