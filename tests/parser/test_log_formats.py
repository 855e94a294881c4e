"""One line of every framework, and what it must become."""

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


MEGATRON = (
    " [2026-08-22 10:00:00.123456] iteration     1000/   20000 | consumed samples:       256000 |"
    " elapsed time per iteration (ms): 5484.6 | throughput per GPU (TFLOP/s/GPU): 250.1 |"
    " learning rate: 9.999946E-05 | global batch size:   256 |{loss} loss scale: 1.0 | grad norm: 0.514 |"
    " num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   {nan} |"
)
MEGATRON_FIELDS = {
    "event": "step",
    "framework": "megatron",
    "step": 1000,
    "total_steps": 20000,
    "grad_norm": 0.514,
    "learning_rate": 9.999946e-05,
    "step_seconds": 5.4846,
    "tflops": 250.1,
    "per": "gpu",
    "skipped": 0,
}

STEPS = [
    pytest.param(
        MEGATRON.format(loss=" lm loss: 3.147666E+00 |", nan=0),
        {**MEGATRON_FIELDS, "loss": 3.147666},
        id="Megatron-LM",
    ),
    pytest.param(
        MEGATRON.format(loss="", nan=1),
        {**MEGATRON_FIELDS, "nonfinite": True},
        id="Megatron-LM leaves out a loss that is not finite",
    ),
    pytest.param(
        MEGATRON.format(loss=" load_balancing_loss: 1.1E+00 | lm loss: 2.5E+00 |", nan=0),
        {**MEGATRON_FIELDS, "loss": 2.5},
        id="Megatron-LM with an auxiliary loss before the loss",
    ),
    pytest.param(
        "[default7]: iteration      100/   5000 | consumed samples: 3200 | consumed tokens: 6553600 |"
        " elapsed time per iteration (s): 98.70 | learning rate: 1.0E-4 | global batch size: 32 |"
        " lm loss: 6.1E+00 | grad norm: 1.2 | num zeros: 0.0 | number of skipped iterations: 2 |"
        " number of nan iterations: 0 | samples per second: 20.1 | TFLOPs: 151.20 |",
        {
            "event": "step",
            "framework": "megatron",
            "local_rank": 7,
            "step": 100,
            "total_steps": 5000,
            "loss": 6.1,
            "grad_norm": 1.2,
            "learning_rate": 1e-4,
            "step_seconds": 98.7,
            "tokens": 6553600,
            "tflops": 151.2,
            "per": "gpu",
            "skipped": 2,
        },
        id="Megatron-DeepSpeed prints seconds",
    ),
    pytest.param(
        "{'loss': '2.345', 'grad_norm': '1.23', 'learning_rate': '5e-05', 'epoch': '0.01'}",
        {
            "event": "step",
            "framework": "hf",
            "loss": 2.345,
            "grad_norm": 1.23,
            "learning_rate": 5e-05,
            "epoch": 0.01,
        },
        id="Hugging Face 5 prints strings",
    ),
    pytest.param(
        "{'loss': 1.4707, 'grad_norm': 10.5, 'learning_rate': 2e-06, 'epoch': 0.01}",
        {
            "event": "step",
            "framework": "hf",
            "loss": 1.4707,
            "grad_norm": 10.5,
            "learning_rate": 2e-06,
            "epoch": 0.01,
        },
        id="Hugging Face 4 prints numbers",
    ),
    pytest.param(
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 2e-06, 'epoch': 1.0}",
        {
            "event": "step",
            "framework": "hf",
            "loss": 0.0,
            "grad_norm": "NaN",
            "learning_rate": 2e-06,
            "epoch": 1,
            "nonfinite": True,
        },
        id="Hugging Face filters a NaN loss to 0.0",
    ),
    pytest.param(
        "  2%|2         | 10/500 [00:05<04:12,  2.00it/s]\r                    \r"
        "{'loss': 1.5, 'grad_norm': 0.5, 'learning_rate': 5e-05, 'epoch': 0.02}",
        {
            "event": "step",
            "framework": "hf",
            "step": 10,
            "total_steps": 500,
            "loss": 1.5,
            "grad_norm": 0.5,
            "learning_rate": 5e-05,
            "epoch": 0.02,
        },
        id="a Hugging Face record over its progress bar takes the bar's step",
    ),
    pytest.param(
        "{'loss': 0.0012, 'grad_norm': 0.3, 'learning_rate': 1e-06, 'num_tokens': 512000.0,"
        " 'completions/mean_length': 210.5, 'reward': 0.7, 'reward_std': 0.1, 'frac_reward_zero_std': 0.25,"
        " 'kl': 0.002, 'epoch': 0.1}",
        {
            "event": "step",
            "framework": "trl",
            "loss": 0.0012,
            "grad_norm": 0.3,
            "learning_rate": 1e-06,
            "tokens": 512000,
            "epoch": 0.1,
        },
        id="TRL",
    ),
    pytest.param(
        "{'loss': 1.1, 'grad_norm': 0.9, 'learning_rate': 2e-05, 'ppl': 3.0,"
        " 'memory/max_allocated (GiB)': 30.1, 'memory/device_reserved (GiB)': 40.0,"
        " 'tokens/train_per_sec_per_gpu': 4321.0, 'tokens/total': 1048576, 'epoch': 0.2}",
        {
            "event": "step",
            "framework": "axolotl",
            "loss": 1.1,
            "grad_norm": 0.9,
            "learning_rate": 2e-05,
            "tokens": 1048576,
            "tokens_per_second": 4321.0,
            "per": "gpu",
            "epoch": 0.2,
        },
        id="axolotl",
    ),
    pytest.param(
        "{'loss': 1.2, 'token_acc': 0.7, 'grad_norm': 0.9, 'learning_rate': 1e-4, 'memory(GiB)': 20.1,"
        " 'train_speed(s/it)': 1.5, 'epoch': 0.1, 'global_step/max_steps': '1/94', 'percentage': '1.06%',"
        " 'elapsed_time': '2s', 'remaining_time': '3m'}",
        {
            "event": "step",
            "framework": "swift",
            "step": 1,
            "total_steps": 94,
            "loss": 1.2,
            "grad_norm": 0.9,
            "learning_rate": 1e-4,
            "step_seconds": 1.5,
            "epoch": 0.1,
        },
        id="ms-swift",
    ),
    pytest.param(
        "{'loss': 1.2, 'learning_rate': 1e-4, 'epoch': 0.1, 'train_speed(iter/s)': 0.5,"
        " 'global_step/max_steps': '2/94'}",
        {
            "event": "step",
            "framework": "swift",
            "step": 2,
            "total_steps": 94,
            "loss": 1.2,
            "learning_rate": 1e-4,
            "step_seconds": 2.0,
            "epoch": 0.1,
        },
        id="older ms-swift prints the inverse",
    ),
    pytest.param(
        "{'loss': 0.1234, 'learning_rate': 5.0000e-05, 'epoch': 0.10, 'throughput': 5123.4}",
        {
            "event": "step",
            "framework": "llamafactory",
            "loss": 0.1234,
            "learning_rate": 5e-05,
            "epoch": 0.1,
            "tokens_per_second": 5123.4,
            "per": "job",
        },
        id="LLaMA-Factory on the web form",
    ),
    pytest.param(
        '{"current_steps": 10, "total_steps": 100, "loss": 0.5, "lr": 5e-05, "epoch": 0.1,'
        ' "percentage": 10.0, "elapsed_time": "0:00:10", "remaining_time": "0:01:30", "throughput": 5000}',
        {
            "event": "step",
            "framework": "llamafactory",
            "step": 10,
            "total_steps": 100,
            "loss": 0.5,
            "learning_rate": 5e-05,
            "epoch": 0.1,
            "tokens_per_second": 5000.0,
            "per": "job",
        },
        id="LLaMA-Factory's trainer_log.jsonl",
    ),
    pytest.param(
        "  6%|#   | 32040/500150 [6:28:43<94:39:17,  1.25it/s]",
        {"event": "step", "step": 32040, "total_steps": 500150, "step_seconds": 0.8},
        id="a bare tqdm bar",
    ),
    pytest.param(
        "  6%|#   | 300/5000 [10:00<90:00,  2.10s/it]",
        {"event": "step", "step": 300, "total_steps": 5000, "step_seconds": 2.1},
        id="a slow tqdm bar changes its unit",
    ),
    pytest.param(
        "  6%|#   | 300/5000 [10:00<?, ?it/s]",
        {"event": "step", "step": 300, "total_steps": 5000},
        id="a tqdm bar without a rate",
    ),
    pytest.param(
        "Steps:   1%|1  | 10/1000 [00:05<08:00,  2.00it/s, lr=1e-05, step_loss=0.123]",
        {
            "event": "step",
            "framework": "diffusers",
            "step": 10,
            "total_steps": 1000,
            "loss": 0.123,
            "learning_rate": 1e-05,
            "step_seconds": 0.5,
        },
        id="diffusers",
    ),
    pytest.param(
        "Epoch 2:   6%|#  | 32/500 [00:10<02:30,  4.0it/s, v_num=0, train_loss=2.6]",
        {
            "event": "step",
            "framework": "lightning",
            "epoch": 2,
            "step": 32,
            "total_steps": 500,
            "loss": 2.6,
            "step_seconds": 0.25,
        },
        id="Lightning",
    ),
    pytest.param(
        "[2026-08-22 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=1,"
        " lr=[0.0001], mom=[(0.9, 0.999)]",
        {
            "event": "step",
            "framework": "deepspeed",
            "rank": 0,
            "step": 10,
            "skipped": 1,
            "learning_rate": 0.0001,
        },
        id="DeepSpeed's schedule",
    ),
    pytest.param(
        "[2026-08-22 10:00:00,123] [INFO] [timer.py:260:stop] epoch=0/micro_step=10/global_step=10,"
        " RunningAvgSamplesPerSec=12.3, CurrSamplesPerSec=12.1, MemAllocated=10.1GB, MaxMemAllocated=20.2GB",
        {"event": "step", "framework": "deepspeed", "epoch": 0, "step": 10},
        id="DeepSpeed's timer",
    ),
    pytest.param(
        "steps: 10 loss: 2.3456 iter time (s): 0.512 samples/sec: 62.500",
        {"event": "step", "framework": "deepspeed", "step": 10, "loss": 2.3456, "step_seconds": 0.512},
        id="DeepSpeed's pipeline",
    ),
    pytest.param(
        "Training epoch 0, iteration 9/999 | lr: 3e-06 | global_batch_size: 8 | global_step: 9 |"
        " reduced_train_loss: 11.03 | train_step_timing in s: 2.1",
        {
            "event": "step",
            "framework": "nemo",
            "epoch": 0,
            "step": 9,
            "total_steps": 999,
            "loss": 11.03,
            "learning_rate": 3e-06,
            "step_seconds": 2.1,
        },
        id="NeMo 2",
    ),
    pytest.param(
        "[rank3]:[titan] 2026-08-22 10:00:00,123 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  8.12345"
        "  \x1b[33mgrad_norm:  1.2345  \x1b[34mmemory: 40.12GiB(50.10%)  \x1b[35mtps: 7,200"
        "  \x1b[36mtflops: 300.12  \x1b[37mmfu: N/A\x1b[39m",
        {
            "event": "step",
            "framework": "torchtitan",
            "rank": 3,
            "step": 10,
            "loss": 8.12345,
            "grad_norm": 1.2345,
            "tokens_per_second": 7200.0,
            "tflops": 300.12,
            "per": "gpu",
        },
        id="torchtitan in colour with thousands",
    ),
    pytest.param(
        "iter 100: loss 3.2145, time 250.00ms, mfu -100.00%",
        {"event": "step", "framework": "nanogpt", "step": 100, "loss": 3.2145, "step_seconds": 0.25},
        id="nanoGPT",
    ),
    pytest.param(
        "[batch=10/1000]:\n\t Train time/token: 40960\n\t Train loss/train/total: 2.34\n"
        "\t Train throughput/tokens_per_sec: 12345.6\nnext",
        {
            "event": "step",
            "framework": "composer",
            "step": 10,
            "total_steps": 1000,
            "loss": 2.34,
            "tokens": 40960,
            "tokens_per_second": 12345.6,
            "per": "job",
        },
        id="Composer over several lines",
    ),
    pytest.param(
        "[epoch=1][batch=20/1000]:\n\t Train loss/train/total: 2.5\n",
        {"event": "step", "framework": "composer", "epoch": 1, "step": 20, "total_steps": 1000, "loss": 2.5},
        id="Composer at the end of the log",
    ),
    pytest.param(
        "10/100 ━━━━━━━━━━━━━━━━━━━━ 5s 50ms/step - accuracy: 0.1 - loss: 2.3",
        {
            "event": "step",
            "framework": "keras",
            "step": 10,
            "total_steps": 100,
            "loss": 2.3,
            "step_seconds": 0.05,
        },
        id="Keras 3",
    ),
    pytest.param(
        "100/100 - 5s - 50ms/step - loss: 2.3 - val_loss: 2.5",
        {
            "event": "step",
            "framework": "keras",
            "step": 100,
            "total_steps": 100,
            "loss": 2.3,
            "step_seconds": 0.05,
        },
        id="Keras without a bar",
    ),
    pytest.param(
        "  1/100 [..............................] - ETA: 9s - loss: 9.0\x08\x08\x08\x08\x08\x08\x08\x08\x08"
        " 10/100 [==>...........................] - ETA: 5s - loss: 2.3",
        {"event": "step", "framework": "keras", "step": 10, "total_steps": 100, "loss": 2.3},
        id="Keras 2 overwrites with backspaces",
    ),
    pytest.param(
        "completed step: 10, seconds: 1.234, TFLOP/s/device: 300.123, Tokens/s/device: 5000.123,"
        " total_weights: 65536, loss: 2.345",
        {
            "event": "step",
            "framework": "maxtext",
            "step": 10,
            "loss": 2.345,
            "step_seconds": 1.234,
            "tflops": 300.123,
            "tokens_per_second": 5000.123,
            "per": "gpu",
        },
        id="MaxText",
    ),
    pytest.param(
        "completed step: 3, total_weights: 65536, loss: 9.5",
        {"event": "step", "framework": "maxtext", "step": 3, "loss": 9.5},
        id="MaxText leaves out the speed at first",
    ),
    pytest.param(
        "(TaskRunner pid=1234) step:1 - actor/pg_loss:0.01 - actor/grad_norm:np.float64(1.99)"
        " - perf/throughput:1234.5 - timing_s/step:60.1",
        {
            "event": "step",
            "framework": "verl",
            "step": 1,
            "loss": 0.01,
            "grad_norm": 1.99,
            "tokens_per_second": 1234.5,
            "per": "gpu",
            "step_seconds": 60.1,
        },
        id="verl in a Ray worker with numpy numbers",
    ),
    pytest.param(
        "2026/08/22 10:00:00 - mmengine - INFO - Epoch(train) [1][200/735]  lr: 1e-3  eta: 1:00:00"
        "  time: 2.89  data_time: 0.004  memory: 12345  loss: 1.2",
        {
            "event": "step",
            "framework": "mmengine",
            "epoch": 1,
            "step": 200,
            "total_steps": 735,
            "loss": 1.2,
            "learning_rate": 1e-3,
            "step_seconds": 2.89,
            "data_wait_seconds": 0.004,
        },
        id="mmengine by epoch",
    ),
    pytest.param(
        "Iter(train) [ 50/80000]  lr: 1.0e-02  eta: 1 day, 2:00:00  time: 0.5  data_time: 0.01  loss: 4.2",
        {
            "event": "step",
            "framework": "mmengine",
            "step": 50,
            "total_steps": 80000,
            "loss": 4.2,
            "learning_rate": 1e-2,
            "step_seconds": 0.5,
            "data_wait_seconds": 0.01,
        },
        id="mmengine by iteration",
    ),
    pytest.param(
        "[08/22 10:00:00 d2.utils.events]:  eta: 1:00:00  iter: 19  total_loss: 1.234  loss_cls: 0.5"
        "  time: 0.5  data_time: 0.01  lr: 0.0002  max_mem: 1000M",
        {
            "event": "step",
            "framework": "detectron2",
            "step": 19,
            "loss": 1.234,
            "step_seconds": 0.5,
            "data_wait_seconds": 0.01,
            "learning_rate": 0.0002,
        },
        id="detectron2",
    ),
    pytest.param(
        "2026-08-22 10:00:00 | INFO | train_inner | epoch 001:    100 / 1234 loss=8.1, nll_loss=7.5, ppl=180,"
        " wps=12345.6, ups=2, wpb=100, bsz=8, num_updates=100, lr=1e-05, gnorm=1.2, train_wall=40, wall=50",
        {
            "event": "step",
            "framework": "fairseq",
            "step": 100,
            "epoch": 1,
            "loss": 8.1,
            "grad_norm": 1.2,
            "learning_rate": 1e-05,
            "step_seconds": 0.5,
            "tokens_per_second": 12345.6,
            "per": "job",
        },
        id="fairseq",
    ),
    pytest.param(
        "2026-08-22T10:00:00.123456789Z stdout F [1,3]<stdout>:epoch 2 step 1,500/20,000 | loss: nan | lr: 1e-4",
        {
            "event": "step",
            "framework": "generic",
            "rank": 3,
            "epoch": 2,
            "step": 1500,
            "total_steps": 20000,
            "loss": "NaN",
            "learning_rate": 1e-4,
            "nonfinite": True,
        },
        id="a home-made line under two prefixes, not a number",
    ),
]


