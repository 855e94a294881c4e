"""
Kernel log records to events.

`Parser.feed` takes one line of any usual form (``/dev/kmsg``, ``dmesg`` plain, ``-T``, ``-x``, ``-r`` and
ISO, syslog and journal prefixes) and returns the events it completes; nothing it is fed raises. Text
is only taken from the start of a message, and never from records that user space wrote: whoever may
write to the log must not be able to accuse a device.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from tocsin_exporter.kmsg import xid_classes

__all__ = ["Event", "Parser", "Record", "split"]

# The kernel's own records are at most about 1 KiB; syslog may join a few.
MAX_LINE = 8192

_BDF = r"(?:[0-9a-fA-F]{4,16}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?"
_RAW = re.compile(r"^(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;]*;(.*)$", re.DOTALL)
_DICTIONARY = re.compile(r"^\s+[A-Z][A-Z0-9_]*=")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_DMESG_RAW = re.compile(r"^<(\d{1,3})>\s*(?=\[)")
_DMESG_X = re.compile(
    r"^(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d)\s*:\s*\w+\s*:\s*"
)
_RFC5424 = re.compile(r"^<(\d{1,3})>1\s+\S+\s+\S+\s+(\S+)\s+\S+\s+\S+\s+(?:-|\[[^\]]*\])\s*(.*)$")
_SYSLOG = re.compile(
    r"^(?:<\d{1,3}>)?(?:[A-Z][a-z]{2}\s+\d{1,2}\s+\d{2}:\d{2}:\d{2}(?:\.\d+)?"
    r"|\d{4}-\d{2}-\d{2}[T ][\d:.,]+(?:Z|[+-]\d{2}:?\d{2})?)"
    r"\s+(\S+)\s+([^\s:\[]+)(?:\[[^\]]*\])?:\s(.*)$"
)
_STAMP = re.compile(
    r"^\[\s*(\d+\.\d+|[A-Z][a-z]{2} [A-Z][a-z]{2} [\d :]+|[A-Z][a-z]{2} *\d+ [\d:]+|\+ *\d+\.\d+)\]\s?"
)
_CALLER = re.compile(r"^\[\s*[TC]\d+\]\s?")
_ISO_STAMP = re.compile(r"^\d{4}-\d{2}-\d{2}T[\d:]+[.,]\d+(?:Z|[+-]\d{2}:?\d{2})\s")

_XID = re.compile(
    rf"^NVRM:\s+Xid\s+\((?:PCI:)?({_BDF})(?:\s+GPU-I:(\d+))?(?:\s+GPU-CI:(\d+))?[^)]*\):"
    r"\s+(\d{1,5})(?!\w)[,.]?\s*(.*)$"
)
_PID = re.compile(r"pid='?(\d+)'?")
_NAME = re.compile(r"name='?([^,]*?)'?(?:,|$)")
_CAUSED = re.compile(r"caused by previous Xid (\d+)")
_RECOVERY = re.compile(r"recovery action changed from (0x[0-9a-fA-F]+|\d+)[^,]*? to (0x[0-9a-fA-F]+|\d+)")
_SXID = re.compile(rf"^nvidia-nvswitch\d+:\s+SXid\s+\(PCI:({_BDF})\):\s+(\d{{1,6}}),\s*(.*)$")
_LOST_ONE = re.compile(rf"^NVRM:.*?\b({_BDF})\b.*fallen off the bus")
_LOST_FIRST = re.compile(rf"^NVRM:\s+The NVIDIA GPU ({_BDF})")
_LOST_LAST = re.compile(r"^(?:NVRM:\s+)?.*fallen off the bus")
_AER_HEAD = re.compile(
    rf"^pcieport ({_BDF}): AER: (?:Multiple )?(Corrected|Uncorrect(?:ed|able) \((?:Non-Fatal|Fatal)\)) error"
    rf"(?: message)? received(?: from|:)\s*(?:id=\S+|({_BDF}))?"
)
_AER_BODY = re.compile(
    rf"^\S+ ({_BDF}): (?:AER: )?PCIe Bus Error: "
    r"severity=(Corrected|Uncorrect(?:ed|able) \((?:Non-Fatal|Fatal)\))"
)
_AER_MORE = re.compile(
    rf"^\S+ {_BDF}: (?:AER:\s+)?(?:\s*device \[|\s*\[ ?\d+\]|TLP Header|.*error status/mask|  )"
)
_AER_NONE = re.compile(r"AER: (?:found no error details|can't find device)")
_OOM = re.compile(
    r"^(Memory cgroup out of memory|Out of memory)(?: \([^)]*\))?: Kill(?:ed)? process (\d+) "
    r"\((.*?)\)(?=,| total-vm| score|$)"
)
_LINK = re.compile(rf"^(\S+) ({_BDF}) (\S+?): (?:\S+?: )?(?:\S+ )?(?:NIC )?[Ll]ink (?:is )?([Uu]p|[Dd]own)\b")
_MLX = re.compile(rf"^mlx[45]_core ({_BDF})(?: ([A-Za-z][\w.-]*))?: (.*)$")
_MLX_MODULE = re.compile(r"^(?:Port )?[Mm]odule event(?:\[error\])?: module (\d+), (.*)$")
_IB = re.compile(
    r"^(?:infiniband )?((?:mlx|hfi|bnxt_re|efa|irdma|qedr|rxe)[\w-]*\d+): .*?[Pp]ort (\d+).*?"
    r"\b(?:is )?(up|down|active|UP|DOWN|ACTIVE)\b"
)
_NFS = re.compile(
    r"^nfs4?: server (\S+) (not responding, still trying|not responding, timed out|OK|error.*)$"
)
_LUSTRE = re.compile(r"^(Lustre|LustreError): (?:\d+:\d+:\([^)]*\)\s*)?(?:\d+-\w+: )?(.*)$")
_LUSTRE_TARGET = re.compile(r"\b([\w.]+-(?:OST|MDT)[0-9a-fA-F]{4}|MGS)\b")
_REPEAT = re.compile(r"^message repeated (\d{1,9}) times: \[ ?(.*?)\]?$")
_SKIPPED = re.compile(r"\b[Ss]kipped (\d{1,9})\b")

_NOT_A_REPORT = ("Data {", "Severity ", "Data{")


@dataclass(frozen=True, slots=True)
class Record:
    """One line without its prefix; ``usec`` counts from boot, where told; ``ours``: the kernel wrote it."""

    text: str
    ours: bool = True
    seq: int | None = None
    usec: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """
    One recognised event. ``fields`` hold only what the message says; ``line`` is the number of
    its first line, ``usec`` the kernel's time of it, ``count`` how many it speaks for.
    """

    kind: str
    line: int
    fields: dict[str, str | int]
    count: int = 1
    usec: int | None = None

    def to_dict(self) -> dict[str, str | int]:
        """Return the JSON object that `parse-kmsg` prints."""
        return {"line": self.line, "kind": self.kind, **self.fields, "count": self.count}


def pci(text: str) -> str:
    """Return an address as ``dddd:bb:dd.f``: lower case, four digits of domain, function 0 if not printed."""
    address, _, function = text.lower().partition(".")
    parts = address.split(":")
    domain = parts[0].lstrip("0").rjust(4, "0") if len(parts) == 3 else "0000"
    return f"{domain}:{parts[-2]}:{parts[-1]}.{function or '0'}"


def split(line: str) -> Record | None:
    """Take the prefix off *line*; None for lines that are no record (dictionary lines, empty ones)."""
    line = _ANSI.sub("", line[:MAX_LINE]).rstrip("\r\n\0")
    # Dictionary lines of /dev/kmsg: ` SUBSYSTEM=pci`.
    if not line.strip() or _DICTIONARY.match(line):
        return None
    if raw := _RAW.match(line):
        # Only what the kernel itself printed has facility 0; it forces another one on user space.
        return Record(raw[4], int(raw[1]) >> 3 == 0, int(raw[2]), int(raw[3]))
    if new := _RFC5424.match(line):
        return _stamped(new[3], ours=int(new[1]) >> 3 == 0 or new[2] == "kernel")
    if old := _SYSLOG.match(line):
        return _stamped(old[3], ours=old[2] == "kernel")
    ours = True
    if level := _DMESG_RAW.match(line):
        ours, line = int(level[1]) >> 3 == 0, line[level.end() :]
    elif facility := _DMESG_X.match(line):
        ours, line = facility[1] == "kern", line[facility.end() :]
    return _stamped(line, ours=ours)


def _stamped(text: str, *, ours: bool) -> Record:
    usec: int | None = None
    if stamp := _STAMP.match(text):
        if stamp[1].replace(".", "", 1).isdigit():
            usec = int(float(stamp[1]) * 1e6)
        text = text[stamp.end() :]
    elif iso := _ISO_STAMP.match(text):
        text = text[iso.end() :]
    if caller := _CALLER.match(text):
        text = text[caller.end() :]
    return Record(text, ours, None, usec)


@dataclass(slots=True)
class _Pending:
    """The first record of a report that goes on in later ones."""

    event: Event
    left: int


class Parser:
    """
    A stream of lines to events.

    ``finish`` gives out what still waits for a further record: call it at the end of the input,
    or when the log has been quiet for a moment.
    """

    # A report's records come together, but other processors' messages may stand between them.
    _PATIENCE = 12

    def __init__(self) -> None:
        self._line = 0
        self._lost: _Pending | None = None
        self._aer: dict[str, _Pending] = {}
        self.user_records = 0
        self.kernel_records = 0

    def feed(self, line: str) -> list[Event]:
        """Return the events that *line* completes."""
        self._line += 1
        record = split(line)
        return [] if record is None else self.feed_record(record)

    def feed_record(self, record: Record) -> list[Event]:
        """Return the events that *record* completes."""
        if not record.ours:
            self.user_records += 1
            return []
        self.kernel_records += 1
        text = record.text[:MAX_LINE].lstrip() if record.text.startswith("  ") else record.text[:MAX_LINE]
        events = self._expire()
        if repeat := _REPEAT.match(text):
            for event in self._match(repeat[2].strip(), record):
                events.append(replace(event, count=min(int(repeat[1]), 10**9)))
            return events
        return events + self._match(text, record)

    def finish(self) -> list[Event]:
        """Return the events whose further records never came."""
        events = [pending.event for pending in self._aer.values()]
        self._aer.clear()
        self._lost = None
        return sorted(events, key=lambda event: event.line)

    def waiting(self) -> bool:
        """Say whether `finish` would give something."""
        return bool(self._aer)

    def _expire(self) -> list[Event]:
        late: list[Event] = []
        for key, pending in list(self._aer.items()):
            pending.left -= 1
            if pending.left <= 0:
                late.append(self._aer.pop(key).event)
        if self._lost is not None:
            self._lost.left -= 1
            if self._lost.left <= 0:
                self._lost = None
        return late

    def _event(self, record: Record, kind: str, **fields: str | int | None) -> Event:
        kept = {name: value for name, value in fields.items() if value is not None and value != ""}
        return Event(kind, self._line, kept, 1, record.usec)

    def _match(self, text: str, record: Record) -> list[Event]:
        if text.startswith(("NVRM:", "(PCI ID", "fallen off", "installed in")):
            return self._nvrm(text, record)
        if text.startswith("nvidia-nvswitch"):
            return self._sxid(text, record)
        if "AER" in text or "PCIe Bus Error" in text:
            return self._aer_report(text, record)
        if text.startswith(("Out of memory", "Memory cgroup out of memory")):
            return self._oom(text, record)
        for rule in _PLAIN:
            event = rule(self, text, record)
            if event is not None:
                return [event]
        return []

    def _nvrm(self, text: str, record: Record) -> list[Event]:
        if match := _XID.match(text):
            return [self._xid(match, record)]
        if "NVRM: Xid" in text[:12]:
            return []
        if match := _LOST_ONE.match(text):
            self._lost = None
            return [self._event(record, "gpu_lost", pci=pci(match[1]))]
        if match := _LOST_FIRST.match(text):
            self._lost = _Pending(self._event(record, "gpu_lost", pci=pci(match[1])), 4)
            return []
        if _LOST_LAST.match(text):
            pending, self._lost = self._lost, None
            return [pending.event if pending else self._event(record, "gpu_lost")]
        return []

    def _xid(self, match: re.Match[str], record: Record) -> Event:
        address, instance, compute, code, detail = match.groups()
        if int(code) == 154 and (change := _RECOVERY.search(detail)):
            return self._event(
                record,
                "recovery_action",
                code=154,
                pci=pci(address),
                **{"from": int(change[1], 0), "to": int(change[2], 0)},
            )
        pid, name, caused = _PID.search(detail), _NAME.search(detail), _CAUSED.search(detail)
        process = name[1].strip() if name else ""
        event = self._event(
            record,
            "xid",
            code=int(code),
            pci=pci(address),
            gpu_instance=int(instance) if instance else None,
            compute_instance=int(compute) if compute else None,
            pid=int(pid[1]) if pid else None,
            process=process if process not in ("<unknown>", "'<unknown>'") else None,
            caused_by=int(caused[1]) if caused else None,
            **{"class": xid_classes.classify(int(code), detail)},
        )
        skipped = _SKIPPED.search(detail)
        return replace(event, count=max(1, int(skipped[1]))) if skipped else event

    def _sxid(self, text: str, record: Record) -> list[Event]:
        match = _SXID.match(text)
        if match is None or match[3].startswith(_NOT_A_REPORT):
            return []
        word = match[3].split(",")[0].strip().lower()
        kind = {"fatal": "fatal", "non-fatal": "nonfatal", "nonfatal": "nonfatal"}.get(word, "unknown")
        return [self._event(record, "sxid", code=int(match[2]), pci=pci(match[1]), **{"class": kind})]

    def _aer_report(self, text: str, record: Record) -> list[Event]:
        if match := _AER_HEAD.match(text):
            port, severity, device = match.groups()
            address = pci(device or port)
            event = self._event(record, "aer", pci=address, severity=_severity(severity))
            # The same device reports again before details came: the first report stands alone.
            before = self._aer.pop(address, None)
            self._aer[address] = _Pending(event, self._PATIENCE)
            return [before.event] if before else []
        if match := _AER_BODY.match(text):
            address, severity = pci(match[1]), _severity(match[2])
            pending = self._aer.pop(address, None)
            if pending is None and len(self._aer) == 1:
                # "id=00e5" in the header is the port's word for the device that the details name.
                only = next(iter(self._aer))
                if self._aer[only].event.fields.get("severity") == severity:
                    pending = self._aer.pop(only)
            event = self._event(record, "aer", pci=address, severity=severity)
            if pending is not None:
                event = replace(event, line=pending.event.line, usec=pending.event.usec)
            return [event]
        return []

    def _oom(self, text: str, record: Record) -> list[Event]:
        match = _OOM.match(text)
        if match is None:
            return []
        scope = "cgroup" if match[1].startswith("Memory") else "global"
        return [self._event(record, "oom_kill", pid=int(match[2]), process=match[3], scope=scope)]

    def _port(self, text: str, record: Record) -> Event | None:
        if match := _MLX.match(text):
            return self._mlx(match, record)
        if match := _LINK.match(text):
            _, address, device, state = match.groups()
            return self._event(record, "port", pci=pci(address), device=device, state=state.lower())
        if match := _IB.match(text):
            state = "down" if match[3].lower() == "down" else "up"
            return self._event(record, "port", device=match[1], state=state)
        return None

    def _mlx(self, match: re.Match[str], record: Record) -> Event | None:
        address, device, message = pci(match[1]), match[2], match[3]
        state = ""
        if module := _MLX_MODULE.match(message):
            what = module[2].lower()
            state = (
                "power"
                if "power" in what
                else "error"
                if "error" in what or "bus stuck" in what
                else "module"
            )
        elif re.match(r"^Link (up|down)\b", message, re.IGNORECASE):
            state = message.split()[1].lower().rstrip(".,")
        elif "insufficient power" in message:
            state = "power"
        elif "device's health compromised" in message or "Health issue observed" in message:
            state = "error"
        return (
            self._event(record, "port", pci=address, device=device or address, state=state) if state else None
        )

    def _nfs(self, text: str, record: Record) -> Event | None:
        match = _NFS.match(text)
        if match is None:
            return None
        state = "restored" if match[2] == "OK" else "lost" if match[2].startswith("not") else "error"
        return self._event(record, "nfs", server=match[1], state=state)

    def _lustre(self, text: str, record: Record) -> Event | None:
        match = _LUSTRE.match(text)
        target = _LUSTRE_TARGET.search(match[2]) if match else None
        if match is None or target is None:
            return None
        said = match[2]
        if re.search(r"[Cc]onnection to .* was lost|lost connection", said):
            state = "lost"
        elif re.search(r"[Cc]onnection restored", said):
            state = "restored"
        elif match[1] == "LustreError":
            state = "error"
        else:
            return None
        return self._event(record, "lustre", target=target[1], state=state)


_Rule = Callable[[Parser, str, Record], Event | None]
_PLAIN: tuple[_Rule, ...] = (Parser._port, Parser._nfs, Parser._lustre)


def _severity(text: str) -> str:
    if text == "Corrected":
        return "corrected"
    return "nonfatal" if "Non-Fatal" in text else "fatal"
