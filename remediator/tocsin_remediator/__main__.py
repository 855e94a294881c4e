"""Run as ``python -m tocsin_remediator``."""

from __future__ import annotations

from tocsin_remediator.cli import main

raise SystemExit(main())
