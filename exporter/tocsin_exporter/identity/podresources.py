"""
The kubelet's account of devices: one List call over its socket, and what the answer says.

A gRPC library would cost the exporter a quarter of its memory for one call a minute, so the call is spoken
here: HTTP/2 (RFC 9113) with one request on a connection of its own. Header blocks that come back are not
decoded: a whole message is the answer, anything else a failure.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tocsin_exporter.errors import SourceError

__all__ = ["ContainerDevices", "list_devices", "parse_listing"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS, _PADDED = 1, 1, 4, 8
_INITIAL_WINDOW = 4
_LARGEST = 16 << 20
_LARGEST_FRAME = 16384
_CALL = "/v1.PodResourcesLister/List"

_MOST_DEVICES = 1024
_MOST_ROWS = 4096
_UUID = re.compile(r"^(?:GPU|MIG)-[0-9a-fA-F-]{36}$")
_DRIVER = "gpu.nvidia.com"
_WHOLE = re.compile(r"^gpu-(\d{1,4})$")


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """
    The NVIDIA devices of one container.

    ``devices`` are UUIDs of GPUs and MIG instances, or ``minor:<n>``; those that these forms cannot name are
    left out.
    """

    namespace: str
    pod: str
    container: str
    devices: tuple[str, ...]


def list_devices(path: Path, seconds: float) -> tuple[ContainerDevices, ...]:
    """
    Ask the kubelet at *path* for the devices of all containers, within *seconds*.

    Raises:
        SourceError: There is no socket (`unsupported`), it may not be used (`no_permission`), nobody answers
            in time (`timeout`), or the answer is no listing (`bad_data`).

    """
    end = time.monotonic() + seconds
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(str(path))
            return parse_listing(_call(connection, end))
    except TimeoutError as err:
        raise SourceError("timeout", f"{path}: the kubelet does not answer") from err
    except (FileNotFoundError, NotADirectoryError) as err:
        raise SourceError("unsupported", f"{path}: {err.strerror}") from err
    except PermissionError as err:
        raise SourceError("no_permission", f"{path}: {err.strerror}") from err
    except OSError as err:
        raise SourceError("bad_data", f"{path}: {err}") from err
    except ValueError as err:
        raise SourceError("bad_data", f"{path}: {err}") from err


def _call(connection: socket.socket, end: float) -> bytes:
    """Return the one message that the server answers with; ValueError when it is none."""
    window = struct.pack(">HI", _INITIAL_WINDOW, _LARGEST)
    connection.sendall(
        _PREFACE
        + _frame(_SETTINGS, 0, 0, window)
        + _frame(_WINDOW, 0, 0, struct.pack(">I", _LARGEST))
        + _frame(_HEADERS, _END_HEADERS, 1, _request_headers())
        # An empty message: not compressed, no bytes.
        + _frame(_DATA, _END_STREAM, 1, bytes(5))
    )
    body = bytearray()
    for kind, flags, stream, payload in _frames(connection, end):
        if kind == _SETTINGS and not flags & _ACK:
            connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            connection.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY or (kind == _RESET and stream == 1):
            raise ValueError("the kubelet refused the call")
        elif kind == _DATA and stream == 1:
            if flags & _PADDED:
                payload = payload[1 : len(payload) - payload[0]] if payload else b""
            body += payload
            if len(body) > _LARGEST:
                raise ValueError("the listing is larger than 16 MiB")
        if kind in (_DATA, _HEADERS) and stream == 1 and flags & _END_STREAM:
            break
    return _message(bytes(body))


def _message(body: bytes) -> bytes:
    if len(body) < 5:
        raise ValueError("no listing in the answer")
    compressed, length = struct.unpack_from(">BI", body)
    if compressed or len(body) != 5 + length:
        raise ValueError("not one plain message")
    return body[5:]


def _request_headers() -> bytes:
    # HPACK (RFC 7541): `:method POST` and `:scheme http` are entries 3 and 6 of its table; literals are added
    # to none.
    block = b"\x83\x86"
    for name, value in (
        (":path", _CALL),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ):
        block += b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return block


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _frames(connection: socket.socket, end: float) -> Iterator[tuple[int, int, int, bytes]]:
    while True:
        head = _exactly(connection, 9, end)
        length = int.from_bytes(head[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        if length > _LARGEST_FRAME:
            raise ValueError("no HTTP/2")
        yield kind, flags, stream & 0x7FFFFFFF, _exactly(connection, length, end)


def _exactly(connection: socket.socket, size: int, end: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        part = connection.recv(size - len(data))
        if not part:
            raise ValueError("the kubelet closed the connection")
        data += part
    return bytes(data)


def parse_listing(message: bytes) -> tuple[ContainerDevices, ...]:
    """
    Read a `v1.ListPodResourcesResponse`: containers with NVIDIA devices, at most 4,096.

    ValueError when it is none. Fields by number: pods 1 {name 1, namespace 2, containers 3 {name 1,
    devices 2 {resource 1, ids 2}, claims 5 {resources 4 {driver 2, device 4}}}}.
    """
    found: list[ContainerDevices] = []
    for pod in _all(message, 1):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in _all(pod, 3):
            devices = _devices(container)
            if devices and len(found) < _MOST_ROWS:
                found.append(ContainerDevices(namespace, name, _text(container, 1), devices))
    return tuple(found)


def _devices(container: bytes) -> tuple[str, ...]:
    devices: list[str] = []
    for given in _all(container, 2):
        if not _text(given, 1).startswith("nvidia.com/"):
            continue
        for raw in _all(given, 2):
            # Shared in time, a device has several ids: its UUID, two colons and a number.
            uuid = raw.decode("utf-8", "replace").partition("::")[0]
            if _UUID.match(uuid):
                devices.append(uuid)
    for claim in _all(container, 5):
        for resource in _all(claim, 4):
            if _text(resource, 2) != _DRIVER:
                continue
            # NVIDIA's driver calls a whole GPU by the number of its device file, an instance by its place.
            match = _WHOLE.match(_text(resource, 4))
            if match:
                devices.append(f"minor:{int(match[1])}")
    return tuple(dict.fromkeys(devices))[:_MOST_DEVICES]


def _all(message: bytes, wanted: int) -> list[bytes]:
    """Return the length-delimited fields *wanted* of a protobuf message; ValueError when it is none."""
    found: list[bytes] = []
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            _, place = _varint(message, place)
        elif kind == 2:
            size, place = _varint(message, place)
            if place + size > len(message):
                raise ValueError("a field is cut off")
            if key >> 3 == wanted:
                found.append(message[place : place + size])
            place += size
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        else:
            raise ValueError("not a protobuf message")
    return found


def _text(message: bytes, wanted: int) -> str:
    fields = _all(message, wanted)
    return fields[-1].decode("utf-8", "replace")[:253] if fields else ""


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError("a number is cut off")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, place
    raise ValueError("a number is too long")
