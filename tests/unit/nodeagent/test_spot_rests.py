"""How long a card rests when its owners take it back again and again."""

from collections.abc import Iterator

import pytest

from mizar_core.models import Spot
from mizar_nodeagent.spot.loan import FLAPPING_S, REST_MAX_S, CardFacts, CardLoan, CardState
from mizar_nodeagent.spot.owner_events import Activity, OwnerEvent, PodIdentity, Source

CARD = "GPU-1"
WHO = PodIdentity("team-a", "owner", "uid")


class Flapping:
    """A card that is borrowed whenever possible, and whose owner works so long after that."""

    def __init__(self, idle_s: int, works_after_s: float) -> None:
        self.now = 1000.0
        self.rule = Spot(enabled=True, idle_after_seconds=idle_s)
        self.works_after_s = works_after_s
        self.loan = CardLoan(CARD)
        self._hear(Activity.ALIVE)
        self._sleep()

    def rests(self, count: int) -> Iterator[float]:
        """Seconds of each rest; 0 where the card is lent as soon as its owner has slept."""
        for _ in range(count):
            self._lend()
            self.now += self.works_after_s
            self._hear(Activity.BUSY, Source.USAGE)
            self._step(borrowed=True)
            assert self.loan.state is CardState.RECLAIMING
            self._sleep()
            self._step()
            began = self.now
            self._until_lendable()
            yield max(0.0, self.now - began - self.rule.idle_after_seconds)

    def _lend(self) -> None:
        self._until_lendable()
        self._step(borrowed=True)
        assert self.loan.state is CardState.LENT

    def _until_lendable(self) -> None:
        self._step()
        while (seconds := self.loan.wakes_in(self._facts(), self.now)) is not None:
            self.now += seconds
            self._step()
        assert self.loan.state is CardState.LENDABLE

    def _sleep(self) -> None:
        for source in Source:
            self._hear(Activity.IDLE, source)

    def _hear(self, activity: Activity, source: Source | None = None) -> None:
        event = OwnerEvent(activity, WHO, frozenset({CARD}), self.now, source, agrees=True)
        self.loan = self.loan.heard(event)

    def _step(self, borrowed: bool = False) -> None:
        self.loan = self.loan.stepped(self._facts(borrowed), self.now)

    def _facts(self, borrowed: bool = False) -> CardFacts:
        return CardFacts(complete=True, rule=self.rule, borrowed=borrowed)


@pytest.mark.parametrize(
    ("idle_s", "grows"),
    [(10, [0, 20, 40, 80]), (60, [0, 120, 240, 480]), (200, [0, 400, 600, 600])],
)
def test_rests_grow_and_stay_long_while_the_owner_goes_on(idle_s: int, grows: list[int]) -> None:
    """The owner always works a little: the count of its wake-ups does not fade during the rests."""
    rests = list(Flapping(idle_s, works_after_s=1).rests(20))
    wanted = [max(0, one - idle_s) for one in grows]
    assert rests[:4] == pytest.approx(wanted, abs=1)
    assert rests[4:] == pytest.approx(wanted[-1:] * 16, abs=1)
    assert max(rests) < REST_MAX_S


def test_an_owner_that_works_now_and_then_does_not_make_rests_grow() -> None:
    rests = list(Flapping(60, works_after_s=FLAPPING_S / 2).rests(20))
    assert max(rests) == pytest.approx(120 - 60, abs=1)


def test_what_was_lent_for_long_is_lent_at_once_the_next_time() -> None:
    assert not any(Flapping(10, works_after_s=FLAPPING_S).rests(5))
