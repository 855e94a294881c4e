"""Complaints about exporters that die, hang, lie or hold on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.exporter.complaints.node import Agent, Scrape, hung

from tocsin_exporter.collectors import gpu
from tocsin_exporter.identity.resolver import Resolver
from tocsin_exporter.sources.latest import ErrorCounter
from tocsin_lab.sim import trouble

OK = "tocsin_collector_success"
WHY = "tocsin_collector_error_info"


@pytest.fixture
def own(make: Callable[..., Agent]) -> Iterator[Agent]:
    """An exporter of a test's own."""
    agent = make()
    yield agent
    agent.close()


def works(scrape: Scrape) -> bool:
    return scrape.value(OK, collector="gpu") == 1


@pytest.mark.complaint(8)
def test_a_lost_gpu_is_told_and_the_others_go_on(agent: Agent) -> None:
    """
    A device that fell off the bus is down, with the reason, under its identity; the other one is read on.

    NVIDIA/dcgm-exporter#348, #604; utkuozdemir/nvidia_gpu_exporter#65; NVIDIA/NVSentinel PR #195.
    """
    agent.state.devices[1].lost = 1
    lost = agent.until(lambda scrape: scrape.value("tocsin_gpu_up", gpu="1") == 0)
    agent.state.devices[1].lost = 0

    assert [({"node": "gpu-001", "gpu": "1", "gpu_uuid": agent.uuid(1), "reason": "gpu_lost"}, 0.0)] == (
        lost.series("tocsin_gpu_up", gpu="1")
    )
    assert lost.value("tocsin_gpu_power_watts", gpu="0") is not None
    assert lost.value("tocsin_gpu_power_watts", gpu="1") is None
    back = agent.until(lambda scrape: scrape.value("tocsin_gpu_up", gpu="1") == 1)
    assert agent.uuid(1) == back.series("tocsin_gpu_up", gpu="1")[0][0]["gpu_uuid"]


@pytest.mark.complaint(9)
def test_a_driver_call_that_hangs_costs_a_child_and_not_the_exporter(own: Agent) -> None:
    """
    While the driver hangs the exporter lives, answers its probe, serves all else, and says what hangs.

    NVIDIA/NVSentinel#1748, #1576; NVIDIA/DCGM#209, #313; NVIDIA/go-nvml#152: 49 restarts by the probe.
    """
    own.start()
    assert own.process is not None
    stuck = own.children()
    with hung(own):
        said = own.until(lambda scrape: scrape.series(WHY, collector="gpu", reason="hung"))
        assert "ok" in own.get("/-/healthy")
        assert own.process.poll() is None
        assert 0 == said.value(OK, collector="gpu")
        assert 1 == said.value(OK, collector="host")
        assert said.value("tocsin_host_load1") is not None
        assert [(0.0, "hung")] * 2 == [
            (value, labels["reason"]) for labels, value in said.series("tocsin_gpu_up")
        ]
        assert not set(stuck) & set(own.children())
    own.until(works)
    assert own.process.poll() is None


