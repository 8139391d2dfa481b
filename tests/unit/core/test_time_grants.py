"""How much of a card's time each container may have, example by example; the property tests say
what always holds."""

from dataclasses import replace

import pytest

from mizar_core.models import ComputeMode
from mizar_core.time_grants import Sharer, TimeGrant, Window, allowed_share, grants


def hard(name: str, share: int, **more: object) -> Sharer:
    return replace(Sharer(name, "Hard", share, busy=True), **more)  # type: ignore[arg-type]


def soft(name: str, share: int, **more: object) -> Sharer:
    return replace(hard(name, share), mode="Soft", **more)  # type: ignore[arg-type]


def weighted(name: str, share: int, **more: object) -> Sharer:
    return replace(hard(name, share), mode="Weighted", **more)  # type: ignore[arg-type]


def spare(*card: Sharer) -> dict[str, int]:
    """What each Soft container may borrow."""
    granted = grants(card)
    return _whole({one.name: granted[one.name].spare_share for one in card if one.mode == "Soft"})


def rates(*card: Sharer) -> dict[str, int]:
    granted = grants(card)
    assert all(type(grant.active_weight) is int for grant in granted.values())
    return _whole({one.name: allowed_share(one, granted[one.name]) for one in card})


def _whole(found: dict[str, int]) -> dict[str, int]:
    """Assert that grants are whole numbers, since they are written into integers of the limits."""
    assert all(type(one) is int for one in found.values())
    return found


class TestBorrowing:
    def test_what_is_left_goes_by_shares(self) -> None:
        card = hard("h", 2000), soft("a", 1000), soft("b", 3000)
        assert spare(*card) == {"a": 1000, "b": 3000}

    def test_a_hard_container_takes_nothing_of_what_is_lent(self) -> None:
        """This holds whatever the container's priority."""
        card = hard("h", 2000, priority=5), soft("a", 1000), soft("b", 3000)
        assert spare(*card) == {"a": 1000, "b": 3000}

    def test_those_without_a_share_divide_the_card_while_its_owners_sleep(
        self,
    ) -> None:
        card = hard("h", 2001, busy=False), soft("a", 0), soft("b", 0)
        assert spare(*card) == {"a": 5000, "b": 5000}

    @pytest.mark.parametrize("mode", ["None", "Hard", "Soft", "Weighted"])
    @pytest.mark.parametrize("need", [None, 1])
    def test_those_without_a_share_are_paused_while_an_owner_works(
        self, mode: ComputeMode, need: int | None
    ) -> None:
        """Whatever their priority, and however little the owner needs."""
        owner, borrower = hard("h", 2000, mode=mode, need=need), soft("a", 0, priority=5)
        alone = grants([owner])
        assert grants([owner, borrower]) == alone | {"a": TimeGrant(paused=True)}
        assert grants([owner, replace(borrower, busy=False)])["a"].paused
        asleep = replace(owner, busy=False, need=None)
        assert grants([asleep, borrower])["a"] == TimeGrant(spare_share=10000)

    def test_parts_are_rounded_down(self) -> None:
        assert spare(soft("a", 1), soft("b", 2), hard("h", 6996)) == {"a": 1000, "b": 2000}
        assert spare(soft("a", 1), soft("b", 2), hard("h", 6998)) == {"a": 999, "b": 1999}

    def test_those_of_a_higher_priority_come_first(self) -> None:
        card = soft("a", 1000), soft("b", 2000, priority=1), soft("c", 1000, priority=1)
        assert spare(*card) == {"a": 0, "b": 4000, "c": 2000}

    def test_what_weights_have_is_not_lent(self) -> None:
        """A weight of 3,000 beside 3,000 of others has half of the card."""
        card = soft("a", 3000), weighted("w", 3000)
        assert spare(*card) == {"a": 2000}
        assert rates(*card) == {"a": 5000, "w": 5000}

    def test_a_container_that_needs_little_leaves_the_rest_to_borrowers(self) -> None:
        assert spare(soft("a", 2000), hard("h", 5000, need=300)) == {"a": 7700}

    @pytest.mark.parametrize("need", [0, 1, 300])
    def test_a_container_that_needs_little_is_granted_what_it_would_have_if_it_wanted_all(
        self, need: int
    ) -> None:
        assert spare(soft("a", 2000, need=need)) == {"a": 8000}

    def test_the_others_never_lend(self) -> None:
        grant = TimeGrant(spare_share=1000)
        assert allowed_share(hard("h", 2000), grant) == 2000
        assert allowed_share(soft("s", 2000), grant) == 3000


