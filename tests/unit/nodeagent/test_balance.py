"""Whose windows become longer, and for whom that would only be others' loss."""

from hypothesis import given
from hypothesis import strategies as st

from mizar_core.carve import WHOLE_CARD
from mizar_core.compute import TILT_MOST
from mizar_nodeagent.compute.balance import LOOK_NS, STEP, Balance

PERIOD = 33_000_000
LOOKS = 60


class Card:
    """Containers that get, of each moment, the part of their windows that they can use."""

    def __init__(self, **rates: int) -> None:
        self.balance = Balance()
        self.rates = rates
        self.charged = dict.fromkeys(rates, 0)
        self.now = 0
        self.see()

    def see(self) -> bool:
        return self.balance.see(self.now, self.rates, self.charged, PERIOD)

    def window(self, name: str) -> float:
        """Its part of the period, as the plan would have it."""
        parts = {one: rate * (WHOLE_CARD + self.tilt(one)) for one, rate in self.rates.items()}
        return parts[name] / sum(parts.values())

    def tilt(self, name: str) -> int:
        return self.balance.tilt(name)

    def go_on(self, lost: float, looks: int = LOOKS, **uses: float) -> None:
        """Each loses so much of the time, whatever its window; and has a use for a part of it."""
        for _ in range(looks):
            self.now += LOOK_NS
            for name in self.rates:
                part = (self.window(name) - lost) * uses.get(name, 1.0)
                self.charged[name] += int(part * LOOK_NS)
            self.see()

    def got(self, name: str) -> float:
        """Of what it is due, lately."""
        before = self.charged[name]
        self.go_on(0.01, looks=1)
        return (self.charged[name] - before) / LOOK_NS / self.rates[name] * WHOLE_CARD


def test_a_short_window_that_loses_more_of_its_length_becomes_longer() -> None:
    card = Card(few=3000, many=7000)
    card.go_on(0.01)
    assert card.tilt("few") > 0 > card.tilt("many")
    assert abs(card.got("few") - card.got("many")) < 0.005


def test_nobody_is_asked_to_plan_anew_for_nothing() -> None:
    card = Card(one=5000, other=5000)
    card.go_on(0.01)
    assert card.tilt("one") == card.tilt("other") == 0
    assert not card.see()


def test_who_does_not_use_its_window_gets_no_longer_one() -> None:
    card = Card(idler=3000, other=7000)
    card.go_on(0.0, idler=0.5)
    assert card.tilt("idler") == 0
    assert card.tilt("other") == 0


def test_who_stops_using_its_window_loses_what_it_had_more() -> None:
    card = Card(idler=3000, other=7000)
    card.go_on(0.02)
    more = card.tilt("idler")
    card.go_on(0.02, looks=4 * LOOKS, idler=0.3)
    assert more > 10 * STEP
    assert abs(card.tilt("idler")) < STEP


def test_others_than_before_begin_level() -> None:
    card = Card(few=3000, many=7000)
    card.go_on(0.02)
    card.rates = {"few": 3000, "third": 7000}
    card.charged["third"] = 0
    card.see()
    assert card.tilt("few") == card.tilt("third") == 0


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 1 << 64)), max_size=20),
    st.integers(0, 1 << 40),
)
def test_nothing_that_is_said_tilts_by_more_than_an_eighth(
    said: list[dict[str, int]], period: int
) -> None:
    balance, rates = Balance(), {"a": 1000, "b": 0, "c": 9000}
    for number, charged in enumerate(said):
        balance.see(number * LOOK_NS, rates, dict.fromkeys(rates, 0) | charged, period)
        assert all(abs(balance.tilt(name)) <= TILT_MOST for name in rates)
