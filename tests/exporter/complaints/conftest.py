"""Exporters on simulated nodes, one per shape of node for a whole file of tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.complaints.node import Agent


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Iterator[Callable[..., Agent]]:
    """Return what makes a node with an exporter that is not yet started."""
    made: list[Agent] = []

    def node(**shape: Any) -> Agent:
        made.append(Agent(tmp_path_factory.mktemp("node"), nvml_library, **shape))
        return made[-1]

    yield node
    for agent in made:
        agent.close()


@pytest.fixture(scope="module")
def agent(make: Callable[..., Agent]) -> Iterator[Agent]:
    """A running exporter on a node with two H100 and two adapters, which the tests of one file share."""
    running = make().start()
    yield running
    running.close()
