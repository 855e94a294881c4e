"""Evidence packs: a folder and an archive with the proof, and a notice to whoever was configured."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tocsin_remediator import __version__, outbound
from tocsin_remediator.adapters.base import Outcome, Request
from tocsin_remediator.errors import ActionError, Applied

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tocsin_remediator.config import Escalation

_NOTICE_TIMEOUT: Final = 10.0
_MAX_ANSWER: Final = 1 << 20


class Material(Protocol):
    """What goes into a pack of an incident: the summary and the files by name."""

    def __call__(self, incident: int) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """(summary for the notice, file name to text)."""
        ...


class EscalationPack:
    """Builds one pack per request; a second call with the same request finds the first one's."""

    def __init__(
        self, config: Escalation, folder: Path, material: Material, now: Callable[[], float]
    ) -> None:
        """`folder` is used when the configuration names no directory."""
        self._config = config
        self._folder = config.directory or folder
        self._material = material
        self._now = now

    def preview(self, verb: str, args: Mapping[str, str]) -> list[str]:
        """Where the pack goes and who is told."""
        told = [f"notify {self._config.webhook_url}"] if self._config.webhook_url else []
        return ["build evidence pack in", str(self._folder), *told]

    def confirm_target(self, verb: str, args: Mapping[str, str]) -> str:
        """The pack is about its incident."""
        return ""

    def idempotent(self, verb: str, args: Mapping[str, str]) -> bool:
        """The notice carries the request id; the folder is named by it."""
        return True

    def run(self, request: Request) -> Outcome:
        """Build, then tell."""
        summary, files = self._material(request.incident)
        archive = self._build(request, summary, files)
        if self._config.webhook_url is not None:
            self._notify(request, {**summary, "pack": archive.name})
        return Outcome(f"evidence pack {archive}", {"pack": str(archive)})

    def _build(self, request: Request, summary: Mapping[str, Any], files: Mapping[str, str]) -> Path:
        target = self._folder / request.request_id
        archive = self._folder / f"{request.request_id}.tar.gz"
        if archive.exists():
            return archive
        part = self._folder / f".{request.request_id}.part"
        try:
            # As the journal: evidence is nobody else's business. A folder that a site made keeps its mode.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(mode=0o700)
            for name, text in files.items():
                (part / name).write_text(text, encoding="utf-8")
            (part / "manifest.json").write_text(self._manifest(summary, files), encoding="utf-8")
            packed = self._folder / f".{request.request_id}.tar.gz.part"
            with tarfile.open(packed, "w:gz") as tar:
                tar.add(part, arcname=request.request_id, filter=_anonymous)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(part, target)
            # Last: whoever sees the archive sees all of it.
            os.replace(packed, archive)
        except OSError as err:
            raise ActionError(Applied.NO, f"the evidence pack cannot be written: {err}") from err
        return archive

    def _manifest(self, summary: Mapping[str, Any], files: Mapping[str, str]) -> str:
        return json.dumps(
            {
                "schema": "tocsin/evidence-pack/v1",
                "made_by": f"tocsin-remediator {__version__}",
                "made_at": datetime.fromtimestamp(self._now(), UTC).isoformat(),
                "summary": summary,
                "files": {
                    name: {"sha256": hashlib.sha256(text.encode()).hexdigest(), "bytes": len(text.encode())}
                    for name, text in sorted(files.items())
                },
            },
            indent=2,
            sort_keys=True,
        )

    def _notify(self, request: Request, body: Mapping[str, Any]) -> None:
        with outbound.session() as asking:
            try:
                status, _ = outbound.fetch(
                    asking,
                    "POST",
                    str(self._config.webhook_url),
                    json=body,
                    headers={"Idempotency-Key": request.request_id},
                    timeout=_NOTICE_TIMEOUT,
                    limit=_MAX_ANSWER,
                )
            except outbound.Unanswered as err:
                raise ActionError(Applied.UNKNOWN, f"the escalation webhook: {err}") from err
        if not 200 <= status < 300:
            raise ActionError(Applied.UNKNOWN, f"the escalation webhook answered {status}")


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def measurements(casefile: Mapping[str, Any]) -> str:
    """The plotted values of a case file as CSV: query, series, time, value."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["query", "series", "time", "value"])
    for plot in casefile.get("plots", ()):
        for series in plot["series"]:
            for at, value in series["points"]:
                moment = datetime.fromtimestamp(at, UTC).isoformat()
                # A leading = or @ would be a formula to a spreadsheet.
                writer.writerow([f" {plot['query']}", f" {series['name']}", moment, value])
    return out.getvalue()
