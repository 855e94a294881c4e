"""The type of one row of the metric table, and the label sets that rows share."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = [
    "DEVICE",
    "JOB",
    "JOB_DEVICE",
    "JOB_PORT",
    "NODE",
    "PORT",
    "RANK",
    "Family",
    "Kind",
    "Tier",
]

# Rules, dashboards and runbooks join on these, so a change here is a breaking change.
# `mig` is empty without MIG and an empty label is left out of the exposition.
NODE = ("node",)
DEVICE = ("node", "gpu", "gpu_uuid", "mig")
JOB = ("node", "job_id")
RANK = ("node", "job_id", "rank")
JOB_DEVICE = ("node", "gpu", "gpu_uuid", "mig", "job_id", "rank")
PORT = ("node", "port")
JOB_PORT = ("node", "port", "job_id")


class Kind(enum.Enum):
    """Exposition type of a family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Tier(enum.Enum):
    """What `--tier` turns on: what the rules need, the fabric, everything else."""

    CORE = "core"
    FABRIC = "fabric"
    DEEP = "deep"


@dataclass(frozen=True, slots=True)
class Family:
    """
    One metric family.

    ``name`` is the exposed name: counters end in ``_total``, units stand last before it.
    ``labels`` are in exposition order and begin with ``node``. ``unit`` is one of the base
    units or ``""``. ``buckets`` are upper bounds in ``unit`` for histograms, without +Inf.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    unit: str
    help: str
    tier: Tier = Tier.CORE
    buckets: tuple[float, ...] = ()
