"""How often the agent looks at what owners do."""

import asyncio
from collections.abc import Collection, Mapping

from mizar_nodeagent.spot.detectors.card_processes import CardLoads, ProcessLoads
from mizar_nodeagent.spot.owner_polling import EVERY_S, LENT_S, OwnerPolling
from support import virtual_time
from unit.nodeagent.makers import card

CARD, SECOND = card(1).uuid, card(2).uuid


class Cards:
    """NVML, which answers at once. `asked`: when and for which cards, in virtual seconds."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, frozenset[str]]] = []

    async def loads(self, uuids: Collection[str]) -> Mapping[str, ProcessLoads]:
        now = asyncio.get_running_loop().time()
        self.asked.append((round(now, 3), frozenset(uuids)))
        return {}


class Lender:
    """Watches two cards. `unseen`: those whose owners only NVML shows; `at`: when it was asked for
    them, `usage`: for the usage files, in virtual seconds."""

    def __init__(self, unseen: Collection[str] = (), watched: Collection[str] = (CARD, SECOND)):
        self.unseen, self._watched = frozenset(unseen), frozenset(watched)
        self.at: list[float] = []
        self.usage: list[float] = []

    def watched(self) -> frozenset[str]:
        return self._watched

    def unseen_by_slicer(self) -> frozenset[str]:
        self.at.append(round(asyncio.get_running_loop().time(), 3))
        return self.unseen

    def look_at_usage(self) -> None:
        self.usage.append(round(asyncio.get_running_loop().time(), 3))

    def look_at_processes(self, loads: CardLoads) -> None: ...


def polled(lender: Lender, seconds: float) -> list[tuple[float, frozenset[str]]]:
    """The queries of NVML in that many seconds."""
    cards = Cards()

    async def run() -> None:
        polling = asyncio.create_task(OwnerPolling(lender, cards).run())  # type: ignore[arg-type]
        await asyncio.sleep(seconds)
        polling.cancel()
        await asyncio.wait({polling})

    virtual_time.run(run())
    return cards.asked


def test_owners_with_the_shim_are_looked_at_twice_a_second_and_nothing_wakes_between() -> None:
    """Each time that the agent wakes costs processor time that the pods could use."""
    lender = Lender()
    times = [0.0, EVERY_S, 2 * EVERY_S]
    assert polled(lender, 2 * EVERY_S + 0.01) == [(at, {CARD, SECOND}) for at in times]
    assert lender.usage == lender.at == times


def test_owners_without_the_shim_are_looked_at_ten_times_a_second() -> None:
    between = [(round(number * LENT_S, 3), {SECOND}) for number in range(1, 5)]
    asked = polled(Lender(unseen=[SECOND]), EVERY_S + 0.01)
    assert asked == [(0.0, {CARD, SECOND}), *between, (EVERY_S, {CARD, SECOND})]


def test_a_card_that_is_lent_no_more_is_left_alone_at_once() -> None:
    lender = Lender(unseen=[SECOND])
    asked = iter(({SECOND}, {SECOND}, frozenset()))
    lender.unseen_by_slicer = lambda: next(asked, frozenset())  # type: ignore[method-assign,assignment]
    assert [at for at, _ in polled(lender, 2 * EVERY_S + 0.01)] == [0.0, LENT_S, EVERY_S, 1.0]


def test_where_no_card_is_watched_nothing_is_asked() -> None:
    lender = Lender(watched=[])
    assert polled(lender, 2 * EVERY_S) == lender.usage == []
