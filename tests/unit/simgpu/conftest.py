"""Machines with simulated cards for the tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import simgpu
from unit.simgpu.harness import Bench, compile_snippets


@pytest.fixture(scope="session")
def snippets() -> Path:
    return compile_snippets()


@pytest.fixture(scope="session")
def stepped(snippets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One machine for all snippets that leave nothing behind."""
    bench = Bench(
        simgpu.create(tmp_path_factory.mktemp("stepped"), clock="stepped", switch_ns=0), snippets
    )
    yield bench
    bench.end()


@pytest.fixture
def bench(snippets: Path, tmp_path: Path) -> Iterator[Bench]:
    """A machine of the test's own, whose clock only the test moves."""
    bench = Bench(simgpu.create(tmp_path / "machine", clock="manual"), snippets)
    yield bench
    bench.end()
