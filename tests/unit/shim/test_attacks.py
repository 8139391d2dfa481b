"""Ways to get more than is allowed, on a card that notices when it holds too much."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from soak.container import Container

from .conftest import run
from .slot import BUILD

ATTACKS = [
    "plain_behind_work",
    "pitched_behind_work",
    "pooled_behind_work",
    "context_behind_work",
    "crumbs",
    "crumbs_of_many_sizes",
    "arrays_of_a_page",
    "crumbs_between_pointers",
    "crumbs_between_arrays",
    "modules",
    "libraries",
    "modules_of_a_context",
    "graphs_that_leave_memory",
    "graphs_of_graphs",
    "small_graphs",
    "graphs_launched_late",
    "captures",
    "captures_of_the_thread",
    "destroyed_pool",
    "hoard",
    "small_pooled",
    "handles",
    "contexts",
    "many_contexts",
    "reset",
]


@pytest.fixture
def container(tmp_path: Path, layout: dict[str, Any]) -> Iterator[Container]:
    with Container(tmp_path) as made:
        yield made


def test_every_attack_is_tried(layout: dict[str, Any]) -> None:
    listed = subprocess.run([BUILD / "tests" / "attack", "list"], capture_output=True, text=True)
    assert listed.stdout.split() == ATTACKS


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_card_never_holds_more_than_the_limit(attack: str, container: Container) -> None:
    run("attack", attack, env=container.env)
    assert container.machine.over(0) == (0, 0)
