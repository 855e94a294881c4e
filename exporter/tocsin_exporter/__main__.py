"""Run as ``python -m tocsin_exporter``."""

from __future__ import annotations

from tocsin_exporter.cli import main

raise SystemExit(main())