class TestWeights:
    def test_the_card_is_divided_by_them(self) -> None:
        assert rates(weighted("a", 1000), weighted("b", 3000)) == {"a": 2500, "b": 7500}

    def test_beside_others_each_has_its_part_rounded_down(self) -> None:
        card = hard("h", 2000), weighted("a", 1000), weighted("b", 3000)
        assert rates(*card) == {"h": 2000, "a": 1666, "b": 5000}

    def test_beside_who_needs_little_they_share_the_rest(self) -> None:
        card = hard("h", 9000, need=5000), weighted("a", 1000), weighted("b", 3000)
        granted = grants(card)
        assert granted["a"].active_weight == granted["b"].active_weight == 8000
        assert allowed_share(card[1], granted["a"]) == 1250

    def test_of_a_card_that_needs_take_whole_there_is_a_tenth(self) -> None:
        card = hard("h", 9000, need=9999), weighted("a", 1000)
        assert grants(card)["a"].active_weight == 10_000
        assert rates(*card)["a"] == 1000

    def test_the_whole_is_rounded_up(self) -> None:
        """So the parts never add up to more than there is."""
        card = hard("h", 9000, need=7), weighted("a", 1000), weighted("b", 2000)
        assert grants(card)["a"].active_weight == 3003

    def test_a_tiny_weight_has_something(self) -> None:
        assert allowed_share(weighted("a", 1), TimeGrant(active_weight=1_000_000)) == 1


def period(first: Sharer, *others: Sharer) -> int:
    window = grants([first, *others])[first.name].window
    assert window is not None
    return window.period


def granted(period: int) -> TimeGrant:
    return TimeGrant(window=Window(1000, 0, period))


class TestPeriods:
    """The possible periods: 20, 25, 33.3, 50 and 100 ms, then 200, 250, 333.3 and 500."""

    @pytest.mark.parametrize(
        ("shares", "longest_us", "period_us"),
        [
            ((5000, 5000), 0, 20_000),
            # Ten milliseconds of the smaller container's window.
            ((6000, 4000), 0, 25_000),
            ((9000, 1000), 0, 100_000),
            ((9900, 100), 0, 100_000),
            # Twenty pieces of work, up to a tenth of a second.
            ((5000, 5000), 1000, 20_000),
            ((5000, 5000), 1001, 25_000),
            ((5000, 5000), 2500, 50_000),
            ((5000, 5000), 2501, 100_000),
            ((5000, 5000), 9000, 100_000),
            # Two and a half pieces in the smaller container's window, up to half a second.
            ((5000, 5000), 20_000, 100_000),
            ((5000, 5000), 20_001, 200_000),
            ((5000, 5000), 40_000, 200_000),
            ((5000, 5000), 90_000, 500_000),
            ((8000, 2000), 8_000, 100_000),
            ((8000, 2000), 8_001, 200_000),
        ],
    )
    def test_windows_hold_what_is_to_be_done_in_them(
        self, shares: tuple[int, int], longest_us: int, period_us: int
    ) -> None:
        one, two = (hard(name, share) for name, share in zip("ab", shares, strict=True))
        assert period(replace(one, longest_ns=longest_us * 1000), two) == period_us
        assert period(one, replace(two, longest_ns=longest_us * 1000)) == period_us

    @pytest.mark.parametrize(
        ("present_us", "then_us"),
        [
            (20_000, 25_000),
            (25_000, 25_000),
            (33_333, 33_333),
            (50_000, 50_000),
            # As long as four of it, or none that there is.
            (100_000, 25_000),
            (200_000, 25_000),
            (40_000, 25_000),
        ],
    )
    def test_a_period_is_kept_until_a_quarter_would_do(self, present_us: int, then_us: int) -> None:
        one, two = hard("a", 6000, grant=granted(present_us)), hard("b", 4000)
        assert period(one, two) == then_us
        assert period(two, one) == then_us

    def test_of_several_the_longest_is_kept(self) -> None:
        assert period(
            hard("a", 6000, grant=granted(33_333)), hard("b", 4000, grant=granted(50_000))
        ) == (50_000)
