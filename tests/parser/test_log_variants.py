"""The other forms that frameworks, launchers and container runtimes print, and what only resembles them."""

# Log lines stand as they are printed.
# ruff: noqa: E501

from __future__ import annotations

import json
from typing import Any

import pytest

from tocsin_exporter.parser import LogParser


def parse(text: str) -> list[dict[str, Any]]:
    parser = LogParser()
    events = [event for line in text.encode().split(b"\n") for event in parser.feed(line)]
    events.extend(parser.flush())
    return [json.loads(json.dumps(event.to_json(), allow_nan=False)) for event in events]


NANOGPT = "iter 100: loss 3.2145, time 250.00ms, mfu 17.20%"
FAIRSEQ = "2026-08-22 10:00:00 | INFO | "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('{"log":"' + NANOGPT + '\\n","stream":"stdout","time":"2026-08-22T10:00:00.1Z"}', ("step", "nanogpt", 100, 3.2145, None), id="a container's JSON record"),
        pytest.param("[gpu-001:1,3]<stdout>: " + NANOGPT, ("step", "nanogpt", 100, 3.2145, 3), id="mpirun with a host"),
        pytest.param("[NeMo I 2026-08-22 10:00:00 nemo_logging:393] Successfully saved checkpoint from iteration      49 to /c/a.ckpt", ("checkpoint_end", "megatron", 49, None, None), id="NeMo's logger"),
        pytest.param("Async checkpoint save for step 50 (/c/a.ckpt) finalized successfully.", ("checkpoint_end", "nemo", 50, None, None), id="NeMo's asynchronous checkpoint"),
        pytest.param("[2026-08-22 10:00:00,123] [INFO] [logging.py:107:log_dist] [Rank 0] step=10, skipped=0, lr=[np.float64(0.0001)], mom=[[0.9, 0.95]]", ("step", "deepspeed", 10, None, 0), id="DeepSpeed with numpy rates"),
        pytest.param("[deepspeed] fp16 dynamic loss scale overflow! Skipping step. Attempted loss scale: 65536, reducing to 32768", ("overflow", "deepspeed", None, None, None), id="DeepSpeed's fused optimizer"),
        pytest.param("step:10 - val/loss:1.25", ("eval", "verl", 10, 1.25, None), id="verl's validation loss"),
        pytest.param("step:10 - val-core/openai/gsm8k/reward/mean@1:0.5", ("eval", "verl", 10, None, None), id="verl's validation reward"),
        pytest.param("Epoch 0: |          | 32/? [00:10<00:00,  4.0it/s, v_num=0, train_loss=2.6]", ("step", "lightning", 32, 2.6, None), id="Lightning without a length"),
        pytest.param("Epoch 3/9 ━━━━╸━━━━━━━━━━━ 32/500 0:00:10 • 0:02:30 3.10it/s v_num: 0.000 train_loss: 2.6", ("step", "lightning", 32, 2.6, None), id="Lightning's Rich bar"),
        pytest.param("      1/100      2.5G      1.2      2.3      1.1        10        640: 50% ━━━━━━────── 50/100 5.0it/s 10.0s<10.0s", ("step", "ultralytics", 50, None, None), id="the newer bar of Ultralytics"),
        pytest.param("     10/Unknown  5s 50ms/step - accuracy: 0.1 - loss: 2.3", ("step", "keras", 10, 2.3, None), id="Keras without a length"),
        pytest.param(FAIRSEQ + 'train_inner | {"epoch": 1, "update": 0.081, "loss": "8.1", "ppl": "180", "wps": "12345", "ups": "2", "num_updates": "100", "lr": "1e-05", "gnorm": "1.2"}', ("step", "fairseq", 100, 8.1, None), id="fairseq's JSON"),
        pytest.param(FAIRSEQ + 'valid | {"epoch": 1, "valid_loss": "7.1", "valid_ppl": "90", "valid_num_updates": "1234"}', ("eval", "fairseq", 1234, 7.1, None), id="fairseq's JSON validation"),
        pytest.param(FAIRSEQ + "fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0", ("overflow", "fairseq", None, None, None), id="fairseq's overflow"),
        pytest.param(FAIRSEQ + "fairseq.trainer | begin training epoch 1", ("phase", "fairseq", None, None, None), id="fairseq's start"),
        pytest.param(FAIRSEQ + "fairseq_cli.train | done training in 123.4 seconds", ("phase", "fairseq", None, None, None), id="fairseq's end"),
        pytest.param(FAIRSEQ + "fairseq.checkpoint_utils | Preparing to save checkpoint for epoch 1 @ 1234 updates", ("checkpoint_start", "fairseq", 1234, None, None), id="fairseq saves"),
        pytest.param(FAIRSEQ + "fairseq.trainer | Loaded checkpoint ckpt/checkpoint_last.pt (epoch 2 @ 1234 updates)", ("resume", "fairseq", 1234, None, None), id="fairseq resumes"),
        pytest.param("[08/22 10:00:00 fvcore.common.checkpoint]: Saving checkpoint to ./output/model_0004999.pth", ("checkpoint_start", "detectron2", 4999, None, None), id="detectron2 saves"),
        pytest.param("[08/22 10:00:00 d2.engine.train_loop]: Starting training from iteration 0", ("phase", "detectron2", None, None, None), id="detectron2's start"),
        pytest.param("Resuming training from out", ("resume", "nanogpt", None, None, None), id="nanoGPT resumes"),
        pytest.param("[batch=10/1000]:\n\t Eval metrics/eval/LanguageCrossEntropy: 2.5\n", ("eval", "composer", 10, 2.5, None), id="Composer's evaluation under the head of a step"),
        pytest.param("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", ("oom", None, None, None, None), id="cuBLAS finds no memory"),
        pytest.param("gpu-001:12:34 [0] transport/net.cc:1 NCCL WARN Cuda failure 2 'out of memory'", ("oom", None, None, None, None), id="NCCL finds no memory"),
    ],
)  # fmt: skip
def test_each_form_is_one_event(text: str, expected: tuple[object, ...]) -> None:
    """
    Every form gives one event with its kind, framework, step, loss and rank.
    """
    (found,) = parse(text)

    assert expected == tuple(found.get(key) for key in ("event", "framework", "step", "loss", "rank"))


