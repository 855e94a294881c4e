"""Messages about network ports and file servers: one record each, so a pure function of the text."""

from __future__ import annotations

import re

from tocsin_exporter.kmsg.event import BDF, pci

__all__ = ["Found", "match"]

Found = tuple[str, dict[str, str | int | None]]

_LINK = re.compile(
    rf"\S+ ({BDF}) ([^\s:]+): (?:\S+: )?(?:\S+ )?(?:NIC )?[Ll]ink (?:is )?([Uu]p|[Dd]own)\b", re.ASCII
)
_MLX4_EN = re.compile(r"mlx4_en: ([A-Za-z][\w.-]*): Link ([Uu]p|[Dd]own)\b", re.ASCII)
_MLX = re.compile(rf"mlx[45]_core ({BDF})(?: ([A-Za-z][\w.-]*))?: (.*)$", re.ASCII | re.DOTALL)
_MODULE = re.compile(r"(?:Port )?[Mm]odule event(?:\[error\])?: module \d+, (.*)$", re.DOTALL)
_MLX_LINK = re.compile(r"Link (up|down)\b", re.IGNORECASE)
_MLX_IB = re.compile(r"Port: \d+ Link (ACTIVE|DOWN)\b")
_IB = re.compile(
    r"(?:infiniband )?((?:mlx|hfi|bnxt_re|efa|irdma|qedr|rxe)[\w-]*\d): (?:[\w-]+: )?[Pp]ort:? (\d+)"
    r"(?: logical)?(?: [Ll]ink)?(?: is)?(?: now)? (up|down|active|UP|DOWN|ACTIVE)\b",
    re.ASCII,
)
_NFS = re.compile(
    r"(?:nfs4?|NFS|lockd): server (\S+) (not responding, (?:still trying|timed out)|OK$|error\b)"
)
_LUSTRE = re.compile(r"(Lustre|LustreError): (?:\d+:\d+:\([^)]*\)\s*)?(?:\d+-\w+: )?(.*)$", re.DOTALL)
_LUSTRE_TARGET = re.compile(r"\b([\w.]+-(?:OST|MDT)[0-9a-fA-F]{4}|MGS)(?![0-9a-zA-Z])")
_LUSTRE_LOST = re.compile(r"[Cc]onnection to .* was lost|\blost connection\b", re.DOTALL)
_LUSTRE_BACK = re.compile(r"\b[Cc]onnection restored\b")


def match(text: str) -> Found | None:
    """Return kind and fields of the event that *text* tells, or None."""
    if text.startswith(("mlx5_core ", "mlx4_core ")):
        found = _MLX.match(text)
        return _mlx(found) if found else None
    if text.startswith("Lustre"):
        return _lustre(text)
    if "server " in text[:16]:
        return _nfs(text)
    if "ink" in text and (found := _LINK.match(text)):
        return "port", {"pci": pci(found[1]), "device": found[2], "state": found[3].lower()}
    if "mlx4_en" in text[:8] and (found := _MLX4_EN.match(text)):
        return "port", {"device": found[1], "state": found[2].lower()}
    if "ort" in text and (found := _IB.match(text)):
        return "port", {"device": found[1], "state": "down" if found[3].lower() == "down" else "up"}
    return None


def _mlx(found: re.Match[str]) -> Found | None:
    address, device, message = pci(found[1]), found[2], found[3]
    state = ""
    if module := _MODULE.match(message):
        what = module[1].lower()
        state = (
            "power" if "power" in what else "error" if "error" in what or "bus stuck" in what else "module"
        )
    elif link := _MLX_LINK.match(message):
        state = link[1].lower()
    elif link := _MLX_IB.match(message):
        state = "down" if link[1] == "DOWN" else "up"
    elif "Detected insufficient power" in message:
        state = "power"
    elif "device's health compromised" in message or message.startswith("Health issue observed"):
        state = "error"
    return ("port", {"pci": address, "device": device or address, "state": state}) if state else None


def _nfs(text: str) -> Found | None:
    found = _NFS.match(text)
    if found is None:
        return None
    state = "restored" if found[2] == "OK" else "lost" if found[2].startswith("not") else "error"
    return "nfs", {"server": found[1], "state": state}


def _lustre(text: str) -> Found | None:
    found = _LUSTRE.match(text)
    target = _LUSTRE_TARGET.search(found[2]) if found else None
    if found is None or target is None:
        return None
    if _LUSTRE_LOST.search(found[2]):
        state = "lost"
    elif _LUSTRE_BACK.search(found[2]):
        state = "restored"
    elif found[1] == "LustreError":
        state = "error"
    else:
        return None
    return "lustre", {"target": target[1], "state": state}
