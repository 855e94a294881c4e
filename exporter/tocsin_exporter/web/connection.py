"""One connection: its bytes in and out, what it is doing, and until when it may."""

from __future__ import annotations

import enum
import socket
import time
from collections import deque

from tocsin_exporter.web.reload import Settings

__all__ = ["Connection", "Phase", "Stream", "WouldBlockError"]

_CHUNK = 16 * 1024
# One turn of a connection; a large answer to a fast reader must not hold up the others.
_TURN = 1 << 20


class WouldBlockError(Exception):
    """The socket has to become readable, or writable, before this can go on."""

    def __init__(self, *, write: bool) -> None:
        super().__init__()
        self.write = write


class Phase(enum.Enum):
    """What a connection is doing."""

    GREETING = enum.auto()  # nothing has come; TLS is expected
    HANDSHAKE = enum.auto()
    READING = enum.auto()  # a request has not come to its end
    IDLE = enum.auto()  # between two requests
    WAITING = enum.auto()  # for a scrape or a password
    WRITING = enum.auto()
    DRAINING = enum.auto()  # answered; what still comes is read away, or the answer would be lost
    CLOSED = enum.auto()


# In these the other side has not yet asked for anything.
UNFINISHED = (Phase.GREETING, Phase.HANDSHAKE, Phase.READING)


class Stream:
    """A socket that does not block, without TLS. The tls module has the other kind."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def handshake(self) -> None:
        """Go on with the handshake; returns when it is finished."""

    def receive(self) -> bytes:
        """Return what has come, b"" at the end."""
        try:
            return self.sock.recv(_CHUNK)
        except BlockingIOError:
            raise WouldBlockError(write=False) from None

    def send(self, data: memoryview) -> int:
        """Return how many bytes were taken."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            raise WouldBlockError(write=True) from None

    def pending(self) -> bool:
        """Say whether bytes have been received that the selector does not know of."""
        return False

    def farewell(self) -> None:
        """Say that nothing more will be sent."""
        self.sock.shutdown(socket.SHUT_WR)


class Connection:
    """Bookkeeping of one connection. Times are of the monotonic clock."""

    __slots__ = (
        "address", "body", "buffer", "closing", "deadline", "fd", "head_only", "interest", "out", "phase",
        "searched", "settings", "since", "stream",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, address: str, settings: Settings, limit: float) -> None:
        self.stream = Stream(sock)
        self.fd = sock.fileno()
        self.address = address
        self.settings = settings
        self.interest = 0
        self.buffer = bytearray()
        self.searched = 0
        self.out: deque[memoryview] = deque()
        self.body = b""
        self.closing = self.head_only = False
        self.phase = Phase.CLOSED
        self.since = self.deadline = 0.0
        self.enter(Phase.GREETING if settings.tls is not None else Phase.READING, limit)

    def enter(self, phase: Phase, limit: float) -> None:
        """Begin *phase*, which may last *limit* seconds."""
        self.phase = phase
        self.since = time.monotonic()
        self.deadline = self.since + limit

    def flush(self) -> bool:
        """Send what is left; False when more is left after a turn's worth. May raise WouldBlockError."""
        sent = 0
        while self.out:
            if sent >= _TURN:
                return False
            taken = self.stream.send(self.out[0])
            sent += taken
            if taken == len(self.out[0]):
                self.out.popleft()
            else:
                self.out[0] = self.out[0][taken:]
        self.body = b""
        return True

    def drain(self) -> bool:
        """Read away what comes after the answer; True at its end."""
        try:
            # Beneath TLS: what it says is of no interest any more.
            return socket.socket.recv(self.stream.sock, _CHUNK) == b""
        except BlockingIOError:
            return False
