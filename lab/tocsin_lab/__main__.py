"""Run as ``python -m tocsin_lab``."""

from __future__ import annotations

from tocsin_lab.cli import main

raise SystemExit(main())
