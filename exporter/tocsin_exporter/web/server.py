"""
The server: one loop does the socket work of all connections and waits for none of them.

A connection that has not sent a whole request costs a descriptor and a few hundred bytes and has a
deadline that no byte of it moves; only whole requests reach the thread that makes scrapes. When the
room for connections is used up, the oldest unfinished one of whoever has most of them makes place;
where all of them are new, or being answered, the next one waits in the kernel's queue. Nobody is refused.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus

from tocsin_exporter.errors import ConfigError
from tocsin_exporter.web import http, pages
from tocsin_exporter.web.connection import UNFINISHED, Connection, Phase, WouldBlockError
from tocsin_exporter.web.guard import Guard
from tocsin_exporter.web.http import Answer, Request
from tocsin_exporter.web.pages import Registry
from tocsin_exporter.web.reload import Reloader
from tocsin_exporter.web.rendering import Renderer
from tocsin_exporter.web.stats import WebStats

__all__ = ["Limits", "MetricsServer"]

log = logging.getLogger(__name__)

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# In one round of the loop. A handshake costs up to two milliseconds, and who asks for one pays nothing.
_ACCEPTS, _HANDSHAKES = 64, 4
# The kernel would else keep megabytes for each silent reader, and counts them to the unit's memory. A packed
# scrape fits in; a request has at most 16 KiB.
_SEND_BUFFER, _RECEIVE_BUFFER = 64 * 1024, 32 * 1024
_PAUSE = 0.2
# Each holds 45 KiB. Who is near answers within the time in which so many others are begun.
_MOST_SHAKING = 128


class Limits:
    """Seconds, numbers and bytes that bound what clients can cost; tests shorten them."""

    # From the first byte, or from the connection's start, to the end of the request.
    request = 10.0
    # So long a connection has to begin, even where room is needed: a handshake over a slow line.
    grace = 1.0
    # Longer than any usual scrape interval, so that Prometheus keeps its connection.
    idle = 75.0
    # For a scrape to be made, and for it to be taken.
    wait = 30.0
    answer = 30.0
    drain = 1.0
    # Answers that were made and not taken; one of 10,000 series has 2 MiB.
    unread = 8 << 20
    connections = 512

    def room(self) -> int:
        """Return the number of connections that the process's limit of descriptors leaves room for."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # Half of them, and not the last 128, are for the devices, files and probes.
        return min(self.connections, max(16, (soft - 128) // 2))


class MetricsServer:
    """
    Serves *registry* on *addresses*: host ("" for all) and port (0 for any free one) each.

    Raises:
        ConfigError: An address cannot be bound, or the configuration cannot be used.

    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        registry: Registry,
        node: str,
        *,
        stats: WebStats | None = None,
        reloader: Reloader | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._stats = stats or WebStats()
        self._reloader = reloader or Reloader(None, self._stats)
        self._loop = _Loop(registry, node, self._stats, self._reloader, limits or Limits())
        try:
            for host, port in addresses:
                self._loop.listen(host, port)
        except ConfigError:
            self._loop.close()
            raise
        self._thread = threading.Thread(target=self._loop.run, name="http", daemon=True)

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports in use, in the order of the addresses."""
        return tuple(int(listener.getsockname()[1]) for listener in self._loop.listeners)

    @property
    def scheme(self) -> str:
        """What stands before :// in this server's address."""
        return "https" if self._reloader.current.tls is not None else "http"

    def start(self) -> None:
        """Serve from a thread."""
        self._reloader.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and close all sockets."""
        self._reloader.stop()
        if self._thread.is_alive():
            self._loop.stop()
            self._thread.join(timeout=2.0)
        self._loop.close()


class _Loop:
    """Owns every socket. All its methods but `stop` and `_post` run in one thread."""

    def __init__(
        self, registry: Registry, node: str, stats: WebStats, reloader: Reloader, limits: Limits
    ) -> None:
        self._registry = registry
        self._node = node
        self._stats = stats
        self._reloader = reloader
        self._limits = limits
        self._room = limits.room()
        self._selector = selectors.DefaultSelector()
        self.listeners: list[socket.socket] = []
        self._connections: dict[int, Connection] = {}
        # Those with something to do that the selector does not know of.
        self._ready: deque[Connection] = deque()
        self._inbox: deque[Callable[[], None]] = deque()
        self._accepting = True
        self._next_sweep = 0.0
        self._ending = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, _READ)
        self._renderer = Renderer(
            registry, lambda waiting, answer: self._post(partial(self._made, waiting, answer))
        )
        self._guard = Guard(lambda ticket, right: self._post(partial(self._judged, *ticket, right)))

    # Sockets

    def listen(self, host: str, port: int) -> None:
        """Listen on one address more; raises ConfigError."""
        listener: socket.socket | None = None
        try:
            if not host:
                family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
                where: tuple[object, ...] = ("::" if family == socket.AF_INET6 else "0.0.0.0", port)  # noqa: S104
            else:
                family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host not in ("", "::"))
            listener.bind(where)
            listener.listen(self._limits.connections)
        except (OSError, OverflowError) as err:
            if listener is not None:
                listener.close()
            raise ConfigError(
                f"--web.listen-address: cannot listen on {host or '*'}:{port}: {err}; choose another address"
            ) from err
        listener.setblocking(False)
        self._selector.register(listener, _READ)
        self.listeners.append(listener)

    def close(self) -> None:
        """Close everything."""
        for connection in list(self._connections.values()):
            self._close(connection)
        for listener in self.listeners:
            listener.close()
        self._renderer.stop()
        self._guard.stop()
        wake, self._wake = self._wake, -1
        if wake >= 0:
            self._selector.close()
            os.close(wake)

    def stop(self) -> None:
        """Have `run` return; from any thread."""
        self._ending = True
        self._poke()

    def _post(self, what: Callable[[], None]) -> None:
        """Have *what* called by the loop; from any thread."""
        self._inbox.append(what)
        self._poke()

    def _poke(self) -> None:
        try:
            os.eventfd_write(self._wake, 1)
        except (OSError, ValueError):
            # ValueError: closed. Who still has something to deliver comes too late.
            log.debug("the loop has ended")

    # The loop

    def run(self) -> None:
        """Serve until `stop`."""
        self._renderer.start()
        while not self._ending:
            try:
                self._round()
            except Exception:
                # Whatever it was, the next scrape must be answered; a pause keeps a lasting fault cheap.
                log.exception("the HTTP loop failed and goes on")
                time.sleep(_PAUSE)

    def _round(self) -> None:
        events = self._selector.select(self._timeout())
        shaking: list[Connection] = []
        listening = False
        for key, _ in events:
            connection = key.data
            if connection is None:
                if key.fd == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    listening = True
            elif connection.phase in (Phase.GREETING, Phase.HANDSHAKE):
                shaking.append(connection)
            else:
                self._step(connection)
        while self._inbox:
            self._inbox.popleft()()
        for _ in range(len(self._ready)):
            self._step(self._ready.popleft())
        # Last, because they are dear and prove nothing about who asks: those left over are told of again.
        for connection in shaking[:_HANDSHAKES]:
            self._step(connection)
        if listening:
            self._accept()
        if time.monotonic() >= self._next_sweep:
            self._sweep()

    def _timeout(self) -> float | None:
        if self._ready or self._inbox:
            return 0.0
        if not self._connections and self._accepting:
            return None
        return max(0.0, self._next_sweep - time.monotonic())

    def _step(self, connection: Connection) -> None:
        """Let one connection go on as far as it can."""
        try:
            if connection.phase is Phase.GREETING:
                self._greet(connection)
            elif connection.phase is Phase.HANDSHAKE:
                self._shake(connection)
            elif connection.phase in (Phase.READING, Phase.IDLE):
                self._read(connection)
            elif connection.phase is Phase.WRITING:
                self._write(connection)
            elif connection.phase is Phase.DRAINING and connection.drain():
                self._close(connection)
        except WouldBlockError as err:
            self._want(connection, _WRITE if err.write else _READ)
        except OSError as err:
            if connection.phase is Phase.HANDSHAKE:
                self._cut(connection, "handshake", str(err))
            else:
                self._close(connection)
        except Exception:
            log.exception("a connection failed address=%s", connection.address)
            self._close(connection)

    def _want(self, connection: Connection, interest: int) -> None:
        if interest == connection.interest:
            return
        if not connection.interest:
            self._selector.register(connection.fd, interest, connection)
        elif not interest:
            self._selector.unregister(connection.fd)
        else:
            self._selector.modify(connection.fd, interest, connection)
        connection.interest = interest

    def _enter(self, connection: Connection, phase: Phase, seconds: float) -> None:
        connection.enter(phase, seconds)
        self._next_sweep = min(self._next_sweep, connection.deadline)

    # Coming and going

    def _accept(self) -> None:
        for listener in self.listeners:
            for _ in range(_ACCEPTS):
                try:
                    sock, address = listener.accept()
                except BlockingIOError:
                    break
                except OSError as err:
                    if err.errno in _NO_DESCRIPTOR and not self._make_room("descriptors"):
                        self._listen_again(False)
                        return
                    # Else the client has gone already, or there is a descriptor for it now.
                    continue
                self._admit(sock, str(address[0]))
                if len(self._connections) > self._room and not self._make_room("crowded"):
                    self._listen_again(False)
                    return
        self._stats.open_connections(len(self._connections))

    def _admit(self, sock: socket.socket, address: str) -> None:
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()
            return
        connection = Connection(sock, address, self._reloader.current, self._limits.request)
        self._connections[connection.fd] = connection
        self._next_sweep = min(self._next_sweep, connection.deadline)
        self._want(connection, _READ)

    def _listen_again(self, accepting: bool) -> None:
        if accepting == self._accepting:
            return
        self._accepting = accepting
        for listener in self.listeners:
            if accepting:
                self._selector.register(listener, _READ)
            else:
                self._selector.unregister(listener)
        self._next_sweep = min(self._next_sweep, time.monotonic() + _PAUSE)

    def _make_room(self, reason: str) -> bool:
        """End the connection that is missed least; False when all have a right to stay."""
        spent = [one for one in self._connections.values() if one.phase is Phase.DRAINING]
        if spent:
            self._close(min(spent, key=lambda one: one.since))
            return True
        quiet = [one for one in self._connections.values() if one.phase in (*UNFINISHED, Phase.IDLE)]
        least = _least_missed(quiet, time.monotonic() - self._limits.grace)
        if least is None:
            return False
        self._cut(least, reason, f"{len(self._connections)} connections")
        return True

    def _sweep(self) -> None:
        """End what is past its deadline, and say when to look again."""
        now = time.monotonic()
        for connection in list(self._connections.values()):
            if connection.deadline <= now:
                if connection.phase in (Phase.IDLE, Phase.DRAINING):
                    self._close(connection)
                else:
                    self._cut(connection, "late", connection.phase.name.lower())
        if not self._accepting and (len(self._connections) < self._room or self._make_room("crowded")):
            self._listen_again(True)
        deadlines = [connection.deadline for connection in self._connections.values()]
        self._next_sweep = min(deadlines, default=now + self._limits.idle)
        if not self._accepting:
            self._next_sweep = min(self._next_sweep, now + _PAUSE)
        self._stats.open_connections(len(self._connections))

    def _cut(self, connection: Connection, reason: str, detail: str) -> None:
        number = self._stats.cut(reason)
        if number & (number - 1) == 0:
            # The first, second, fourth, eighth …: a flood must not fill the log too.
            log.warning(
                "connection cut reason=%s address=%s so_far=%d: %s",
                reason,
                connection.address,
                number,
                detail,
            )
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection.phase is Phase.CLOSED:
            return
        self._want(connection, 0)
        del self._connections[connection.fd]
        connection.phase = Phase.CLOSED
        connection.out.clear()
        connection.body = b""
        connection.stream.sock.close()
        if not self._accepting:
            # Somebody waits for this place.
            self._next_sweep = 0.0

    # What one connection does

    def _greet(self, connection: Connection) -> None:
        """Look at the first byte: TLS, or someone who does not know that TLS is spoken here."""
        sock, settings = connection.stream.sock, connection.settings
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        if not first:
            self._close(connection)
        elif first == b"\x16" and settings.tls is not None:
            from tocsin_exporter.web.tls import TlsStream

            shaking = [one for one in self._connections.values() if one.phase is Phase.HANDSHAKE]
            if len(shaking) >= _MOST_SHAKING and (least := _least_missed(shaking, time.monotonic())):
                self._cut(least, "crowded", f"{len(shaking)} handshakes")
            # Its time and its age go on: a handshake is part of asking.
            connection.phase = Phase.HANDSHAKE
            connection.stream = TlsStream(sock, settings.tls, settings.allowed_sans)
            self._shake(connection)
        else:
            connection.closing = True
            self._answer(connection, http.text(HTTPStatus.BAD_REQUEST, "TLS is spoken here: use https://"))

    def _shake(self, connection: Connection) -> None:
        connection.stream.handshake()
        connection.phase = Phase.READING
        self._read(connection)

    def _read(self, connection: Connection) -> None:
        """Take in what has come; answer when that is a request."""
        if not connection.buffer or connection.searched:
            chunk = connection.stream.receive()
            if not chunk:
                self._close(connection)
                return
            connection.buffer += chunk
        if connection.phase is Phase.IDLE:
            self._enter(connection, Phase.READING, self._limits.request)
        try:
            end = http.end_of_head(connection.buffer, connection.searched)
            if not end:
                connection.searched = len(connection.buffer)
                self._want(connection, _READ)
                if connection.stream.pending():
                    self._ready.append(connection)
                return
            head = bytes(connection.buffer[:end])
            del connection.buffer[:end]
            connection.searched = 0
            request = http.parse(head)
        except http.BadRequestError as err:
            connection.closing, connection.head_only = True, False
            self._answer(connection, http.text(err.status, err.detail))
            return
        self._request(connection, request)

    def _request(self, connection: Connection, request: Request) -> None:
        settings = self._reloader.current
        if connection.settings.tls_state != settings.tls_state:
            # Who was let in by rules that are no longer in force has to come again.
            self._close(connection)
            return
        connection.closing = request.close
        connection.head_only = request.method == "HEAD"
        self._enter(connection, Phase.WAITING, self._limits.wait)
        self._want(connection, 0)
        verdict = self._guard.admit(settings, request, connection.address, (connection, request))
        if verdict is None:
            return
        if isinstance(verdict, Answer):
            self._answer(connection, verdict)
        else:
            self._respond(connection, request)

    def _judged(self, connection: Connection, request: Request, right: bool) -> None:
        """Go on with a request whose password was compared."""
        if connection.phase is not Phase.WAITING:
            return
        if right:
            self._respond(connection, request)
        else:
            self._answer(connection, self._guard.refusal())

    def _respond(self, connection: Connection, request: Request) -> None:
        answer = pages.respond(request, self._registry, self._node)
        if isinstance(answer, Answer):
            self._answer(connection, answer)
        else:
            self._renderer.ask(answer, connection)

    def _made(self, connections: list[Connection], answer: Answer) -> None:
        """Send one scrape to all who waited for it."""
        for connection in connections:
            if connection.phase is Phase.WAITING:
                self._answer(connection, answer)
        self._forget_unread()

    def _answer(self, connection: Connection, answer: Answer) -> None:
        self._stats.answered(answer.status.value)
        log.debug("answered address=%s status=%d", connection.address, answer.status.value)
        head = http.write_head(answer, self._reloader.current.headers, close=connection.closing)
        connection.out.append(memoryview(head))
        if answer.body and not connection.head_only:
            connection.body = answer.body
            connection.out.append(memoryview(answer.body))
        self._enter(connection, Phase.WRITING, self._limits.answer)
        self._step(connection)

    def _write(self, connection: Connection) -> None:
        if not connection.flush():
            self._want(connection, _WRITE)
            return
        if connection.closing:
            self._enter(connection, Phase.DRAINING, self._limits.drain)
            connection.stream.farewell()
            self._want(connection, _READ)
            return
        self._enter(connection, Phase.IDLE, self._limits.idle)
        self._want(connection, _READ)
        if connection.buffer or connection.stream.pending():
            # The next request is here already; others have their turn first.
            self._ready.append(connection)

    def _forget_unread(self) -> None:
        """End the oldest of those who do not take their answers, when these hold too much memory."""
        writing = [one for one in self._connections.values() if one.phase is Phase.WRITING]
        writing.sort(key=lambda one: one.since, reverse=True)
        while True:
            held = {id(one.body): len(one.body) for one in writing}
            # One answer alone is never too large, or its scraper would never get it.
            if len(held) < 2 or sum(held.values()) <= self._limits.unread:
                return
            self._cut(writing.pop(), "unread", "its answer was not taken")


def _least_missed(quiet: Sequence[Connection], before: float) -> Connection | None:
    """
    Return the oldest of whoever has most of *quiet*: a crowd from elsewhere cannot push a scraper out.

    None when it has none that has rested after a request or was unfinished already at *before*.
    """
    per_address = Counter(one.address for one in quiet)
    most = max(per_address, key=per_address.__getitem__, default="")
    # Those that never asked go before those that did and may ask again.
    return min(
        (
            one
            for one in quiet
            if one.address == most and (one.phase is Phase.IDLE or one.since <= before)
        ),
        key=lambda one: (one.phase is Phase.IDLE, one.since),
        default=None,
    )
