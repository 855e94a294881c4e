"""The head of an HTTP/1.1 request, read strictly, and the head of an answer. Bytes in, bytes out."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from http import HTTPStatus

__all__ = ["MOST_HEAD", "Answer", "BadRequestError", "Request", "end_of_head", "parse", "text", "write_head"]

# Prometheus sends half a kilobyte.
MOST_HEAD = 16 * 1024
MOST_LINE = 8 * 1024
MOST_FIELDS = 100

# A lone LF ends a line too (RFC 9112 §2.2): people type requests into nc.
_END = re.compile(rb"\r?\n\r?\n")
_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e\x80-\xff]+) HTTP/([0-9])\.([0-9])")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")


class BadRequestError(Exception):
    """What came is no request that can be answered; ``status`` says why."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Request:
    """
    One request.

    ``path`` is without query and as it was sent. ``fields`` have lower-case names; what was sent more
    than once is joined by commas. ``close``: the connection ends with the answer, because the client
    says so or because a body follows, which nobody reads.
    """

    method: str
    path: str
    fields: dict[str, str]
    close: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, header fields and body of an answer, before the connection adds its own fields."""

    status: HTTPStatus
    fields: dict[str, str]
    body: bytes


def end_of_head(buffer: bytearray, start: int) -> int:
    """
    Return where the head in *buffer* ends, 0 while it is unfinished; *start*: searched so far.

    Empty lines before the request are dropped. BadRequestError when it is too long or cannot become one.
    """
    while buffer[:2] == b"\r\n" or buffer[:1] == b"\n":
        del buffer[: 2 if buffer[:1] == b"\r" else 1]
        start = 0
    # A TLS greeting, for one, may hold no line end for long.
    if buffer and not buffer[:1].isalpha() and buffer[:1] != b"\r":
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "this is not HTTP")
    found = _END.search(buffer, max(0, start - 4))
    if found and found.end() <= MOST_HEAD:
        return found.end()
    if b"\n" not in buffer[:MOST_LINE] and len(buffer) >= MOST_LINE:
        raise BadRequestError(HTTPStatus.REQUEST_URI_TOO_LONG, f"a line has at most {MOST_LINE} bytes")
    if found or len(buffer) >= MOST_HEAD:
        raise BadRequestError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request has at most {MOST_HEAD} bytes"
        )
    return 0


def parse(head: bytes) -> Request:
    """Return the request of *head*, which ends with an empty line; raises BadRequestError."""
    # Latin-1 maps every byte to a character, so that nothing can fail to decode.
    first, *rest = head.decode("latin-1").replace("\r\n", "\n").rstrip("\n").split("\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "the first line is not METHOD PATH HTTP/1.1")
    method, target, major, minor = line.groups()
    if major != "1":
        raise BadRequestError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.0 and HTTP/1.1 are spoken")
    if len(rest) > MOST_FIELDS:
        raise BadRequestError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request has at most {MOST_FIELDS} header fields"
        )
    fields: dict[str, str] = {}
    for number, row in enumerate(rest, start=1):
        # Folded lines and spaces before the colon are how two parsers come to disagree.
        field = _FIELD.fullmatch(row)
        if field is None:
            raise BadRequestError(HTTPStatus.BAD_REQUEST, f"header field {number} is malformed")
        name, value = field[1].lower(), field[2].rstrip(" \t")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    newer = minor != "0"
    if newer and "host" not in fields:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "a request of HTTP/1.1 names its host")
    options = {option.strip() for option in fields.get("connection", "").lower().split(",")}
    body = fields.get("content-length", "0") != "0" or "transfer-encoding" in fields
    close = body or "close" in options or (not newer and "keep-alive" not in options)
    return Request(method, _path(target), fields, close)


def _path(target: str) -> str:
    """Return the path of a request's target, which proxies write with scheme and host."""
    if target[:7].lower() == "http://" or target[:8].lower() == "https://":
        target = "/" + target.split("/", 3)[3] if target.count("/") > 2 else "/"
    return target.partition("?")[0].partition("#")[0]


def text(status: HTTPStatus, body: str, fields: dict[str, str] | None = None) -> Answer:
    """Return an answer of one line of text."""
    more = {"Content-Type": "text/plain; charset=utf-8", **(fields or {})}
    return Answer(status, more, f"{body}\n".encode())


def write_head(answer: Answer, extra: tuple[tuple[str, str], ...], *, close: bool) -> bytes:
    """Return the head of *answer*; *extra* fields are the operator's and win over the answer's own."""
    fields = {
        "Server": "tocsin-exporter",
        "Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
        "X-Content-Type-Options": "nosniff",
        **answer.fields,
        **dict(extra),
        "Content-Length": str(len(answer.body)),
        # Said in both cases, for clients of HTTP/1.0.
        "Connection": "close" if close else "keep-alive",
    }
    lines = [f"HTTP/1.1 {answer.status.value} {answer.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