@pytest.mark.complaint(10)
def test_stale_values_vanish_with_the_backend(own: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A value is served for three intervals at most after its last reading; then it is a gap with a reason.

    NVIDIA/gpu-monitoring-tools#188; microsoft/pai#889; NVIDIA/dcgm-exporter#164.
    """
    from tests.exporter.support import collector_set

    from tocsin_exporter.attribution import Attribution
    from tocsin_exporter.sources.nvml.source import NvmlSource
    from tocsin_exporter.state import StateFile

    monkeypatch.setenv("TOCSIN_SIM_DEVICES", str(own.paths.devices))
    interval = 0.4
    errors = ErrorCounter()
    source = NvmlSource(own.library, interval, 0.3, 3 * interval, errors)
    resolver = Resolver(Path("/proc"), errors, ("NO_SUCH_VARIABLE", ""))
    attribution = Attribution(resolver, StateFile(None), errors, boot_id="b")
    registry = collector_set(gpu.build(source, attribution))
    source.start()
    try:

        def until(wanted: Callable[[Scrape], object]) -> Scrape:
            for _ in range(200):
                scrape = Scrape(registry.scrape())
                if wanted(scrape):
                    return scrape
                time.sleep(0.05)
            raise AssertionError(scrape.text)

        good = until(lambda scrape: scrape.series("tocsin_gpu_power_watts"))
        with hung(own):
            gap = until(lambda scrape: not scrape.series("tocsin_gpu_power_watts"))
    finally:
        source.stop()

    assert 0 == gap.value(OK, collector="gpu")
    assert [(0.0, "hung")] * 2 == [(value, labels["reason"]) for labels, value in gap.series("tocsin_gpu_up")]
    last = "tocsin_collector_last_success_timestamp_seconds"
    assert (gap.value(last, collector="gpu") or 0) >= (good.value(last, collector="gpu") or 0) > 0


@pytest.mark.complaint(20)
def test_a_driver_that_does_not_start_is_waited_for(own: Agent) -> None:
    """
    The exporter listens at once while the driver's start hangs, says so, and serves devices when it comes.

    NVIDIA/dcgm-exporter#385, #393, #202, #536; NVIDIA/gpu-operator#2482; leptonai/gpud PR #1180.
    """
    with hung(own):
        began = own.start(ready=False).scrape()
        assert "ok" in own.get("/-/healthy")
        assert 0 == began.value(OK, collector="gpu")
        assert began.series(WHY, collector="gpu")
        assert not began.series("tocsin_gpu_power_watts")
        own.until(lambda scrape: scrape.value(OK, collector="host") == 1)
    served = own.until(works, 40)

    assert 2 == len(served.series("tocsin_gpu_power_watts"))
    assert own.process is not None
    assert own.process.poll() is None


def mapped(agent: Agent) -> list[int]:
    """The exporter's processes that have the driver's memory, as they would hold /dev/nvidia*."""
    assert agent.process is not None
    pids = [agent.process.pid, *agent.children()]
    wanted = str(agent.paths.devices)
    return [pid for pid in pids if wanted in Path(f"/proc/{pid}/maps").read_text()]


@pytest.mark.complaint(21)
def test_the_device_is_let_go_of_for_a_reset_and_taken_again(own: Agent) -> None:
    """
    Root asks for it by a socket: no process keeps a handle, the gap is told as such, and it ends by itself.

    NVIDIA/DCGM#276; NVIDIA/dcgm-exporter#706, #215, #84; NVIDIA/gpu-operator#118.
    """
    own.start()
    assert mapped(own)
    done = own.command("quiesce", "--for", "4s", "--socket", str(own.root / "control.sock"))
    assert 0 == done.returncode, done.stderr
    assert [] == mapped(own)
    quiet = own.scrape()
    assert 0 == quiet.value(OK, collector="gpu")
    assert quiet.series(WHY, collector="gpu", reason="disabled")
    assert not quiet.series("tocsin_gpu_power_watts")
    assert "gpu_lost" not in quiet.text
    # Nothing that comes by the network changes it.
    for path in ("/quiesce", "/-/quiesce?for=1h", "/-/reload"):
        with pytest.raises(AssertionError):
            own.get(path)
    own.until(works)
    assert mapped(own)


@pytest.mark.complaint(22)
@pytest.mark.parametrize("model", ["A100-SXM", "H100-SXM"])
def test_a_profiler_gets_the_counters_for_itself(make: Callable[..., Agent], model: str) -> None:
    """
    Before Hopper no call is made that locks the profiling counters; on Hopper GPM shares them, and can pause.

    NVIDIA/DCGM#56, #106; NVIDIA/dcgm-exporter#7.
    """
    agent = make(model=model, flags=("--tier", "deep"))
    # Every use of the profiling counters would hang, and with it the device.
    trouble.hang_call(agent.paths.devices, "nvmlGpmSampleGet")
    agent.start(ready=False)
    if model == "A100-SXM":
        scrape = agent.until(works)
        assert not scrape.series(WHY, collector="gpu")
        assert 2 == len(scrape.series("tocsin_gpu_power_watts"))
        assert not scrape.series("tocsin_gpu_sm_active_ratio")
    else:
        trouble.take_away_rules(agent.paths.devices)
        agent.until(lambda scrape: len(scrape.series("tocsin_gpu_sm_active_ratio")) == 2, 40)
        done = agent.command("quiesce", "--for", "1m", "--socket", str(agent.root / "control.sock"))
        assert 0 == done.returncode, done.stderr
        assert [] == mapped(agent)
        assert not agent.scrape().series("tocsin_gpu_sm_active_ratio")
        done = agent.command("quiesce", "--end", "--socket", str(agent.root / "control.sock"))
        assert 0 == done.returncode, done.stderr
        agent.until(lambda scrape: len(scrape.series("tocsin_gpu_sm_active_ratio")) == 2)
    agent.close()
