"""The run directory: where a lab keeps everything it writes, and the record of what it started."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tocsin_common import files
from tocsin_lab.errors import LabError
from tocsin_lab.stack.procs import ProcessId, alive, end


def default_run_dir(env: Mapping[str, str], uid: int) -> Path:
    """Return where a lab of this user keeps its files unless told otherwise."""
    runtime = env.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "tocsin-lab"
    return Path("/tmp") / f"tocsin-lab-{uid}"  # noqa: S108 - made private and checked by prepare()


def check_own(folder: Path) -> None:
    """LabError unless *folder* is a directory that this user alone can write to."""
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o022:
        raise LabError(f"{folder} is not a directory of this user alone; choose another with --run-dir")


def open_own(path: Path) -> int:
    """
    Open or create a file that lies beside a run directory, for this user alone; returns the descriptor.

    In /tmp another user may have put a link or a file of that name there first: LabError.
    """
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as err:
        raise LabError(f"{path}: {err.strerror}; remove it, or choose another --run-dir") from err
    seen = os.fstat(descriptor)
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid():
        os.close(descriptor)
        raise LabError(f"{path} is not a file of this user; choose another --run-dir")
    return descriptor


@dataclass(frozen=True)
class RunDir:
    """The paths of one lab (CONTRIBUTING, "the lab's run directory")."""

    root: Path

    @property
    def record(self) -> Path:
        return self.root / "stack.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def node(self, name: str) -> Path:
        return self.root / "nodes" / name

    def job(self, name: str) -> Path:
        return self.root / "jobs" / name

    def part(self, name: str) -> Path:
        return self.root / name

    def prepare(self) -> None:
        """Create the directory for this user alone; LabError when it belongs to somebody else."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.root.mkdir(mode=0o700)
        except FileExistsError:
            check_own(self.root)
        for folder in (self.logs, self.root / "nodes", self.root / "jobs"):
            folder.mkdir(exist_ok=True)

    def remove(self) -> None:
        """Delete the directory and all that the lab wrote into it."""
        shutil.rmtree(self.root, ignore_errors=True)


@dataclass(frozen=True)
class Component:
    """One started process: what it is called, which process it is, where it answers and logs."""

    name: str
    pid: int
    start: int
    log: str
    url: str = ""

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.pid, self.start)


@dataclass(frozen=True)
class StackRecord:
    """What ``stack.json`` says about a lab."""

    supervisor: ProcessId
    boot_id: str
    ready: bool
    urls: dict[str, str]
    components: tuple[Component, ...] = ()
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def write(self, path: Path) -> None:
        """Replace the file in one step, so that a reader never sees half of it."""
        body = asdict(self)
        body["pids"] = {part.name: part.pid for part in self.components}
        files.replace(path, json.dumps(body, indent=1).encode())


def read_record(path: Path) -> StackRecord | None:
    """
    Return the record of a lab; None when there is none, LabError when it cannot be read as one.

    It names processes that may be ended, so a directory that somebody else can write to has none.
    """
    try:
        check_own(path.parent)
        body = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as err:
        raise LabError(
            f"{path}: not a record of a lab ({err}); remove the directory if nothing uses it"
        ) from err
    try:
        return StackRecord(
            supervisor=ProcessId(**body["supervisor"]),
            boot_id=str(body["boot_id"]),
            ready=bool(body["ready"]),
            urls=dict(body["urls"]),
            components=tuple(Component(**part) for part in body["components"]),
            nodes=tuple(body["nodes"]),
            jobs=tuple(body["jobs"]),
            notes=tuple(body["notes"]),
        )
    except (KeyError, TypeError) as err:
        raise LabError(
            f"{path}: not a record of a lab ({err}); remove the directory if nothing uses it"
        ) from err


def boot_id(procfs: Path = Path("/proc")) -> str:
    """Return the identity of this boot; start times of processes mean nothing in another."""
    try:
        return (procfs / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def running(record: StackRecord) -> bool:
    """Tell whether the lab of *record* still runs."""
    return record.boot_id == boot_id() and alive(record.supervisor)


def clean_up(run: RunDir, record: StackRecord) -> list[str]:
    """
    Remove what a killed lab left: its processes, if they are still exactly those, and its directory.

    Returns the names of components that had to be stopped. LabError when one cannot be.
    """
    stopped: list[str] = []
    if record.boot_id == boot_id():
        left = [part for part in record.components if alive(part.process)]
        stopped = [part.name for part in left]
        stubborn = end([part.process for part in left], grace=3.0)
        if stubborn:
            pids = ", ".join(str(process.pid) for process in stubborn)
            raise LabError(
                f"processes {pids} of an earlier lab do not end; look at them with ps and end them"
            )
    run.remove()
    return stopped