@pytest.mark.parametrize(("text", "expected"), STEPS)
def test_a_step_line_of_each_framework(text: str, expected: dict[str, Any]) -> None:
    """
    A framework's own line gives one event with exactly the fields that it prints.
    """
    assert [{"line": 1, **expected}] == parse(text)


OTHERS = [
    pytest.param("saving checkpoint at iteration     500 to /ckpt in torch_dist format", "checkpoint_start", 500),
    pytest.param("  successfully saved checkpoint from iteration     500 to /ckpt [ t 1/8, p 1/1 ]", "checkpoint_end", 500),
    pytest.param("  successfully loaded checkpoint from /ckpt [ t 1/1, p 1/1 ] at iteration 500", "resume", 500),
    pytest.param(" scheduled an async checkpoint save at iteration     500 to /ckpt", "checkpoint_start", 500),
    pytest.param("validation loss at iteration 500 | lm loss value: 2.34E+00 | lm loss PPL: 1.0E+01 |", "eval", 500),
    pytest.param("[Rank 0] [Torch] Checkpoint global_step500 is about to be saved!", "checkpoint_start", 500),
    pytest.param("[Torch] Checkpoint global_step500 is ready now!", "checkpoint_end", 500),
    pytest.param("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768", "overflow", None),
    pytest.param("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0", "overflow", None),
    pytest.param("Saving the checkpoint (or staging if async is enabled).", "checkpoint_start", None),
    pytest.param("Finished saving the checkpoint (or staging if async is enabled) in 12.34 seconds.", "checkpoint_end", None),
    pytest.param("validate step: 10  loss:  7.5  memory: 10.0GiB(10%)  tps: 100", "eval", 10),
    pytest.param("step 250: train loss 3.10, val loss 3.20", "eval", 250),
    pytest.param("saving checkpoint to out", "checkpoint_start", None),
    pytest.param("Saving model checkpoint to ./out/checkpoint-500", "checkpoint_start", 500),
    pytest.param("  Continuing training from global step 500", "resume", 500),
    pytest.param("{'eval_loss': 1.9, 'eval_runtime': 3.0, 'eval_samples_per_second': 10.0, 'epoch': 1.0}", "eval", None),
    pytest.param("Saving checkpoint at 500 iterations", "checkpoint_start", 500),
    pytest.param("***** Running training *****", "phase", None),
    pytest.param("[after training is done] datetime: 2026-08-22 10:00:00", "phase", None),
    pytest.param("`Trainer.fit` stopped: `max_epochs=1` reached.", "phase", None),
    pytest.param("[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "oom", None),
    pytest.param("RuntimeError: CUDA error: out of memory", "oom", None),
    pytest.param("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123 bytes.", "oom", None),
    pytest.param(
        "[rank3]:[E822 10:00:00.123 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.",
        "watchdog_timeout",
        None,
    ),
    pytest.param(
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled system error",
        "nccl_error",
        None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "event", "step"), OTHERS)
def test_lines_that_are_no_steps(text: str, event: str, step: int | None) -> None:
    """
    Checkpoints, evaluations, phases and failures give one event of their kind, with the step if printed.
    """
    assert [(event, step)] == [(found["event"], found.get("step")) for found in parse(text)]


NOTHING = [
    "Prefill batch, #new-seq: 1, #new-token: 512, #cached-token: 0, token usage: 0.10, #running-req: 3",
    "Decode batch, #running-req: 3, #token: 900, cuda graph: True, gen throughput (token/s): 123.45, #queue-req: 0",
    "INFO 07-28 06:40:59 [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 8 reqs",
    "Processed prompts: 100%|####| 10/10 [00:05<00:00,  1.9it/s, est. speed input: 1.0 toks/s]",
    "Loading checkpoint shards: 100%|####| 4/4 [00:05<00:00,  1.2s/it]",
    "model.safetensors:  50%|#####     | 2.00G/4.00G [00:05<00:05, 400MB/s]",
    "Map: 100%|####| 1000/1000 [00:01<00:00, 900.0 examples/s]",
    "Map (num_proc=8): 100%|####| 1000/1000 [00:01<00:00, 900.00it/s]",
    "100%|##########| 50/50 [00:03<00:00, 14.21it/s]",
    "Sanity Checking DataLoader 0: 100%|##| 2/2 [00:00<00:00,  3.1it/s]",
    "Validation DataLoader 0:  50%|##| 5/10 [00:00<00:00,  3.1it/s]",
    "TrainingArguments(learning_rate=5e-05, logging_steps=10, loss='mse', max_steps=1000)",
    "{'loss': 'mse', 'optimizer': 'adamw', 'steps': 100}",
    "  File \"train.py\", line 10, in step  loss = model(x)",
    "gpu-001:12:34 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.5<0>",
    "gpu-001:12:34 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.5<0>",
    "gpu-001:12:34 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
    "To avoid out of memory set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "KeyError handling in this module is lenient",
    "Epoch 1/10",
    "",
    "   ",
]  # fmt: skip


@pytest.mark.parametrize("text", NOTHING)
def test_chatter_gives_nothing(text: str) -> None:
    """
    Inference engines, downloads, samplers, data preparation, settings and prose are no events.
    """
    assert [] == parse(text)


def test_short_bars_count_where_training_was_announced() -> None:
    """
    A bare bar of a few dozen steps is a sampler's, unless the log said that training runs.
    """
    text = "***** Running training *****\n 50%|#####     | 15/30 [00:05<00:05,  2.00it/s]"

    assert [("phase", None), ("step", 15)] == [(found["event"], found.get("step")) for found in parse(text)]


def test_the_step_of_a_record_comes_from_the_bar_before_it() -> None:
    """
    A Trainer record after a line of its bar has the bar's step and total.
    """
    text = "  2%|2  | 10/500 [00:05<04:12,  2.00it/s]\n{'loss': 1.5, 'learning_rate': 5e-05, 'epoch': 0.02}"

    assert [(10, None), (10, 1.5)] == [(found["step"], found.get("loss")) for found in parse(text)]


def test_an_evaluation_bar_does_not_number_training_records() -> None:
    """
    After the announcement of an evaluation a bar's position is not the training step.
    """
    text = "***** Running Evaluation *****\n 50%|#####     | 150/300 [00:05<00:05,  2.00it/s]\n{'eval_loss': 1.5, 'epoch': 1.0}"

    assert [("phase", None), ("eval", None)] == [(found["event"], found.get("step")) for found in parse(text)]


def test_only_the_last_frame_of_a_line_counts() -> None:
    """
    What a carriage return overwrote is no event of its own.
    """
    bar = "  {0}%|#  | {0}00/10000 [00:10<01:00,  2.00it/s]"
    text = "\r".join(bar.format(number) for number in (1, 2, 3))

    assert [300] == [found["step"] for found in parse(text)]


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        pytest.param("[rank3]: ", {"rank": 3}, id="torchrun"),
        pytest.param("[1,3]<stdout>:", {"rank": 3}, id="mpirun"),
        pytest.param("3: ", {"rank": 3}, id="srun --label"),
        pytest.param("[default3]:", {"local_rank": 3}, id="torchrun --tee"),
        pytest.param("(RayTrainWorker pid=12, ip=10.0.0.1) ", {}, id="Ray"),
        pytest.param("2026-08-22T10:00:00.1Z ", {}, id="an ISO time"),
        pytest.param("2026-08-22 10:00:00,123 - INFO - ", {}, id="a logger"),
        pytest.param("worker-0: ", {}, id="pdsh"),
        pytest.param("08/22/2026 10:00:00 - INFO - __main__ - ", {}, id="accelerate's logger"),
        pytest.param("INFO:root:", {}, id="a plain logger"),
    ],
)
def test_prefixes_are_taken_off(prefix: str, expected: dict[str, int]) -> None:
    """
    Launchers and loggers put something before a line; ranks are kept, the rest is not.
    """
    (found,) = parse(f"{prefix}iter 100: loss 3.5, time 250.00ms, mfu 17.20%")

    assert ("nanogpt", 100, 3.5) == (found["framework"], found["step"], found["loss"])
    assert expected == {key: found[key] for key in ("rank", "local_rank") if key in found}


