"""
NVML by ctypes: calls, and the error numbers they answer with.

nvidia-ml-py gives the structures (`structures`); its functions are not called, because each of them looks
its pointer up, allocates its result and raises, which costs more than most answers, and names no call that
hangs. A function that the library lacks answers FUNCTION_NOT_FOUND, like a call that the driver does not
know.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure, byref, c_uint
from typing import Any

from tocsin_exporter.sources.nvml.progress import Pen
from tocsin_exporter.sources.nvml.results import (
    ERRORS,
    FUNCTION_NOT_FOUND,
    GONE,
    NOT_SUPPORTED,
    SESSION,
    SUCCESS,
)
from tocsin_exporter.sources.nvml.structures import RESULTS, VERSIONS

__all__ = ["Error", "Library", "LibraryError", "Question", "version"]


class Error(Exception):
    """The driver answered with an error number."""

    def __init__(self, code: int) -> None:
        super().__init__(ERRORS.get(code, str(code)))
        self.code = code


def version(structure: type[Structure], number: int) -> int:
    """Return the version word of a structure: its size and the number of its form."""
    return ctypes.sizeof(structure) | number << 24


class Question:
    """One function with fixed arguments on one device: its results are asked for again and again."""

    __slots__ = ("_arguments", "_fabric", "_function", "_key", "_name", "_pen", "results")

    def __init__(self, library: Library, form: str, handle: Any, argument: Sequence[int] = ()) -> None:
        name, _, sensor = form.partition("/")
        self._key = (form, tuple(argument))
        self._function = library.function(name)
        self._name, self._pen = name.encode(), library.pen
        self.results = [kind() for kind in RESULTS.get(form) or RESULTS.get(name) or (c_uint,)]
        if form in VERSIONS:
            for result in self.results:
                result.version = version(type(result), VERSIONS[form])
        if name == "nvmlDeviceGetTemperatureV":
            self.results[0].sensorType = int(sensor)
        elif name == "nvmlGpmQueryDeviceSupport":
            self.results[0].version = 1
        self._fabric = name == "nvmlDeviceGetGpuFabricInfoV"
        self._arguments = (handle, *map(c_uint, argument), *map(byref, self.results))

    def same(self, form: str, argument: Sequence[int]) -> bool:
        """Whether it is this function with these arguments."""
        return self._key == (form, tuple(argument))

    def ask(self) -> int:
        """Return the driver's error number; ``results`` are filled when it is 0."""
        if self._function is None:
            return FUNCTION_NOT_FOUND
        self._pen.enter(self._name)
        code = int(self._function(*self._arguments))
        # A device without a fabric may say so in a successful answer; the rest of it means nothing then.
        if self._fabric and code == SUCCESS and self.results[0].state == 0:
            return NOT_SUPPORTED
        return code


class Library:
    """
    The loaded library. Functions are looked up once; a missing one is None.

    Each call is written down with *pen* before it is made, so that somebody else can tell which one hangs.
    """

    def __init__(self, path: str, pen: Pen | None = None) -> None:
        self.pen = pen or Pen()
        try:
            self._library = ctypes.CDLL(path or "libnvidia-ml.so.1")
        except OSError as err:
            raise LibraryError(str(err)) from err
        self._functions: dict[str, Any] = {}

    def aside(self) -> Library:
        """Return the same library for another thread, whose calls may wait and are not written down."""
        other = object.__new__(Library)
        other.__dict__.update(self.__dict__, pen=Pen())
        return other

    def function(self, name: str) -> Any:
        """Return the function or None."""
        if name not in self._functions:
            try:
                self._functions[name] = self._library[name]
            except AttributeError:
                self._functions[name] = None
        return self._functions[name]

    def call(self, name: str, *arguments: Any) -> int:
        """Return the error number of a call."""
        function = self.function(name)
        if function is None:
            return FUNCTION_NOT_FOUND
        self.pen.enter(name.encode())
        return int(function(*arguments))

    def check(self, name: str, *arguments: Any) -> None:
        """Call; raises `Error` for anything but success."""
        code = self.call(name, *arguments)
        if code != SUCCESS:
            raise Error(code)

    def ask(self, form: str, handle: Any, *argument: int) -> Any:
        """Return the one result (a number or a structure) or the list of results; None unless it worked."""
        question = Question(self, form, handle, argument)
        code = question.ask()
        if code in GONE or code in SESSION:
            raise Error(code)
        if code != SUCCESS:
            return None
        values = [getattr(result, "value", result) for result in question.results]
        return values[0] if len(values) == 1 else values

    def text(self, name: str, *arguments: Any, size: int = 96) -> str:
        """Return what a function writes into a buffer, its last two arguments; empty unless it worked."""
        buffer = ctypes.create_string_buffer(size)
        code = self.call(name, *arguments, buffer, c_uint(size))
        if code in GONE or code in SESSION:
            raise Error(code)
        return buffer.value.decode("utf-8", "replace") if code == SUCCESS else ""

    def number(self, name: str) -> int | None:
        """Return a number that belongs to no device; None unless it worked."""
        out = c_uint()
        return out.value if self.call(name, byref(out)) == SUCCESS else None


class LibraryError(Exception):
    """The library cannot be loaded; the text is the loader's."""
