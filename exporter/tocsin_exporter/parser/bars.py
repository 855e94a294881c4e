"""Progress bars: tqdm bare, as Lightning, diffusers and Ultralytics dress it, and Keras' own."""

from __future__ import annotations

import re

from tocsin_exporter.parser.clean import Line
from tocsin_exporter.parser.context import Bar, Context
from tocsin_exporter.parser.event import Event
from tocsin_exporter.parser.values import duration, integer, number

__all__ = ["keras", "progress", "read_bar"]

_BAR = re.compile(
    r"^(?P<head>[^|\r]{0,160}?)(?:(?P<percent>\d{1,3})%)?\|(?P<drawn>[^|]*)\|\s*"
    r"(?P<step>\d+)/(?P<total>\d+|\?)\s*\[(?P<times>[\d:?]+<[\d:?, a-z]+?|[\d:?]+),\s*"
    r"(?P<rate>[\d.]+|\?)\s*(?P<unit>it/s|s/it|step/s|s/step|steps/s|batch/s|s/batch)(?P<rest>.*)$"
)
_EPOCH = re.compile(r"^Epoch\s+(\d+)(?:/(\d+|-\d+))?\b")
_POSTFIX = re.compile(r"(?:^|[,\s])([A-Za-z][\w/.]*)=([^,\s\]]+)")
_YOLO = re.compile(r"^\s*(\d+)/(\d+)\s+[\d.]+[GM]\s")
# Anything else in front of a bar is a download, a data set, a sampler or a validation.
_TRAINING_HEAD = re.compile(
    r"^\s*(?:(?:Training|Train|train|training|Steps|steps|Step|Iterations?)\b[^:]*:?)?\s*$"
)
_LOSSES = (
    "train_loss",
    "loss",
    "train_loss_step",
    "loss_step",
    "train/loss",
    "step_loss",
    "reduced_train_loss",
)
# A sampler draws in a few dozen steps; a bare bar that short is training only where that was announced.
_SAMPLER_STEPS = 100


def _seconds(rate: str, unit: str) -> float | None:
    value = number(rate)
    if not value:
        return None
    return value if unit.startswith("s/") else 1 / value


def read_bar(text: str) -> Bar | None:
    """Return the position of a bare training bar, or None."""
    match = _BAR.match(text)
    if not match or match["total"] == "?" or not _TRAINING_HEAD.match(match["head"]):
        return None
    return Bar(int(match["step"][:15]), int(match["total"][:15]), _seconds(match["rate"], match["unit"]))


def progress(line: Line, context: Context) -> Event | None:
    """Return the step that a training bar shows, with the figures behind it."""
    text = line.text
    if "%|" not in text and "/? [" not in text:
        return _drawn(line) if "━" in text else None
    match = _BAR.match(text)
    if not match:
        return None
    step, total = integer(match["step"]), integer(match["total"])
    # Only Lightning shows an epoch of unknown length.
    if not step or not (total or text.startswith("Epoch ")):
        return None
    fields = dict(_POSTFIX.findall(match["rest"]))
    loss = next((value for key in _LOSSES if (value := number(fields.get(key))) is not None), None)
    seconds = _seconds(match["rate"], match["unit"])
    head = match["head"].strip().rstrip(":").strip()
    framework: str | None = None
    epoch: float | None = None
    epoch_head = _EPOCH.match(head)
    yolo = _YOLO.match(match["head"])
    if epoch_head:
        epoch = float(epoch_head.group(1))
        framework = "nemo" if "reduced_train_loss" in fields else "lightning" if "v_num" in fields else None
        if framework is None and not epoch_head.group(2):
            framework = "lightning"
        step = integer(fields.get("global_step")) or step if framework == "nemo" else step
    elif yolo:
        epoch, framework = float(yolo.group(1)), "ultralytics"
    elif not _TRAINING_HEAD.match(match["head"]):
        return None
    else:
        if head.startswith("Steps") or "step_loss" in fields:
            framework = "diffusers"
        bare = not head and loss is None
        if bare and total is not None and total < _SAMPLER_STEPS and not context.announced:
            return None
        if bare and context.evaluating:
            return None
        context.bar = Bar(step, total, seconds)
        framework = framework or context.framework
    return Event(
        "step",
        line.number,
        framework=framework,
        rank=line.rank,
        local_rank=line.local_rank,
        step=step,
        total_steps=total,
        epoch=epoch,
        loss=loss,
        grad_norm=number(fields.get("grad_norm")),
        learning_rate=number(fields.get("lr") or fields.get("learning_rate")),
        step_seconds=seconds,
    )


