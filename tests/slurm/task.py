"""
A task of a job: says which device files it may open, then waits until it is told to end.

``task.py OUT NAME`` writes ``OUT/NAME-PID.json`` with its pid and the minors of the GPUs that the kernel lets
it open. It ends when ``OUT/end-NAME`` is there, at the latest after two minutes.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from pathlib import Path


def allowed(folder: Path) -> list[int]:
    """Return the minors of the device files that this process may open; nothing serves them, none opens."""
    found = []
    for path in folder.glob("nvidia*"):
        try:
            os.close(os.open(path, os.O_RDWR))
        except OSError as err:
            # A device cgroup refuses with EPERM before anybody looks for a driver.
            if err.errno == errno.EPERM:
                continue
        found.append(int(path.name.removeprefix("nvidia")))
    return sorted(found)


def main() -> None:
    """Write the facts and wait."""
    out, name = Path(sys.argv[1]), sys.argv[2]
    facts = {"pid": os.getpid(), "allowed": allowed(out.parent / "dev")}
    fresh = out / f".{name}-{os.getpid()}"
    fresh.write_text(json.dumps(facts), "utf-8")
    fresh.rename(out / f"{name}-{os.getpid()}.json")
    end = time.monotonic() + 120
    while time.monotonic() < end and not (out / f"end-{name}").exists():
        time.sleep(0.1)


if __name__ == "__main__":
    main()
