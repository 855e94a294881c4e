"""``python -m bench.ebpf``: what a probed call costs, by kind and backend. The last line is JSON."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.ebpf import load, measure
from bench.exporter.figures import Figures, tell

_NAME = "bench-ebpf"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 unless something could not be run."""
    defaults = measure.Settings()
    parser = argparse.ArgumentParser(prog="python -m bench.ebpf", description=__doc__)
    parser.add_argument("--rounds", type=int, default=defaults.rounds, help="rounds over all contenders (5)")
    parser.add_argument("--calls", type=int, default=defaults.calls, help="calls in a timed batch (300000)")
    parser.add_argument(
        "--rate", type=int, default=defaults.rate, help="launches per second and rank (40000)"
    )
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="how long at that rate (10)")
    parser.add_argument("--ranks", type=int, default=defaults.ranks, help="ranks on the node (8)")
    chosen = parser.parse_args(argv)
    settings = measure.Settings(chosen.rounds, chosen.calls, chosen.rate, chosen.seconds, chosen.ranks)
    figures = Figures(_NAME)
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        try:
            program, libraries = load.build(Path(folder))
        except (OSError, subprocess.CalledProcessError) as err:
            tell(f"{_NAME}: the load cannot be compiled: {err}")
            return 1
        measure.measure(settings, Path(folder), program, libraries, figures)
    figures.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
