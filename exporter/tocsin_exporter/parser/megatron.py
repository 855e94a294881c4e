"""Megatron-LM and its relatives: fields between bars."""

from __future__ import annotations

import re

from tocsin_exporter.parser.clean import Line
from tocsin_exporter.parser.context import Context
from tocsin_exporter.parser.event import Event
from tocsin_exporter.parser.values import NUMBER, integer, number

__all__ = ["megatron", "nemo"]

_STEP = re.compile(r"(?:^|\s)iteration\s+(\d{1,12})/\s*(\d{1,12})\s*\|")
_EVAL = re.compile(
    r"validation loss at iteration\s+(\d{1,12})\b[^|]*\|\s*(?:lm )?loss value:\s*(" + NUMBER + ")"
)
# In this order; "loss scale" and auxiliary losses are not the training loss.
_LOSSES = ("lm loss", "loss", "total loss", "reduced_train_loss", "ce loss", "d_loss", "sft loss")
_NOT_LOSS = re.compile(r"scale|balanc|z[_ ]loss|aux|mtp|moe|indexer|value|ppl", re.I)


def megatron(line: Line, context: Context) -> Event | None:
    """
    Return the step or evaluation of a Megatron-LM line (Megatron-DeepSpeed prints seconds, not milliseconds).

    A step whose loss was not finite has no loss field; its count of nan iterations tells.
    """
    text = line.text
    if "iteration" not in text or "|" not in text:
        return None
    evaluation = _EVAL.search(text)
    if evaluation:
        return Event(
            "eval",
            line.number,
            framework="megatron",
            rank=line.rank,
            local_rank=line.local_rank,
            step=integer(evaluation.group(1)),
            loss=number(evaluation.group(2)),
        )
    match = _STEP.search(text)
    if not match:
        return None
    fields = _fields(text[match.end() :])
    milliseconds = number(fields.get("elapsed time per iteration (ms)"))
    seconds = number(fields.get("elapsed time per iteration (s)"))
    tflops = number(fields.get("throughput per GPU (TFLOP/s/GPU)")) or number(fields.get("TFLOPs"))
    per_gpu = number(fields.get("tokens-per-second-per-gpu")) or number(
        fields.get("tokens per gpu per second (tgs)")
    )
    nan = integer(fields.get("number of nan iterations"))
    return Event(
        "step",
        line.number,
        framework="megatron",
        rank=line.rank,
        local_rank=line.local_rank,
        step=int(match.group(1)),
        total_steps=int(match.group(2)),
        loss=_loss(fields),
        grad_norm=number(fields.get("grad norm")),
        learning_rate=number(fields.get("learning rate")),
        step_seconds=milliseconds / 1000 if milliseconds is not None else seconds,
        tokens=integer(fields.get("consumed tokens")),
        tokens_per_second=per_gpu,
        tflops=tflops,
        per="gpu" if tflops is not None or per_gpu is not None else None,
        skipped=integer(fields.get("number of skipped iterations")),
        nonfinite=True if nan else None,
    )


def _fields(text: str) -> dict[str, str]:
    result = {}
    for part in text.split("|"):
        key, colon, value = part.rpartition(":")
        if colon:
            result[key.strip()] = value.strip()
    return result


def _loss(fields: dict[str, str]) -> float | None:
    for name in _LOSSES:
        if name in fields:
            return number(fields[name])
    for name, value in fields.items():
        if name.endswith("loss") and not _NOT_LOSS.search(name):
            return number(value)
    return None


_NEMO = re.compile(r"Training epoch (\d+), iteration (\d+)/(\d+)\s*\|")


def nemo(line: Line, context: Context) -> Event | None:
    """Return the step of a NeMo 2 line."""
    match = _NEMO.search(line.text)
    if not match:
        return None
    fields = _fields(line.text[match.end() :])
    step = integer(fields.get("global_step"))
    return Event(
        "step",
        line.number,
        framework="nemo",
        rank=line.rank,
        local_rank=line.local_rank,
        step=step if step is not None else int(match.group(2)),
        total_steps=int(match.group(3)),
        epoch=float(match.group(1)),
        loss=number(fields.get("reduced_train_loss")),
        grad_norm=number(fields.get("grad_norm")),
        learning_rate=number(fields.get("lr")),
        step_seconds=number(fields.get("train_step_timing in s")),
    )
