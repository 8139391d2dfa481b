"""The shim on a card that is as unkind as real ones may be: simgpu.machine.HARSH."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.waiting import PATIENCE_S, wait_for
from unit.simgpu.harness import compile_snippets

from .shell import SUCCESS, Shell
from .test_simulated_card import CONTEXT, LIMIT, Container

SHARES = [0, 20]
"""Percent of the card: 0 for one whose time is not metered."""


def run(container: Container, snippet: str) -> None:
    """One of the simulated driver's own tests. Raises AssertionError, TimeoutExpired."""
    command = [str(compile_snippets()), snippet]
    done = subprocess.run(
        command, env=container.env, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(params=SHARES)
def container(
    request: pytest.FixtureRequest, tmp_path: Path, layout: dict[str, Any]
) -> Iterator[Container]:
    made = Container(tmp_path, layout, "harsh", request.param)
    yield made
    made.machine.close()


def test_a_full_queue_of_one_thread_holds_up_no_other(container: Container) -> None:
    """The other has to work before the queue can get shorter."""
    run(container, "crowded")


def test_an_error_that_stays_costs_its_context_only(container: Container) -> None:
    """What the context held is free again, and can be allocated."""
    run(container, "an_error_of_a_kernel_stays_until_its_context_ends")
    with Shell(container.env) as shell:
        wait_for("the whole limit", lambda: _can_have(shell, LIMIT - CONTEXT))


def test_what_the_driver_cannot_give_in_one_piece_is_not_charged(container: Container) -> None:
    """The memory is within the limit, but scattered over the card."""
    card = container.machine.cards[0]
    with Shell(container.env) as shell:
        assert _can_have(shell, LIMIT - CONTEXT)
        container.machine.state.set_number(card.index, "scattered_bytes", card.total)
        assert not _can_have(shell, LIMIT // 2)
        container.machine.state.set_number(card.index, "scattered_bytes", 0)
        assert _can_have(shell, LIMIT - CONTEXT)


def _can_have(shell: Shell, size: int) -> bool:
    """Whether that many bytes can be allocated; they are freed again."""
    given = shell("alloc", size)
    if given.code == SUCCESS:
        assert shell("free", given.detail).code == SUCCESS
    return given.code == SUCCESS
