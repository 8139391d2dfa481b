"""Who is content with little of its share, and who only seems so."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from mizar_nodeagent.compute.appetite import CALM_LOOKS, LOOK_NS, Appetite

SHARE = 5000


class Eater:
    """A container of half a card, looked at again and again."""

    def __init__(self) -> None:
        self.appetite = Appetite()
        self.now = self.charged = self.waited = 0
        self.look(0, 0)

    def look(self, used: float, waited: float) -> int | None:
        """It used and waited for such parts of the time since the last look; what it needs."""
        self.now += LOOK_NS
        self.charged += int(used * LOOK_NS)
        self.waited += int(waited * LOOK_NS)
        self.appetite.see(self.now, self.charged, self.waited, SHARE)
        return self.appetite.need

    def looks(self, used: Iterable[float], waited: float = 0.0) -> int | None:
        return [self.look(one, waited) for one in used][-1]


def test_at_first_it_wants_all_it_can_have() -> None:
    eater = Eater()
    assert eater.looks([0.05] * (CALM_LOOKS - 1)) is None


def test_who_uses_little_for_a_second_needs_twice_of_it_at_most() -> None:
    eater = Eater()
    assert eater.looks([0.05] * CALM_LOOKS) == 2 * SHARE // 8
    assert eater.looks([0.11] * CALM_LOOKS) == SHARE // 2


def test_what_trembles_changes_nothing() -> None:
    eater = Eater()
    eater.looks([0.05] * CALM_LOOKS)
    needs = {eater.look(used, 0) for used in (0.05, 0.04, 0.055, 0.035, 0.06)}
    assert needs == {2 * SHARE // 8}


def test_one_look_of_much_work_is_enough_to_have_it_all() -> None:
    eater = Eater()
    eater.looks([0.05] * CALM_LOOKS)
    assert eater.look(0.3, 0) is None
    assert eater.looks([0.05] * (CALM_LOOKS - 1)) is None


def test_who_waits_for_what_it_uses_is_not_content() -> None:
    eater = Eater()
    assert eater.looks([0.01] * 20, waited=0.95) is None
    eater.looks([0.05] * CALM_LOOKS)
    assert eater.look(0.05, 0.8) is None


def test_time_in_which_it_is_idle_says_nothing() -> None:
    eater = Eater()
    eater.looks([0.05] * (CALM_LOOKS - 1))
    for _ in range(30):
        eater.appetite.pause()
        assert eater.look(0, 0) is None
    assert eater.looks([0.05]) is not None
    eater.appetite.pause()
    assert eater.appetite.need is not None, "it wakes as it fell asleep"


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=40))
def test_whatever_is_written_it_is_kept_half_its_share_at_most(
    figures: list[tuple[int, int]],
) -> None:
    appetite = Appetite()
    for turn, (charged, waited) in enumerate(figures):
        appetite.see(turn * LOOK_NS, charged, waited, SHARE)
        assert appetite.need is None or 0 < appetite.need <= SHARE // 2
