"""Complaints about what is lost on the way: records that a probe had to drop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporter.complaints.node import Agent


@pytest.mark.complaint(35)
def test_what_a_probe_drops_is_always_a_number(make: Callable[..., Agent], root: Path) -> None:
    """
    From the first sight of a rank there is a counter of what was not counted, by cause, 0 included.

    NVIDIA/nccl PR #2304: a profiler that drops records in silence.
    """
    library = root / ".build/lib/libcuda.so.1"
    agent = make(flags=("--ebpf.backend", "libbpf")).start()
    try:
        agent.job("probed", [0], LD_PRELOAD=str(library))
        scrape = agent.until(lambda one: one.series("tocsin_rank_up", job_id="torchrun/probed"))
        if scrape.value("tocsin_collector_success", collector="cuda") != 1:
            pytest.skip(f"no eBPF here: {scrape.series('tocsin_collector_error_info', collector='cuda')}")
        name = "tocsin_rank_probe_drops_total"
        scrape = agent.until(lambda one: one.series(name, job_id="torchrun/probed"))
    finally:
        agent.close()

    assert {"map_full": 0, "ring_full": 0, "rate_guard": 0} == {
        labels["source"]: value for labels, value in scrape.series(name, rank="0")
    }
    assert "counter" == scrape.types[name]
    assert 0 == scrape.value("tocsin_training_output_dropped_bytes_total", job_id="torchrun/probed")
