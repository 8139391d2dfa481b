"""The limits change while programs run."""

from __future__ import annotations

from .shell import OUT_OF_MEMORY, SUCCESS, Shell
from .slot import MIB, Card, Slot, card_uuid


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
    """NVML says that the container holds 16 MiB more than it knows of."""
    with Shell(env) as shell:
        slot.set_live(0, "unaccounted_bytes", 16 * MIB, size=8)
        assert shell.alloc(49 * MIB) == OUT_OF_MEMORY
        assert shell.alloc(48 * MIB) == SUCCESS


def test_a_damaged_change_leaves_the_last_good_one(env: dict[str, str], slot: Slot) -> None:
    with Shell(env) as shell:
        assert shell.alloc(1 * MIB) == SUCCESS
        body = bytearray(slot.limits.read_bytes())
        body[16] += 2
        body[1024 + 64 + 6] = 0xFF
        with slot.limits.open("r+b") as file:
            file.write(body)
        assert shell.free_and_total() == (62 * MIB, 64 * MIB)


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
