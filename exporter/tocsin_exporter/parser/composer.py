"""Composer (LLM Foundry): a head line, then one indented line a metric."""

from __future__ import annotations

import re
from dataclasses import replace

from tocsin_exporter.parser.clean import Line
from tocsin_exporter.parser.context import Context
from tocsin_exporter.parser.event import Event
from tocsin_exporter.parser.values import integer, number

__all__ = ["block", "head"]

_HEAD = re.compile(
    r"^\s*(?P<eval>\[Eval )?(?:\[epoch=(?P<epoch>\d+)(?:/\d+)?\])?"
    r"\[?(?:batch|iteration)=(?P<step>\d+)(?:/(?P<total>\d+))?\]"
    r"(?:\[token=\d+(?:/\d+)?\])?:\s*$"
)
_METRIC = re.compile(r"^\s+(?P<kind>Train|Eval) (?P<key>[\w./@-]+): (?P<value>\S+)\s*$")
_MOST_KEYS = 500


def head(line: Line, context: Context) -> bool:
    """Begin a block when *line* is its head."""
    text = line.text
    if "batch=" not in text and "iteration=" not in text:
        return False
    match = _HEAD.match(text)
    if not match:
        return False
    context.block = Event(
        "eval" if match["eval"] else "step",
        line.number,
        framework="composer",
        rank=line.rank,
        local_rank=line.local_rank,
        step=integer(match["step"]),
        total_steps=integer(match["total"]),
        epoch=number(match["epoch"]),
    )
    context.block_keys = {}
    return True


def block(line: Line | None, context: Context) -> tuple[Event | None, bool]:
    """
    Take *line* into the open block, or close it when the line (or None: the end) is none of its own.

    Returns the completed event, if any, and whether *line* was taken.
    """
    if context.block is None:
        return None, False
    match = _METRIC.match(line.text) if line is not None else None
    if match and len(context.block_keys) < _MOST_KEYS:
        kind = "Eval " if match["kind"] == "Eval" else ""
        context.block_keys[kind + match["key"]] = match["value"]
        return None, True
    event, keys = context.block, context.block_keys
    context.block, context.block_keys = None, {}
    if event.event == "eval" or (keys and all(key.startswith("Eval ") for key in keys)):
        loss = next((number(v) for k, v in keys.items() if "CrossEntropy" in k or k.endswith("/loss")), None)
        return (replace(event, event="eval", loss=loss) if loss is not None else None), False
    loss = next(
        (v for k in ("loss/train/total", "loss/train") if (v := number(keys.get(k))) is not None), None
    )
    if not keys:
        return None, False
    job = number(keys.get("throughput/tokens_per_sec"))
    gpu = number(keys.get("throughput/device/tokens_per_sec"))
    rate = next((number(v) for k, v in keys.items() if k.startswith("lr-")), None)
    batches = number(keys.get("throughput/batches_per_sec"))
    norm = next((number(v) for k, v in keys.items() if k.startswith("l2_norm/grad/global")), None)
    return (
        replace(
            event,
            loss=loss,
            learning_rate=rate,
            grad_norm=norm,
            tokens=integer(keys.get("time/token")),
            tokens_per_second=job if job is not None else gpu,
            per="job" if job is not None else ("gpu" if gpu is not None else None),
            step_seconds=1 / batches if batches else None,
        ),
        False,
    )
