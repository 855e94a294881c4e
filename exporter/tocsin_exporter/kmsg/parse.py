"""
Kernel log records to events.

`Parser.feed` takes one line of any usual form (`record.split`) and returns the events it completes; nothing
it is fed raises. Text is only taken from the start of a message, and never from records that user space
wrote: whoever may write to the log must not be able to accuse a device.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from tocsin_exporter.kmsg import hosts, xid_classes
from tocsin_exporter.kmsg.event import BDF, Event, pci
from tocsin_exporter.kmsg.record import MAX_LINE, Record, moment, split, unescape
from tocsin_exporter.kmsg.roots import Roots

__all__ = ["Event", "Parser", "Record", "split"]

_XID = re.compile(
    rf"NVRM:\s+Xid\s+\((?:PCI:)?({BDF})(?:\s+GPU-I:(\d{{1,4}}))?(?:\s+(?:GPU-)?CI:(\d{{1,4}}))?\):"
    r"\s+(\d{1,5})(?![\w.])[,.]?\s*(.*)$",
    re.ASCII | re.DOTALL,
)
# A process may call itself what it likes: what counts as the driver's words begins behind the name. Its
# longest name is 15 bytes, each at most four characters when escaped.
_WHO = re.compile(
    r"pid='?(?:(\d{1,10})|[^,']*)'?(?:, *name=(.{0,60}?)(?:, |,?$))?[, ]*(.*)$", re.DOTALL | re.ASCII
)
_CAUSED = re.compile(r"caused by previous Xid (\d{1,5})\b", re.ASCII)
_RECOVERY = re.compile(
    r"GPU recovery action changed from (0x[0-9a-fA-F]{1,8}|\d{1,8})\b[^,]*?"
    r" to (0x[0-9a-fA-F]{1,8}|\d{1,8})\b",
    re.ASCII,
)
_SKIPPED = re.compile(r"\b[Ss]kipped (\d{1,9})\b", re.ASCII)
_SXID = re.compile(
    rf"nvidia-nvswitch\d+:\s+SXid\s+\(PCI:({BDF})\):\s+(\d{{1,6}}),\s*(.*)$", re.ASCII | re.DOTALL
)
# The second and third record of an SXid: where in the switch, and its registers.
_NOT_A_REPORT = ("Data {", "Data{", "Severity ")
_LOST_ONE = re.compile(
    rf"NVRM:\s+(?:The NVIDIA )?GPU (?:at )?(?:PCI:)?({BDF}):?\s.{{0,80}}?\bhas fallen off the bus", re.ASCII
)
_LOST_FIRST = re.compile(rf"NVRM:\s+The NVIDIA GPU ({BDF})(.*)$", re.ASCII | re.DOTALL)
_LOST_MORE = re.compile(r"(?:NVRM:\s+)?(?:\(PCI ID: [0-9a-fA-F:]+\)\s*)?installed in this system has")
_LOST_LAST = re.compile(r"(?:NVRM:\s+)?fallen off the bus")
_LOST_OTHER = re.compile(r"(?:NVRM:\s+)?installed in this system (?!has)")
_AER_HEAD = re.compile(
    rf"pcieport ({BDF}): AER: (?:Multiple )?"
    r"(Correct(?:ed|able)|Uncorrect(?:ed|able) \((?:Non-Fatal|Fatal)\)) error"
    rf"(?: message)? received(?: from|:)?\s*(?:id=\S+|({BDF}))?",
    re.ASCII,
)
_AER_BODY = re.compile(
    rf"\S+ ({BDF}): (?:AER: )?PCIe Bus Error: "
    r"severity=(Correct(?:ed|able)|Uncorrect(?:ed|able) \((?:Non-Fatal|Fatal)\))",
    re.ASCII,
)
# Firmware reports the error first: the same registers, told by the ACPI tables' reader.
_AER_FIRMWARE = re.compile(rf"\S+ ({BDF}): (?:AER: )?aer_status: 0x([0-9a-fA-F]{{8}})", re.ASCII)
_AER_UNCORRECTED = re.compile(rf"\S+ ({BDF}): (?:AER: )?aer_uncor_severity: 0x([0-9a-fA-F]{{8}})", re.ASCII)
_OOM = re.compile(
    r"(Memory cgroup out of memory|Out of memory)(?: \([^)]*\))?: (Kill(?:ed)?) process "
    r"(\d{1,10})(?:, UID \d+,)? \((.*?)\)(?=,| total-vm| score|$)",
    re.ASCII,
)
_OOM_VICTIM = re.compile(r"Killed process (\d{1,10})(?:, UID \d+,)? \((.*?)\)(?=,| total-vm|$)", re.ASCII)
_REPEAT = re.compile(r"message repeated (\d{1,9}) times: \[ ?(.*?)\]?$", re.ASCII | re.DOTALL)
_LAST_REPEAT = re.compile(r"last message repeated (\d{1,9}) times$", re.ASCII)
_SIMILAR = re.compile(
    r"(Lustre|LustreError|LNet|LNetError): Skipped (\d{1,9}) previous similar message", re.ASCII
)
_SEVERITIES = {"fatal": "fatal", "non-fatal": "nonfatal", "nonfatal": "nonfatal"}
_MOST_COUNT = 10**9


class _Xid(NamedTuple):
    """What one message says: ``fields`` are an event's, ``change`` what the driver wanted and wants now."""

    code: int
    pci: str
    fields: dict[str, str | int]
    repeats: int = 1
    caused_by: int | None = None
    change: tuple[int, int] | None = None


