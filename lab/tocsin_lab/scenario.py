"""
Scenario files: what stands where, what goes wrong when, and which verdict is expected.

The form is closed: an unknown key, kind or target and an impossible value are refused with file, line
and reason, since a scenario that silently tests something else is worse than none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tocsin_lab.errors import ScenarioError
from tocsin_remediator import yamlmarks
from tocsin_remediator.durations import Duration
from tocsin_remediator.errors import InputFileError

# fmt: off
FAULTS = frozenset({
    "fail_slow_gpu", "rotating_straggler", "stage_imbalance", "rank_exit", "rank_hang", "nccl_sockets",
    "chatty_collectives", "dataloader_slow", "oom_loop", "kv_pressure", "prefix_miss", "version_change",
    "low_occupancy", "long_prompts", "checkpoint_slow", "loss_divergence", "flat_loss", "zero_lr",
    "nan_loss", "bit_flip", "port_errors", "link_flap", "throttle", "ecc", "xid", "gpu_lost",
    "driver_hang", "pcie_downgrade", "nvlink_errors", "mount_slow", "reclaim_notice", "node_vanish",
    "idle_job", "zombie_process", "memory_leak", "numa_misbinding", "host_oom", "host_pressure",
    "clock_offset", "neighbour", "exporter_down", "collector_down", "scrape_gaps", "port_down",
    "slow_host",
})
BENIGN = frozenset({
    "warmup", "compile_pause", "eval_pause", "checkpoint_pause", "first_checkpoint", "lr_warmup",
    "loss_spike", "idle_pcie", "old_remap", "log_silence", "job_restart", "node_swap", "traffic_lull",
    "full_cache_no_preemption", "maintenance_by_us", "unused_port_down", "slow_first_epoch",
    "heterogeneous_gpus",
})
# fmt: on


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _text(value: object) -> object:
    """Labels are compared as text; YAML reads ``rank: 17`` as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_text)]


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


class Nodes(_Strict):
    """How many nodes of which kind."""

    count: int = Field(default=2, ge=1, le=64)
    gpus: int = Field(default=4, ge=1, le=16)
    hcas: int = Field(default=2, ge=0, le=16)
    gpu_model: Literal["A100-SXM", "H100-SXM", "H200-SXM", "B200", "L40S"] = "H100-SXM"
    names: str = "gpu-%03d"

    def all(self) -> list[str]:
        """Return the nodes' names; the pattern takes the number of the node."""
        return [self.names % number for number in range(1, self.count + 1)]


class Job(_Strict):
    """One training job."""

    job_id: str = Field(default="torchrun/demo", pattern=r"^[a-z0-9]+/[A-Za-z0-9._:@/-]{1,100}$")
    kind: Literal["training", "serving"] = "training"
    ranks: int = Field(default=6, ge=1, le=64)
    step_seconds: float = Field(default=1.0, gt=0, le=3600)
    pipeline_stages: Literal[1] = 1


class Fault(_Strict):
    """One cause, when it acts and on what."""

    kind: str
    at: Duration
    until: Duration | None = None
    job_id: str | None = None
    rank: int | None = Field(default=None, ge=0)
    node: str | None = None
    gpu: int | None = Field(default=None, ge=0)
    magnitude: float | None = Field(default=None, gt=0)
    reason: Literal["thermal", "power_brake", "sw_power_cap"] | None = None
    signal: int | None = Field(default=None, ge=1, le=64)
    exit_code: int | None = Field(default=None, ge=0, le=255)
    code: int | None = Field(default=None, ge=1, le=1023)
    what: str | None = Field(default=None, max_length=100)
    link: int | None = Field(default=None, ge=0)
    field: int | None = Field(default=None, ge=1)
    call: str | None = Field(default=None, pattern=r"^nvml[A-Za-z0-9_]{1,59}$")


class Expect(_Strict):
    """What is right: labels of the verdict (a subset), or none at all."""

    verdict: Literal["none"] | dict[str, Text]
    within: Duration | None = None
    quiet: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = ()

    @property
    def labels(self) -> dict[str, str] | None:
        """Return the expected labels, None where no verdict is expected."""
        return None if self.verdict == "none" else dict(self.verdict)


class Scenario(_Strict):
    """A whole file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,79}$")
    description: str = ""
    duration: Duration
    scrape_interval: Duration = 5.0
    nodes: Nodes = Nodes()
    jobs: Annotated[tuple[Job, ...], BeforeValidator(_tuple), Field(min_length=1, max_length=1)] = (Job(),)
    faults: Annotated[tuple[Fault, ...], BeforeValidator(_tuple)] = ()
    expect: Expect


def read(path: Path) -> Scenario:
    """Return the scenario of a file; ScenarioError names file, line and reason."""
    try:
        document = yamlmarks.load(path)
        found = yamlmarks.validated(document, Scenario)
        _check(document, found)
    except InputFileError as err:
        raise ScenarioError(str(err)) from err
    return found


def _check(document: yamlmarks.Document, found: Scenario) -> None:
    """Refuse what each part allows but the whole does not: targets that do not exist, impossible times."""
    try:
        names = found.nodes.all()
    except (TypeError, ValueError) as err:
        raise document.error(("nodes", "names"), "names must hold one %d, as gpu-%03d does") from err
    ranks = found.jobs[0].ranks
    if ranks > found.nodes.count * found.nodes.gpus:
        room = found.nodes.count * found.nodes.gpus
        raise document.error(("jobs", 0, "ranks"), f"{ranks} ranks do not fit on {room} GPUs")
    for place, fault in enumerate(found.faults):
        _check_fault(document, ("faults", place), fault, found, names)
    if found.expect.labels is not None and not any(fault.kind in FAULTS for fault in found.faults):
        raise document.error(("expect", "verdict"), "a verdict is expected, but no fault is given")


def _check_fault(
    document: yamlmarks.Document, at: tuple[str, int], fault: Fault, found: Scenario, names: list[str]
) -> None:
    def refuse(key: str, reason: str) -> InputFileError:
        return document.error((*at, key), reason)

    if fault.kind not in FAULTS | BENIGN:
        raise refuse("kind", f"unknown kind {fault.kind!r}")
    if fault.at > found.duration:
        raise refuse("at", "is after the end of the scenario")
    if fault.until is not None and fault.until <= fault.at:
        raise refuse("until", "is not after `at`")
    if fault.job_id is not None and fault.job_id != found.jobs[0].job_id:
        raise refuse("job_id", f"no job {fault.job_id!r} in this scenario")
    if fault.rank is not None and fault.rank >= found.jobs[0].ranks:
        raise refuse("rank", f"the job has ranks 0 to {found.jobs[0].ranks - 1}")
    if fault.node is not None and fault.node not in names:
        raise refuse("node", f"no node {fault.node!r}; there are {', '.join(names[:8])}")
    if fault.gpu is not None and fault.gpu >= found.nodes.gpus:
        raise refuse("gpu", f"a node has GPUs 0 to {found.nodes.gpus - 1}")
    if fault.gpu is not None and fault.node is None:
        raise refuse("gpu", "a GPU needs its `node`")


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a scenario file."""
    return Scenario.model_json_schema()
