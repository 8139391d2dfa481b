"""The steward: deals out the time of shared cards among the containers that want it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mizar_core import time_slicing
from mizar_kube.logs import get_logger
from mizar_nodeagent.audit.unaccounted import Unaccounted
from mizar_nodeagent.compute.seat import Container, Desk, Seat
from mizar_nodeagent.errors import RegionDamaged

__all__ = ["Container", "Steward"]

log = get_logger(__name__)

QUICK_S: Final = 0.010
"""Between two rounds of cards whose time is wanted by several."""
SWEEP_S: Final = 0.100
"""Between two rounds of all cards, and two looks for containers that came or went."""
AGAIN_S: Final = 1.0
CHECK_NS: Final = 1_000_000_000
"""Between two looks whether a path still leads to the file that is open."""
NS: Final = 1_000_000_000


class Card:
    """The containers of one card."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = seats
        self._dealt: tuple[list[tuple[bool, int | None]], int] | None = None
        metered = [seat for seat in seats if seat.mode != "None"]
        # A Hard one alone has its share, whatever it does.
        self._matters = len(metered) > 1 or any(seat.mode != "Hard" for seat in metered)

    @property
    def has_new_code(self) -> bool:
        """Whether somebody used code for the first time since the round before."""
        return any(seat.new_code for seat in self._seats)

    @property
    def is_hot(self) -> bool:
        """Whether it should be looked at again soon."""
        return self._matters and any(seat.busy for seat in self._seats)

    def round(self, now: int) -> None:
        """Look at everybody, and tell them what follows if anything changed."""
        for seat in self._seats:
            seat.look(now)
            seat.beat()
        states = [seat.state for seat in self._seats]
        longest = max((seat.longest_ns for seat in self._seats if seat.busy), default=0)
        seen = (states, longest)
        if seen != self._dealt:
            self._deal()
            self._dealt = seen

    def _deal(self) -> None:
        told = time_slicing.grants(seat.sharer for seat in self._seats)
        for seat in self._seats:
            seat.tell(told.get(seat.name, time_slicing.TimeGrant()))


class Steward:
    """Goes round the containers that `containers` names, in a thread of its own.

    `containers` is asked ten times a second, from that thread. `clock`: nanoseconds of
    CLOCK_MONOTONIC. `new_code` is called from there as well, when code may have come to a card of
    which no container's account tells. A steward knows nothing when it starts: whatever an earlier
    one wrote is planned anew.
    """

    def __init__(
        self,
        containers: Callable[[], Sequence[Container]],
        clock: Callable[[], int] = time.monotonic_ns,
        new_code: Callable[[], None] = lambda: None,
    ) -> None:
        self._containers = containers
        self._new_code = new_code
        self._clock = clock
        self._stopped = threading.Event()
        self._desks: dict[Container, Desk] = {}
        self._refused: set[Container] = set()
        self._cards: list[Card] = []
        self._hot: list[Card] = []
        self._sweep_at = 0
        self._check_at = 0
        self._last_round = clock()
        self._outside: Mapping[tuple[str, str], Unaccounted] = {}

    def round(self, now_ns: int | None = None) -> float:
        """Look at every container once and write what follows; seconds until the next round."""
        now = self._clock() if now_ns is None else now_ns
        sweeping = now >= self._sweep_at
        if sweeping:
            self._sweep(now)
        looked_at = self._cards if sweeping else self._hot
        for card in looked_at:
            card.round(now)
        if any(card.has_new_code for card in looked_at):
            self._new_code()
        self._hot = [card for card in self._cards if card.is_hot]
        self._last_round = now
        return QUICK_S if self._hot else SWEEP_S

    def run(self) -> None:
        """Rounds until `stop`, whatever happens: without one, nobody may borrow."""
        while not self._stopped.is_set():
            try:
                self._pause(self.round())
            except Exception:
                log.exception("dealing out GPU time starts again from nothing")
                self.close()
                self._pause(AGAIN_S)
        self.close()

    async def serve(self) -> None:
        """`run` in a thread of its own, until cancelled."""
        try:
            await asyncio.to_thread(self.run)
        finally:
            self._stopped.set()

    def set_unaccounted(self, unaccounted: Mapping[tuple[str, str], Unaccounted]) -> None:
        """Tell containers, within a tenth of a second, what their own accounts leave out, by
        container and card. For any thread."""
        self._outside = unaccounted

    @property
    def idle_for(self) -> float:
        """Seconds since the last round, for the health probe."""
        return (self._clock() - self._last_round) / NS

    def start(self) -> None:
        """`run` in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="steward", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what was written stays."""
        self._stopped.set()
        self._thread.join()

    def close(self) -> None:
        """Let go of every file."""
        for desk in self._desks.values():
            desk.close()
        self._desks, self._cards, self._hot = {}, [], []
        self._sweep_at = 0

    def _pause(self, seconds: float) -> None:
        if seconds > QUICK_S:
            self._stopped.wait(seconds)
        else:
            time.sleep(seconds)  # costs half of what a wait does that can be ended

    def _sweep(self, now: int) -> None:
        """Those who came and went, and limits that were written."""
        self._sweep_at = now + int(SWEEP_S * NS)
        wanted = self._containers()
        changed = self._part(wanted, now)
        changed |= self._admit(wanted)
        for desk in self._desks.values():
            changed |= desk.refresh()
        if changed:
            self._seat()
        self._tell_outside()

    def _tell_outside(self) -> None:
        known = self._outside
        for desk in self._desks.values():
            for uuid, seat in desk.seats.items():
                if found := known.get((desk.container.name, uuid)):
                    seat.set_unaccounted(found)

    def _part(self, wanted: Sequence[Container], now: int) -> bool:
        """Close what is not wanted any more or has become another file."""
        keep = set(wanted)
        gone = [one for one in self._desks if one not in keep]
        if now >= self._check_at:
            self._check_at = now + CHECK_NS
            gone += [one for one in keep & self._desks.keys() if not self._desks[one].is_current()]
            self._refused.clear()
        for one in gone:
            self._desks.pop(one).close()
        return bool(gone)

    def _admit(self, wanted: Sequence[Container]) -> bool:
        new = [one for one in wanted if one not in self._desks and one not in self._refused]
        for one in new:
            try:
                self._desks[one] = Desk(one)
            except (OSError, RegionDamaged) as error:
                log.info("no GPU time is dealt out to a slot", slot=one.name, error=error)
                self._refused.add(one)
        return bool(new)

    def _seat(self) -> None:
        """Who sits at which card."""
        cards: dict[str, list[Seat]] = {}
        for desk in self._desks.values():
            for uuid, seat in desk.seats.items():
                cards.setdefault(uuid, []).append(seat)
        self._cards = [Card(seats) for seats in cards.values()]
        self._hot = []
