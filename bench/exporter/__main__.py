"""
What the exporter costs, side by side with what a user would pick instead; the last line is JSON.

Nothing here passes or fails: machines are noisy, and the ratios between contenders of one run say more
than the figures themselves.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.exporter import compare, soak
from bench.exporter.figures import Figures, tell

from tocsin_lab.errors import LabError
from tocsin_lab.stack.rundir import RunDir


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 unless something could not be run."""
    parser = argparse.ArgumentParser(prog="python -m bench.exporter", description=__doc__)
    parser.add_argument("--windows", type=int, default=5, help="windows in which CPU time is counted (5)")
    parser.add_argument("--window", type=float, default=30.0, help="their length in seconds (30)")
    parser.add_argument("--scrapes", type=int, default=200, help="timed scrapes of each (200)")
    parser.add_argument("--soak", action="store_true", help="a day of scrapes and jobs in minutes instead")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the soak's day takes (5)")
    parser.add_argument("--jobs", type=int, default=400, help="jobs that come and go in the soak (400)")
    parser.add_argument("--tier", default="deep", help="tier of the soak (deep)")
    chosen = parser.parse_args(argv)
    name = "bench-exporter-soak" if chosen.soak else "bench-exporter"
    figures = Figures(name)
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        run = RunDir(Path(folder) / "run")
        run.prepare()
        try:
            if chosen.soak:
                soak.measure(soak.Settings(chosen.minutes * 60, chosen.jobs, chosen.tier), run, figures)
            else:
                compare.measure(compare.Settings(chosen.windows, chosen.window, chosen.scrapes), run, figures)
        except LabError as err:
            tell(f"{name}: {err}")
            return 1
    figures.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