def test_durations_stand_in_the_checkpoint_lines() -> None:
    """
    torchtitan prints seconds with or without a space before the "in", fairseq what the writing took.
    """
    lines = (
        "Finished saving the checkpoint (or staging if async is enabled)in 5.53 seconds.",
        "Finished saving the checkpoint in 0.60 seconds.",
        FAIRSEQ + "fairseq.checkpoint_utils | Saved checkpoint a.pt (epoch 1 @ 1234 updates, score 7.1)"
        " (writing took 3.2 seconds)",
    )

    assert [5.53, 0.6, 3.2] == [found["checkpoint_seconds"] for found in parse("\n".join(lines))]
    assert {"checkpoint_end"} == {found["event"] for found in parse("\n".join(lines))}


def test_what_a_container_runtime_split_is_one_line() -> None:
    """
    Partial records are joined up to the one that ends the line, and the next line stands alone.
    """
    head = "2026-08-22T10:00:00.123456789Z stdout "
    text = f"{head}P {NANOGPT[:20]}\n{head}F {NANOGPT[20:]}\n{head}F {NANOGPT}"

    assert [(2, 3.2145), (3, 3.2145)] == [(found["line"], found["loss"]) for found in parse(text)]


@pytest.mark.parametrize(
    "text",
    [
        "MemoryError: Unable to allocate 3.00 GiB for an array with shape (1, 2)",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
        "Memory cgroup out of memory: Killed process 123 (python)",
        "Validation: |          | 3/? [00:00<00:00,  3.1it/s]",
        "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100% ━━━━━━━━━━━━ 4/4 2.0it/s 2.0s",
        "   ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 474.6/474.6 kB 1.6 MB/s eta 0:00:00",
        FAIRSEQ + 'train | {"epoch": 1, "train_loss": "8.1", "train_num_updates": "1234"}',
        FAIRSEQ + "fairseq.trainer | NOTE: gradient checkpointing is on",
        '{"log":"loaded 3 files\\n","stream":"stdout","time":"2026-08-22T10:00:00.1Z"}',
        '{"log":"',
        '{"log":17}',
        "step:10 of the manual - validate your data first",
    ],
)  # fmt: skip
def test_what_only_resembles_a_record_gives_nothing(text: str) -> None:
    """
    Host memory, validation and download bars, summaries and prose are no events.
    """
    assert [] == parse(text)
