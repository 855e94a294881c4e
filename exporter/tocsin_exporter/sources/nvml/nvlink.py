"""How many NVLinks a device has and what is at their other ends; the fabric domain that it is in."""

from __future__ import annotations

from typing import Any

from tocsin_exporter.sources.nvml.calls import Library
from tocsin_exporter.sources.nvml.fields import Batch
from tocsin_exporter.sources.nvml.reads import AMPERE, C2C, HOPPER, NVLINK, Scope
from tocsin_exporter.sources.nvml.results import SUCCESS
from tocsin_exporter.sources.nvml.values import Value

__all__ = ["count_links", "link_rows", "remote_rows"]

_MOST_LINKS = 72
_MOST_C2C = 14
_LINK_COUNT, _C2C_COUNT, _REMOTE_LINK = 91, 170, 146
# nvmlIntNvLinkDeviceType_t
_REMOTE = {0: "gpu", 1: "cpu", 2: "switch"}


def count_links(library: Library, handle: Any, architecture: int) -> dict[str, int]:
    """Return kind of link -> how many the device has, by its own count or by asking one after the other."""
    links = _field(library, handle, _LINK_COUNT, 0)
    if links is None:
        links = 0
        while links < _MOST_LINKS and library.ask("nvmlDeviceGetNvLinkState", handle, links) is not None:
            links += 1
    c2c = _field(library, handle, _C2C_COUNT, 0) if architecture >= HOPPER else 0
    return {NVLINK: min(links, _MOST_LINKS), C2C: min(c2c or 0, _MOST_C2C)}


def link_rows(scope: Scope, rows: list[Value]) -> list[Value]:
    """Return how many NVLinks there are and how many of them are up, from the *rows* read of each."""
    if not scope.links[NVLINK]:
        return []
    found: list[Value] = [("nvlinks", (), float(scope.links[NVLINK]))]
    states = [value for name, _, value in rows if name == "nvlink_active"]
    if states:
        found.append(("nvlinks_active", (), sum(states)))
    return found


def remote_rows(library: Library, handle: Any, scope: Scope) -> list[Value]:
    """Return an info row per NVLink that is up."""
    found: list[Value] = []
    for link in range(scope.links[NVLINK]):
        if library.ask("nvmlDeviceGetNvLinkState", handle, link) != 1:
            continue
        kind = library.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        pci = library.ask("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link)
        version = library.ask("nvmlDeviceGetNvLinkVersion", handle, link)
        remote = _field(library, handle, _REMOTE_LINK, link) if scope.architecture >= AMPERE else None
        labels = (
            str(link),
            "" if version is None else str(version),
            _REMOTE.get(kind, "") if kind is not None else "",
            pci.busId.decode("ascii", "replace").lower() if pci is not None else "",
            "" if remote is None else str(remote),
        )
        found.append(("nvlink_info", labels, 1.0))
    return found


def fabric_rows(library: Library, handle: Any) -> list[Value]:
    """Return an info row of the fabric domain; none where the device is in none."""
    for form in ("nvmlDeviceGetGpuFabricInfoV/3", "nvmlDeviceGetGpuFabricInfoV/2"):
        info = library.ask(form, handle)
        if info is not None:
            cluster = bytes(info.clusterUuid).hex()
            return [("fabric_info", (str(info.cliqueId), cluster), 1.0)] if any(info.clusterUuid) else []
    return []


def _field(library: Library, handle: Any, number: int, scope: int) -> int | None:
    [(code, value)] = Batch([number], scope).ask(library, handle)
    return int(value) if code == SUCCESS and 0 <= value < 0xFFFFFFFF else None
