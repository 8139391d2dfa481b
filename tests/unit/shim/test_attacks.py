"""Ways to get more than is allowed, on a card that notices when it holds too much."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
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


EAGER = ["modules", "libraries", "modules_of_a_context"]
"""Measured, for which there may be no neighbour: shim/README.md."""


@pytest.fixture(scope="module")
def container(
    tmp_path_factory: pytest.TempPathFactory, layout: dict[str, Any]
) -> Iterator[Container]:
    with Container(tmp_path_factory.mktemp("beside")) as made:
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, layout: dict[str, Any]) -> Iterator[Container]:
    with Container(tmp_path_factory.mktemp("alone"), neighbour=False) as made:
        yield made


def test_every_attack_is_tried(layout: dict[str, Any]) -> None:
    listed = subprocess.run([BUILD / "tests" / "attack", "list"], capture_output=True, text=True)
    assert sorted(listed.stdout.split()) == sorted(ATTACKS + EAGER)


def check(attack: str, container: Container, **env: str) -> None:
    container.forget_the_dead()
    container.watch()
    try:
        run("attack", attack, env=container.env | env)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *container.books()])) from None
    assert container.machine.over(0) == (0, 0)


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_card_never_holds_more_than_the_limit(attack: str, container: Container) -> None:
    check(attack, container)


@pytest.mark.parametrize("attack", EAGER)
def test_nor_does_it_where_code_comes_as_a_whole(attack: str, alone: Container) -> None:
    check(attack, alone, CUDA_MODULE_LOADING="EAGER")