@pytest.mark.parametrize(
    ("via", "transport", "gdr"),
    [
        pytest.param("Using network Socket", "socket", None, id="network sockets"),
        pytest.param("Using network IB", "ib", None, id="network verbs"),
        pytest.param("Using network AWS Libfabric", "plugin", None, id="network plugin"),
        pytest.param("Using network IBext_v8", "plugin", None, id="network plugin with IB in its name"),
        pytest.param(
            "Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0", "socket", False, id="channel sockets"
        ),
        pytest.param(
            "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA", "ib", True, id="channel GPUDirect"
        ),
        pytest.param("Channel 00/0 : 0[0] -> 8[0] [receive] via NET/IB/0", "ib", False, id="channel verbs"),
        pytest.param("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "p2p", None, id="channel peer to peer"),
        pytest.param(
            "Channel 00 : 0[1a000] -> 1[1b000] via SHM/direct/direct", "shm", None, id="channel memory"
        ),
    ],
)
def test_transports(via: str, transport: str, gdr: bool | None) -> None:
    """
    NCCL's network and channel lines say which way the traffic goes.
    """
    (found,) = parse(f"gpu-001:123:456 [0] NCCL INFO {via}")

    assert ("nccl_transport", transport, gdr) == (found["event"], found["transport"], found.get("gdr"))


def test_a_traceback_is_one_event_at_its_last_line() -> None:
    """
    The final text of a traceback is the event; its frames and the words in them are not.
    """
    text = (
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "train.py", line 1, in <module>\n'
        '[rank3]:     raise ValueError("CUDA out of memory")\n'
        "[rank3]: ValueError: bad input\n"
    )

    assert [{"line": 4, "event": "exception", "rank": 3}] == parse(text)


def test_a_traceback_of_exhausted_memory_is_no_exception() -> None:
    """
    A traceback that ends with exhausted device memory is an oom event only.
    """
    text = "Traceback (most recent call last):\n  File x\ntorch.OutOfMemoryError: CUDA out of memory. Tried"

    assert ["oom"] == [found["event"] for found in parse(text)]


def test_tracebacks_of_several_ranks_do_not_mix() -> None:
    """
    Interleaved tracebacks of two ranks give each rank's own end.
    """
    text = (
        "[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n"
        "[rank0]:   File a\n[rank1]:   File b\n[rank1]: KeyError: 1\n[rank0]: ValueError: 2"
    )

    assert [(5, 1), (6, 0)] == [(found["line"], found["rank"]) for found in parse(text)]
