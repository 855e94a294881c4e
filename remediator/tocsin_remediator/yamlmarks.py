"""YAML with the line of every value, so that a refusal can say where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tocsin_remediator.errors import InputFileError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 24

Step = str | int
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Document:
    """A parsed file: plain values, and the line (from 1) of every path in them."""

    file: Path
    value: Any
    lines: dict[tuple[Step, ...], int]

    def line(self, path: Sequence[Step]) -> int:
        """Line of the deepest part of `path` that the file has."""
        known = tuple(path)
        while known and known not in self.lines:
            known = known[:-1]
        return self.lines.get(known, 1)

    def error(self, path: Sequence[Step], reason: str) -> InputFileError:
        """The refusal of what stands at `path`."""
        return InputFileError(self.file, self.line(path), reason)


def load(file: Path) -> Document:
    """Read one YAML document; InputFileError when it is unreadable, too large or ambiguous."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise InputFileError(file, 1, f"larger than {_MAX_BYTES} bytes")
        text = raw.decode("utf-8")
    except OSError as err:
        raise InputFileError(file, 1, f"cannot be read: {err.strerror or err}") from err
    except UnicodeDecodeError as err:
        raise InputFileError(file, raw.count(b"\n", 0, err.start) + 1, "not UTF-8") from err
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        raise InputFileError(file, mark.line + 1 if mark else 1, f"not YAML: {err.problem}") from err
    except (yaml.YAMLError, RecursionError) as err:
        raise InputFileError(file, 1, f"not YAML: {err}") from err
    lines: dict[tuple[Step, ...], int] = {}
    value = None if node is None else _value(file, node, (), lines)
    return Document(file, value, lines)


def _value(file: Path, node: yaml.Node, path: tuple[Step, ...], lines: dict[tuple[Step, ...], int]) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if len(path) > _MAX_DEPTH:
        raise InputFileError(file, node.start_mark.line + 1, f"nested deeper than {_MAX_DEPTH}")
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise InputFileError(file, line, "a key must be plain text")
            key = str(key_node.value)
            if key in found:
                raise InputFileError(file, line, f"key {key!r} stands here a second time")
            lines[(*path, key)] = line
            found[key] = _value(file, value_node, (*path, key), lines)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_value(file, item, (*path, place), lines) for place, item in enumerate(node.value)]
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    except (yaml.YAMLError, ValueError) as err:
        raise InputFileError(file, node.start_mark.line + 1, f"cannot be read as a value: {err}") from err
    finally:
        loader.dispose()


def validated(document: Document, model: type[Model]) -> Model:
    """The document as `model`; the first thing wrong with it is the InputFileError."""
    if not isinstance(document.value, dict):
        raise document.error((), "the file must be a mapping of keys to values")
    try:
        return model.model_validate(document.value)
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            reason = "unknown key"
        raise document.error(first["loc"], f"{where}: {reason}" if where else reason) from None
