"""Which earlier Xid explains a later one that only follows from it."""

from __future__ import annotations

from tocsin_exporter.kmsg import xid_classes

__all__ = ["WINDOW_SECONDS", "Roots"]

# Channels are torn down within seconds of the fault; an application that dumps its core first takes longer.
WINDOW_SECONDS = 30.0
# Where a log shows no times: about what one fault prints on a node.
_WINDOW_RECORDS = 50
_MOST_DEVICES = 256

# What follows from anything on the same GPU.
_FOLLOWERS = frozenset({45, 159})
# What details an uncorrected memory error (48) or spreads from it.
_OF_48 = frozenset({94, 95, 171, 172})
# A link's privilege error is what the peer of a faulty GPU sees.
_OF_A_PEER = frozenset({137})
_PEER_FAULTS = frozenset({74, 79, *range(144, 151)})
# Informational by class, and yet the reason why channels go.
_ALSO_ROOTS = frozenset({43, 44})


class Roots:
    """The last faults of each GPU, for as long as they can explain another. *at* is None without a clock."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[int, float | None, int]] = {}

    def cause(self, pci: str, code: int, at: float | None, line: int, said: int | None) -> int | None:
        """
        Return the code that explains *code*, or None, and keep what may explain later ones.

        *line* counts records; *said* is the message's own word on it.
        """
        cause = said
        if cause is None and code in _FOLLOWERS:
            cause = self._recent((pci, "any"), at, line)
        elif cause is None and code in _OF_48:
            cause = self._recent((pci, "48"), at, line)
        elif cause is None and code in _OF_A_PEER:
            found = [self._recent(key, at, line) for key in self._last if key[1] == "link" and key[0] != pci]
            cause = next((each for each in reversed(found) if each is not None), None)
        if code not in _FOLLOWERS:
            kind = xid_classes.classify(code, "")
            if kind != "info" or code in _ALSO_ROOTS:
                self._keep((pci, "any"), cause if cause is not None else code, at, line)
            if code == 48:
                self._keep((pci, "48"), 48, at, line)
            if code in _PEER_FAULTS:
                self._keep((pci, "link"), code, at, line)
        return cause

    def _keep(self, key: tuple[str, str], code: int, at: float | None, line: int) -> None:
        self._last.pop(key, None)
        if len(self._last) >= _MOST_DEVICES * 3:
            del self._last[next(iter(self._last))]
        self._last[key] = (code, at, line)

    def _recent(self, key: tuple[str, str], at: float | None, line: int) -> int | None:
        found = self._last.get(key)
        if found is None:
            return None
        code, then, before = found
        if at is None or then is None:
            return code if line - before <= _WINDOW_RECORDS else None
        return code if 0 <= at - then <= WINDOW_SECONDS else None
