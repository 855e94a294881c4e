"""A real Slurm of two virtual nodes on this machine, with GPUs that are only device files."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests import debian
from tests.debian import UnavailableError

__all__ = ["NODES", "SlurmCluster", "UnavailableError", "programs"]

NODES = ("gpu1", "gpu2")
_GPUS_PER_NODE = 2
_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
_DAEMONS = ("slurmctld", "slurmd", "slurmstepd")
_CONTROLLERS = ("freezer", "devices", "memory", "cpuset", "cpuacct")


def programs(root: Path) -> Path:
    """
    Return a tree with Debian's Slurm, unpacked beside the system: no service of it is ever started.

    Raises UnavailableError where it cannot be had.
    """
    if os.geteuid() != 0:
        raise UnavailableError("Slurm's daemons and device files need root")
    tree = root / ".tools" / "slurm"
    if (tree / "usr/sbin/slurmstepd").is_file():
        return tree
    plan = subprocess.run(
        ["apt-get", "-s", "-qq", "install", "--no-install-recommends", *_PACKAGES],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    names = [line.split()[1] for line in plan.stdout.splitlines() if line.startswith("Inst ")]
    if plan.returncode or "slurmd" not in names:
        raise UnavailableError(f"apt offers no Slurm: {plan.stderr.strip()[-200:]}")
    debian.fetch("Slurm", names, root / ".tools" / "apt-slurm", tree)
    for name in _DAEMONS:
        # Which daemon it is, Slurm's own library knows by the program's name.
        link = tree / "usr/sbin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(f"{name}-wlm")
    return tree


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SlurmCluster:
    """
    One controller and two node daemons, each with two GPUs.

    ``tracking`` is "cgroup/v1" (where the machine has the hierarchies) or "linuxproc". The GPUs of gpu1 are
    /dev-like files with the minors 0 and 1, those of gpu2 2 and 3: Slurm counts both from 0.
    """

    def __init__(self, tree: Path, run: Path, tracking: str) -> None:
        self.tree, self.run, self.tracking = tree, run, tracking
        self._processes: list[subprocess.Popen[bytes]] = []
        libraries = tree / "usr/lib" / f"{os.uname().machine}-linux-gnu"
        self._libraries = f"{libraries}:{libraries / 'slurm-wlm'}"
        self.env = {
            **{name: os.environ[name] for name in ("HOME", "LANG", "USER") if name in os.environ},
            "PATH": f"{tree / 'usr/bin'}:/usr/local/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": self._libraries,
            "SLURM_CONF": str(run / "slurm.conf"),
        }

    # the daemons

    def start(self) -> None:
        """Start everything and wait until both nodes are idle; UnavailableError with what went wrong."""
        if self.tracking == "cgroup/v1" and not _cgroups_there():
            raise UnavailableError("this machine has no cgroups of the first version")
        for folder in ("log", "state", "dev", "out"):
            (self.run / folder).mkdir(parents=True)
        self._write_configuration()
        self._make_devices()
        key = self.run / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._spawn(
            "usr/sbin/munged", "--foreground", "--force", f"--socket={self.run}/munge.sock",
            f"--key-file={key}", f"--pid-file={self.run}/munged.pid", f"--log-file={self.run}/log/munged.log",
            f"--seed-file={self.run}/munge.seed",
        )  # fmt: skip
        self._until(lambda: (self.run / "munge.sock").exists(), "munged has no socket")
        self._spawn("usr/sbin/slurmctld", "-D", "-c")
        for node in NODES:
            self._spawn("usr/sbin/slurmd", "-D", "-N", node, "-d", str(self.tree / "usr/sbin/slurmstepd"))
        self._until(self._idle, "the nodes do not become idle")

    def stop(self) -> None:
        """End all jobs, all daemons and what is left of their cgroups."""
        if self._processes:
            self._call("scancel", "--signal=KILL", "--full", "-u", "root")
            self._call("scancel", "-u", "root")
            for _ in range(50):
                if not self._call("squeue", "-h").strip():
                    break
                time.sleep(0.1)
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        _remove_cgroups()

    def _spawn(self, program: str, *arguments: str) -> None:
        log = (self.run / "log" / f"spawn-{len(self._processes)}.txt").open("wb")
        with log:
            self._processes.append(
                subprocess.Popen(
                    [str(self.tree / program), *arguments],
                    env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.run,
                )
            )  # fmt: skip

    def _idle(self) -> bool:
        return self._call("sinfo", "-h", "-o", "%T", "-N").split() == ["idle"] * len(NODES)

    def _until(self, done: Callable[[], object], complaint: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(process.poll() is not None for process in self._processes):
                complaint = "a daemon ended"
                break
            if done():
                return
            time.sleep(0.1)
        tails = [path.read_text("utf-8", "replace")[-600:] for path in sorted((self.run / "log").iterdir())]
        self.stop()
        raise UnavailableError(f"{complaint}; logs: {' | '.join(tails)}")

    def _make_devices(self) -> None:
        for minor in range(len(NODES) * _GPUS_PER_NODE):
            path = self.run / "dev" / f"nvidia{minor}"
            try:
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(195, minor))
            except OSError as err:
                raise UnavailableError(f"no device files can be made here: {err}") from err

    def _write_configuration(self) -> None:
        cgroup = self.tracking == "cgroup/v1"
        run, host = self.run, socket.gethostname()
        kinds = {
            "ProctrackType": "proctrack/cgroup" if cgroup else "proctrack/linuxproc",
            "TaskPlugin": "task/cgroup" if cgroup else "task/none",
            "JobAcctGatherType": "jobacct_gather/cgroup" if cgroup else "jobacct_gather/none",
        }
        settings = {
            "ClusterName": "t",
            # Far from the numbers that other tests on this machine use.
            "FirstJobId": "600001",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": str(_free_port()),
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={run}/munge.sock",
            "CommunicationParameters": "NoCtldInAddrAny,NoInAddrAny",
            "PluginDir": self._libraries.split(":")[1],
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "StateSaveLocation": f"{run}/state",
            "SlurmdSpoolDir": f"{run}/spool-%n",
            "SlurmctldPidFile": f"{run}/slurmctld.pid",
            "SlurmdPidFile": f"{run}/slurmd-%n.pid",
            "SlurmctldLogFile": f"{run}/log/ctld.log",
            "SlurmdLogFile": f"{run}/log/slurmd-%n.log",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "SchedulerParameters": "sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0",
            "MpiDefault": "none",
            "ReturnToService": "2",
            "SlurmdTimeout": "30",
            "InactiveLimit": "0",
            "KillWait": "2",
            "JobRequeue": "1",
            "GresTypes": "gpu",
            "SlurmdParameters": "config_overrides",
            **kinds,
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        lines += [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={_free_port()} CPUs=4"
            f" RealMemory=2000 Gres=gpu:h200:{_GPUS_PER_NODE}"
            for node in NODES
        ]
        lines.append(f"PartitionName=main Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP")
        (run / "slurm.conf").write_text("\n".join(lines) + "\n", "utf-8")
        gres = ["AutoDetect=off"]
        for number, node in enumerate(NODES):
            first = number * _GPUS_PER_NODE
            files = f"{run}/dev/nvidia[{first}-{first + _GPUS_PER_NODE - 1}]"
            gres.append(f"NodeName={node} Name=gpu Type=h200 File={files}")
        (run / "gres.conf").write_text("\n".join(gres) + "\n", "utf-8")
        if cgroup:
            (run / "cgroup.conf").write_text(
                "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n"
                "ConstrainDevices=yes\nConstrainCores=no\nConstrainRAMSpace=no\n",
                "utf-8",
            )

    # the commands

    def _run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, executable=str(self.tree / "usr/bin" / argv[0]), env=self.env, cwd=self.run / "out",
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def _call(self, *argv: str) -> str:
        done = self._run(*argv)
        return done.stdout if done.returncode == 0 else ""

    def command(self, *argv: str) -> str:
        """Run one of Slurm's commands and return its output; AssertionError with its last words otherwise."""
        done = self._run(*argv)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip()}"
        return done.stdout

    def sbatch(self, script: str, *options: str) -> str:
        """Submit a batch script; return the job's id."""
        path = self.run / "out" / f"job-{time.monotonic_ns()}.sh"
        path.write_text(script, "utf-8")
        return self.command("sbatch", "--parsable", *options, str(path)).strip()

    def state(self, job: str) -> str:
        """Return a job's state as squeue or scontrol tells it, '' when it is forgotten."""
        text = self._call("scontrol", "show", "job", job)
        return next((word[9:] for word in text.split() if word.startswith("JobState=")), "")


def _cgroups_there() -> bool:
    return all(os.access(f"/sys/fs/cgroup/{name}/cgroup.procs", os.W_OK) for name in _CONTROLLERS)


def _remove_cgroups() -> None:
    for controller in _CONTROLLERS:
        for node in NODES:
            top = Path("/sys/fs/cgroup") / controller / f"slurm_{node}"
            for folder, _, _ in os.walk(top, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    # Still in use, or gone meanwhile.
                    continue
