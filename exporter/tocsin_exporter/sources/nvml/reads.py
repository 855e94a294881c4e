"""
How one row of the quantity table is read: the vocabulary of `quantities`.

Imported in the child and in the exporter, so it needs nothing but the standard library.
"""

from __future__ import annotations

from typing import NamedTuple

# nvmlDeviceArchitecture_t
TURING, AMPERE, ADA, HOPPER, BLACKWELL = 6, 7, 8, 9, 10
NEWEST = 0xFFFF

CORE, FABRIC, DEEP = TIERS = ("core", "fabric", "deep")

# Seconds between two reads of a quantity; 0 is every cycle. What is fixed is asked again
# now and then all the same: a reset or a new firmware can change it under a running exporter.
EACH, HALF, MINUTE, START = 0.0, 30.0, 60.0, 600.0

CALL, FIELD, GPM, OWN = "call", "field", "gpm", "own"
NVLINK, C2C = "nvlink", "c2c"

# Names of the driver's numbers, by position; None is "not supported" or nothing worth a row.
States = tuple[str | None, ...]


class Read(NamedTuple):
    """
    One question to the driver that gives values of a quantity.

    ``kind`` CALL: function ``name`` (a form of it after ``/``) with ``argument``, whose answer's
    ``attribute`` is meant: a member, or the position among several results. FIELD: field value
    ``number``, called ``name`` in nvml.h, of the scope ``argument``. GPM: metric ``number``.
    OWN: the module ``name`` of this package has code for it.

    ``labels`` are the values of the quantity's labels, save those that the answer itself supplies.
    ``decode`` is a factor to base units or the name of a form (`values.DECODERS`). With ``states``
    the answer is an index into it, and there is one row per named state, 1 for the one that holds
    (``decode`` "sparse": of the first state and of the one that holds only).
    ``since`` and ``until`` are the architectures on which the question has a meaningful answer. With
    ``per`` it is asked for each link of that kind, whose number becomes the first label and the
    scope or first argument.
    """

    kind: str
    name: str
    number: int = 0
    argument: tuple[int, ...] = ()
    attribute: str = ""
    labels: tuple[str, ...] = ()
    decode: float | str = 1.0
    states: States = ()
    since: int = 0
    until: int = NEWEST
    per: str = ""


class Quantity(NamedTuple):
    """
    One quantity, exposed as ``tocsin_gpu_<name>``; ``held`` ones also as ``tocsin_job_gpu_<name>``.

    ``labels`` are those after the device's own. ``unit`` is a base unit or empty. ``every`` is
    how often it is read, in seconds. Of several ``reads`` for the same labels the first that the
    device answers counts. ``most`` is the highest believable value where the unit's bound is too wide.

    ``event`` counters count things that happened: a holder's count of them outlives restarts of the
    exporter and, for a while, the holder. The other counters are amounts and times, which may start
    anew. ``timed`` is the class under which the time of the last event is told, with a label's name
    in braces where the label's value is part of it.

    ``told`` are the values of the first further label that a holder is told of; none means all. What
    no verdict about a job reads costs a series per GPU and holder.
    """

    name: str
    counter: bool
    labels: tuple[str, ...]
    unit: str
    help: str
    tier: str
    held: bool
    every: float = EACH
    reads: tuple[Read, ...] = ()
    most: float | None = None
    event: bool = False
    timed: str = ""
    told: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The questions behind it, as nvml.h calls them; empty where a module has its own way."""
        told: dict[str, None] = {}
        for read in self.reads:
            prefix = {FIELD: "field ", GPM: "GPM metric "}.get(read.kind, "")
            if read.kind != OWN:
                told[prefix + read.name.partition("/")[0]] = None
        names = list(told)
        return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def call(
    name: str,
    attribute: str = "",
    *,
    argument: tuple[int, ...] = (),
    labels: tuple[str, ...] = (),
    decode: float | str = 1.0,
    states: States = (),
    since: int = 0,
    until: int = NEWEST,
    per: str = "",
) -> Read:
    """Return a read by a function."""
    return Read(CALL, name, 0, argument, attribute, labels, decode, states, since, until, per)


def field(
    name: str,
    number: int,
    *,
    scope: int = 0,
    labels: tuple[str, ...] = (),
    decode: float | str = 1.0,
    states: States = (),
    since: int = 0,
    until: int = NEWEST,
    per: str = "",
) -> Read:
    """Return a read of a field value."""
    return Read(FIELD, name, number, (scope,), "", labels, decode, states, since, until, per)


def gpm(
    name: str, number: int, *, labels: tuple[str, ...] = (), decode: float | str = 1.0, per: str = ""
) -> Read:
    """Return a read of an activity metric; GPM exists from Hopper on."""
    return Read(GPM, name, number, (), "", labels, decode, (), HOPPER, NEWEST, per)


def own(module: str) -> Read:
    """Return a read for which a module of this package has code."""
    return Read(OWN, module)


class Scope:
    """What the questions to a device depend on: architecture, links by kind, position of the tier."""

    __slots__ = ("architecture", "links", "tier")

    def __init__(self, architecture: int, links: dict[str, int], tier: str) -> None:
        self.architecture = architecture
        self.links = links
        self.tier = TIERS.index(tier)
