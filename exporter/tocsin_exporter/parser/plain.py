"""Frameworks whose step is one line of their own form: one row of a table each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tocsin_exporter.parser.clean import Line
from tocsin_exporter.parser.context import Context
from tocsin_exporter.parser.event import Event
from tocsin_exporter.parser.values import NUMBER, duration, integer, number

__all__ = ["plain"]

Fields = dict[str, str]


@dataclass(frozen=True, slots=True)
class _Row:
    """
    ``hint`` is in every match. Groups of ``pattern`` that are called like fields of `Event` fill
    them; ``more`` reads what needs more than that.
    """

    framework: str
    hint: str
    pattern: re.Pattern[str]
    event: str = "step"
    per: str | None = None
    more: Callable[[str, Fields], dict[str, float | int | str | None]] | None = None


def _compile(pattern: str) -> re.Pattern[str]:
    # NUM(name) stands for a number that fills the field of that name.
    return re.compile(re.sub(r"NUM\((\w+)\)", lambda name: f"(?P<{name[1]}>{NUMBER})", pattern))


_DASHED = re.compile(rf"(?:^| - )([\w./@()-]+):((?:np\.\w+\()?{NUMBER}\)?)(?= - |\s*$)")


def _verl(text: str, fields: Fields) -> dict[str, float | int | str | None]:
    found = dict(_DASHED.findall(text))
    loss = next((found[key] for key in ("train/loss", "actor/pg_loss", "actor/loss") if key in found), None)
    rate = next((found[key] for key in ("actor/lr", "train/lr", "train/lr(1e-3)") if key in found), None)
    value = number(rate)
    if value is not None and "train/lr(1e-3)" in found and rate == found["train/lr(1e-3)"]:
        value *= 1e-3
    norm = found.get("actor/grad_norm") or found.get("train/grad_norm")
    seconds = found.get("timing_s/step") or found.get("perf/time_per_step")
    throughput = number(found.get("perf/throughput"))
    return {
        "loss": number(loss),
        "grad_norm": number(norm),
        "learning_rate": value,
        "step_seconds": number(seconds),
        "tokens_per_second": throughput,
        "per": "gpu" if throughput is not None else None,
        "epoch": number(found.get("training/epoch")),
    }


def _milliseconds(text: str, fields: Fields) -> dict[str, float | int | str | None]:
    return {"step_seconds": duration(fields.get("took"))}


def _fairseq(text: str, fields: Fields) -> dict[str, float | int | str | None]:
    found = dict(re.findall(r"\b(\w+)=([^,\s]+)", text))
    found.update(re.findall(r'"(\w+)": "?([^",}]+)', text))
    rate = number(found.get("wps"))
    speed = number(found.get("ups"))
    return {
        "step": integer(found.get("num_updates")),
        "loss": number(found.get("loss")),
        "grad_norm": number(found.get("gnorm")),
        "learning_rate": number(found.get("lr")),
        "step_seconds": 1 / speed if speed else None,
        "tokens_per_second": rate,
        "per": "job" if rate is not None else None,
    }


_SPACED = re.compile(rf"\b(\w+):\s+({NUMBER})")


def _spaced(text: str, fields: Fields) -> dict[str, float | int | str | None]:
    found = dict(_SPACED.findall(text))
    return {
        "loss": number(found.get("loss") or found.get("total_loss")),
        "grad_norm": number(found.get("grad_norm")),
        "learning_rate": number(found.get("lr") or found.get("base_lr")),
        "step_seconds": number(found.get("time")),
        "data_wait_seconds": number(found.get("data_time")),
    }


_TABLE: tuple[_Row, ...] = (
    _Row(
        "torchtitan",
        "validate step:",
        _compile(r"validate step:\s*NUM(step)\s+loss:\s*NUM(loss)"),
        event="eval",
    ),
    _Row(
        "torchtitan",
        "tps:",
        _compile(
            r"\bstep:\s*NUM(step)\s+loss:\s*NUM(loss)(?:\s+grad_norm:\s*NUM(grad_norm))?.{0,400}?"
            r"\btps:\s*NUM(tokens_per_second)(?:\s+tflops:\s*NUM(tflops))?"
        ),
        per="gpu",
    ),
    _Row(
        "nanogpt",
        "iter ",
        _compile(r"^iter NUM(step): (?:train )?loss NUM(loss), time (?P<took>[\d.]+m?s)"),
        more=_milliseconds,
    ),
    _Row(
        "nanogpt", "val loss", _compile(r"^step NUM(step): train loss \S+ val loss NUM(loss)"), event="eval"
    ),
    _Row(
        "maxtext",
        "completed step",
        _compile(
            r"completed step: NUM(step)(?:, seconds: NUM(step_seconds))?(?:, TFLOP/s/device: NUM(tflops))?"
            r"(?:, Tokens/s/device: NUM(tokens_per_second))?.{0,400}?\bloss: NUM(loss)"
        ),
        per="gpu",
    ),
    _Row(
        "maxtext",
        "eval metrics after step",
        _compile(r"eval metrics after step: NUM(step), loss=NUM(loss)"),
        event="eval",
    ),
    _Row(
        "deepspeed",
        "skipped=",
        _compile(
            r"(?:\[Rank (?P<rank>\d+)\] )?step=NUM(step), skipped=NUM(skipped), "
            r"lr=\[?(?:np\.float\d*\()?(?:NUM(learning_rate))?"
        ),
    ),
    _Row(
        "deepspeed",
        "global_step=",
        _compile(r"epoch=NUM(epoch)/\s*micro_step=\d+/\s*global_step=NUM(step), RunningAvgSamplesPerSec="),
    ),
    _Row(
        "deepspeed",
        "iter time (s)",
        _compile(
            r"steps: NUM(step) loss: NUM(loss) (?:lr: NUM(learning_rate) )?iter time \(s\): NUM(step_seconds)"
        ),
    ),
    _Row(
        "verl",
        "- val",
        _compile(
            r"^\s*step:(?P<step>\d+) - (?!.{0,16000}(?:actor/|perf/throughput|train/loss))"
            r"val(?:/loss:(?:np\.float\d*\()?NUM(loss)|[\w-]*/)"
        ),
        event="eval",
    ),
    _Row("verl", "step:", re.compile(r"^\s*step:(?P<step>\d+) - (?=\S+/\S+:)"), more=_verl),
    _Row(
        "mmengine",
        "(train)",
        _compile(
            r"Epoch\(train\)\s+\[\s*NUM(epoch)\]\[\s*NUM(step)/\s*NUM(total_steps)\]"
            r"|Iter\(train\)\s+\[\s*(?P<iteration>\d+)/\s*(?P<iterations>\d+)\]"
        ),
        more=_spaced,
    ),
    _Row(
        "mmengine",
        "(val)",
        _compile(r"Epoch\(val\)\s+\[\s*NUM(epoch)\]\[(\d+)/\2\]\s+\S*(?:loss|acc|mAP|mIoU)\S*:"),
        event="eval",
    ),
    _Row(
        "detectron2",
        "total_loss:",
        _compile(r"\beta: \S.{0,400}?\biter: NUM(step)\s+total_loss: NUM(loss)"),
        more=_spaced,
    ),
    _Row(
        "fairseq",
        "num_updates",
        re.compile(
            r"\btrain_inner\b(?:.{0,40}?\bepoch\"?:? (?P<epoch>\d+))?"
            r"|^\{\"epoch\": (?P<bare>\d+), \"update\""
        ),
        more=_fairseq,
    ),
    _Row(
        "fairseq",
        '"valid_loss"',
        _compile(
            r"\"epoch\": NUM(epoch), \"valid_loss\": \"?NUM(loss)"
            r"(?:.{0,800}?\"valid_num_updates\": \"?NUM(step))?"
        ),
        event="eval",
    ),
    _Row(
        "fairseq",
        "valid on",
        _compile(
            r"epoch NUM(epoch) \| valid on '[^']*' subset \| loss NUM(loss)(?:.{0,400}num_updates NUM(step))?"
        ),
        event="eval",
    ),
    _Row(
        "llmc",
        "| loss",
        _compile(
            r"^step\s+NUM(step)/NUM(total_steps) \| loss NUM(loss)[^|]*\| norm NUM(grad_norm)[^|]*"
            r"\| lr NUM(learning_rate) \| (?P<took>[\d.]+ ms)(?:.{0,400}\| NUM(tokens_per_second) tok/s)?"
        ),
        per="job",
        more=_milliseconds,
    ),
    _Row(
        "nanogpt", "val_loss:", _compile(r"^step:NUM(step)/NUM(total_steps) val_loss:NUM(loss)"), event="eval"
    ),
    _Row(
        "nanogpt",
        "step_avg",
        _compile(
            r"^step:NUM(step)/NUM(total_steps)(?: train_loss:NUM(loss))?"
            r" train_time:\S+ step_avg:(?P<took>[\d.]+ms)"
        ),
        more=_milliseconds,
    ),
)

_COUNTS = ("step", "total_steps", "skipped", "rank")
_FLOATS = (
    "epoch",
    "loss",
    "grad_norm",
    "learning_rate",
    "step_seconds",
    "tokens_per_second",
    "tflops",
)


def plain(line: Line, context: Context) -> Event | None:
    """Return the step or evaluation of a framework of the table, else of the common wording."""
    text = line.text
    for row in _TABLE:
        if row.hint not in text:
            continue
        match = row.pattern.search(text)
        if match:
            return _event(line, row, match)
    return _generic(line, context)


def _event(line: Line, row: _Row, match: re.Match[str]) -> Event | None:
    found: Fields = {name: value for name, value in match.groupdict().items() if value is not None}
    values: dict[str, float | int | str | None] = {
        **{name: integer(found.get(name)) for name in _COUNTS},
        **{name: number(found.get(name)) for name in _FLOATS},
    }
    if "iteration" in found:
        values["step"], values["total_steps"] = integer(found["iteration"]), integer(found["iterations"])
    per = row.per if values["tokens_per_second"] is not None or values["tflops"] is not None else None
    values["per"] = per
    if row.more is not None:
        # What the table's pattern found itself is not overwritten by an absent value.
        values.update({key: value for key, value in row.more(line.text, found).items() if value is not None})
    rank = line.rank if line.rank is not None else values.pop("rank")
    values.pop("rank", None)
    if values["step"] is None and row.event == "step":
        return None
    return Event(
        row.event,
        line.number,
        framework=row.framework,
        rank=rank,  # type: ignore[arg-type]
        local_rank=line.local_rank,
        **values,  # type: ignore[arg-type]
    )


_STEP_WORD = re.compile(
    r"\b(?:global[_ ]?step|step|iter|iteration|batch|update)s?\b\s*[:=#\[(]?\s*(\d[\d,]*)\]?"
    r"(?:\s*(?:/|of)\s*(\d[\d,]*))?",
    re.I,
)
_FRACTION = re.compile(r"\[\s*(\d+)\s*/\s*(\d+)\s*(?:\([^)]*\))?\]")
_LOSS_WORD = re.compile(rf"(?<![\w/])(?:train(?:ing)?[_/ ]?)?loss\b\s*[:=]?\s*({NUMBER})(?![\w%])", re.I)
_EVAL_WORD = re.compile(
    r"\b(?:val(?:id(?:ation)?)?|eval(?:uation)?|test)[_/ -]?loss\b\s*[:=]?\s*(" + NUMBER + ")", re.I
)
_EVAL_LINE = re.compile(r"\b(?:val|valid|validation|eval|evaluation|evaluating|test)\b", re.I)
_RATE_WORD = re.compile(rf"\b(?:lr|learning[_ ]rate)\b\s*[:=]?\s*({NUMBER})", re.I)
_NORM_WORD = re.compile(rf"\b(?:grad(?:ient)?[_ ]?norm|gnorm)\b\s*[:=]?\s*({NUMBER})", re.I)
_EPOCH_WORD = re.compile(r"\bepoch\b\s*[:=#\[(]?\s*(\d+(?:\.\d+)?)", re.I)
_LONGEST_GENERIC = 2000


def _generic(line: Line, context: Context) -> Event | None:
    text = line.text
    if ("oss" not in text and "OSS" not in text) or len(text) > _LONGEST_GENERIC:
        return None
    # Code, configuration and prose talk of losses too; a record has a step beside its number.
    at = _STEP_WORD.search(text) or _FRACTION.search(text)
    if not at:
        return None
    step, total = integer(at.group(1)), integer(at.group(2))
    if step is None:
        return None
    epoch = _EPOCH_WORD.search(text)
    loss = _LOSS_WORD.search(text)
    evaluation = _EVAL_WORD.search(text)
    if evaluation and (loss is None or loss.start() >= evaluation.start()):
        kind, value = "eval", number(evaluation.group(1))
    elif loss is not None:
        kind, value = ("eval" if _EVAL_LINE.search(text[: loss.start()]) else "step"), number(loss.group(1))
    else:
        return None
    if value is None:
        return None
    rate, norm = _RATE_WORD.search(text), _NORM_WORD.search(text)
    training = kind == "step"
    return Event(
        kind,
        line.number,
        framework=context.framework or "generic",
        rank=line.rank,
        local_rank=line.local_rank,
        step=step,
        total_steps=total,
        epoch=float(epoch.group(1)) if epoch else None,
        loss=value,
        grad_norm=number(norm.group(1)) if norm and training else None,
        learning_rate=number(rate.group(1)) if rate and training else None,
    )