@dataclass(slots=True)
class _Pending:
    """The first record of a report that goes on in later ones; ``status`` are its error bits, where told."""

    event: Event
    left: int
    status: int = 0


class Parser:
    """
    A stream of lines to events.

    ``finish`` gives out what still waits for a further record: call it at the end of the input,
    or when the log has been quiet for a moment.
    """

    # A report's records come together, but other processors' messages may stand between them.
    _PATIENCE = 12
    _LOST_PATIENCE = 6
    _MOST_PENDING = 64

    def __init__(self) -> None:
        self._line = 0
        self._lost: deque[_Pending] = deque(maxlen=self._MOST_PENDING)
        self._aer: dict[str, _Pending] = {}
        self._killing: _Pending | None = None
        self._roots = Roots()
        self._said: list[Event] = []
        self._similar: dict[str, Event] = {}
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
        text = record.text[:MAX_LINE]
        late = self._expire() if self._lost or self._aer or self._killing else []
        if text.startswith(("message repeated", "last message")):
            return late + self._repeated(text, record)
        self._said = self._match(text, record)
        return late + self._said if late else self._said

    def finish(self) -> list[Event]:
        """Return the events whose further records never came."""
        waiting = [*self._aer.values(), *([self._killing] if self._killing else [])]
        self._aer.clear()
        self._lost.clear()
        self._killing = None
        return sorted((pending.event for pending in waiting), key=lambda event: event.line)

    def waiting(self) -> bool:
        """Say whether `finish` would give something."""
        return bool(self._aer) or self._killing is not None

    def _expire(self) -> list[Event]:
        late: list[Event] = []
        for key, pending in list(self._aer.items()):
            pending.left -= 1
            if pending.left <= 0:
                late.append(self._aer.pop(key).event)
        for pending in self._lost:
            pending.left -= 1
        while self._lost and self._lost[0].left <= 0:
            self._lost.popleft()
        if self._killing is not None:
            self._killing.left -= 1
            if self._killing.left <= 0:
                late.append(self._killing.event)
                self._killing = None
        return late

    def _repeated(self, text: str, record: Record) -> list[Event]:
        if repeat := _REPEAT.match(text):
            events = self._match(repeat[2].strip(), record)
            count = int(repeat[1])
        elif last := _LAST_REPEAT.match(text):
            events, count = self._said, int(last[1])
        else:
            return []
        return [replace(each, line=self._line, count=min(count, _MOST_COUNT)) for each in events if count]

    def _event(self, record: Record, kind: str, **fields: str | int | None) -> Event:
        kept = {name: value for name, value in fields.items() if value is not None and value != ""}
        return Event(kind, self._line, kept, 1, record.usec)

    def _match(self, text: str, record: Record) -> list[Event]:
        if text.startswith("NVRM:"):
            return self._nvrm(text, record)
        if self._lost and ("fallen off" in text or "installed in" in text):
            # The driver's further lines stand indented, without a prefix, where one record held them all.
            return self._lost_goes_on(text.lstrip())
        if text.startswith("nvidia-nvswitch"):
            return self._sxid(text, record)
        if "AER" in text or "PCIe Bus Error" in text or "aer_" in text:
            return self._aer_report(text, record)
        if text.startswith(("Out of memory", "Memory cgroup out of memory", "Killed process ")):
            return self._oom(text, record)
        if text.startswith(("Lustre", "LNet")) and (similar := _SIMILAR.match(text)):
            before = self._similar.get(similar[1])
            count = min(int(similar[2]), _MOST_COUNT)
            return (
                [replace(before, line=self._line, usec=record.usec, count=count)] if before and count else []
            )
        found = hosts.match(text)
        if found is None:
            if text.startswith("Lustre"):
                self._similar.pop(text.partition(":")[0], None)
            return []
        kind, fields = found
        event = self._event(record, kind, **fields)
        if kind == "lustre":
            self._similar[text.partition(":")[0]] = event
        return [event]

    def _nvrm(self, text: str, record: Record) -> list[Event]:
        if text.startswith("NVRM: Xid"):
            said = _read_xid(text)
            return [self._xid(said, record)] if said is not None else []
        if match := _LOST_ONE.match(text):
            return [self._event(record, "gpu_lost", pci=pci(match[1]))]
        if match := _LOST_FIRST.match(text):
            event = self._event(record, "gpu_lost", pci=pci(match[1]))
            # One record with line breaks in it.
            rest = match[2].replace("\\x0a", " ")
            if re.search(r"installed in this system has\s+(?:NVRM:\s+)?fallen off the bus", rest):
                return [event]
            if not _LOST_OTHER.search(rest):
                self._lost.append(_Pending(event, self._LOST_PATIENCE))
            return []
        return self._lost_goes_on(text)

    def _lost_goes_on(self, text: str) -> list[Event]:
        if not self._lost:
            return []
        if _LOST_OTHER.match(text):
            # Found at start-up, and something else is wrong with it.
            self._lost.popleft()
        elif _LOST_LAST.match(text) or (_LOST_MORE.match(text) and "fallen off the bus" in text):
            return [self._lost.popleft().event]
        return []

    def _xid(self, said: _Xid, record: Record) -> Event:
        if said.change is not None:
            before, after = said.change
            return self._event(
                record, "recovery_action", code=said.code, pci=said.pci, **{"from": before, "to": after}
            )
        cause = self._roots.cause(said.pci, said.code, moment(record), self.kernel_records, said.caused_by)
        fields = said.fields if cause is None else {**said.fields, "caused_by": cause}
        return Event("xid", self._line, fields, said.repeats, record.usec)

    def _sxid(self, text: str, record: Record) -> list[Event]:
        match = _SXID.match(text)
        if match is None or match[3].startswith(_NOT_A_REPORT):
            return []
        kind = _SEVERITIES.get(match[3].split(",")[0].strip().lower(), "unknown")
        return [self._event(record, "sxid", code=int(match[2]), pci=pci(match[1]), **{"class": kind})]

    def _aer_report(self, text: str, record: Record) -> list[Event]:
        if match := _AER_HEAD.match(text):
            port, severity, device = match.groups()
            address = pci(device or port)
            event = self._event(record, "aer", pci=address, severity=_severity(severity))
            return self._aer_waits(address, _Pending(event, self._PATIENCE))
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
        if match := _AER_FIRMWARE.match(text):
            address = pci(match[1])
            event = self._event(record, "aer", pci=address, severity="corrected")
            return self._aer_waits(address, _Pending(event, self._PATIENCE, int(match[2], 16)))
        if match := _AER_UNCORRECTED.match(text):
            pending = self._aer.pop(pci(match[1]), None)
            if pending is not None:
                severity = "fatal" if pending.status & int(match[2], 16) else "nonfatal"
                fields = {**pending.event.fields, "severity": severity}
                return [replace(pending.event, fields=fields)]
        return []

    def _aer_waits(self, address: str, pending: _Pending) -> list[Event]:
        # The same device reports again before details came: the first report stands alone.
        before = self._aer.pop(address, None)
        if before is None and len(self._aer) >= self._MOST_PENDING:
            before = self._aer.pop(next(iter(self._aer)))
        self._aer[address] = pending
        return [before.event] if before else []

    def _oom(self, text: str, record: Record) -> list[Event]:
        before, self._killing = self._killing, None
        if victim := _OOM_VICTIM.match(text):
            if before is None:
                return []
            # Up to Linux 4.x a child may be killed in place of the process that the first record names.
            fields = {**before.event.fields, "pid": int(victim[1]), "process": unescape(victim[2])[:64]}
            return [replace(before.event, fields=fields)]
        earlier = [before.event] if before else []
        match = _OOM.match(text)
        if match is None:
            return earlier
        scope = "cgroup" if match[1].startswith("Memory") else "global"
        event = self._event(
            record, "oom_kill", pid=int(match[3]), process=unescape(match[4])[:64], scope=scope
        )
        if match[2] == "Kill":
            self._killing = _Pending(event, self._PATIENCE)
            return earlier
        return [*earlier, event]


