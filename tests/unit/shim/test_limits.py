"""The limits change while programs run."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from mizar_core.carve import CardLimit
from mizar_nodeagent.regions import limits_file

from .shell import OUT_OF_MEMORY, SUCCESS, Shell
from .slot import MIB, Card, Slot, card_uuid


def agent_writes(slot: Slot, memory: int) -> None:
    """The limit of card 0, written by the node agent's own code."""
    identity = limits_file.ContainerIdentity("team-a", "pod", "uid", "main", "slot")
    limit = CardLimit(card_uuid(0), memory, 10000, "Hard", "None")
    limits_file.write(slot.limits, identity, [limit], {})


@pytest.fixture
def agent(slot: Slot) -> Callable[[int], None]:
    """The same, over a slot whose first limits the node agent has written too."""
    agent_writes(slot, 64 * MIB)
    return lambda memory: agent_writes(slot, memory)


def sees_at_once(shell: Shell, command: str, number: int, change: Callable[[], None]) -> bool:
    """Whether everything that the program, which was in a loop, began after the change heeded
    it."""
    shell(command, number)
    change()
    changed = time.monotonic_ns()
    return shell.answer().detail < changed


def test_a_program_in_a_loop_sees_every_change_at_once(
    env: dict[str, str], agent: Callable[[int], None]
) -> None:
    with Shell(env) as shell:
        assert shell.alloc(40 * MIB) == SUCCESS
        for total in (128, 48, 32, 2, 64):
            new = total * MIB
            assert sees_at_once(shell, "await", new, lambda new=new: agent(new))
            assert shell("figures") == (min(40 * MIB, new), new)


def test_a_loop_of_allocations_is_stopped_and_let_on_at_once(
    env: dict[str, str], agent: Callable[[int], None]
) -> None:
    with Shell(env) as shell:
        assert shell.alloc(40 * MIB) == SUCCESS
        assert sees_at_once(shell, "press", 24 * MIB, lambda: agent(60 * MIB))
        assert sees_at_once(shell, "press", 24 * MIB, lambda: agent(64 * MIB))


def test_below_present_use_nothing_new_until_enough_is_freed(
    env: dict[str, str], agent: Callable[[int], None]
) -> None:
    with Shell(env) as one, Shell(env) as other:
        assert one.alloc(20 * MIB) == other.alloc(20 * MIB) == SUCCESS
        agent(30 * MIB)
        for size in (512, 2 * MIB, 31 * MIB):
            assert one.alloc(size) == other.alloc(size) == OUT_OF_MEMORY
        assert one("figures") == other("figures") == (30 * MIB, 30 * MIB)
        assert one("free", 0).code == SUCCESS
        assert one.alloc(12 * MIB) == OUT_OF_MEMORY
        assert one.alloc(10 * MIB) == SUCCESS
        assert other("figures") == (30 * MIB, 30 * MIB)


def test_no_limit_at_all_leaves_nothing(env: dict[str, str], agent: Callable[[int], None]) -> None:
    with Shell(env) as shell:
        assert shell.alloc(20 * MIB) == SUCCESS
        agent(0)
        assert shell.alloc(512) == OUT_OF_MEMORY
        assert shell("figures").code == shell("figures").detail  # all of the card is used


def test_up_and_down_take_effect_at_once(env: dict[str, str], slot: Slot) -> None:
    with Shell(env) as shell:
        assert shell.alloc(48 * MIB) == SUCCESS
        slot.set_limits(Card(card_uuid(0), 128 * MIB))
        assert shell.free_and_total() == (80 * MIB, 128 * MIB)
        assert shell.alloc(80 * MIB) == SUCCESS
        slot.set_limits(Card(card_uuid(0), 32 * MIB))
        assert shell.free_and_total() == (0, 32 * MIB)
        assert shell.alloc(512) == OUT_OF_MEMORY
        shell("free", 1)
        assert shell.alloc(512) == OUT_OF_MEMORY  # 48 are still above 32
        shell("free", 0)
        assert shell.alloc(32 * MIB) == SUCCESS


def test_what_others_took_on_the_containers_behalf(env: dict[str, str], slot: Slot) -> None:
    """NVML reports 16 MiB more for the container than the shim knows of."""
    with Shell(env) as shell:
        slot.set_live(0, "unaccounted_bytes", 16 * MIB, size=8)
        assert shell.alloc(49 * MIB) == OUT_OF_MEMORY
        assert shell("figures") == (16 * MIB, 64 * MIB)
        assert shell.alloc(48 * MIB) == SUCCESS
        for far_too_much in (1 << 40, (1 << 64) - 1):
            slot.set_live(0, "unaccounted_bytes", far_too_much, size=8)
            assert shell("figures") == (64 * MIB, 64 * MIB)
            assert shell.alloc(512) == OUT_OF_MEMORY


def damage(slot: Slot) -> None:
    """A change of card 0's limit that is not what its checksum says."""
    body = bytearray(slot.limits.read_bytes())
    body[16] += 2
    body[1024 + 64 + 6] = 0xFF
    with slot.limits.open("r+b") as file:
        file.write(body)


def test_a_damaged_change_leaves_the_last_good_one(env: dict[str, str], slot: Slot) -> None:
    with Shell(env) as shell:
        assert shell.alloc(1 * MIB) == SUCCESS
        damage(slot)
        assert shell.free_and_total() == (62 * MIB, 64 * MIB)


def test_a_damaged_change_leaves_devices_their_cards(env: dict[str, str], slot: Slot) -> None:
    """Also devices that no call has asked about since the last good limits."""
    with Shell(env) as shell:
        assert shell("use", 1).code == SUCCESS
        slot.set_limits(*slot.cards)
        assert shell.alloc(4 * MIB) == SUCCESS
        damage(slot)
        assert shell("use", 0).code == SUCCESS
        assert shell.alloc(4 * MIB) == SUCCESS
        assert slot.used(0) == slot.used(1) == 4 * MIB


def test_a_card_is_added(env: dict[str, str], slot: Slot) -> None:
    with Shell(env) as shell:
        assert shell("use", 2).code == OUT_OF_MEMORY
        slot.set_limits(*slot.cards, Card(card_uuid(2), 16 * MIB))
        assert shell("use", 2).code == SUCCESS
        assert shell.alloc(16 * MIB) == SUCCESS
        assert slot.used(2) == 16 * MIB


def test_oversubscription_shows_the_limit_not_the_card(env: dict[str, str], slot: Slot) -> None:
    slot.set_limits(Card(card_uuid(0), 1 << 40, memory_mode=1))
    with Shell(env) as shell:
        assert shell.free_and_total() == (1 << 40, 1 << 40)
    slot.set_limits(Card(card_uuid(0), 1 << 40))
    with Shell(env) as shell:
        assert shell.free_and_total() == (1 << 34, 1 << 34)  # the fake card's own 16 GiB
