"""A container that needs little of its share, and one that only seems to."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from mizar_nodeagent.time_slicing.usage_estimate import CALM_SAMPLES, SAMPLE_NS, UsageEstimate

SHARE = 5000


class Eater:
    """A container of half a card, sampled again and again."""

    def __init__(self) -> None:
        self.estimate = UsageEstimate()
        self.now = self.charged = self.waited = 0
        self.sample(0, 0)

    def sample(self, used: float, waited: float) -> int | None:
        """The container used and waited for these parts of the time since the last sample; returns
        its need then."""
        self.now += SAMPLE_NS
        self.charged += int(used * SAMPLE_NS)
        self.waited += int(waited * SAMPLE_NS)
        self.estimate.add(self.now, self.charged, self.waited, SHARE)
        return self.estimate.need

    def samples(self, used: Iterable[float], waited: float = 0.0) -> int | None:
        return [self.sample(one, waited) for one in used][-1]


def test_at_first_it_wants_all_it_can_have() -> None:
    eater = Eater()
    assert eater.samples([0.05] * (CALM_SAMPLES - 1)) is None


def test_a_container_that_uses_little_for_a_second_needs_twice_of_it_at_most() -> None:
    eater = Eater()
    assert eater.samples([0.05] * CALM_SAMPLES) == 2 * SHARE // 8
    assert eater.samples([0.11] * CALM_SAMPLES) == SHARE // 2


def test_a_container_that_uses_nothing_for_a_moment_is_calm() -> None:
    """It waits for a launch that has not begun, say."""
    eater = Eater()
    assert eater.samples([0.05, 0] * (CALM_SAMPLES // 2)) == 2 * SHARE // 8
    assert eater.sample(0, 0) is not None


def test_what_trembles_changes_nothing() -> None:
    eater = Eater()
    eater.samples([0.05] * CALM_SAMPLES)
    needs = {eater.sample(used, 0) for used in (0.05, 0.04, 0.055, 0.035, 0.06)}
    assert needs == {2 * SHARE // 8}


def test_one_sample_of_much_work_is_enough_to_have_it_all() -> None:
    eater = Eater()
    eater.samples([0.05] * CALM_SAMPLES)
    assert eater.sample(0.3, 0) is None
    assert eater.samples([0.05] * (CALM_SAMPLES - 1)) is None


def test_a_container_that_waits_for_what_it_uses_is_not_content() -> None:
    eater = Eater()
    assert eater.samples([0.01] * 20, waited=0.95) is None
    eater.samples([0.05] * CALM_SAMPLES)
    assert eater.sample(0.05, 0.8) is None


def test_time_in_which_it_is_idle_says_nothing() -> None:
    eater = Eater()
    eater.samples([0.05] * (CALM_SAMPLES - 1))
    for _ in range(30):
        eater.estimate.pause()
        assert eater.sample(0, 0) is None
    assert eater.samples([0.05]) is not None
    eater.estimate.pause()
    assert eater.estimate.need is not None, "it wakes as it fell asleep"


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=40))
def test_whatever_is_written_it_is_kept_half_its_share_at_most(
    figures: list[tuple[int, int]],
) -> None:
    estimate = UsageEstimate()
    for turn, (charged, waited) in enumerate(figures):
        estimate.add(turn * SAMPLE_NS, charged, waited, SHARE)
        assert estimate.need is None or 0 < estimate.need <= SHARE // 2
