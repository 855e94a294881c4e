"""A real torch job of four ranks that talk over gloo, seen by the exporter from outside."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

_RANKS = 4
_RUN_ID = "four-ranks"

_JOB = """
import time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 100000):
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step: {step}  loss:  {loss.item():.5f}  grad_norm:  1.0  tps: 100  tflops: 1.0", flush=True)
    time.sleep(0.05)
"""


def _python_with_torch() -> str:
    """Return an interpreter that has torch: TOCSIN_TORCH_PYTHON, this one, or the system's."""
    for python in (os.environ.get("TOCSIN_TORCH_PYTHON"), sys.executable, shutil.which("python3")):
        if (
            python
            and not subprocess.run(
                [python, "-c", "import importlib.util as u; raise SystemExit(u.find_spec('torch') is None)"],
                check=False,
            ).returncode
        ):
            return python
    pytest.skip("torch is not installed (TOCSIN_TORCH_PYTHON names an interpreter that has it)")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher of four ranks."""
    python = _python_with_torch()
    script = tmp_path_factory.mktemp("job") / "train.py"
    script.write_text(_JOB)
    launcher = subprocess.Popen(
        [
            *(python, "-m", "torch.distributed.run", f"--nproc-per-node={_RANKS}", "--rdzv-backend=c10d"),
            *("--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id={_RUN_ID}", str(script)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    yield launcher
    if launcher.poll() is None:
        os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait(20)


class Exporter:
    """The exporter as a process, asked over HTTP."""

    def __init__(self, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tocsin_exporter", "--web.listen-address"),
                    *(f"127.0.0.1:{self._port}", "--control.socket", "", "--collect.interval", "1s"),
                ],
                stdout=out,
                stderr=out,
            )

    def until(self, pattern: str, count: int = 1, seconds: float = 90) -> list[str]:
        """Wait until *pattern* is found *count* times in one scrape; return what it caught."""
        end = time.monotonic() + seconds
        text = ""
        while time.monotonic() < end:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
                connection.request("GET", "/metrics")
                text = connection.getresponse().read().decode()
                connection.close()
            except OSError:
                pass
            found = re.findall(pattern, text, re.M)
            if len(found) >= count:
                return found
            time.sleep(0.25)
        ours = "\n".join(line for line in text.splitlines() if _RUN_ID in line or "_success" in line)
        raise AssertionError(f"{pattern} not found\n{ours}\n{self._log.read_text()}")


@pytest.fixture(scope="module")
def exporter(job: subprocess.Popen[bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    """An exporter of this machine as it is."""
    running = Exporter(tmp_path_factory.mktemp("exporter") / "log")
    yield running
    running.process.send_signal(signal.SIGTERM)
    running.process.wait(20)


def test_every_rank_is_known_by_job_and_number(exporter: Exporter) -> None:
    """
    The launcher's run id names the job, and there are exactly the ranks 0 to 3.
    """
    ranks = exporter.until(
        rf'^tocsin_rank_up{{.*job_id="torchrun/{_RUN_ID}",rank="(\d+)".*}} 1$', count=_RANKS
    )

    assert ["0", "1", "2", "3"] == sorted(ranks)


def test_the_steps_are_read_from_what_rank_0_prints(exporter: Exporter) -> None:
    """
    Step and loss come from the job's own output, with nothing in the job that knows of it.
    """
    pattern = rf'^tocsin_training_step{{.*job_id="torchrun/{_RUN_ID}".*}} (\d+)$'
    first = int(exporter.until(pattern)[0])
    end = time.monotonic() + 30
    while (last := int(exporter.until(pattern)[0])) <= first and time.monotonic() < end:
        time.sleep(0.25)

    assert last > first
    assert exporter.until(rf'^tocsin_training_loss{{.*job_id="torchrun/{_RUN_ID}".*}} [\d.]+$')


def test_the_version_of_torch_is_told(exporter: Exporter) -> None:
    """
    The framework's version comes from the job's own metadata, once its libraries had time to load.
    """
    version = subprocess.run(
        [_python_with_torch(), "-c", "import torch; print(torch.__version__.partition('+')[0])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()

    rank_0 = rf'^tocsin_rank_software_info{{.*job_id="torchrun/{_RUN_ID}",rank="0"'
    assert exporter.until(rf'{rank_0}.*torch="{re.escape(version)}.*}} 1$')


def test_a_killed_rank_is_told_with_its_signal(exporter: Exporter, job: subprocess.Popen[bytes]) -> None:
    """
    The end of a rank is seen with its signal, whoever sent it.
    """
    victim = next(
        pid
        for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        if b"\0RANK=2\0" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    )
    os.kill(int(victim), signal.SIGKILL)

    exporter.until(rf'^tocsin_rank_exits_total{{.*job_id="torchrun/{_RUN_ID}",rank="2",kind="signal"}} [1-9]')
