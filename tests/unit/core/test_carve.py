"""Limits of a container, example by example."""

import pytest

from mizar_core.card import Card
from mizar_core.carve import CardLimit, Carve, limits_for
from mizar_core.errors import CarveRefused, DeviceIDRefused

GIB = 2**30
TWO_CARDS = (Card("GPU-a", 16 * GIB), Card("GPU-b", 40 * GIB))


def _carve(devices: int = 4, cards: int = 2, **more: object) -> Carve:
    words = {"resource": "team-a.mizar.share/gpu.4", "pool": "default", "quota": "quota"}
    return Carve.model_validate({"devices": devices, "cards": cards, **words, **more})


def _figures(limits: tuple[CardLimit, ...]) -> list[tuple[str, int, int]]:
    return [(one.uuid, one.memory_bytes // GIB, one.core_share) for one in limits]


def test_one_device_is_its_share_of_one_card() -> None:
    assert _figures(limits_for(_carve(), TWO_CARDS, [0])) == [("GPU-a", 8, 5000)]
    assert _figures(limits_for(_carve(), TWO_CARDS, [3])) == [("GPU-b", 20, 5000)]


def test_devices_on_one_card_add_up() -> None:
    assert _figures(limits_for(_carve(), TWO_CARDS, [1, 0])) == [("GPU-a", 16, 10000)]


def test_devices_on_two_cards_give_two_limits() -> None:
    both = limits_for(_carve(), TWO_CARDS, [2, 1])
    assert _figures(both) == [("GPU-a", 8, 5000), ("GPU-b", 20, 5000)]


def test_memory_per_device_is_taken_as_said_up_to_an_even_share() -> None:
    small = _carve(memory=3 * GIB)
    assert _figures(limits_for(small, TWO_CARDS, [0, 1])) == [("GPU-a", 6, 10000)]
    large = _carve(memory=9 * GIB)
    assert _figures(limits_for(large, TWO_CARDS, [0])) == [("GPU-a", 8, 5000)]
    assert _figures(limits_for(large, TWO_CARDS, [2])) == [("GPU-b", 9, 5000)]


def test_scaling_stretches_the_card_but_compute_never_beyond_it() -> None:
    carve = _carve(memoryScaling="1.5", coreScaling="2")
    assert _figures(limits_for(carve, TWO_CARDS, [0])) == [("GPU-a", 12, 10000)]
    assert _figures(limits_for(carve, TWO_CARDS, [0, 1])) == [("GPU-a", 24, 10000)]


def test_modes_come_from_the_isolation() -> None:
    carve = _carve(isolation={"memory": "Oversubscribe", "compute": "Soft"})
    (limit,) = limits_for(carve, TWO_CARDS, [0])
    assert (limit.memory_mode, limit.compute_mode) == ("Oversubscribe", "Soft")


def test_nobody_gets_a_limit_of_nothing() -> None:
    """Invariant 7: a shim could not tell it from "no limit"."""
    carve = _carve(devices=256, cards=1, coreScaling="0.01")
    with pytest.raises(CarveRefused, match="raise the pool's scaling"):
        limits_for(carve, TWO_CARDS[:1], [0])


@pytest.mark.parametrize(
    ("memory", "scaling", "figures"),
    [(256, "0.03", (1, 1)), (255, "0.03", None), (256, "0.02", None), (511, "0.03", (1, 1))],
)
def test_the_least_that_there_is_is_a_limit(
    memory: int, scaling: str, figures: tuple[int, int] | None
) -> None:
    """A byte, and a basis point, are limits."""
    carve = _carve(devices=256, cards=1, coreScaling=scaling)
    if figures is None:
        with pytest.raises(CarveRefused):
            limits_for(carve, [Card("GPU-a", memory)], [0])
    else:
        (limit,) = limits_for(carve, [Card("GPU-a", memory)], [0])
        assert (limit.memory_bytes, limit.core_share) == figures


def test_contradictions_are_refused() -> None:
    with pytest.raises(CarveRefused, match="holds 1 cards instead of 2"):
        limits_for(_carve(), TWO_CARDS[:1], [0])
    with pytest.raises(CarveRefused, match="named twice"):
        limits_for(_carve(), TWO_CARDS, [0, 0])
    with pytest.raises(DeviceIDRefused, match="there are 4"):
        limits_for(_carve(), TWO_CARDS, [4])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"devices":"2"}'])
def test_a_damaged_annotation_is_refused(text: str) -> None:
    with pytest.raises(CarveRefused, match=r"annotation .* is damaged"):
        Carve.from_json(text)


def test_cards_that_do_not_divide_are_refused() -> None:
    text = _carve().to_json().replace('"cards":2', '"cards":3')
    with pytest.raises(CarveRefused, match="3 cards do not divide 4 devices"):
        Carve.from_json(text)


def test_a_carve_offers_no_foreign_resource() -> None:
    _carve().check_tenant("team-a")
    _carve(resource="mizar.share/gpu.4", tenancy="Shared").check_tenant("team-a")
    with pytest.raises(CarveRefused, match="does not belong to the namespace team-b"):
        _carve().check_tenant("team-b")
    for resource in ("team-a.mizar.share/gpu.2", "nvidia.com/gpu"):
        with pytest.raises(CarveRefused, match="is no resource of 4 devices"):
            _carve(resource=resource).check_tenant("team-a")
