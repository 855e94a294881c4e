"""The host's side of ranks: where they may run, what they wait for, who works for them."""

from __future__ import annotations

from tocsin_exporter.sources.rank_host.checks import checks
from tocsin_exporter.sources.rank_host.model import Defunct, RankHost, Reading, Wait, Workers
from tocsin_exporter.sources.rank_host.source import RankHostSource

__all__ = ["Defunct", "RankHost", "RankHostSource", "Reading", "Wait", "Workers", "checks"]
