"""The preferred devices, against an exhaustive search over small clusters."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from mizar_core.device_ids import card_of, device_ids
from mizar_core.models import Profile
from mizar_core.preferred_allocation import preferred
from support.effort import effort

SHAPES = [Profile(devices=2, cards=1), Profile(devices=4, cards=2), Profile(devices=4, cards=1)]


@st.composite
def requests(draw: st.DrawFn):  # type: ignore[no-untyped-def]
    """Up to three shadow pods of one shape, some devices held, a request that can be met."""
    shape = draw(st.sampled_from(SHAPES))
    shadows = [("team-a", f"shadow-{letter}") for letter in "abc"[: draw(st.integers(1, 3))]]
    devices = [one for key in shadows for one in device_ids(*key, shape.devices)]
    held = draw(st.sets(st.sampled_from(devices), max_size=len(devices) - 1))
    free = [one for one in devices if one not in held]
    size = draw(st.integers(1, len(free)))
    fixed = draw(st.lists(st.sampled_from(free), max_size=min(size, 2), unique=True))
    return dict.fromkeys(shadows, shape), held, draw(st.permutations(free)), fixed, size


def _spread(chosen, shapes) -> tuple[int, int]:  # type: ignore[no-untyped-def]
    shadows = {(one.namespace, one.shadow) for one in chosen}
    cards = {(one.shadow, card_of(one.index, shapes[one.namespace, one.shadow])) for one in chosen}
    return len(shadows), len(cards)


@effort(20)
@given(requests())
def test_fewest_shadow_pods_and_cards(request) -> None:  # type: ignore[no-untyped-def]
    shapes, held, free, fixed, size = request
    chosen = preferred(free, fixed, size, shapes, held)
    assert len(chosen) == len(set(chosen)) == size
    assert set(fixed) <= set(chosen) <= set(free)
    others = [set(some) for some in combinations(free, size) if set(fixed) <= set(some)]
    fewest_shadows = min(_spread(some, shapes)[0] for some in others)
    assert _spread(chosen, shapes)[0] == fewest_shadows
    if fewest_shadows == 1:
        assert _spread(chosen, shapes) == min(_spread(some, shapes) for some in others)


@effort(20)
@given(requests(), st.lists(st.integers(0, 1), min_size=6, max_size=6))
def test_one_numa_node_where_that_takes_no_more_cards(request, nodes) -> None:  # type: ignore[no-untyped-def]
    shapes, held, free, fixed, size = request

    def numa(device):  # type: ignore[no-untyped-def]
        shape = shapes[device.namespace, device.shadow]
        return (nodes["abc".index(device.shadow[-1]) * 2 + card_of(device.index, shape)],)

    def spread(chosen):  # type: ignore[no-untyped-def]
        return (*_spread(chosen, shapes), len({numa(one) for one in chosen}))

    chosen = preferred(free, fixed, size, shapes, held, numa)
    others = [set(some) for some in combinations(free, size) if set(fixed) <= set(some)]
    best = min(map(spread, others))
    if best[0] == best[2] == 1:
        assert spread(chosen) == best


@effort(14)
@given(requests(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_makes_no_difference(request, random) -> None:  # type: ignore[no-untyped-def]
    shapes, held, free, fixed, size = request
    shuffled = random.sample(free, len(free))
    assert preferred(free, fixed, size, shapes, held) == preferred(
        shuffled, list(reversed(fixed)), size, shapes, sorted(held)
    )


@effort(14)
@given(requests())
def test_an_idle_shadow_pod_is_not_woken_without_need(request) -> None:  # type: ignore[no-untyped-def]
    shapes, held, free, fixed, size = request
    if next(iter(shapes.values())).cards > 1:
        return
    free_in = {shadow: [one for one in free if one.shadow == shadow] for _, shadow in shapes}
    used = {one.shadow for one in fixed} or {one.shadow for one in held}
    if any(len(free_in[shadow]) >= size for shadow in used):
        chosen = {one.shadow for one in preferred(free, fixed, size, shapes, held)}
        assert chosen <= used
