"""Each threshold and each guard is held by a case: change one, and some case fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.rules.casefile import load
from tests.rules.conftest import run_case
from tocsin_common.bundle.render import render

ROOT = Path(__file__).resolve().parents[2]
CASES = load()

pytestmark = pytest.mark.long


@dataclass(frozen=True, slots=True)
class Mutant:
    """What is changed, and the family whose cases must notice."""

    family: str
    settings: dict[str, Any] = field(default_factory=dict)
    cut: str = ""
    instead: str = ""


MUTANTS = {
    "peers outlive a rank by 0 s": Mutant("DeadRank", {"deadRankPeersSurvive": -60}),
    "peers outlive a rank by a minute": Mutant("DeadRank", {"deadRankPeersSurvive": 60}),
    "a device event is forgotten after a second": Mutant("DeadRank", {"deadRankDeviceEventBefore": 1}),
    "a device event counts for an hour": Mutant("DeadRank", {"deadRankDeviceEventBefore": 3600}),
    "every Xid explains an exit": Mutant("DeadRank", {"fatalEventClasses": ".+"}),
    "a hang begins after 30 s": Mutant("DeadRank", {"hangSeconds": 30}),
    "a hang begins after one step": Mutant("DeadRank", {"hangSteps": 1}),
    "younger peers count": Mutant(
        "DeadRank", cut="min by (cluster, job_id) (tocsin_rank:start:timestamp_seconds)", instead="0 * tocsin_job:ranks_up:count"
    ),
    "a rank that is back still counts": Mutant("DeadRank", cut="tocsin_rank:up:max == 1\n", instead="tocsin_rank:up:max == 7\n"),
    "any scrape target is believed": Mutant("DeadRank", {"exporterSelector": ""}),
    "the verdict alert keeps itself alive": Mutant("DeadRank", cut=', alertname!="TocsinVerdict"'),
    "the latest event wins": Mutant(
        "DeadRank", cut="min by (cluster, job_id) (tocsin_job:candidate:score)", instead="max by (cluster, job_id) (tocsin_job:candidate:score)"
    ),
    "orders are forgotten": Mutant("Verdict", cut='{order="40"} + 40e10', instead='{order="40"} + 90e10'),
    "a family needs no lead": Mutant("FailSlowGpu", {"failSlowRatio": 1.06}),
    "a family needs a lead of a third": Mutant("FailSlowGpu", {"failSlowRatio": 1.33}),
    "one sample of the lead is enough": Mutant("FailSlowGpu", {"failSlowShare": 0.05}),
    "tensor work does not matter": Mutant("FailSlowGpu", {"failSlowTensorPart": 5}),
    "tensor work of a slow GPU must be smaller": Mutant("FailSlowGpu", {"failSlowTensorPart": -0.5}),
    "two peers are enough": Mutant("FailSlowGpu", {"minPeers": 2}),
    "four peers are needed": Mutant("FailSlowGpu", {"minPeers": 4}),
    "there is no warm-up": Mutant("FailSlowGpu", {"warmUp": "0s"}),
    "progress does not matter": Mutant("FailSlowGpu", cut="tocsin_job:since_progress:seconds <= tocsin_job:progress_limit:seconds", instead="tocsin_job:since_progress:seconds >= 0"),
    "models are mixed": Mutant("FailSlowGpu", cut="(cluster, job_id, model)", instead="(cluster, job_id)"),
    "a throttled GPU may be called slow": Mutant("GpuThrottled", {"throttleSecondsPerMinute": 50, "throttleReasons": "hw_slowdown"}),
    "the software power cap is a fault": Mutant("GpuThrottled", {"throttleReasons": "sw_power_cap|hw_thermal|sw_thermal|hw_slowdown"}),
    "idle GPUs are judged": Mutant("GpuThrottled", {"throttleMinUtilization": 0.01}),
    "a throttle without effect counts after a minute": Mutant("GpuThrottled", {"throttleSecondsPer5m": 60}),
    "an effect needs half as much again": Mutant("GpuThrottled", {"throttleEffectRatio": 1.5}),
    "no effect is needed": Mutant("GpuThrottled", {"throttleEffectRatio": 0.5}),
    "one sigma is divergence": Mutant("LossDivergence", {"lossDivergenceSigmas": 1}),
    "eight sigmas are needed": Mutant("LossDivergence", {"lossDivergenceSigmas": 16}),
    "there is no floor under the noise": Mutant("LossDivergence", {"lossNoiseFloor": 0.00001}),
    "one non-finite loss is divergence": Mutant("LossDivergence", {"nonfiniteLosses": 1}),
    "a hole of a minute spoils": Mutant("LossDivergence", {"evidenceHole": "60s"}),
    "a hole of five minutes does not": Mutant("LossDivergence", {"evidenceHole": "5m"}),
    "an old hole spoils for an hour": Mutant("LossDivergence", {"evidenceWindow": "60m"}),
    "evidence is fresh for an hour": Mutant("DeadRank", {"evidenceFreshFor": "60m", "evidenceHole": "60m"}),
    "evidence may be missing for a moment": Mutant("EvidenceMissing", {"evidenceMissingFor": "10s"}),
    "verdicts do not linger": Mutant("DeadRank", {"keepFiringFor": "0s"}),
    "verdicts linger for five minutes": Mutant("DeadRank", {"keepFiringFor": "5m"}),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_case_notices(name: str, promtool: Path, tmp_path: Path) -> None:
    """A mutant that all cases of its family accept is a threshold that nothing holds."""
    mutant = MUTANTS[name]
    rules = []
    changed = False
    for path, text in render(ROOT, mutant.settings).items():
        if not path.startswith("rules/"):
            continue
        file = tmp_path / Path(path).name
        different = text.replace(mutant.cut, mutant.instead) if mutant.cut else text
        changed |= different != (ROOT / path).read_text(encoding="utf-8")
        file.write_text(different, encoding="utf-8")
        rules.append(str(file))
    family = f"{mutant.family}.yaml"
    noticed = (
        case.name
        for case in CASES
        if case.file == family and run_case(promtool, case, rules, tmp_path).returncode != 0
    )

    assert changed, "the mutant changes nothing"
    assert next(noticed, None)
