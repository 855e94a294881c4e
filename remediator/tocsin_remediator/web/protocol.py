"""HTTP connections that cannot be held open for nothing."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

# Alertmanager sends at once. Whoever has not sent a whole request head by then is not a sender.
_HEAD_SECONDS: Final = 5.0


class Protocol(H11Protocol):
    """uvicorn's, plus a deadline for the first request's head: it waits for that for ever."""

    def connection_made(self, transport: Any) -> None:
        """Start the clock."""
        super().connection_made(transport)
        self._head = asyncio.get_running_loop().call_later(_HEAD_SECONDS, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._head.cancel()
        super().connection_lost(exc)

    def _late(self) -> None:
        # A cycle exists once a head was complete.
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()
