"""Invariant 1: what is carved from a card never exceeds the card times its scaling."""

from collections import Counter
from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from mizar_core.card import Card
from mizar_core.carve import CardLimit, Carve, limits_for
from mizar_core.errors import CarveRefused
from mizar_core.quantities import WHOLE_CARD
from property.core.strategies import cards_of, carves


def _limits(carve: Carve, cards: tuple[Card, ...], indices: list[int]) -> tuple[CardLimit, ...]:
    try:
        return limits_for(carve, cards, indices)
    except CarveRefused:
        assume(False)
        raise


@given(carves(), st.data())
def test_limits_of_all_containers_stay_within_each_card(carve: Carve, data: st.DataObject) -> None:
    cards = cards_of(carve)
    owner = data.draw(st.lists(st.integers(0, 3), min_size=carve.devices, max_size=carve.devices))
    memory: Counter[str] = Counter()
    cores: Counter[str] = Counter()
    for container in set(owner):
        held = [index for index, who in enumerate(owner) if who == container]
        for limit in _limits(carve, cards, held):
            memory[limit.uuid] += limit.memory_bytes
            cores[limit.uuid] += limit.core_share
    for card in cards:
        assert memory[card.uuid] <= card.memory_bytes * Fraction(carve.memory_scaling)
        assert cores[card.uuid] <= WHOLE_CARD * Fraction(carve.core_scaling)


@given(carves())
def test_limits_say_nothing_of_cards_that_are_not_held(carve: Carve) -> None:
    cards = cards_of(carve)
    for index in range(carve.devices):
        (limit,) = _limits(carve, cards, [index])
        assert limit.uuid == cards[index // (carve.devices // carve.cards)].uuid
        assert limit.memory_bytes > 0 and 0 < limit.core_share <= WHOLE_CARD


@given(carves())
def test_more_devices_are_never_less(carve: Carve) -> None:
    cards = cards_of(carve)
    per_card = carve.devices // carve.cards
    steps = [_limits(carve, cards, list(range(held)))[0] for held in range(1, per_card + 1)]
    assert [one.memory_bytes for one in steps] == sorted(one.memory_bytes for one in steps)
    assert [one.core_share for one in steps] == sorted(one.core_share for one in steps)


@given(carves())
def test_the_annotation_brings_the_carve_back(carve: Carve) -> None:
    assert Carve.from_json(carve.to_json()) == carve