# A storm is the same few messages over and over.
@lru_cache(maxsize=256)
def _read_xid(text: str) -> _Xid | None:
    """Return what an Xid message says by itself, or None for what only begins like one."""
    match = _XID.match(text)
    if match is None:
        return None
    address, instance, compute, number, detail = match.groups()
    code, where = int(number), pci(address)
    if code == 154 and (change := _RECOVERY.search(detail)):
        return _Xid(code, where, {}, 1, None, (int(change[1], 0), int(change[2], 0)))
    who = _WHO.match(detail)
    pid, name, words = who.groups() if who else (None, None, detail)
    process = (name or "").strip()
    if len(process) > 1 and process[0] == process[-1] and process[0] in "'\"":
        process = process[1:-1]
    fields: dict[str, str | int] = {"code": code, "pci": where}
    for key, value in (("gpu_instance", instance), ("compute_instance", compute), ("pid", pid)):
        if value:
            fields[key] = int(value)
    if process and process != "<unknown>":
        fields["process"] = unescape(process)[:64]
    fields["class"] = xid_classes.classify(code, words)
    told, skipped = _CAUSED.search(words), _SKIPPED.search(words)
    return _Xid(
        code, where, fields, max(1, int(skipped[1])) if skipped else 1, int(told[1]) if told else None
    )


def _severity(text: str) -> str:
    if text.startswith("Correct"):
        return "corrected"
    return "nonfatal" if "Non-Fatal" in text else "fatal"
