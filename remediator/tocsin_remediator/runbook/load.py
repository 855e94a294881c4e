"""Runbook files into types; a broken one is refused with file, line and reason."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tocsin_remediator import yamlmarks
from tocsin_remediator.errors import InputFileError
from tocsin_remediator.runbook.lint import findings
from tocsin_remediator.runbook.model import Runbook

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Library:
    """The runbooks of a folder by family, and why others were refused."""

    books: Mapping[str, Runbook]
    refused: tuple[InputFileError, ...]


def load_file(file: Path) -> Runbook:
    """The runbook in `file`; InputFileError for the first thing wrong with it."""
    errors = _read(file)
    if isinstance(errors, Runbook):
        return errors
    raise errors[0]


def load_dir(folder: Path) -> Library:
    """
    All `*.yaml` of `folder`.

    A refused file costs only its own family: the incident is then recommended to a person.
    InputFileError when the folder itself cannot be read.
    """
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in (".yaml", ".yml"))
    except OSError as err:
        raise InputFileError(folder, 1, f"cannot be read: {err.strerror or err}") from err
    books: dict[str, Runbook] = {}
    refused: list[InputFileError] = []
    for file in files:
        found = _read(file)
        if not isinstance(found, Runbook):
            refused.extend(found)
        elif found.metadata.family in books:
            refused.append(InputFileError(file, 1, f"a second runbook for {found.metadata.family}"))
        else:
            books[found.metadata.family] = found
    return Library(books, tuple(refused))


def _read(file: Path) -> Runbook | list[InputFileError]:
    try:
        document = yamlmarks.load(file)
        book = yamlmarks.validated(document, Runbook)
    except InputFileError as err:
        return [err]
    errors = [
        document.error(path, f"{'.'.join(map(str, path))}: {reason}") for path, reason in findings(book)
    ]
    if not errors and file.stem != book.metadata.name:
        errors = [document.error(("metadata", "name"), f"the file must be called {book.metadata.name}.yaml")]
    return errors or book


def schema() -> dict[str, Any]:
    """JSON Schema of a runbook, for editors."""
    made = Runbook.model_json_schema(by_alias=True)
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = "Tocsin runbook"
    return made


def schema_text() -> str:
    """The schema as it is published in `runbooks/schema.json`."""
    return json.dumps(schema(), indent=2, sort_keys=True) + "\n"
