"""The launcher of one job, as torchrun is: starts ranks and obeys requests on a Unix socket.

``python -m tocsin_lab.job.supervisor --run-dir $RUN --job demo`` runs in the foreground until SIGTERM.

A request first changes the record on disk (with its answer under its request id) and then the processes:
a launcher that dies in between comes back to what was decided, and the same id is never acted on twice.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import queue
import signal
import socketserver
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tocsin_lab.errors import JobError, LabError
from tocsin_lab.job import plan
from tocsin_lab.job.launch import RankProcess, end_ranks, start_ranks
from tocsin_lab.job.spec import JobPaths, JobRecord, load_record, save_record, spare_gpus
from tocsin_lab.sim.build import build
from tocsin_lab.sim.node import gpus_of

__all__ = ["Supervisor", "describe", "main"]

_TICK_SECONDS = 0.2
_MAX_LINE = 64 << 10
_ANSWER_SECONDS = 60.0


def describe(paths: JobPaths, record: JobRecord, ranks: list[RankProcess]) -> dict[str, Any]:
    """The answer to ``status``; with no ranks, that of a job whose launcher does not run."""
    gpus = {node: gpus_of(paths.run_dir, node) for node in {slot.node for slot in record.placement}}
    by_rank = {one.rank: one for one in ranks}
    rows = []
    for rank, slot in enumerate(record.placement):
        one = by_rank.get(rank)
        rows.append(
            {
                "rank": rank,
                "node": slot.node,
                "gpu": slot.gpu,
                "gpu_uuid": gpus[slot.node][slot.gpu].uuid,
                "pid": one.process.pid if one else None,
                "alive": one is not None and one.exit is None,
                "exit": one.exit if one else None,
            }
        )
    spare = [
        {"node": gpu.node, "gpu": gpu.index, "gpu_uuid": gpu.uuid}
        for gpu in spare_gpus(paths.run_dir, record)
    ]
    return {
        "job_id": record.job_id,
        "state": _state(record, ranks),
        "attempt": max(0, record.attempt),
        "ranks": rows,
        "spare": spare,
    }


def _state(record: JobRecord, ranks: list[RankProcess]) -> str:
    exits = [one.exit for one in ranks]
    if any(code is None for code in exits):
        return "running"
    if record.wanted == "stopped" or not exits:
        return "stopped"
    return "finished" if all(code == 0 for code in exits) else "failed"


@dataclass
class _Request:
    body: dict[str, Any]
    answer: dict[str, Any] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.connection.settimeout(_ANSWER_SECONDS)
        try:
            line = self.rfile.readline(_MAX_LINE)
            body = json.loads(line)
            if not isinstance(body, dict):
                raise ValueError("not an object")
        except (OSError, ValueError) as error:
            self._reply({"ok": False, "error": f"the request is no JSON object on one line: {error}"})
            return
        request = _Request(body)
        self.server.requests.put(request)
        if not request.done.wait(_ANSWER_SECONDS):
            request.answer = {"ok": False, "error": f"the launcher did not answer in {_ANSWER_SECONDS:.0f} s"}
        self._reply(request.answer)

    def _reply(self, answer: dict[str, Any]) -> None:
        try:
            self.wfile.write((json.dumps(answer) + "\n").encode())
        except OSError:
            # The client went away; the answer stays under its request id.
            return


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, requests: queue.Queue[_Request]) -> None:
        self.requests = requests
        super().__init__(path, _Handler)


class Supervisor:
    """One job's launcher.

    Ranks are started by the thread that calls `serve`: the kernel's parent-death signal follows the *thread*.
    """

    def __init__(self, paths: JobPaths, libraries: Path) -> None:
        self._paths = paths
        self._libraries = libraries
        self._record = load_record(paths)
        self._ranks: list[RankProcess] = []
        self._reported: set[int] = set()
        self._requests: queue.Queue[_Request] = queue.Queue(maxsize=256)
        self._stopping = False

    def serve(self, ready: Callable[[], None]) -> None:
        """Start what the record wants, call ``ready``, then answer requests until a signal or `shutdown`."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._paths.socket.unlink(missing_ok=True)
        # A socket path is at most 107 bytes; relative to the job folder it always fits.
        os.chdir(self._paths.root)
        server = _Server(self._paths.socket.name, self._requests)
        # Whoever may write to the socket may restart the job.
        os.chmod(self._paths.socket.name, 0o600)
        listener = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        listener.start()
        try:
            if self._record.wanted == "running":
                self._commit(replace(self._record, attempt=self._record.attempt + 1))
                self._start()
            ready()
            while not self._stopping:
                try:
                    request = self._requests.get(timeout=_TICK_SECONDS)
                except queue.Empty:
                    self._watch()
                    continue
                self._watch()
                request.answer = self._answer(request.body)
                request.done.set()
        finally:
            server.shutdown()
            server.server_close()
            end_ranks(self._ranks)
            self._paths.socket.unlink(missing_ok=True)

    def _on_signal(self, *_: object) -> None:
        self._stopping = True

    def _log(self, text: str) -> None:
        sys.stderr.write(f"{self._record.job_id}: {text}\n")
        sys.stderr.flush()

    def _commit(self, record: JobRecord) -> None:
        save_record(self._paths, record)
        self._record = record

    def _start(self) -> None:
        self._reported.clear()
        self._ranks = start_ranks(self._paths, self._record, self._libraries)
        self._log(f"attempt {self._record.attempt}: started {len(self._ranks)} ranks")

    def _watch(self) -> None:
        """Reap ranks that ended; peers live on unless the job says otherwise, as under plain srun."""
        for one in self._ranks:
            code = one.exit
            if code is None or one.rank in self._reported:
                continue
            self._reported.add(one.rank)
            self._log(f"rank {one.rank} (pid {one.process.pid}) ended, exitcode {code}")
            if code != 0 and self._record.on_rank_exit == "kill":
                self._log("ending its peers")
                end_ranks(self._ranks)

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        action = body.get("op")
        request_id = body.get("request_id")
        before = self._record
        try:
            if action == "status":
                return {"ok": True, **describe(self._paths, self._record, self._ranks)}
            if request_id is not None:
                if not isinstance(request_id, str) or not 1 <= len(request_id) <= 200:
                    raise JobError("request_id: a text of 1 to 200 characters")
                if request_id in self._record.requests:
                    return self._record.requests[request_id]
            if action == "shutdown":
                self._stopping = True
                return {"ok": True, "job_id": self._record.job_id, "action": "shutdown"}
            return self._act(str(action), body, request_id)
        except (LabError, OSError) as error:
            text = str(error) if isinstance(error, LabError) else f"{action}: {error}"
            # Whoever asked may go another way only if nothing has changed.
            applied = self._record is not before
            return {"ok": False, "applied": applied, "job_id": before.job_id, "error": text}

    def _act(self, action: str, body: dict[str, Any], request_id: str | None) -> dict[str, Any]:
        before = self._record
        spare = spare_gpus(self._paths.run_dir, before)
        if action == "stop":
            target = plan.stop(before)
        elif action == "restart":
            target = plan.restart(before, spare, _text(body, "exclude_node"))
        elif action == "move_rank":
            rank = body.get("rank")
            if not isinstance(rank, int) or isinstance(rank, bool):
                raise JobError("rank: a whole number")
            avoid = _text(body, "avoid_gpu")
            if avoid is None:
                raise JobError("avoid_gpu: the UUID of the GPU to leave")
            current = ""
            if 0 <= rank < len(before.placement):
                slot = before.placement[rank]
                current = gpus_of(self._paths.run_dir, slot.node)[slot.gpu].uuid
            target = plan.move_rank(before, spare, rank, current, avoid)
        else:
            raise JobError(f"op {action!r}: status, restart, move_rank, stop or shutdown")
        answer = {
            "ok": True,
            "job_id": target.job_id,
            "action": action,
            "changed": target is not before,
            "attempt": max(0, target.attempt),
            "moved": _moves(self._paths, before, target),
        }
        if request_id is not None:
            target = target.answered(request_id, answer)
        if target is not before:
            self._commit(target)
        if answer["changed"]:
            self._log(f"{action}{f' ({request_id})' if request_id else ''}")
            end_ranks(self._ranks)
            if target.wanted == "running":
                self._start()
        return answer


