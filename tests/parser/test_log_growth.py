"""No line is made so that reading it costs much more than its length."""

from __future__ import annotations

import time

import pytest

from tocsin_exporter.parser import LogParser

# Beginnings that some pattern takes and then has to give up, over and over.
FRAGMENTS = (
    "step: 1 ",
    "loss: 1 ",
    "iter 1: loss 1, ",
    "iteration 1/ 2 | ",
    "'loss': 1, ",
    "{'a': np.float64(",
    "step:1 - a/b:1 - val-",
    "eta: x iter: 1  total_loss: ",
    "steps: 1 loss: 1 ",
    "| valid on 'a' subset | loss 1 ",
    '"epoch": 1, "valid_loss": "1 ',
    "train_inner | epoch ",
    "NCCL INFO Channel 0/0 : x -> ",
    "NCCL INFO x: Using network ",
    "NCCL WARN ",
    "gloo/transport/",
    "ProcessGroupGloo ",
    "RESOURCE_EXHAUSTED: ",
    "Saving model checkpoint to a/",
    "aved checkpoint at step ",
    "Checkpoint saved step ",
    "Async checkpoint save for step 1 ",
    "[deepspeed] overflow ",
    "Epoch 1/2 ━ ",
    "━",
    " 1/2 1G ",
    "1%|",
    "1/2 [1<1, ",
    "10/100 [=> ",
    "v_num: 1 ",
    " | loss 1 | norm 1 ",
    "1,",
    "\t",
    "[rank1]: ",
    "[a",
    "\x08",
    "\x1b[1",
    "{",
    '"',
)


def cost(fragment: str, length: int) -> float:
    line = (fragment * (length // len(fragment) + 1))[:length].encode()
    best = float("inf")
    for _ in range(5):
        parser = LogParser()
        list(parser.feed(b"Traceback (most recent call last):"))
        began = time.process_time()
        list(parser.feed(line))
        list(parser.feed(line))
        best = min(best, time.process_time() - began)
    return best


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_cost_grows_with_the_length_only(fragment: str) -> None:
    """
    Twice the line costs about twice as much, and far from four times.
    """
    small, large = cost(fragment, 8000), cost(fragment, 16000)

    # Below a tenth of a millisecond the clock says nothing about growth.
    assert large < 3 * max(small, 1e-4)
