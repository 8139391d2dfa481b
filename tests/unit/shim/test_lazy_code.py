"""Code that is loaded when it is first used, with the node agent's part: no limit is ever
exceeded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from soak.code import LazyContainer
from support.effort import SEED, times

USES = {1: 150, 3: 60}


@pytest.fixture
def container(tmp_path: Path, layout: dict[str, Any]) -> Iterator[LazyContainer]:
    with LazyContainer(tmp_path) as made:
        yield made


@pytest.mark.parametrize("processes", USES)
def test_what_nvml_says_never_passes_the_limit(processes: int, container: LazyContainer) -> None:
    for seed in range(processes):
        container.start(seed + 1, USES[processes])
    refused = container.finish()
    assert container.over == 0, refused


@pytest.mark.parametrize("processes", [1, 2])
def test_nor_does_it_when_a_charge_ends_behind_which_code_came(
    processes: int, container: LazyContainer
) -> None:
    for seed in range(processes):
        container.start(seed + 1, 120 // processes, "hide")
    refused = container.finish()
    assert container.over == 0, refused


def test_nor_does_it_where_processes_are_killed(container: LazyContainer) -> None:
    container.work(SEED, kills=times(8))
    assert container.over == 0
