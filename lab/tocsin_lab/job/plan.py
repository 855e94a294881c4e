"""Decides what a request to a job changes. Pure: record and spare GPUs in, new record or a reason out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin_lab.errors import JobError
from tocsin_lab.job.spec import JobRecord, Slot
from tocsin_lab.sim.node import Gpu

__all__ = ["move_rank", "restart", "stop"]


def _started(record: JobRecord) -> JobRecord:
    return replace(record, attempt=record.attempt + 1, wanted="running")


def restart(record: JobRecord, spare: Sequence[Gpu], exclude_node: str | None) -> JobRecord:
    """The next attempt, from the last checkpoint; with ``exclude_node`` its ranks go to spare GPUs elsewhere.

    Raises:
        JobError: there are not enough spare GPUs outside the node.
    """
    if exclude_node is None:
        return _started(record)
    leaving = [rank for rank, slot in enumerate(record.placement) if slot.node == exclude_node]
    free = [gpu for gpu in spare if gpu.node != exclude_node]
    if len(free) < len(leaving):
        raise JobError(
            f"{len(leaving)} ranks run on {exclude_node} and {len(free)} spare GPUs are left outside it: "
            "free GPUs on other nodes, or restart in place"
        )
    places = list(record.placement)
    for rank, gpu in zip(leaving, free, strict=False):
        places[rank] = Slot(gpu.node, gpu.index)
    return _started(replace(record, placement=tuple(places)))


def move_rank(
    record: JobRecord, spare: Sequence[Gpu], rank: int, current_uuid: str, avoid_gpu: str
) -> JobRecord:
    """The next attempt with one rank on another GPU, of its own node when one is spare there.

    The same record when the rank is not on ``avoid_gpu`` (any more).

    Raises:
        JobError: no such rank, or no spare GPU.
    """
    if not 0 <= rank < len(record.placement):
        raise JobError(f"rank {rank}: the job has ranks 0 to {len(record.placement) - 1}")
    if current_uuid != avoid_gpu:
        return record
    node = record.placement[rank].node
    free = sorted(
        (gpu for gpu in spare if gpu.uuid != avoid_gpu),
        key=lambda gpu: (gpu.node != node, gpu.node, gpu.index),
    )
    if not free:
        raise JobError(
            f"no spare GPU for rank {rank}: none is free on any node; free one or restart in place"
        )
    places = list(record.placement)
    places[rank] = Slot(free[0].node, free[0].index)
    avoided = (*(uuid for uuid in record.avoided if uuid != avoid_gpu), avoid_gpu)
    return _started(replace(record, placement=tuple(places), avoided=avoided))


def stop(record: JobRecord) -> JobRecord:
    """The record of a job that should not run."""
    return replace(record, wanted="stopped")
