"""Lines that say that something broke, and which way NCCL's traffic goes."""

from __future__ import annotations

import re

from tocsin_exporter.parser.clean import Line
from tocsin_exporter.parser.context import Context
from tocsin_exporter.parser.event import Event

__all__ = ["failure", "transport"]

_OOM = re.compile(
    r"\bOutOfMemoryError\b|CUDA out of memory|CUDA error: out of memory|HIP out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|RESOURCE_EXHAUSTED: (?:Out of memory|.{0,400}[Aa]llocat)"
    r"|OOM when allocating tensor|CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED"
    r"|Cuda failure (?:\d{1,6} )?'out of memory'"
)
_WATCHDOG = re.compile(
    r"[Ww]atchdog caught collective operation timeout|ProcessGroupNCCL's watchdog got stuck"
    r"|watchdog (?:thread )?(?:got|has been) stuck"
)
_BACKEND = re.compile(
    r"\bDistBackendError\b|\bNCCL (?:[Ee]rror\b|[Bb]ackend [Ee]rror)|"
    r"\bnccl(?:Unhandled|System|Internal|Remote)\w*Error"
    r"|\bncclInvalid(?:Usage|Argument)\b|NCCL communicator was aborted"
    r"|gloo/transport/.{0,200}(?:[Cc]onnection|[Tt]imed out)"
    r"|ProcessGroupGloo.{0,400}(?:error|timeout)"
    r"|NCCL WARN .{0,200}(?:[Ff]ail|[Ee]rror|[Tt]imeout|closed by remote|unhandled)"
)
_RANK = re.compile(r"\b[Rr]ank (\d{1,6})\b")
_FINAL = re.compile(r"^([A-Za-z_][\w.]*)(?::\s|:?$)")
_EXCEPTION_NAME = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Warning|Failure|Timeout|StopIteration|Iteration|Cancelled|Invalid\w*"
    r"|Abort\w*|Fault|Group)$"
)


def failure(line: Line, context: Context) -> Event | None:
    """
    Return the failure that *line* tells.

    An exhausted device memory or a broken collective is never an ``exception`` too, although
    a traceback ends with it. Words inside the frames of a traceback are source code, not events.
    """
    text = line.text
    if text.startswith("Traceback (most recent call last)"):
        context.in_traceback = True
        return None
    framed = context.in_traceback and (text[:1].isspace() or not text)
    if framed:
        return None
    kind = _kind(text)
    if context.in_traceback:
        context.in_traceback = False
        final = _FINAL.match(text)
        if kind is None and final and _EXCEPTION_NAME.search(final.group(1)):
            kind = "exception"
    if kind is None:
        return None
    rank = line.rank
    if rank is None and kind == "watchdog_timeout":
        named = _RANK.search(text)
        rank = int(named.group(1)) if named else None
    return Event(kind, line.number, rank=rank, local_rank=line.local_rank)


def _kind(text: str) -> str | None:
    if ("emory" in text or "MEMORY" in text or "OOM" in text or "ALLOC_FAILED" in text) and _OOM.search(text):
        return "oom"
    if "atchdog" in text and _WATCHDOG.search(text):
        return "watchdog_timeout"
    if (
        "NCCL" in text or "nccl" in text or "gloo" in text or "Gloo" in text or "Dist" in text
    ) and _BACKEND.search(text):
        return "nccl_error"
    return None


_NETWORK = re.compile(r"NCCL INFO (?:.{0,400}: )?Using network (\S.{0,400})$")
_CHANNEL = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? ?: [^>]{0,200}-> [^>]{0,200}?\bvia (\S.{0,400})$")
_PATHS = (("P2P", "p2p"), ("SHM", "shm"), ("NVLS", "nvls"))


def transport(line: Line, context: Context) -> Event | None:
    """Return the transport of a "Using network" or channel line; the bootstrap network is no transport."""
    text = line.text
    if "NCCL INFO" not in text:
        return None
    network = _NETWORK.search(text)
    if network:
        return _transport(line, _network(network.group(1).strip()), None)
    channel = _CHANNEL.search(text)
    if not channel:
        return None
    via = channel.group(1).strip()
    for prefix, name in _PATHS:
        if via.startswith(prefix):
            return _transport(line, name, None)
    if via.startswith("NET/"):
        return _transport(line, _network(via.split("/")[1]), "GDRDMA" in via)
    return None


def _network(name: str) -> str:
    return {"Socket": "socket", "IB": "ib"}.get(name, "plugin")


def _transport(line: Line, name: str, gdr: bool | None) -> Event:
    return Event(
        "nccl_transport", line.number, rank=line.rank, local_rank=line.local_rank, transport=name, gdr=gdr
    )
