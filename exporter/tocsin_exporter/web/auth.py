"""
Basic authentication against bcrypt hashes, at a bounded price.

One comparison takes a twentieth of a second of a CPU by design, so comparisons happen one at a time in a
thread of their own, and after a wrong password the thread rests for a multiple of that time. A password
that was right is remembered, so a flood of wrong ones delays nobody who has been let in before. Waiting
room is shared out between addresses, so that it delays newcomers from elsewhere little.
"""

from __future__ import annotations

import base64
import hmac
import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Generic, TypeVar

from tocsin_exporter.errors import ConfigError

__all__ = ["Credentials", "Passwords", "credentials", "require_bcrypt"]

log = logging.getLogger(__name__)

MOST_WAITING = 16
MOST_WAITING_PER_ADDRESS = 4
MOST_REMEMBERED = 256
# A fifth of one CPU for those who guess.
REST = 4.0
# The library refuses longer ones; all others cut them there, and so do those who made the hash.
_MOST_PASSWORD = 72
_MOST_FIELD = 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and a password; the password never shows."""

    user: str
    password: bytes

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r})"


def require_bcrypt() -> ModuleType:
    """Return the bcrypt module; ConfigError when it is not installed."""
    try:
        import bcrypt
    except ImportError as err:
        raise ConfigError(
            "--web.config.file: basic_auth_users needs the package bcrypt; install tocsin[exporter]"
        ) from err
    return bcrypt


def credentials(field: str) -> Credentials | None:
    """Return what an Authorization field says, None when it is no basic authentication."""
    scheme, _, encoded = field.partition(" ")
    if scheme.lower() != "basic" or len(encoded) > _MOST_FIELD:
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        name = user.decode()
    except ValueError:
        return None
    # A NUL would end the password for bcrypt.
    return Credentials(name, password) if colon and b"\0" not in password else None


@dataclass(slots=True)
class _Question(Generic[T]):
    given: Credentials
    stored: bytes
    known_user: bool
    ticket: T


class Passwords(Generic[T]):
    """Compares passwords in a thread; *deliver* is called there with the ticket and the outcome."""

    def __init__(self, deliver: Callable[[T, bool], None], *, rest: float = REST) -> None:
        self._deliver = deliver
        self._rest = rest
        # What was right is kept as a keyed hash: no password stays in memory.
        self._key = os.urandom(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._waiting: OrderedDict[str, deque[_Question[T]]] = OrderedDict()
        self._change = threading.Condition()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def known(self, users: Mapping[str, bytes], given: Credentials) -> bool:
        """Say whether this very password was right before, for the hash that is in force now."""
        stored = users.get(given.user)
        if stored is None:
            return False
        mark = self._mark(given, stored)
        with self._change:
            if mark not in self._right:
                return False
            self._right.move_to_end(mark)
            return True

    def ask(self, users: Mapping[str, bytes], given: Credentials, address: str, ticket: T) -> bool:
        """Have a password compared; False when too many wait already, then nothing will be delivered."""
        stored = users.get(given.user)
        question = _Question(given, stored or _decoy(users), stored is not None, ticket)
        with self._change:
            mine = self._waiting.get(address)
            if mine is not None and len(mine) >= MOST_WAITING_PER_ADDRESS:
                return False
            if sum(map(len, self._waiting.values())) >= MOST_WAITING:
                return False
            self._waiting.setdefault(address, deque()).append(question)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="passwords", daemon=True)
                self._thread.start()
            self._change.notify()
        return True

    def stop(self) -> None:
        """End the thread after the comparison it is at."""
        self._ended.set()
        with self._change:
            self._change.notify()

    def _run(self) -> None:
        bcrypt = require_bcrypt()
        while (question := self._next()) is not None:
            began = time.monotonic()
            try:
                equal = bcrypt.checkpw(question.given.password[:_MOST_PASSWORD], question.stored)
            except ValueError:
                # The hash passed the check of its form and the library still refuses it.
                log.error("the password hash of a user cannot be used user=%r", question.given.user)
                equal = False
            right = bool(equal) and question.known_user
            if right:
                with self._change:
                    self._right[self._mark(question.given, question.stored)] = None
                    while len(self._right) > MOST_REMEMBERED:
                        self._right.popitem(last=False)
            took = time.monotonic() - began
            self._deliver(question.ticket, right)
            if not right:
                self._ended.wait(took * self._rest)

    def _next(self) -> _Question[T] | None:
        """Return the next question, from each address in turn; None at the end."""
        with self._change:
            while not self._waiting and not self._ended.is_set():
                self._change.wait()
            if self._ended.is_set():
                return None
            address, queue = self._waiting.popitem(last=False)
            question = queue.popleft()
            if queue:
                self._waiting[address] = queue
            return question

    def _mark(self, given: Credentials, stored: bytes) -> bytes:
        parts = (given.user.encode(), stored, given.password)
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, message, "sha256")


def _decoy(users: Mapping[str, bytes]) -> bytes:
    """Return a hash that nothing matches and that takes as long as the users' own, the dearest of them."""
    cost = max((stored.split(b"$")[2] for stored in users.values()), default=b"10")
    # A salt, and 31 characters that no password was hashed to.
    return b"$2b$" + cost + b"$" + b"." * 53