def _text(body: dict[str, Any], key: str) -> str | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= 200:
        raise JobError(f"{key}: a text of 1 to 200 characters")
    return value


def _moves(paths: JobPaths, before: JobRecord, after: JobRecord) -> list[dict[str, Any]]:
    moved = []
    for rank, (old, new) in enumerate(zip(before.placement, after.placement, strict=True)):
        if old != new:
            uuid = gpus_of(paths.run_dir, new.node)[new.gpu].uuid
            moved.append({"rank": rank, "node": new.node, "gpu": new.gpu, "gpu_uuid": uuid})
    return moved


def _detach() -> Callable[[], None]:
    """Go on in a child that leads its own session; the parent ends once the returned function is called.

    Its exit status is 1 when the child ends before that.
    """
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        os._exit(0 if os.read(reader, 1) else 1)
    os.close(reader)
    os.setsid()

    def ready() -> None:
        os.write(writer, b"r")
        os.close(writer)

    return ready


def main(argv: list[str] | None = None) -> int:
    """Command line; 1 when another launcher has the job, 2 when it cannot be started."""
    parser = argparse.ArgumentParser(prog="python -m tocsin_lab.job.supervisor", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--lib", type=Path, default=None, help="folder of the native libraries (.build/lib)")
    parser.add_argument("--detach", action="store_true", help="return once the ranks are started")
    arguments = parser.parse_args(argv)
    ready = _detach() if arguments.detach else lambda: None
    paths = JobPaths(arguments.run_dir.resolve(), arguments.job)
    try:
        libraries = arguments.lib or Path(".build/lib")
        build(libraries)
        load_record(paths)
        with (paths.root / "supervisor.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"error: another launcher runs job {arguments.job!r}", file=sys.stderr)
                return 1
            Supervisor(paths, libraries.resolve()).serve(ready)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
