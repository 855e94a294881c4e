"""What the kernel log can tell, as one row."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BDF", "Event", "pci"]

# A PCI address as kernel and drivers print it.
BDF = r"(?:[0-9a-fA-F]{4,16}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?(?![0-9a-fA-F.])"


@dataclass(frozen=True, slots=True)
class Event:
    """
    One recognised event. ``fields`` hold only what the message says; ``line`` is the number of
    its first line, ``usec`` the kernel's time of it, ``count`` how many it speaks for.
    """

    kind: str
    line: int
    fields: dict[str, str | int]
    count: int = 1
    usec: int | None = None

    def to_dict(self) -> dict[str, str | int]:
        """Return the JSON object that `parse-kmsg` prints."""
        return {"line": self.line, "kind": self.kind, **self.fields, "count": self.count}


def pci(text: str) -> str:
    """Return an address as ``dddd:bb:dd.f``: lower case, four digits of domain, function 0 if not printed."""
    address, _, function = text.lower().partition(".")
    parts = address.split(":")
    domain = parts[0].lstrip("0").rjust(4, "0") if len(parts) == 3 else "0000"
    return f"{domain}:{parts[-2]}:{parts[-1]}.{function or '0'}"
