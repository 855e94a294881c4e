"""The storage that the node sees: mounts and how they answer, NFS and Lustre clients, local disks."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator

from tocsin_exporter.collectors.base import Sample
from tocsin_exporter.sources.storage import StorageReading, StorageSource
from tocsin_exporter.sources.storage.lustre import LustreClient
from tocsin_exporter.sources.storage.nfs import NfsMount, Operation
from tocsin_exporter.sources.storage.space import Answer

__all__ = ["NAME", "StorageCollector", "build"]

NAME = "storage"

_SILENT_SECONDS = 3.0
# The kernel's names of NFS calls that move data; all others look things up or change names.
_DATA = {"READ": "read", "READ_PLUS": "read", "WRITE": "write", "COMMIT": "commit"}
_HEALTHY = ("FULL", "IDLE")
_LONGEST_SOURCE = 200


class StorageCollector:
    """Serves the last reading."""

    name = NAME

    def __init__(self, source: StorageSource) -> None:
        self._source = source

    def collect(self) -> Iterator[Sample]:
        """Yield the samples of this scrape."""
        reading, error = self._source.latest.read()
        if reading is not None:
            yield from _mounts(reading)
            shown = {mount.point for mount in reading.mounts}
            for mount in reading.nfs:
                if mount.point in shown:
                    yield from _nfs(mount)
            for client in reading.lustre:
                yield from _lustre(client, _point(client, reading))
            yield from _disks(reading)
        if error is not None:
            raise error


def _mounts(reading: StorageReading) -> Iterator[Sample]:
    for mount in reading.mounts:
        key = (mount.point,)
        yield Sample(
            "tocsin_storage_mount_info", (*key, mount.fstype, mount.kind, mount.source[:_LONGEST_SOURCE]), 1
        )
        yield Sample("tocsin_storage_read_only", key, mount.read_only)
        answer = reading.space.get(mount.point)
        if answer is not None:
            yield from _answer(key, answer)


def _answer(key: tuple[str], answer: Answer) -> Iterator[Sample]:
    silent = answer.waiting is not None and answer.waiting >= _SILENT_SECONDS
    took = answer.waiting if silent or answer.seconds is None else answer.seconds
    if took is not None:
        yield Sample("tocsin_storage_response_seconds", key, took)
    if silent or answer.seconds is not None:
        yield Sample("tocsin_storage_responds", key, not silent)
    if answer.error is not None:
        name = errno.errorcode.get(answer.error, str(answer.error))
        yield Sample("tocsin_storage_error_info", (*key, name), 1)
    # What it said before it fell silent is no longer known to be true.
    if answer.space is None or silent:
        return
    for family, value in (
        ("tocsin_storage_size_bytes", answer.space.size),
        ("tocsin_storage_available_bytes", answer.space.available),
        ("tocsin_storage_files", answer.space.files),
        ("tocsin_storage_files_free", answer.space.files_free),
    ):
        if value is not None:
            yield Sample(family, key, value)


def _nfs(mount: NfsMount) -> Iterator[Sample]:
    key = (mount.point,)
    groups: dict[str, list[Operation]] = {op: [] for op in ("read", "write", "commit", "metadata")}
    for name, operation in mount.operations.items():
        groups[_DATA.get(name, "metadata")].append(operation)
        if operation.calls:
            yield Sample("tocsin_storage_nfs_operations_total", (*key, name), operation.calls)
            yield from _seconds("tocsin_storage_nfs_operation_seconds_total", (*key, name), [operation])
    for op, operations in groups.items():
        if not operations:
            continue
        label = (*key, op)
        yield Sample("tocsin_storage_operations_total", label, sum(each.calls for each in operations))
        yield Sample("tocsin_storage_timeouts_total", label, sum(each.timeouts for each in operations))
        yield from _seconds("tocsin_storage_operation_seconds_total", label, operations)
        again = [each.retransmissions for each in operations]
        if None not in again:
            yield Sample("tocsin_storage_retransmissions_total", label, sum(each or 0 for each in again))
        errors = [each.errors for each in operations]
        if None not in errors:
            yield Sample("tocsin_storage_operation_errors_total", label, sum(each or 0 for each in errors))
    for (path, direction), count in mount.bytes.items():
        yield Sample("tocsin_storage_bytes_total", (*key, path, direction), count)
    if mount.connects is not None:
        yield Sample("tocsin_storage_connects_total", key, mount.connects)
    if mount.backlog is not None:
        yield Sample("tocsin_storage_backlog_total", key, mount.backlog)


def _seconds(family: str, label: tuple[str, ...], operations: list[Operation]) -> Iterator[Sample]:
    yield Sample(family, (*label, "queue"), sum(each.queue for each in operations))
    yield Sample(family, (*label, "round_trip"), sum(each.round_trip for each in operations))
    yield Sample(family, (*label, "all"), sum(each.all for each in operations))


def _point(client: LustreClient, reading: StorageReading) -> str:
    """Return where a Lustre file system is mounted; its name where no mount shows it."""
    for mount in reading.mounts:
        if mount.kind == "lustre" and mount.source.rpartition(":/")[2].split("/")[0] == client.filesystem:
            return mount.point
    return client.filesystem


def _lustre(client: LustreClient, point: str) -> Iterator[Sample]:
    groups: dict[str, list[tuple[int, float | None]]] = {}
    for name, counted in client.operations.items():
        groups.setdefault(name if name in ("read", "write") else "metadata", []).append(counted)
    for op, rows in groups.items():
        yield Sample("tocsin_storage_operations_total", (point, op), sum(calls for calls, _ in rows))
        seconds = [spent for _, spent in rows if spent is not None]
        if seconds:
            yield Sample("tocsin_storage_operation_seconds_total", (point, op, "all"), sum(seconds))
    for direction, count in client.bytes.items():
        yield Sample("tocsin_storage_bytes_total", (point, "application", direction), count)
    states = Counter((target.kind, target.state) for target in client.targets if target.state)
    for (kind, state), count in states.items():
        yield Sample("tocsin_storage_targets", (point, kind, state), count)
    for target in client.targets:
        key = (point, target.target)
        if target.state:
            yield Sample("tocsin_storage_target_connected", key, target.state in _HEALTHY)
        if target.waits is not None:
            yield Sample("tocsin_storage_target_requests_total", key, target.waits)
        if target.wait_seconds is not None:
            yield Sample("tocsin_storage_target_wait_seconds_total", key, target.wait_seconds)


def _disks(reading: StorageReading) -> Iterator[Sample]:
    for disk in reading.disks:
        for op, calls in disk.calls.items():
            yield Sample("tocsin_storage_disk_operations_total", (disk.name, op), calls)
        for op, seconds in disk.seconds.items():
            yield Sample("tocsin_storage_disk_operation_seconds_total", (disk.name, op), seconds)
        for direction, count in disk.bytes.items():
            yield Sample("tocsin_storage_disk_bytes_total", (disk.name, direction), count)
        yield Sample("tocsin_storage_disk_busy_seconds_total", (disk.name,), disk.busy)
        yield Sample("tocsin_storage_disk_queue_seconds_total", (disk.name,), disk.weighted)
        yield Sample("tocsin_storage_disk_in_flight", (disk.name,), disk.in_flight)


def build(source: StorageSource) -> StorageCollector:
    """Return the collector."""
    return StorageCollector(source)