_RICH = re.compile(
    r"^Epoch (?P<epoch>\d+)/-?\d+\s+[━╸╺ ]+(?P<step>\d+)/(?P<total>\d+)\s+[\d:]+ • [\d:-]+\s+"
    r"(?P<rate>[\d.]+)(?P<unit>it/s)(?P<rest>.*)$"
)
_RICH_FIELD = re.compile(r"([A-Za-z][\w/.]*): (\S+)")
_ULTRALYTICS = re.compile(
    r"^\s*(?P<epoch>\d+)/\d+\s+[\d.]+[GM]\s[\s\d.]*:\s*\d{1,3}%\s*[━─╸╺]+\s+"
    r"(?P<step>\d+)/(?P<total>\d+)\s+(?P<rate>[\d.]+)(?P<unit>it/s|s/it)\b"
)


def _drawn(line: Line) -> Event | None:
    """Return the step of a bar of heavy lines: Lightning's Rich bar, the newer one of Ultralytics."""
    rich = _RICH.match(line.text)
    match = rich or _ULTRALYTICS.match(line.text)
    if not match:
        return None
    fields = dict(_RICH_FIELD.findall(rich["rest"])) if rich else {}
    return Event(
        "step",
        line.number,
        framework="lightning" if rich else "ultralytics",
        rank=line.rank,
        local_rank=line.local_rank,
        step=integer(match["step"]),
        total_steps=integer(match["total"]),
        epoch=number(match["epoch"]),
        loss=next((value for key in _LOSSES if (value := number(fields.get(key))) is not None), None),
        step_seconds=_seconds(match["rate"], match["unit"]),
    )


_KERAS = re.compile(
    r"^\s*(?P<step>\d+)/(?P<total>\d+|Unknown)\s+(?:\[[=>. ]*\]|[━╸╺─ \x08]+|-)?\s*"
    r"(?:-\s*)?(?:ETA:\s*)?[\d:]+(?:s|m|h)?\s*(?:-\s*)?(?:(?P<each>[\d.]+\s*(?:us|µs|ms|s))/(?:step|epoch))?\s*-\s+(?P<rest>.*)$"
)
_KERAS_EPOCH = re.compile(r"^Epoch (\d+)/(\d+)\s*$")
_KERAS_FIELD = re.compile(r"(?:^| - )([\w/]+):\s*(\S+)")


_EACH = re.compile(r" - (\d{1,12}(?:\.\d+)?(?:us|ms|s))/step\b")


def _each(text: str) -> str | None:
    found = _EACH.search(text)
    return found.group(1) if found else None


def keras(line: Line, context: Context) -> Event | None:
    """Return the step of a Keras line; the loss it prints is the running mean of the epoch."""
    text = line.text
    epoch = _KERAS_EPOCH.match(text)
    if epoch:
        context.epoch = float(epoch.group(1))
        return None
    if "loss:" not in text or "/" not in text[:24]:
        return None
    match = _KERAS.match(text)
    if not match:
        return None
    fields = dict(_KERAS_FIELD.findall(match["rest"]))
    loss = number(fields.get("loss"))
    if loss is None:
        return None
    return Event(
        "step",
        line.number,
        framework="keras",
        rank=line.rank,
        local_rank=line.local_rank,
        step=integer(match["step"]),
        total_steps=integer(match["total"]),
        epoch=context.epoch,
        loss=loss,
        learning_rate=number(fields.get("learning_rate") or fields.get("lr")),
        step_seconds=duration(match["each"] or _each(match["rest"])),
    )
