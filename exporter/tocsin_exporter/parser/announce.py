"""Lines that announce a phase, a checkpoint or a skipped step, whatever framework prints them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tocsin_exporter.parser.clean import Line
from tocsin_exporter.parser.context import Context
from tocsin_exporter.parser.event import Event
from tocsin_exporter.parser.values import number

__all__ = ["announcement"]


@dataclass(frozen=True, slots=True)
class _Row:
    """``hint`` is a text that every match contains: it is cheap to look for."""

    hint: str
    pattern: re.Pattern[str]
    event: str
    framework: str | None = None
    phase: str | None = None


def _row(hint: str, pattern: str, event: str, framework: str | None = None) -> _Row:
    kind, _, phase = event.partition(":")
    return _Row(hint, re.compile(pattern), kind, framework, phase or None)


_AT = r"(?:\s+at)?\s+(?:iteration|step)\s*:?\s+(?P<step>\d+)"

# First match wins.
_TABLE: tuple[_Row, ...] = (
    # Megatron-LM, also as part of NeMo
    _row("saving checkpoint", rf"^\s*saving checkpoint{_AT}", "checkpoint_start", "megatron"),
    _row("async checkpoint", rf"scheduled an async checkpoint save{_AT}", "checkpoint_start", "megatron"),
    _row(
        "uccessfully saved checkpoint",
        r"[Ss]uccessfully saved checkpoint(?: from| at)?(?: iteration)?\s+(?P<step>\d+)?",
        "checkpoint_end",
        "megatron",
    ),
    _row(
        "successfully loaded checkpoint",
        r"successfully loaded checkpoint(?:.{0,400}\bat iteration\s+(?P<step>\d+))?",
        "resume",
        "megatron",
    ),
    _row("before the start of training", r"\[before the start of training step\]", "phase:train", "megatron"),
    _row("after training is done", r"\[after training is done\]", "phase:finished", "megatron"),
    _row("exiting program", r"^\s*\[?exiting program (?:after|at)\b", "phase:finished", "megatron"),
    _row("initializing torch distributed", r"^> initializing torch distributed", "phase:init", "megatron"),
    # DeepSpeed
    _row(
        "is about to be saved",
        r"Checkpoint (?:global_step(?P<step>\d+)|\S+) is about to be saved",
        "checkpoint_start",
        "deepspeed",
    ),
    _row(
        "is ready now",
        r"Checkpoint (?:global_step(?P<step>\d+)|\S+) is ready now",
        "checkpoint_end",
        "deepspeed",
    ),
    _row("verflow", r"\[deepspeed\] .{0,100}[Oo]verflow.{0,20}Skipping step", "overflow", "deepspeed"),
    _row("OVERFLOW!", r"\[deepspeed\] OVERFLOW! Rank (?P<rank>\d+) Skipping step", "overflow", "deepspeed"),
    _row("Skipping step", r"OVERFLOW! Rank (?P<rank>\d+) Skipping step", "overflow", "deepspeed"),
    _row("verflow", r"[Oo]verflow(?: detected)?[.,!]?\s+Skipping step", "overflow"),
    # torchtitan
    _row("Saving the checkpoint", r"^Saving the checkpoint\b", "checkpoint_start", "torchtitan"),
    _row(
        "Finished saving the checkpoint",
        # Some releases print no space before the "in".
        r"Finished saving the checkpoint.{0,400}?[ )]in (?P<seconds>[\d.]+) seconds",
        "checkpoint_end",
        "torchtitan",
    ),
    _row(
        "Finished loading the checkpoint",
        r"Finished loading the checkpoint.{0,400} in [\d.]+ seconds",
        "resume",
        "torchtitan",
    ),
    _row("Training starts at step", r"^Training starts at step", "phase:train", "torchtitan"),
    _row(
        "with torch.compile",
        r"^(?:Compiling|Compiled) .{0,400} with torch\.compile",
        "phase:compile",
        "torchtitan",
    ),
    # nanoGPT
    _row("saving checkpoint to", r"^saving checkpoint to \S", "checkpoint_start", "nanogpt"),
    _row("Resuming training from", r"^Resuming training from \S{1,400}$", "resume", "nanogpt"),
    _row("compiling the model", r"^compiling the model\.\.\.", "phase:compile", "nanogpt"),
    # Hugging Face
    _row("Running training", r"\*{5} Running training \*{5}", "phase:train", "hf"),
    _row("unning", r"\*{5} Running [Ee]valuation \*{5}", "phase:eval", "hf"),
    _row("Training completed", r"^Training completed\. Do not forget", "phase:finished", "hf"),
    _row(
        "Saving model checkpoint to",
        r"Saving model checkpoint to \S*?(?:checkpoint-(?P<step>\d+))?/?$",
        "checkpoint_start",
        "hf",
    ),
    _row("Continuing training from global step", r"from global step (?P<step>\d+)", "resume", "hf"),
    _row(
        "Resuming",
        r"^Resum(?:ing|ed) (?:training )?from (?:the )?checkpoint.{0,400}?(?:checkpoint-(?P<step>\d+))?/?$",
        "resume",
    ),
    # Lightning
    _row("Restored all states from", r"^Restored all states from the checkpoint", "resume", "lightning"),
    _row(
        "Trainer.fit", r"`?Trainer\.fit`? stopped: `?max_\w+=.{0,400} reached", "phase:finished", "lightning"
    ),
    # mmengine
    _row(
        "Saving checkpoint at",
        r"Saving checkpoint at (?P<step>\d+) iterations",
        "checkpoint_start",
        "mmengine",
    ),
    _row(
        "Saving checkpoint at", r"Saving checkpoint at (?P<epoch>\d+) epochs", "checkpoint_start", "mmengine"
    ),
    # NeMo 2
    _row(
        "Async checkpoint save for step",
        r"Async checkpoint save for step (?P<step>\d+) .{0,800}finalized",
        "checkpoint_end",
        "nemo",
    ),
    # detectron2
    _row(
        "aving checkpoint to",
        r"^Saving checkpoint to \S{0,400}model_(?P<step>\d{1,12})\.pth$",
        "checkpoint_start",
        "detectron2",
    ),
    _row("Starting training from", r"^Starting training from iteration \d+$", "phase:train", "detectron2"),
    # fairseq
    _row("begin training", r"^begin training epoch \d+$", "phase:train", "fairseq"),
    _row("done training", r"^done training in [\d.]+ seconds", "phase:finished", "fairseq"),
    _row("gradient overflow", r"^NOTE: gradient overflow detected, ignoring gradient", "overflow", "fairseq"),
    _row(
        "Preparing to save",
        r"^Preparing to save checkpoint for epoch \d+ @ (?P<step>\d+) updates",
        "checkpoint_start",
        "fairseq",
    ),
    _row(
        "aved checkpoint",
        r"^Saved checkpoint .{0,800}@ (?P<step>\d+) updates.{0,80}writing took (?P<seconds>[\d.]+) seconds",
        "checkpoint_end",
        "fairseq",
    ),
    _row(
        "Loaded checkpoint",
        r"^Loaded checkpoint .{0,800}\(epoch \d+ @ (?P<step>\d+) updates\)",
        "resume",
        "fairseq",
    ),
    # common wordings
    _row("aving checkpoint", rf"^\s*[Ss]aving checkpoint\b(?:.{{0,400}}?{_AT})?", "checkpoint_start"),
    _row("aved checkpoint", rf"^\s*[Ss]aved checkpoint\b(?:.{{0,400}}?{_AT})?", "checkpoint_end"),
    _row(
        "heckpoint saved",
        r"^\s*[Cc]heckpoint saved\b(?:.{0,400}?(?:step|iteration)[ _=:-]*(?P<step>\d+))?"
        r"(?:.{0,400} in (?P<seconds>[\d.]+) ?s(?:econds)?\b)?",
        "checkpoint_end",
    ),
    _row("training", r"^\s*Start(?:ing)? training(?: loop| run)?[.!]*$", "phase:train"),
    _row("raining", r"^\s*Training (?:is )?(?:complete|completed|finished|done)[.!]*$", "phase:finished"),
)

# One of these is in whatever a row matches; most lines have none.
_STEMS = (
    "heckpoint",
    "raining",
    "verflow",
    "OVERFLOW",
    "ompil",
    "unning ",
    "Resum",
    "Restored",
    "Trainer.fit",
    "exiting program",
    "torch distributed",
    "global step",
)


def announcement(line: Line, context: Context) -> Event | None:
    """Return what *line* announces, and remember where the run is."""
    text = line.text
    if not any(stem in text for stem in _STEMS):
        return None
    for row in _TABLE:
        if row.hint not in text:
            continue
        match = row.pattern.search(text)
        if not match:
            continue
        found = match.groupdict()
        rank = line.rank if line.rank is not None or not found.get("rank") else int(found["rank"])
        if row.phase is not None:
            context.announced = context.announced or row.phase == "train"
            context.evaluating = row.phase == "eval"
        return Event(
            row.event,
            line.number,
            framework=row.framework,
            rank=rank,
            local_rank=line.local_rank,
            step=int(found["step"]) if found.get("step") else None,
            epoch=number(found.get("epoch")),
            checkpoint_seconds=number(found.get("seconds")),
            phase=row.phase,
        )
    return None
