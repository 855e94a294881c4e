"""The Hugging Face Trainer and what is built on it: one dictionary a record."""

from __future__ import annotations

from tocsin_exporter.parser.bars import read_bar
from tocsin_exporter.parser.clean import Line
from tocsin_exporter.parser.context import Context
from tocsin_exporter.parser.event import Event
from tocsin_exporter.parser.values import integer, number, pairs

__all__ = ["huggingface"]

_LOSSES = ("loss", "train/loss")
_TRL = (
    "reward",
    "kl",
    "frac_reward_zero_std",
    "mean_token_accuracy",
    "completions/mean_length",
    "rewards/chosen",
)


def huggingface(line: Line, context: Context) -> Event | None:
    """
    Return the record that *line* holds.

    Version 4 prints numbers, version 5 strings. The step number is in neither: it comes from
    the progress bar around the record, or is absent.
    """
    text = line.text
    start = text.find("{")
    if start < 0 or "}" not in text or ("oss" not in text and "_runtime" not in text):
        return None
    if '"num_updates"' in text or '_num_updates"' in text:
        # fairseq prints dictionaries too.
        return None
    fields = pairs(text[start:])
    if "train_runtime" in fields:
        return _finished(line, fields)
    name = _framework(fields) or (context.framework if context.framework in _FAMILY else None) or "hf"
    for key in ("eval_loss", "eval/loss"):
        loss = number(fields.get(key))
        if loss is not None:
            return _event("eval", line, context, fields, name, loss)
    for key in _LOSSES:
        loss = number(fields.get(key))
        if loss is not None and _is_record(fields):
            return _event("step", line, context, fields, name, loss)
    return None


_FAMILY = ("hf", "trl", "axolotl", "swift", "llamafactory")


def _is_record(fields: dict[str, str]) -> bool:
    # A configuration may have a loss too, but neither a rate nor an epoch beside it.
    return any(
        key in fields for key in ("learning_rate", "lr", "epoch", "grad_norm", "global_step/max_steps")
    )


def _framework(fields: dict[str, str]) -> str | None:
    if any(key.startswith("train_speed(") for key in fields) or "global_step/max_steps" in fields:
        return "swift"
    if any(key.startswith(("memory/", "tokens/")) for key in fields) or "ppl" in fields:
        return "axolotl"
    if "throughput" in fields or "current_steps" in fields:
        return "llamafactory"
    if any(key in fields for key in _TRL):
        return "trl"
    return None


def _finished(line: Line, fields: dict[str, str]) -> Event:
    return Event(
        "phase",
        line.number,
        framework="hf",
        rank=line.rank,
        local_rank=line.local_rank,
        epoch=number(fields.get("epoch")),
        phase="finished",
    )


def _event(kind: str, line: Line, context: Context, fields: dict[str, str], name: str, loss: float) -> Event:
    step, total = _position(line, context, fields)
    speed = number(fields.get("train_speed(s/it)"))
    inverse = number(fields.get("train_speed(iter/s)"))
    if speed is None and inverse:
        speed = 1 / inverse
    rate, per = _throughput(fields)
    tokens = next((value for key in _TOKENS if (value := integer(fields.get(key))) is not None), None)
    rate_key = "learning_rate" if "learning_rate" in fields else "lr"
    training = kind == "step"
    return Event(
        kind,
        line.number,
        framework=name,
        rank=line.rank,
        local_rank=line.local_rank,
        step=step,
        total_steps=total,
        epoch=number(fields.get("epoch")),
        loss=loss,
        grad_norm=number(fields.get("grad_norm")) if training else None,
        learning_rate=number(fields.get(rate_key)) if training else None,
        step_seconds=speed if training else None,
        tokens=tokens if training else None,
        tokens_per_second=rate if training else None,
        per=per if training else None,
    )


_TOKENS = ("tokens/total", "num_tokens", "num_input_tokens_seen")


def _position(line: Line, context: Context, fields: dict[str, str]) -> tuple[int | None, int | None]:
    if "global_step/max_steps" in fields:
        step, _, total = fields["global_step/max_steps"].partition("/")
        return integer(step), integer(total)
    for step_key, total_key in (
        ("current_steps", "total_steps"),
        ("global_step", "max_steps"),
        ("step", "max_steps"),
    ):
        if step_key in fields:
            return integer(fields[step_key]), integer(fields.get(total_key))
    bar = read_bar(line.earlier) or context.bar
    if bar is None or context.evaluating:
        return None, None
    return bar.step, bar.total


def _throughput(fields: dict[str, str]) -> tuple[float | None, str | None]:
    per_gpu = number(fields.get("tokens/train_per_sec_per_gpu"))
    if per_gpu is None:
        per_gpu = number(fields.get("tokens_per_second_per_gpu"))
    if per_gpu is not None:
        return per_gpu, "gpu"
    for key in ("throughput", "train_tokens_per_second"):
        rate = number(fields.get(key))
        if rate is not None:
            return rate, "job"
    return None, None
